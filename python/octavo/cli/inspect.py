"""``octavo inspect``: lists the tensors of a file or folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption

MOST_SHOWN = 200  # characters of a text in the metadata


def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A safetensors file, packed or not, a GGUF file, a model folder; minilm, smollm2."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Show what a file holds.

    The table has name, format, shape, logical dtype, bytes and bits per element of every tensor, from the header
    alone. Of sparse codes it has the share of zeros and the bytes that dense ones would take. Of a compacted model it
    has the numbers of heads and neurons. A GGUF file has the names of its types for formats, a folder of
    another package, such as GPTQ, how its weights are packed.

    \b
    Examples:
      octavo inspect small.safetensors
      octavo inspect octavo-minilm --json
      octavo inspect smollm2
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.display.numbers import size
    from octavo.interchange.foreign_readers import reader_of
    from octavo.model_folder.model_config import stated_sizes
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.model_folder.weight_tables import entry_dict, entry_table
    from octavo.storage.named_models import resolved

    path = resolved(path)
    source = Checkpoint.open(path)
    reader = reader_of(path)
    if reader is not None:
        (entries, metadata), sizes = reader.contents(path), None
    else:
        entries, metadata, sizes = source.entries(), source.metadata(), stated_sizes(source.folder)
    nbytes, elements = sum(entry.nbytes for entry in entries), sum(math.prod(entry.shape) for entry in entries)
    bits = 8 * nbytes / max(elements, 1)
    if json:
        print_json(
            {
                "path": str(path),
                "tensors": [entry_dict(entry) for entry in entries],
                "bytes": nbytes,
                "elements": elements,
                "bits_per_element": bits,
                "file_bytes": source.nbytes,
                "metadata": metadata,
                **({} if sizes is None else {"sizes": sizes}),
            }
        )
        return
    out = console()
    print_table(out, entry_table(entries))
    packed = sum(entry.format is not None for entry in entries)
    out.print()
    out.print(
        f"{len(entries)} tensors, {packed} packed: {elements:,} elements, {size(nbytes)}, {bits:.4g} bits per element"
    )
    out.print(f"on disk: {size(source.nbytes)} in {', '.join(file.name for file in source.files)}")
    if sizes is not None:
        counts = sizes.get("numbers", {}) if isinstance(sizes, dict) else {}
        told = "; ".join(
            f"{path} {', '.join(f'{name}={value}' for name, value in numbers.items())}"
            for path, numbers in counts.items()
            if isinstance(numbers, dict)
        )
        out.print(f"compacted: {_shown(told or 'neurons alone')}")
    for key, value in sorted(metadata.items()):
        out.print(f"metadata {key}: {_shown(value)}")


def _shown(text: str) -> str:
    """Return a text, or its beginning."""
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}... ({len(text):,} characters, whole with --json)"
