"""The Rust version that is stated is the one that is needed, everywhere it is stated."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_stated_rust_version_is_one():
    stated = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["rust-version"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((\d+\.\d+) or later\)", readme) == [stated]
    for manifest in sorted(ROOT.glob("rust/*/Cargo.toml")):
        package = tomllib.loads(manifest.read_text(encoding="utf-8"))["package"]
        assert package["rust-version"] == {"workspace": True}, manifest
