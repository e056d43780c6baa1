"""Which tensors get which format: ordered rules of globs, last match wins."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.formats import Format
from octavo.ops import FLOATS
from octavo.tensor import PackedTensor

_KEEP = "keep"


@dataclass(frozen=True)
class Rule:
    """One rule: ``glob`` over names (None: the default selection of :func:`select`) and a format (None: keep)."""

    glob: str | None
    format: Format | None

    def __str__(self) -> str:
        """Return the text of the rule."""
        target = _KEEP if self.format is None else str(self.format)
        return target if self.glob is None else f"{self.glob}={target}"


@dataclass(frozen=True)
class Rules:
    """Ordered rules; the last one that matches a tensor decides, and a tensor that none matches is kept as it is."""

    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, text: str) -> Rules:
        """Read rules separated by ``;``: ``GLOB=FORMAT``, ``GLOB=keep``, or ``FORMAT`` for the default selection.

        ``*`` in a glob matches any characters, dots included; ``?`` one and ``[ab]`` one of a set.
        Raises FormatError naming the rule that is wrong.
        """
        rules = []
        for part in text.split(";"):
            glob, equals, name = (piece.strip() for piece in part.strip().rpartition("="))
            if not name or (equals and not glob):
                raise FormatError(f"recipe {text!r}: {part.strip()!r} is not GLOB=FORMAT, GLOB=keep or FORMAT")
            try:
                rules.append(Rule(glob or None, None if name == _KEEP else Format(name)))
            except FormatError as error:
                hint = "; rules are separated by ';'" if "," in name else ""
                raise FormatError(f"recipe {text!r}: {error}{hint}") from None
        return cls(tuple(rules))

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return "; ".join(str(rule) for rule in self.rules)

    def assign(self, tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Format | None]:
        """Return the format of each tensor, in the order of ``tensors``; None where it is kept.

        Raises FormatError for a rule that matches nothing, naming the nearest tensors.
        """
        assigned: dict[str, Format | None] = dict.fromkeys(tensors)
        for rule in self.rules:
            names = select(tensors, rule.glob, everything=rule.format is None)
            assigned.update(dict.fromkeys(names, rule.format))
        return assigned


def select(
    tensors: Mapping[str, Tensor | PackedTensor], glob: str | None = None, *, everything: bool = False
) -> list[str]:
    """Names of the tensors that ``glob`` matches, or of the default selection: 2-D weights, embeddings included.

    Only plain tensors of float32, float16 or bfloat16 count, and 1-D ones (biases, norms) only where ``glob`` names
    them in full; ``everything`` lifts both limits. Raises FormatError where nothing is left, naming the nearest names.
    """
    if glob is None:
        matched = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    else:
        matched = [name for name in tensors if name == glob or fnmatchcase(name, glob)]
    selected = [name for name in matched if everything or _packable(tensors[name], 1 if name == glob else 2)]
    if selected:
        return selected
    rule = "the default selection (2-D weights)" if glob is None else f"rule {glob!r}"
    if matched:
        telling = next((name for name in matched if isinstance(tensors[name], PackedTensor)), matched[0])
        raise FormatError(f"{rule} matches only what cannot be packed: {_kind(telling, tensors[telling])}")
    if glob is None or not tensors:
        raise FormatError(f"{rule} matches no tensor; name tensors with GLOB=FORMAT")
    hint = "; rules are separated by ';'" if "," in glob else ""
    raise FormatError(f"{rule} matches no tensor; nearest names: {', '.join(_nearest(glob, tensors))}{hint}")


def _nearest(glob: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the names that share the longest run of characters with a glob."""
    literal = glob.replace("*", "").replace("?", "").lower()

    def shared(name: str) -> int:
        matcher = difflib.SequenceMatcher(None, literal, name.lower(), autojunk=False)
        return matcher.find_longest_match(0, len(literal), 0, len(name)).size

    return sorted(names, key=shared, reverse=True)[:count]


def _packable(tensor: Tensor | PackedTensor, least_ndim: int) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype in FLOATS and tensor.ndim >= least_ndim


def _kind(name: str, tensor: Tensor | PackedTensor) -> str:
    if isinstance(tensor, PackedTensor):
        return f"{name} is already packed as '{tensor.format}' (octavo unpack comes first)"
    full = "; 1-D tensors are packed where a rule names them in full" if tensor.ndim == 1 else ""
    return f"{name} has dtype {dtype_name(tensor.dtype)} and shape {tuple(tensor.shape)}{full}"


def parse_formats(text: str) -> list[Format]:
    """Read formats separated by commas, such as ``mxint8,fixed8:channel,mse,nf4``: options keep their comma.

    Raises FormatError naming the format that is wrong.
    """
    formats: list[Format] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            continue
        if formats and ":" in str(formats[-1]):
            try:
                formats[-1] = Format(f"{formats[-1]},{piece}")
                continue
            except FormatError:
                pass
        formats.append(Format(piece))
    if not formats:
        raise FormatError("no format given; give one or more, separated by commas")
    return list(dict.fromkeys(formats))


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
