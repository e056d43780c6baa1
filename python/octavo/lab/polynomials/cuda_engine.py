"""The engine on a GPU: the face of :class:`octavo.lab.polynomials.Engine`, PyTorch computes, Rust translates lines.

Lines that are wrong are rare: the native engine, which is loaded beside, says what is wrong with each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from octavo import _core
from octavo.data.tokenizer import Texts
from octavo.errors import DataError, SettingError
from octavo.lab.polynomials.export import load_model
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq import HybridSeq2Seq
from octavo.lab.polynomials.seq2seq.cuda_graphs import Graphs
from octavo.lab.polynomials.seq2seq.folded import FoldedHybrid
from octavo.lab.polynomials.seq2seq.fused import FusedHybrid

DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16}
# Rows that are generated together where there are no graphs.
_EAGER = 512
# Lines of a stream that are answered together.
_BLOCK = 1 << 16
_quote = json.JSONEncoder(ensure_ascii=False).encode
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character

Failures = list[tuple[int, str]]


class TorchEngine(Engine):
    """A loaded hybrid model that expands lines greedily; ``Engine.load(device="cuda")`` makes one.

    Threads may share one and take turns; children of ``fork`` cannot use it. Tiles of different sizes run different
    kernels, so an answer may depend on the lines beside it where rounding decides between two tokens.
    """

    _chunk = 1 << 20

    def __init__(self, path: Path, device: torch.device, precision: str = "float", threads: int = 0) -> None:
        """Load and fold the model of a folder. On a processor everything runs eagerly, which is meant for tests."""
        super().__init__(_core._Engine.load(path, "float", "auto", threads), path)
        if (architecture := self.config["architecture"]) != "hybrid":
            raise SettingError(
                f"device is '{device}', architecture {architecture}: only hybrid runs there; use device='cpu'"
            )
        model, self._tokenizer = load_model(path)
        assert isinstance(model, HybridSeq2Seq)  # it is what the configuration says
        self._device, self._precision = device, precision
        self._generate, self._route = _generator(model, device, precision)
        self._limit, self._alphabet = model.config.max_source, frozenset(self._tokenizer.characters)

    @property
    def precision(self) -> str:
        """``float`` or ``bfloat16``."""
        return self._precision

    @property
    def route(self) -> str:
        """On a GPU ``kernel``, our own, or ``graph``, those of libraries; ``eager`` elsewhere."""
        return self._route

    @property
    def device(self) -> str:
        """The device of the model, such as ``cuda:0``."""
        return str(self._device)

    def _check_beam(self, beam: int) -> int:
        if super()._check_beam(beam) != 1:
            raise SettingError(f"beam is {beam}; device '{self.device}' is greedy only: use beam=1, or device='cpu'")
        return beam

    def _expand(self, rows: list[str], beam: int) -> tuple[list[str], Failures]:
        try:
            return self._texts(rows), []
        except DataError:
            places: tuple[list[int], list[int]] = [], []
            for place, row in enumerate(rows):
                places[0 < len(row) <= self._limit and self._alphabet.issuperset(row)].append(place)
        answers = [""] * len(rows)
        wrong, right = places
        for place, text in zip(right, self._texts([rows[place] for place in right]), strict=True):
            answers[place] = text
        _, failures = self._core.expand([rows[place] for place in wrong], beam)
        return answers, [(wrong[at], reason) for at, reason in failures]

    def _texts(self, lines: Texts) -> list[str]:
        """Return the answers to lines, all in order. Raises DataError for others."""
        ids, lengths = self._tokenizer.encode(lines, self._limit, end=False)
        if not lengths.all():
            raise DataError("empty line")
        return self._tokenizer.decode(self._generate(torch.from_numpy(ids)).numpy())

    def _stream(self, beam: int, form: str) -> AnswerStream:
        return AnswerStream(self, form)


class AnswerStream:
    """Lines on their way, with the methods of the native stream; numbers are counted from 1."""

    def __init__(self, engine: TorchEngine, form: str) -> None:
        """Begin a stream. Raises SettingError for a format that the native stream does not know."""
        _core._EngineStream(engine._core, 1, form)
        self._engine, self._form = engine, form
        self._most = 4 * (engine._limit + 2)  # bytes of a line that are kept; one that has more is too long
        self._waiting: list[bytes | int] = []  # a line, or how many characters one that is too long has
        self._last, self._cut = b"", 0  # the line that has not ended, and its characters that were not kept
        self._number = 1

    def push(self, data: bytes | None) -> None:
        """Take in bytes; None ends the last line."""
        if data is None:
            if self._last:
                self._end(self._last)
            return
        first, *others = data.split(b"\n")
        if not others:
            self._keep(self._last + first)
            return
        self._end(self._last + first)
        self._waiting += [line if len(line) <= self._most else _characters(line) for line in others[:-1]]
        self._keep(others[-1])

    def run(self) -> tuple[int, bytes, Failures]:
        """Answer a block of waiting lines: return their number, the answers as bytes, and what is wrong with which."""
        lines, self._waiting = self._waiting[:_BLOCK], self._waiting[_BLOCK:]
        if not lines:
            return 0, b"", []
        try:
            block = b"\n".join(cast("list[bytes]", lines))  # a number among them is the TypeError
            rights, reasons = self._engine._texts(block + b"\n"), dict[int, str]()
            lefts = block.decode().split("\n") if self._form != "text" else [""] * len(lines)
        except (DataError, TypeError):
            lefts, rights, reasons = self._one_by_one(lines)
        first, self._number = self._number, self._number + len(lines)
        out = [
            _answer(self._form, first + at, left, right, reasons.get(at))
            for at, (left, right) in enumerate(zip(lefts, rights, strict=True))
        ]
        failures = [(first + at, reason) for at, reason in sorted(reasons.items())]
        return len(lines), "".join(out).encode(), failures

    def _one_by_one(self, lines: list[bytes | int]) -> tuple[list[str], list[str], dict[int, str]]:
        """Return lines, answers, and what is wrong with lines by place, for a block of which something is wrong."""
        lefts, reasons, places = [""] * len(lines), dict[int, str](), []
        for at, line in enumerate(lines):
            if isinstance(line, int):
                reasons[at] = f"{line} characters; accepted are 1 to {self._engine._limit}"
                continue
            kept = line if "\r" in self._engine._alphabet else line.removesuffix(b"\r")
            try:
                lefts[at] = kept.decode()
            except UnicodeDecodeError:
                reasons[at] = self._reason(line)
            else:
                places.append(at)
        found, failures = self._engine._expand([lefts[at] for at in places], 1)
        rights = [""] * len(lines)
        for at, right in zip(places, found, strict=True):
            rights[at] = right
        reasons |= {places[at]: reason for at, reason in failures}
        return lefts, rights, reasons

    def _reason(self, line: bytes) -> str:
        """The native engine's error for bytes that are not UTF-8."""
        native = _core._EngineStream(self._engine._core, 1, "text")
        native.push(line + b"\n")
        return native.run()[2][0][1]

    def _end(self, line: bytes) -> None:
        too_long = self._cut or len(line) > self._most
        self._waiting.append(self._cut + _characters(line) if too_long else line)
        self._last, self._cut = b"", 0

    def _keep(self, line: bytes) -> None:
        self._last, rest = line[: self._most], line[self._most :]
        self._cut += _characters(rest)


