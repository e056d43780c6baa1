"""Accuracy of a model on the polynomial exercise: the one place that measures it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from octavo.data import CharTokenizer
from octavo.errors import ShapeError
from octavo.lab.polynomials.data import CHARACTERS
from octavo.lab.polynomials.tally import Tally

if TYPE_CHECKING:
    from octavo.lab.polynomials.seq2seq import Seq2Seq

BATCH = 512
# Characters of an answer that SymPy is asked about. Right ones have 29; what 96 can say takes it minutes to expand.
_LONGEST = 48


@dataclass(frozen=True)
class EncodedLines:
    """Lines as ids: sources [N, S] and targets [N, T] with the end token, uint8, padded with 0."""

    source: Tensor
    target: Tensor

    @classmethod
    def of(cls, lines: Sequence[str], tokenizer: CharTokenizer) -> EncodedLines:
        """Translate ``left=right`` lines. Raises DataError as the tokenizer."""
        sides = [line.partition("=") for line in lines]
        source, _ = tokenizer.encode([left for left, _, _ in sides], end=False)
        target, _ = tokenizer.encode([right for _, _, right in sides])
        return cls(torch.from_numpy(source), torch.from_numpy(target))

    def part(self, index: int, parts: int) -> EncodedLines:
        """Return every ``parts``-th line from ``index`` on."""
        return EncodedLines(self.source[index::parts], self.target[index::parts])

    def __len__(self) -> int:
        """Lines."""
        return len(self.source)


def exact_match(model: nn.Module, lines: EncodedLines) -> Tensor:
    """Return for each line whether greedy generation gives its target to the last token, ``[N]`` bool, on the CPU."""
    device = next(model.parameters()).device
    right = torch.zeros(len(lines), dtype=torch.bool)
    # Alike lengths together: a batch goes on until its longest row has ended.
    order = (lines.source != 0).sum(1).argsort(stable=True)
    for rows in order.split(BATCH):
        source, target = lines.source[rows].to(device), lines.target[rows].to(device)
        source = source[:, : int((source != 0).sum(1).max().clamp(min=1))]
        tokens, _ = cast("Seq2Seq", model).generate(source)
        width = max(tokens.shape[1], target.shape[1])
        same = _widen(tokens, width) == _widen(target.long(), width)
        right[rows] = same.all(1).cpu()
    return right


def _widen(ids: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(ids, (0, width - ids.shape[1]))


def expander(model: nn.Module, tokenizer: CharTokenizer) -> Callable[[list[str]], list[str]]:
    """Return a function from left sides to right sides that asks ``model``: greedy, in float32, batches of 512."""

    seq2seq = cast("Seq2Seq", model)

    def expand(lefts: list[str]) -> list[str]:
        if not lefts:
            return []
        model.eval()
        device = next(model.parameters()).device
        source = torch.from_numpy(tokenizer.encode(lefts, end=False)[0])
        answers = [""] * len(lefts)
        for rows in (source != 0).sum(1).argsort(stable=True).split(BATCH):
            part = source[rows]
            part = part[:, : int((part != 0).sum(1).max())].to(device)
            for row, answer in zip(rows.tolist(), tokenizer.decode(seq2seq.generate(part)[0].cpu()), strict=True):
                answers[row] = answer
        return answers

    return expand


@dataclass(frozen=True)
class Accuracy:
    """Exact and symbolic accuracy over ``lines`` lines.

    ``exact``: lines answered to the last character. ``equivalent``: lines whose answer SymPy finds equal to the right
    one; None if that was not asked for. ``by_kind``: (exact, lines) of each kind of line. ``wrong``: left side, right
    answer and given answer of each line that was not exact.
    """

    lines: int
    exact: int
    equivalent: int | None
    by_kind: dict[str, tuple[int, int]]
    wrong: list[tuple[str, str, str]]

    @property
    def share(self) -> float:
        """Exact answers over lines."""
        return self.exact / self.lines if self.lines else 0.0

    def symbolic(self) -> Accuracy:
        """Return the same with ``equivalent``: SymPy, which must be installed, compares every wrong answer."""
        equal = sum(_equivalent(right, given) for _, right, given in self.wrong)
        return replace(self, equivalent=self.exact + equal)

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON; of the wrong answers the first 20."""
        return {
            "lines": self.lines,
            "exact": self.exact,
            "exact_share": self.share,
            "equivalent": self.equivalent,
            "by_kind": {name: {"exact": exact, "lines": total} for name, (exact, total) in self.by_kind.items()},
            "wrong": [dict(zip(("left", "right", "given"), item, strict=True)) for item in self.wrong[:20]],
        }


def measure(expand: Callable[[list[str]], Sequence[str]], lines: Sequence[str], *, symbolic: bool = False) -> Accuracy:
    """Ask ``expand`` (left sides to right sides) for all ``left=right`` lines at once and judge the answers.

    ``symbolic``: also let SymPy compare what is not exact; it must be installed.
    Raises ShapeError if the number of answers differs.
    """
    sides = [line.partition("=") for line in lines]
    answers = list(expand([left for left, _, _ in sides]))
    if len(answers) != len(lines):
        raise ShapeError(f"{len(answers)} answers to {len(lines)} lines")
    tally, wrong = Tally(), []
    for (left, _, right), given in zip(sides, answers, strict=True):
        if not tally.add(left, right, given):
            wrong.append((left, right, given))
    accuracy = Accuracy(tally.lines, tally.exact, None, tally.by_kind, wrong)
    return accuracy.symbolic() if symbolic else accuracy


def _equivalent(right: str, given: str) -> bool:
    """Whether SymPy expands the difference of two expressions to 0; what :func:`_expression` refuses is not equal."""
    import sympy

    try:
        return sympy.expand(_expression(right) - _expression(given)) == 0
    except (SyntaxError, ValueError):
        return False


def _expression(text: str) -> Any:
    """Return the SymPy form of sums, products and squares of whole numbers, letters and sin, cos, tan of a letter.

    Made from the syntax tree, which is looked at first: SymPy itself evaluates a text, so that 9**9**9, which a model
    may well answer, would never end. Raises SyntaxError and ValueError for every other text.
    """
    if len(text) > _LONGEST or set(text) - set(CHARACTERS) or re.search("[0-9][a-z]", text):  # 0x1 is Python, too
        raise ValueError(f"not an expression of a line: {text[:_LONGEST]!r}")
    return _build(ast.parse(text, mode="eval").body)


def _build(node: ast.expr) -> Any:
    import sympy

    match node:
        case ast.Constant(value=int(value)):
            return sympy.Integer(value)
        case ast.Name(id=name) if len(name) == 1:
            return sympy.Symbol(name)
        case ast.Call(func=ast.Name(id="sin" | "cos" | "tan" as name), args=[ast.Name() as letter], keywords=[]):
            return getattr(sympy, name)(_build(letter))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _build(left) + _build(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _build(left) - _build(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _build(left) * _build(right)
        # A square of a square is in no line, and a few of them are a polynomial of a thousand terms.
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)) if not _has_power(left):
            return _build(left) ** 2
    raise ValueError(f"not an expression of a line: {ast.unparse(node)!r}")


def _has_power(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Pow) for part in ast.walk(node))
