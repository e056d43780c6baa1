"""The folder of a model that the native engine loads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.errors import ContainerError, OctavoWarning
from octavo.late_binding import late
from octavo.model_folder.quantization_entry import packing_entry, refuse_packing
from octavo.model_folder.weight_files import PACKED_INDEX, held
from octavo.storage.files import path_text
from octavo.storage.named_models import resolved
from octavo.storage.reading import shown


@contextmanager
def native_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give the path of a model folder that the engine reads: of files and folders of other packages a temporary one.

    It is removed at the end, so that the engine loads meanwhile all that it needs. What the folder has not as the file
    has it is warned of; the caller of the caller is named. Errors name ``path``. Raises ContainerError for folders with
    the weights of several models, for packed weights in several files, for pickles, for a package that no reader knows,
    for a file that is none, and as the reader of the file does.
    """
    named = resolved(path_text(path))
    reader = late("foreign_reader")(named)
    if reader is None:
        refuse_packing(named, packing_entry(named) or None)
        yield _one_model(named)
        return
    with late("foreign_folder")(reader.open(named), packed=True) as (folder, notes):
        for note in notes:
            # Above this one are contextlib and the method that loads.
            warnings.warn(f"{named}: {note}", OctavoWarning, stacklevel=4)
        yield folder


def _one_model(folder: Path) -> Path:
    if folder.is_file():
        raise ContainerError(
            f"{folder}: a file that is no GGUF file; accepted are those, and the folder of a model: try {folder.parent}"
        )
    names = held(folder)
    pickle = next((file.name for file in sorted(folder.glob("*.bin"))), None)
    if not names and pickle is not None:
        raise ContainerError(
            f"{folder}: its weights are in {shown(pickle)}, a pickle, which is a program; transformers writes "
            "safetensors: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(ANOTHER)"
        )
    if len(names) > 1:
        raise ContainerError(f"{folder}: holds {' and '.join(names)}; keep the one that is meant")
    if names == [PACKED_INDEX]:
        raise ContainerError(
            f"{folder}: its weights are in several files, and the native engine reads one: "
            f"octavo.save_model(octavo.load_model({str(folder)!r}), 'ONE') writes it"
        )
    return folder
