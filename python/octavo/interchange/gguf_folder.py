"""GGUF files as model folders: written tensor by tensor, with configuration and tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError
from octavo.interchange.gguf import GgufFile
from octavo.storage import file_kinds, files, folders
from octavo.tensors.tensor_entry import TensorEntry

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.interchange.gguf_model import GgufModel
    from octavo.interchange.gguf_tensors import TensorOrigin
    from octavo.tensors.container import Deferred
    from octavo.tensors.packed_tensor import PackedTensor

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a GGUF file, by its first bytes."""
    return file_kinds.kind_of_file(path) == file_kinds.GGUF


def entries_of(file: GgufFile) -> list[TensorEntry]:
    """Return the table of contents of a file; blocks have the name of their type for a format. torch is not loaded."""
    return [
        TensorEntry(
            tensor.name,
            "plain" if tensor.type.name in _PLAIN else "packed",
            None if tensor.type.name in _PLAIN else tensor.type.name,
            tensor.shape,
            _PLAIN.get(tensor.type.name, "float32"),
            tensor.nbytes,
            8 * tensor.nbytes / tensor.elements,
        )
        for tensor in file.tensors.values()
    ]


def metadata_texts(file: GgufFile) -> dict[str, str]:
    """Return the metadata as texts: JSON for everything but texts."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in file.metadata.items()
    }


@contextmanager
def as_folder(path: str | os.PathLike[str], *, packed: bool) -> Iterator[tuple[Path, list[str]]]:
    """Give a temporary model folder with the model of a GGUF file, and the notes of :class:`Conversion`.

    ``packed``: as for :meth:`Conversion.open`. Errors name the file. Raises as :meth:`Conversion.write`.
    """
    with folders.scratch() as place:
        folder = place / Path(path).stem
        try:
            conversion = Conversion.open(path, packed=packed)
            conversion.write(folder)
            yield folder, conversion.notes
        except OctavoError as error:
            if str(folder) not in str(error):
                raise
            raise type(error)(str(error).replace(str(folder), os.fspath(path))) from error


@dataclass(frozen=True)
class Conversion:
    """A GGUF file as a model folder. ``tensors``: of the folder. ``origins``: of carried and decoded tensors, by name.

    ``files``: texts of the tokenizer's files, and of ``gguf.json``. ``notes``: what was decoded, and why a
    tokenizer was not read.
    """

    subject: GgufModel
    tensors: dict[str, PackedTensor | Deferred]
    origins: dict[str, TensorOrigin]
    files: dict[str, str]
    notes: list[str]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, packed: bool) -> Conversion:
        """Carry over the tensors of a file; floats are read when they are written.

        ``packed``: leave packed what a format holds, else decode everything. Raises as
        :func:`octavo.interchange.gguf_model.load_gguf_model`.
        """
        import torch

        from octavo.interchange.gguf_metadata import NAME, FormerFile
        from octavo.interchange.gguf_model import GgufModel, decoded_sentence
        from octavo.interchange.gguf_tokenizer import tokenizer_files
        from octavo.tensors.container import Deferred

        subject = GgufModel.open(path)
        tensors: dict[str, PackedTensor | Deferred] = {}
        origins: dict[str, TensorOrigin] = {}
        for name, place in subject.places.items():
            carried = None
            if packed:
                carried, origins[place.name] = subject.carried(name)
            later = Deferred(torch.float32, subject.shape(name), partial(_decode_into, subject, name))
            tensors[place.name] = later if carried is None else carried
        files, problem = tokenizer_files(subject.file, subject.positions)
        without_place = [name for name in subject.file.tensors if name not in subject.places]
        files[NAME] = FormerFile.of(subject.file, without_place).text()
        sentences = [decoded_sentence(list(origins.values())), problem and f"no tokenizer: {problem}"]
        return cls(subject, tensors, origins, files, [sentence for sentence in sentences if sentence])

    def write(self, folder: Path, *, overwrite: bool = False) -> Path:
        """Write the folder, which appears whole or not at all; one decoded tensor is in memory at once.

        ``overwrite``: replace the model of a folder that is there. Return the file of weights. Raises as
        :meth:`open`, and FileExistsError.
        """
        from octavo.model_folder.weight_files import PACKED_NAME, PLAIN_NAME, replaced
        from octavo.tensors import container

        name = PACKED_NAME if self.origins else PLAIN_NAME
        metadata = {"format": "pt", **(self._description() if self.origins else {})}
        with folders.whole(folder, owned=replaced(folder, name, *self.files), overwrite=overwrite) as target:
            files.write(target / "config.json", json.dumps(self.subject.config, indent=2) + "\n")
            for file, text in self.files.items():
                files.write(target / file, text)
            container.save(self.tensors, target / name, metadata=metadata)
        return folder / name

    def _description(self) -> dict[str, str]:
        from octavo.model_folder.structure import KEY, describe_packed
        from octavo.tensors.packed_tensor import PackedTensor

        ties = self.subject.ties
        packs = {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, PackedTensor)}
        tied = {name: packs[first] for name, first in ties.items() if first in packs}
        structure = describe_packed(self.subject.skeleton(), {**packs, **tied})
        return {KEY: json.dumps({**structure, "ties": ties})}


def _decode_into(subject: GgufModel, name: str, out: Tensor) -> None:
    out.copy_(subject.decoded(name))
