"""Refuse a tag that is not ``v`` and the version that Cargo.toml states.

python .ci/release/check_tag.py v0.2.0
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(tag: str) -> str | None:
    """Return what is wrong with a tag, None where nothing is."""
    stated = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    if tag == f"v{stated}":
        return None
    return f"error: the tag is {tag!r} and Cargo.toml states {stated}; tag v{stated}, or change the version"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
