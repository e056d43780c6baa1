"""Models of other packages' files as model folders: written tensor by tensor, with configuration and tokenizer."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError
from octavo.interchange.conversion_report import Bar, progress_of
from octavo.model_folder.hf_loading import CONFIG
from octavo.storage import folders

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.interchange.foreign_model import ForeignModel, TensorOrigin
    from octavo.tensors.container import Deferred, DeferredPacked
    from octavo.tensors.packed_tensor import PackedTensor


@contextmanager
def as_folder(subject: ForeignModel, *, packed: bool, bar: Bar | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Give a temporary model folder with the model of a file, and the notes of :class:`Conversion`.

    ``packed``, ``bar``: as for :meth:`Conversion.of`. Errors name the file. Raises as :meth:`Conversion.write`.
    """
    with folders.scratch() as place:
        folder = place / subject.path.stem
        try:
            conversion = Conversion.of(subject, packed=packed, bar=bar)
            conversion.write(folder, bar=bar)
            yield folder, conversion.notes
        except OctavoError as error:
            if str(folder) not in str(error):
                raise
            text = str(error)
            if subject.path.is_file():  # whose configuration is in it
                text = text.replace(str(folder / CONFIG), str(folder))
            raise type(error)(text.replace(str(folder), os.fspath(subject.path))) from error


@dataclass(frozen=True)
class Conversion:
    """The model of a file as a model folder.

    ``tensors``: of the folder. ``origins``: of carried and decoded tensors, by name. ``notes``: what was decoded, and
    what of the file is not in the folder.
    """

    subject: ForeignModel
    tensors: dict[str, DeferredPacked | Deferred]
    origins: dict[str, TensorOrigin]
    notes: list[str]

    @classmethod
    def of(cls, subject: ForeignModel, *, packed: bool, bar: Bar | None = None) -> Conversion:
        """Look at the tensors of a file; they are carried over, or decoded, when they are written.

        ``packed``: leave packed what a format holds, else decode everything. ``bar``: shows progress. Raises as
        :func:`octavo.interchange.foreign_model.load_foreign_model`.
        """
        from octavo.interchange.foreign_model import decoded_sentence
        from octavo.tensors.container import Deferred, DeferredPacked

        subject = subject if packed else subject.as_floats()
        tensors: dict[str, DeferredPacked | Deferred] = {}
        origins: dict[str, TensorOrigin] = {}
        elements = {name: math.prod(subject.shape(name)) for name in subject.names}
        with progress_of(bar if packed else None, "looking", sum(elements.values())) as done:
            for name, place in subject.names.items():
                carried = None
                if packed:
                    carried, origins[place] = subject.carried(name)
                if carried is None:
                    decode = partial(_decode_into, subject, name)
                    tensors[place] = Deferred(subject.dtype(name), subject.shape(name), decode)
                else:
                    tensors[place] = DeferredPacked.of(carried, partial(_carry, subject, name))
                done(name, elements[name])
        sentence = decoded_sentence(list(origins.values()))
        return cls(subject, tensors, origins, [*([sentence] if sentence else []), *subject.notes()])

    def write(self, folder: Path, *, overwrite: bool = False, bar: Bar | None = None) -> Path:
        """Write the folder, which appears whole or not at all; one tensor is in memory at once.

        ``overwrite``: replace the model of a folder that is there. ``bar``: shows progress. Return the file of weights.
        Raises as :meth:`of`, and FileExistsError.
        """
        from octavo.model_folder.weight_files import PACKED_NAME, PLAIN_NAME, replaced
        from octavo.tensors import container

        name = PACKED_NAME if self.origins else PLAIN_NAME
        metadata = {"format": "pt", **(self._description() if self.origins else {})}
        owned = replaced(folder, name, *self.subject.companions())
        with folders.whole(folder, owned=owned, overwrite=overwrite) as target:
            self.subject.write_companions(target)
            with progress_of(bar, "writing", sum(tensor.nbytes for tensor in self.tensors.values())) as done:
                container.save(self.tensors, target / name, metadata=metadata, progress=done)
        return folder / name

    def _description(self) -> dict[str, str]:
        from octavo.model_folder.structure import KEY, describe_packed
        from octavo.tensors.container import DeferredPacked

        ties = dict(self.subject.ties)
        packs = {name: tensor.like for name, tensor in self.tensors.items() if isinstance(tensor, DeferredPacked)}
        tied = {name: packs[first] for name, first in ties.items() if first in packs}
        structure = describe_packed(self.subject.skeleton(), {**packs, **tied})
        return {KEY: json.dumps({**structure, "ties": ties})}


def _carry(subject: ForeignModel, name: str) -> PackedTensor:
    packed = subject.carried(name)[0]
    assert packed is not None  # it was carried before
    return packed


def _decode_into(subject: ForeignModel, name: str, out: Tensor) -> None:
    out.copy_(subject.decoded(name))
