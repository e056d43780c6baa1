"""Rules of the linter and what they find: a rule is a record, a finding names tensor, block and byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "suspect"]
PLACES = 3
"""Places that a finding lists of a tensor; it has the count of all."""


@dataclass(frozen=True)
class Rule:
    """What can be wrong with a checkpoint.

    ``severity``: an error makes some reader fail or compute other values; a warning does so under the conditions that
    ``effect`` names; a suspect is a statistic that sound files hardly have. ``defect``: what is wrong. ``effect``: how
    readers take it.
    """

    id: str
    severity: Severity
    defect: str
    effect: str
    repair: str


RULES: dict[str, Rule] = {}
"""All rules by their ids, once the families are imported."""
_SEVERITIES = ("error", "warning", "suspect")


def rule(id: str, severity: Severity, defect: str, effect: str, repair: str) -> Rule:
    """Enter a rule and return it. Raises ValueError where the id is taken."""
    if id in RULES:
        raise ValueError(f"rule {id!r} is entered twice")
    RULES[id] = entered = Rule(id, severity, defect, effect, repair)
    return entered


def all_rules() -> list[Rule]:
    """Return all rules: errors, warnings, suspects, each by their ids."""
    return sorted(RULES.values(), key=lambda one: (_SEVERITIES.index(one.severity), one.id))


@dataclass(frozen=True)
class Place:
    """Where in a tensor: row and block (group along the row), byte from the start of the file, and the value there."""

    offset: int | None = None
    row: int | None = None
    block: int | None = None
    value: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        parts = [
            "" if self.row is None else f"row {self.row}",
            "" if self.block is None else f"block {self.block}",
            "" if self.offset is None else f"byte {self.offset}",
        ]
        text = ", ".join(part for part in parts if part)
        return f"{text}: {self.value}" if self.value else text


@dataclass(frozen=True)
class JsonEdit:
    """A value of a JSON file that is replaced: ``keys`` lead to it; None as the value removes it."""

    file: Path
    keys: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class ByteEdit:
    """Bytes of a file that are replaced."""

    file: Path
    offset: int
    data: bytes


Edit = JsonEdit | ByteEdit


@dataclass(frozen=True)
class Finding:
    """One rule broken by one tensor, or by the whole checkpoint.

    ``subject``: name of the tensor, of the layer, or of a field of the configuration. ``count``: places that are wrong,
    of which ``places`` has the first. ``edits``: the exact repair, where there is one.
    """

    rule: Rule
    subject: str
    text: str
    file: str = ""
    places: tuple[Place, ...] = ()
    count: int = 1
    severity: Severity = "error"
    edits: tuple[Edit, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "rule": self.rule.id,
            "severity": self.severity,
            "subject": self.subject,
            "text": self.text,
            "file": self.file,
            "count": self.count,
            "places": [
                {"row": place.row, "block": place.block, "offset": place.offset, "value": place.value}
                for place in self.places
            ],
            "effect": self.rule.effect,
            "repair": self.rule.repair,
            "fixable": bool(self.edits),
        }


@dataclass
class Findings:
    """Collects findings."""

    listed: list[Finding] = field(default_factory=list)
    _broken: set[tuple[str, str]] = field(default_factory=set, repr=False)

    def add(
        self,
        rule: Rule,
        subject: str,
        text: str,
        *,
        file: str = "",
        places: tuple[Place, ...] | list[Place] = (),
        count: int | None = None,
        severity: Severity | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> None:
        """Add one. ``count``: None for as many as there are places; ``severity``: None for that of the rule."""
        number = max(len(places), 1) if count is None else count
        self._broken.add((rule.id, subject))
        self.listed.append(
            Finding(rule, subject, text, file, tuple(places)[:PLACES], number, severity or rule.severity, edits)
        )

    def of(self, rule: Rule, subject: str) -> bool:
        """Whether a rule is broken by a subject."""
        return (rule.id, subject) in self._broken

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over findings: errors, warnings, suspects, each in the order of discovery."""
        return iter(sorted(self.listed, key=lambda one: _SEVERITIES.index(one.severity)))

    def __len__(self) -> int:
        """Return their number."""
        return len(self.listed)
