"""Hold the crates to deny.toml without a network: licences, versions, sources. What `cargo deny` checks beside that,
advisories among it, needs a database and runs in the public workflow.

    python .ci/dependencies.py
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def problems(packages: list[dict[str, Any]], rules: dict[str, Any]) -> list[str]:
    """Return what the packages of ``cargo metadata`` break of the rules of deny.toml, a line each."""
    allowed = set(rules["licenses"]["allow"])
    registries = {f"registry+{url}" for url in rules["sources"]["allow-registry"]}
    skipped = {entry["crate"] for entry in rules["bans"]["skip"]}
    found, versions = [], defaultdict(list)
    for package in packages:
        name = f"{package['name']}@{package['version']}"
        versions[package["name"]].append(name)
        if not package["license"] or not accepts(package["license"], allowed):
            found.append(f"{name}: licence {package['license']!r}; deny.toml allows {', '.join(sorted(allowed))}")
        if package["source"] is not None and package["source"] not in registries:
            found.append(f"{name}: from {package['source']}; deny.toml allows {', '.join(sorted(registries))}")
    for several in versions.values():
        if len(kept := [name for name in several if name not in skipped]) > 1:
            found.append(f"{' and '.join(kept)}: one version too many; move what asks for the older, or skip it")
    present = {name for several in versions.values() for name in several}
    found += [f"{name}: deny.toml skips it, and nothing asks for it" for name in sorted(skipped - present)]
    return found


def accepts(expression: str, allowed: Collection[str]) -> bool:
    """Return whether the allowed licences satisfy an SPDX expression; ``/`` is the old spelling of OR."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    place = 0

    def either() -> bool:
        nonlocal place
        result = both()
        while words[place : place + 1] == ["OR"]:
            place += 1
            result = both() or result
        return result

    def both() -> bool:
        nonlocal place
        result = term()
        while words[place : place + 1] == ["AND"]:
            place += 1
            result = term() and result
        return result

    def term() -> bool:
        nonlocal place
        name, place = words[place], place + 1
        if name == "(":
            result, place = either(), place + 1
            return result
        if words[place : place + 1] == ["WITH"]:
            name, place = f"{name} WITH {words[place + 1]}", place + 2
        return name in allowed

    return either()


def main() -> None:
    """Check the workspace."""
    told = subprocess.run(
        ["cargo", "metadata", "--locked", "--all-features", "--format-version", "1"],
        cwd=ROOT, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    packages = json.loads(told.stdout)["packages"]
    found = problems(packages, tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8")))
    if found:
        sys.exit("\n".join(found))
    print(f"{len(packages)} crates: licences, versions and sources are those of deny.toml")


if __name__ == "__main__":
    main()
