"""``octavo pack``: packs the weights of a file or folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import ForceOption, OutOption, read_recipe


def run(
    path: Annotated[Path, typer.Argument(metavar="IN", help="A safetensors file or a Hugging Face model folder.")],
    out: OutOption,
    recipe: Annotated[
        str, typer.Option(metavar="RULES|FILE", help="Which tensors get which format; see above.")
    ] = "mxint8",
    force: ForceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show who would get what; write nothing.")] = False,
) -> None:
    """Pack the weights of a model.

    A file becomes a file; a folder becomes a folder with model.octavo.safetensors and copies of the configuration and
    tokenizer. The output appears whole or not at all.

    A recipe is a list of rules separated by ';', or a file NAME.toml. The last rule that matches a tensor decides:

    \b
      FORMAT        all 2-D float weights, embeddings included
      GLOB=FORMAT   weights of 2 and more dimensions whose layer or name matches; * stays between dots, ** crosses them
      NAME=FORMAT   one tensor or layer, 1-D ones included
      GLOB=keep     leaves what matches as it is

    Block formats take the rule of their scales: mxfp4@floor (OCP), @ceil (nothing saturates), @mse (least squared
    error). fp32, fp16 and bf16 cast and store plain tensors. What no rule matches is kept; a rule that matches nothing
    is an error. octavo recipe --help has the whole grammar.

    \b
    Examples:
      octavo pack model.safetensors -o small.safetensors --recipe mxfp4
      octavo pack bert/ -o bert-small/ --recipe 'mxfp4@mse; embeddings.**=mxint8; pooler.**=keep'
      octavo pack model.safetensors -o small.safetensors --recipe 'fixed8:channel,mse' --dry-run
    """
    from octavo.display.console import console, print_table, progress
    from octavo.display.numbers import size
    from octavo.folder.pack_checkpoint import pack_tensors, plan
    from octavo.folder.weight_files import PACKED_NAME, Checkpoint, check_target, write
    from octavo.folder.weight_tables import packing_table

    rules = read_recipe(recipe)
    source = Checkpoint.open(path)
    check_target(source, out, PACKED_NAME, force=force)
    tensors = source.tensors()
    stdout = console()
    if dry_run:
        reports = plan(tensors, rules)
        before, after = source.nbytes, sum(report.nbytes for report in reports)
        print_table(stdout, packing_table(reports))
        stdout.print()
        stdout.print(f"would pack {size(before)} to about {size(after)}; nothing was written")
        return
    with progress("packing", sum(tensor.nbytes for tensor in tensors.values())) as done:
        packing = pack_tensors(tensors, rules, progress=done)
    file = write(source, out, PACKED_NAME, packing.tensors, force=force)
    print_table(stdout, packing_table(packing.reports))
    after = file.stat().st_size
    stdout.print()
    stdout.print(f"packed weights: {packing.bits_per_weight:.4g} bits per element")
    stdout.print(f"on disk: {size(source.nbytes)} -> {size(after)} ({source.nbytes / after:.2f}x smaller): {file}")
