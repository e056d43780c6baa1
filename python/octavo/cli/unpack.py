"""``octavo unpack``: decodes a packed file or folder to plain safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import ForceOption, OutOption, tell_left_behind
from octavo.cli._foreign_files import folder_of
from octavo.errors import DTypeError
from octavo.storage.outputs import check_output

DTYPES = ("float32", "float16", "bfloat16")


def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A packed file, a folder made by octavo pack, a GGUF file, a folder of another package; smollm2.",
        ),
    ],
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

    The file gets the tensors that the model had before packing: their names, shapes, orientation and dtypes, tied ones
    under each name, with the values of the codes. What was not packed stays as it is; formats of inputs and outputs,
    which plain layers do not have, are left out. A folder becomes a folder with model.safetensors, which transformers
    loads. Tensors are decoded and written one at a time.

    \b
    Examples:
      octavo unpack small.safetensors -o plain.safetensors
      octavo unpack octavo-minilm -o minilm-again --dtype float16
    """
    if dtype is not None and dtype not in DTYPES:
        raise DTypeError(f"unknown --dtype {dtype!r}; accepted are {', '.join(DTYPES)}")
    import torch

    from octavo.display.console import console
    from octavo.display.numbers import size
    from octavo.display.progress import progress
    from octavo.model_folder.unpack_weights import unpacked
    from octavo.model_folder.weight_files import PLAIN_NAME, Checkpoint, check_target, write
    from octavo.storage.named_models import resolved
    from octavo.tensors.packed_tensor import PackedTensor

    path = resolved(path)
    given_source = Checkpoint.open(path)
    with folder_of(str(path), packed=True) as folder:
        source = given_source if folder == str(path) else Checkpoint.open(folder)
        if source is not given_source:
            check_output(path, out, is_folder=True, overwrite=force)
        check_target(source, out, PLAIN_NAME, force=force)
        source.verify()
        tensors = source.tensors()
        packed = [tensor for tensor in tensors.values() if isinstance(tensor, PackedTensor)]
        with progress("unpacking", sum(tensor.nbytes for tensor in packed)) as done:
            plain = unpacked(source, None if dtype is None else getattr(torch, dtype), progress=done)
            file = write(source, out, PLAIN_NAME, plain, force=force)
    stdout = console()
    sizes = f"{size(given_source.nbytes)} -> {size(file.stat().st_size)}"
    stdout.print(f"decoded {len(packed)} of {len(plain)} tensors: {sizes}: {file}")
    tell_left_behind(given_source, stdout)