def load(path: Path, device: torch.device, precision: str, route: str, threads: int) -> TorchEngine:
    """Load a model folder onto a GPU. Raises as :meth:`octavo.lab.polynomials.Engine.load`."""
    if precision not in DTYPES:
        raise SettingError(
            f"precision is {precision!r}; accepted on '{device}' are {', '.join(DTYPES)}; integer runs on 'cpu'"
        )
    if route != "auto":
        raise SettingError(f"route is {route!r}; accepted on '{device}' is auto; the others run on 'cpu'")
    return TorchEngine(path, device, precision, threads)


def _generator(model: HybridSeq2Seq, device: torch.device, precision: str) -> tuple[Callable[[Tensor], Tensor], str]:
    """Return what generates for a model on a device, and the name of its route."""
    if device.type == "cuda" and precision == "bfloat16" and FusedHybrid.takes(model.config, device):
        return Graphs(FusedHybrid(model, device)), "kernel"
    folded = FoldedHybrid(model, DTYPES[precision]).to(device)
    return (Graphs(folded), "graph") if device.type == "cuda" else (_eager(folded), "eager")


def _eager(model: FoldedHybrid) -> Callable[[Tensor], Tensor]:
    """Return generation without graphs, in batches of alike lengths that stop early."""

    def generate(source_NS: Tensor) -> Tensor:
        tokens_NT = torch.zeros((len(source_NS), model.config.max_target), dtype=torch.uint8)
        lengths = (source_NS != 0).sum(1)
        for rows in lengths.argsort(stable=True).split(_EAGER) if len(source_NS) else ():
            found, _ = model.generate(source_NS[rows, : int(lengths[rows].max())])
            tokens_NT[rows, : found.shape[1]] = found.to(torch.uint8)
        return tokens_NT

    return generate


def _characters(text: bytes) -> int:
    return len(text.translate(None, _CONTINUATION))


def _answer(form: str, number: int, left: str, right: str, reason: str | None) -> str:
    """Return the line that answers a line."""
    if form == "json":
        fields = f'"left":{_quote(left)},"right":{_quote(right)}' if reason is None else f'"error":{_quote(reason)}'
        return f'{{"line":{number},{fields}}}\n'
    if reason is not None:
        return "\n"
    return f"{left}={right}\n" if form == "pairs" else f"{right}\n"
