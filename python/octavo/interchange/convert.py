"""Models written as files of other packages: one table of the kinds, each with its writer in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo.errors import FormatError
from octavo.storage.arguments import checks_arguments
from octavo.storage.named_models import resolved
from octavo.storage.outputs import check_output

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar, ConversionReport
    from octavo.recipe import Recipe


class Writer(Protocol):
    """Writes a model to a place that was looked at; the arguments are those of :func:`convert`."""

    def __call__(
        self, source: Path, target: Path, *, recipe: Recipe | None, decode: bool, bar: Bar | None
    ) -> ConversionReport:
        """Return what was written."""


@dataclass(frozen=True)
class Kind:
    """Files of another package.

    ``about``: in a few words. ``is_folder``: whether a model is a folder. ``writer``: loads what writes one.
    """

    about: str
    is_folder: bool
    writer: Callable[[], Writer]


def _gguf() -> Writer:
    from octavo.interchange.gguf_write import write_gguf

    return write_gguf


def _compressed_tensors() -> Writer:
    from octavo.interchange.compressed_tensors_write import write_compressed_tensors

    return write_compressed_tensors


def _onnx() -> Writer:
    from octavo.interchange.onnx_write import write_onnx

    return write_onnx


KINDS = {
    "gguf": Kind("a file of llama.cpp", False, _gguf),
    "compressed-tensors": Kind("a folder of transformers and vLLM", True, _compressed_tensors),
    "onnx-matmulnbits": Kind("weights of MatMulNBits of ONNX Runtime", False, _onnx),
}
"""Kinds of files that are written, by the names that ``octavo convert --to`` takes."""


@checks_arguments
def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    recipe: str | Recipe | None = None,
    decode: bool = False,
    overwrite: bool = False,
    bar: Bar | None = None,
) -> ConversionReport:
    """Write a model as a file or folder of another package: codes and scales are stored in its order.

    Nothing is rounded again. What the kind cannot hold with the same values is refused before anything is written.
    Tensors are read and written one at a time, and the target appears whole or not at all.

    Args:
        path: a folder of transformers or of octavo, a GGUF file, or a folder of another package that is read, such as
            compressed-tensors or GPTQ; ``"minilm"`` and ``"smollm2"`` are models that packages carry.
        out: file or folder to write.
        to: kind of the target, a key of :data:`KINDS`.
        recipe: packs the weights of a float model first, as ``octavo pack``; for programs a text, too.
        decode: write as floats, with the same values, tensors whose format the kind lacks.
        overwrite: replace what is there.
        bar: shows progress.

    Returns:
        Every tensor with its type in the target, and whether it is exact.

    Raises:
        FormatError: for another kind, and for tensors that the kind does not hold; names tensor and way out.
        ModelError: for a model of another class than the kind has.
        ContainerError: for a damaged source, and for a target in it.
        FileExistsError: for a target that is there, without ``overwrite``.

    Example:
        >>> report = convert("smollm2/", "smollm2.gguf", "gguf", recipe="int8:g32")
        >>> all(tensor.exact for tensor in report.tensors)
        True
    """
    if to not in KINDS:
        raise FormatError(f"unknown kind {to!r}; accepted are {', '.join(KINDS)}")
    rules = None
    if recipe is not None:
        from octavo.recipe import Recipe

        rules = Recipe.of(recipe)
    kind, source, target = KINDS[to], resolved(path), Path(out)
    check_output(source, target, is_folder=kind.is_folder, overwrite=overwrite)
    return kind.writer()(source, target, recipe=rules, decode=decode, bar=bar)
