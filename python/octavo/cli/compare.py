"""``octavo compare``: size and error of formats on the weights of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli._foreign_files import folder_of

DEFAULT_FORMATS = "fp16, mxint8, mxfp8e4m3, mxfp6e2m3, mxint4, mxfp4, nvfp4, nf4, int4:g32"


def run(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A safetensors or GGUF file, or a Hugging Face model folder; minilm, smollm2."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of FILE: minilm, smollm2 or polynomials.")
    ] = None,
    formats: Annotated[
        str, typer.Option(metavar="FORMATS", help="Formats to compare, separated by commas.")
    ] = DEFAULT_FORMATS,
    tensor: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Tensors to look at; ** crosses dots.  [default: all 2-D weights]"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Rule of the block scales: floor (OCP), ceil (nothing saturates) or mse (least squared error). "
            "Formats without block scales ignore it.",
        ),
    ] = "floor",
    json: JsonOption = False,
) -> None:
    """Compare number formats on a model's weights.

    Every selected tensor is encoded and decoded in every format; squared errors are summed over the tensors, so SQNR
    and cosine are of all weights together. GB/s counts bytes of the original in one pass: a hint, not a benchmark.

    \b
    Examples:
      octavo compare model.safetensors --formats mxint8,mxfp4,nf4
      octavo compare --model minilm --tensor 'embeddings.**'
      octavo compare llama/ --formats mxfp4,mxfp6e2m3 --scale mse --json
    """
    if (path is None) == (model is None):
        raise typer.BadParameter("give either FILE or --model NAME")
    from octavo.compress.by_name import find
    from octavo.display.console import console, print_json, print_table
    from octavo.display.progress import progress
    from octavo.model_folder.pack_checkpoint import compare_formats
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.model_folder.weight_tables import comparison_dict, comparison_table
    from octavo.recipe.tensor_decisions import select
    from octavo.tensors.formats import parse_formats

    wanted = parse_formats(formats)
    with folder_of(str(path if path is not None else find(model or "")), packed=False) as place:
        tensors = Checkpoint.open(place).tensors()
        names = select(tensors, tensor)
        with progress("comparing", sum(tensors[name].nbytes for name in names)) as done:
            compared = compare_formats(tensors, wanted, glob=tensor, scale=scale, progress=done)
    if json:
        timed = [{**comparison_dict(c), "encode_gbps": c.encode_gbps, "decode_gbps": c.decode_gbps} for c in compared]
        print_json(timed)
        return
    out = console()
    out.print(f"{len(names)} tensors, {compared[0].elements:,} elements of {model or path}")
    out.print()
    print_table(out, comparison_table(compared))
