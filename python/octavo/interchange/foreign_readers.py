"""The kinds of files of other packages that are read in the place of model folders. torch is loaded when one is read.

A new kind is one file that makes a :class:`~octavo.interchange.foreign_model.ForeignModel`, and a :class:`Reader` here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.interchange.packing_settings import packing_method
from octavo.storage import file_kinds

if TYPE_CHECKING:
    from torch import nn

    from octavo.interchange.foreign_model import ForeignModel
    from octavo.interchange.stored_weights import FindWeights, LayerWeight
    from octavo.tensors.tensor_entry import TensorEntry

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Reader:
    """A kind of files.

    ``kind``: what such a file is, for messages. ``takes``: whether a path is one. ``open``: its model, tensors unread;
    raises ContainerError for a damaged one. ``contents``: table of contents and metadata, without torch. ``weights``:
    the packed weights by name, without a model; None where a kind gives them in a model alone. ``methods``: values of
    ``quant_method`` by which a folder is one.
    """

    kind: str
    takes: Callable[[Path], bool]
    open: Callable[[Path], ForeignModel]
    contents: Callable[[Path], tuple[list[TensorEntry], dict[str, str]]]
    weights: Callable[[Path], Mapping[str, LayerWeight]] | None = None
    methods: tuple[str, ...] = ()

    def load(self, path: Path, *, mmap: bool) -> nn.Module:
        """Return the model of a file; warn of tensors that were decoded.

        ``mmap``: as for :func:`octavo.load_model`.
        """
        from octavo.interchange.foreign_model import load_foreign_model, tell_decoded

        model, origins = load_foreign_model(self.open(path), mmap=mmap)
        tell_decoded(path, origins)
        return model


def reader_of(path: Path) -> Reader | None:
    """Return what reads a path; None for files and folders of ours and of transformers."""
    return next((reader for reader in READERS if reader.takes(path)), None)


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, by its first bytes."""
    return file_kinds.kind_of_file(path) == file_kinds.GGUF


def _open_gguf(path: Path) -> ForeignModel:
    from octavo.interchange.gguf_model import GgufModel

    return GgufModel.open(path)


def _gguf_contents(path: Path) -> tuple[list[TensorEntry], dict[str, str]]:
    from octavo.interchange.gguf import GgufFile
    from octavo.interchange.gguf_contents import entries_of, metadata_texts

    file = GgufFile(path)
    return entries_of(file), metadata_texts(file)


def _open_compressed_tensors(path: Path) -> ForeignModel:
    from octavo.interchange.compressed_tensors_folder import open_folder

    return open_folder(path)


def _compressed_tensors_contents(path: Path) -> tuple[list[TensorEntry], dict[str, str]]:
    from octavo.interchange.compressed_tensors_contents import contents_of

    return contents_of(path)


def is_packed_by(*methods: str) -> Callable[[Path], bool]:
    """Return what tells whether a path is a folder that a package with one of these names has packed."""

    def takes(path: Path) -> bool:
        return packing_method(path) in methods

    return takes


def _packed_folder(kind: str, methods: tuple[str, ...], find: Callable[[], FindWeights]) -> Reader:
    """Return the reader of folders of a package. ``find``: loads what finds their weights."""

    def open_model(path: Path) -> ForeignModel:
        from pathlib import Path

        from octavo.interchange.layer_packing import open_folder

        return open_folder(Path(path), find())

    def contents(path: Path) -> tuple[list[TensorEntry], dict[str, str]]:
        from pathlib import Path

        from octavo.interchange.layer_packing import contents_of

        return contents_of(Path(path), find())

    def weights(path: Path) -> Mapping[str, LayerWeight]:
        from pathlib import Path

        from octavo.interchange.layer_packing import packing_of

        return packing_of(Path(path), find()).weights

    return Reader(kind, is_packed_by(*methods), open_model, contents, weights, methods)


def _gptq() -> FindWeights:
    from octavo.interchange.gptq_folder import weights_of

    return weights_of


def _awq() -> FindWeights:
    from octavo.interchange.awq_folder import weights_of

    return weights_of


def _modelopt() -> FindWeights:
    from octavo.interchange.modelopt_folder import weights_of

    return weights_of


def _bitsandbytes() -> FindWeights:
    from octavo.interchange.bitsandbytes_folder import weights_of

    return weights_of


def _torchao() -> FindWeights:
    from octavo.interchange.torchao_folder import weights_of

    return weights_of


def _fp8() -> FindWeights:
    from octavo.interchange.fp8_folder import weights_of

    return weights_of


def _gpt_oss() -> FindWeights:
    from octavo.interchange.gpt_oss_folder import weights_of

    return weights_of


READERS = (
    Reader("a GGUF file", is_gguf, _open_gguf, _gguf_contents),
    Reader(
        "a folder of compressed-tensors",
        is_packed_by("compressed-tensors"),
        _open_compressed_tensors,
        _compressed_tensors_contents,
        methods=("compressed-tensors",),
    ),
    _packed_folder("a folder of GPTQ", ("gptq",), _gptq),
    _packed_folder("a folder of AWQ", ("awq",), _awq),
    _packed_folder("a folder of ModelOpt", ("modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed"), _modelopt),
    _packed_folder("a folder of bitsandbytes", ("bitsandbytes",), _bitsandbytes),
    _packed_folder("a folder of torchao", ("torchao",), _torchao),
    _packed_folder("a folder of FP8", ("fp8",), _fp8),
    _packed_folder("a folder of gpt-oss", ("mxfp4",), _gpt_oss),
)
"""All kinds, each with what it is called, found by, read by and listed by."""


def packing_methods() -> list[str]:
    """Return the values of ``quant_method`` that some reader takes."""
    return [method for reader in READERS for method in reader.methods]
