"""deny.toml without a network: what the rules refuse is found, whatever the crate is called."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("dependencies", ROOT / ".ci/dependencies.py")
dependencies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dependencies)

CRATES_IO = "https://github.com/rust-lang/crates.io-index"
RULES = {
    "licenses": {"allow": ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]},
    "bans": {"skip": [{"crate": "old@1.0.0", "reason": "its asker"}]},
    "sources": {"allow-registry": [CRATES_IO]},
}


def crate(name, version="1.0.0", license="MIT", source=f"registry+{CRATES_IO}"):
    return {"name": name, "version": version, "license": license, "source": source}


def found(*crates):
    return dependencies.problems([crate("old"), *crates], RULES)


def test_crates_that_keep_to_the_rules_pass():
    assert (
        found(crate("a"), crate("b", "2.0.0", "MIT/Apache-2.0"), crate("own", source=None), crate("old", "2.0.0")) == []
    )


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only/MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0", True),
        ("MIT AND GPL-3.0-only OR Apache-2.0", True),  # AND binds tighter
        ("GPL-3.0-only OR MIT AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT WITH LLVM-exception", False),
        ("Apache-2.0 WITH LLVM-exception AND (GPL-3.0-only OR MIT)", True),
    ],
)
def test_a_licence_is_allowed_where_its_expression_can_be_met(expression, accepted):
    assert dependencies.accepts(expression, RULES["licenses"]["allow"]) is accepted
    assert bool(found(crate("a", license=expression))) is not accepted


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ([crate("a", license=None)], "a@1.0.0: licence None"),
        ([crate("a", license="")], "a@1.0.0: licence ''"),
        ([crate("a", source="git+https://example.org/a")], "a@1.0.0: from git+https://example.org/a"),
        ([crate("a", source="registry+https://example.org")], "a@1.0.0: from registry+https://example.org"),
        ([crate("a"), crate("a", "2.0.0")], "a@1.0.0 and a@2.0.0: one version too many"),
        ([crate("old", "2.0.0"), crate("old", "3.0.0")], "old@2.0.0 and old@3.0.0: one version too many"),
    ],
)
def test_what_breaks_a_rule_is_named(broken, told):
    (line,) = found(*broken)
    assert line.startswith(told)


def test_a_version_that_is_skipped_for_nothing_is_named():
    assert dependencies.problems([crate("a")], RULES) == ["old@1.0.0: deny.toml skips it, and nothing asks for it"]
