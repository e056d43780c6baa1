"""Selectors: choose layers by type, path or pattern."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from octavo.errors import FormatError
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown

KINDS = ("type", "name", "glob", "regex")
PICKS = ("first", "last")

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Selector:
    """Which layers a rule means.

    ``kind`` ``type``: ``pattern`` is the name of a class, subclasses included. ``name``: a dotted path, exactly.
    ``glob``: ``*`` matches any characters but dots, ``**`` any at all (``a.**.b`` matches ``a.b``, too), ``?`` one
    character but a dot, ``[ab]`` and ``[!ab]`` one of a set. ``regex``: a regular expression that matches all of it.
    ``kind`` None: the default selection, every Linear, Embedding, EmbeddingBag, convolution, transposed convolution
    and Conv1D of transformers.
    ``pick`` ``first`` or ``last``: only that one of the layers selected, in the order of ``named_modules()``.

    A path or pattern is held against the path of the layer (``encoder.0.query``) and the full name of the tensor
    (``encoder.0.query.weight``). Raises FormatError for another kind or pick, and a regular expression that is none.
    """

    kind: str | None = None
    pattern: str = ""
    pick: str | None = None

    def __post_init__(self) -> None:
        """Check kind, pattern and pick."""
        if self.pick is not None and not (isinstance(self.pick, str) and self.pick in PICKS):
            raise FormatError(f"unknown pick {shown(self.pick)}; accepted are {' and '.join(PICKS)}")
        if self.kind is None:
            if self.pattern or self.pick:
                raise FormatError(f"{shown(self.pick or self.pattern)} needs a selector, such as 'last:Linear'")
            return
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise FormatError(f"unknown selector {shown(self.kind)}; accepted are {', '.join(KINDS)}")
        if not isinstance(self.pattern, str) or not self.pattern:
            raise FormatError(f"selector '{self.kind}' needs a pattern, got {shown(self.pattern)}")
        if self.kind in ("glob", "regex"):
            _expression(self.kind, self.pattern)
        if self.kind == "type" and not self.pattern.isidentifier():
            pick = f"{self.pick}:" if self.pick else ""
            raise FormatError(
                f"type {self.pattern!r} is no name of a class, such as 'Linear'; a path is written "
                f"'{pick}glob:{self.pattern}'"
            )

    def __str__(self) -> str:
        """Return the selector as errors name it, such as ``last:type:Linear``."""
        pick = f"{self.pick}:" if self.pick else ""
        return f"{pick}{self.kind}:{self.pattern}" if self.kind else "the default selection"

    @property
    def is_path(self) -> bool:
        """True where names decide, not types."""
        return self.kind in ("name", "glob", "regex")

    @property
    def is_literal(self) -> bool:
        """True for one path written out in full."""
        return self.kind == "name" or (self.kind == "glob" and not _WILD.search(self.pattern))

    @checks_arguments
    def matches_type(self, classes: Collection[str]) -> bool:
        """Tell whether a layer is meant, by its class.

        Args:
            classes: names of the layer's class and its bases.

        Returns:
            True or False.
        """
        return self.kind == "type" and self.pattern in classes

    @checks_arguments
    def matches_path(self, path: str) -> bool:
        """Tell whether a path is meant.

        Args:
            path: of a layer, or full name of a tensor.

        Returns:
            True or False.
        """
        if not self.is_path:
            return False
        if self.kind != "regex" and path == self.pattern:
            return True  # a path may itself hold brackets
        if self.kind == "name":
            return False
        return _expression(self.kind, self.pattern).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _expression(kind: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern if kind == "regex" else _translate(pattern), re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise FormatError(f"{kind} {pattern!r} cannot be read: {error}") from None


def _translate(pattern: str) -> str:
    """Return the regular expression of a glob over dotted paths."""
    parts, place = [], 0
    while place < len(pattern):
        rest = pattern[place:]
        if rest.startswith("**"):
            # Between dots it stands for whole components, none of them included.
            whole = rest.startswith("**.") and (place == 0 or pattern[place - 1] == ".")
            parts.append(r"(?:.*\.)?" if whole else ".*")
            place += 3 if whole else 2
        elif rest[0] == "*":
            parts.append("[^.]*")
            place += 1
        elif rest[0] == "?":
            parts.append("[^.]")
            place += 1
        elif match := re.match(r"\[(!?)(\]?[^\]]*)\]", rest):
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", match[2])
            parts.append(f"[{'^.' if match[1] else ''}{inside}]")
            place += match.end()
        else:
            parts.append(re.escape(rest[0]))
            place += 1
    return "".join(parts)
