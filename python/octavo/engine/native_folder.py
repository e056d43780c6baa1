"""The folder of a model that the native engine loads."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import ContainerError
from octavo.late_binding import late
from octavo.model_folder.weight_files import PACKED_INDEX, held
from octavo.storage.files import path_text


def native_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model folder with the weights of one model in one file.

    Raises ContainerError for other folders, and for files and folders of other packages, with the line that writes
    such a folder.
    """
    folder = Path(path_text(path))
    reader = late("foreign_reader")(folder)
    if reader is not None:
        raise ContainerError(
            f"{folder}: {reader.kind}, and the native engine reads folders: octavo pack {folder} -o FOLDER writes one"
        )
    names = held(folder)
    if len(names) > 1:
        raise ContainerError(f"{folder}: holds {' and '.join(names)}; keep the one that is meant")
    if names == [PACKED_INDEX]:
        raise ContainerError(
            f"{folder}: its weights are in several files, and the native engine reads one: "
            f"octavo.save_model(octavo.load_model({str(folder)!r}), 'ONE') writes it"
        )
    return folder
