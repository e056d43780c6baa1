"""What commands show of a GGUF file: its table of contents and its metadata."""

from __future__ import annotations

import json

from octavo.interchange.gguf import GgufFile
from octavo.tensors.tensor_entry import TensorEntry

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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
