"""``octavo unpack``: back to a file that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import ForceOption, OutOption
from octavo.errors import DTypeError

DTYPES = ("float32", "float16", "bfloat16")


def run(
    path: Annotated[Path, typer.Argument(metavar="IN", help="A packed file, or a folder made by octavo pack.")],
    out: OutOption,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="float32, float16 or bfloat16 for decoded tensors.  [default: the dtype before packing]",
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Decode a packed file to plain safetensors.

    Packed tensors become plain ones of the same name; what was not packed stays as it is. A folder becomes a folder
    with model.safetensors, which transformers loads.

    \b
    Examples:
      octavo unpack small.safetensors -o plain.safetensors
      octavo unpack octavo-minilm -o minilm-again --dtype float16
    """
    if dtype is not None and dtype not in DTYPES:
        raise DTypeError(f"unknown --dtype {dtype!r}; accepted are {', '.join(DTYPES)}")
    import torch

    from octavo.display.console import console, progress
    from octavo.display.numbers import size
    from octavo.folder.pack_checkpoint import unpack_tensors
    from octavo.folder.weight_files import PLAIN_NAME, Checkpoint, check_target, write
    from octavo.quant.unpack_weights import as_in_the_model
    from octavo.tensor import PackedTensor

    source = Checkpoint.open(path)
    check_target(source, out, PLAIN_NAME, force=force)
    tensors = source.tensors()
    with progress("unpacking", sum(tensor.nbytes for tensor in tensors.values())) as done:
        plain = unpack_tensors(tensors, None if dtype is None else getattr(torch, dtype), progress=done)
    file = write(source, out, PLAIN_NAME, as_in_the_model(source, plain), force=force)
    packed = sum(isinstance(tensor, PackedTensor) for tensor in tensors.values())
    stdout = console()
    stdout.print(
        f"decoded {packed} of {len(plain)} tensors: {size(source.nbytes)} -> {size(file.stat().st_size)}: {file}"
    )
