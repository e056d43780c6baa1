"""``octavo lab study dequantize``: latency and bandwidth of decoding, by size, group and device."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import numbers, resumable, show


def dequantize(
    format: Annotated[str, typer.Option(metavar="TEXT", help="Format of the packed tensor.")] = "mxint8",
    sizes: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Elements.  [default: 1024 to 16777216, by fours]")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Elements of a group.  [default: 8,32,128,512 where it takes them]"),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Of the values: float32, bfloat16, float16.")] = "bfloat16",
    rounds: Annotated[int, typer.Option(metavar="N", help="Timed calls of each point; the median counts.")] = 30,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="cpu, cuda, cuda:N, or two.  [default: cpu, and cuda where there is a GPU]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="For results.  [default: octavo-dequantize]"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Speed of decoding packed tensors, on a CPU and on a GPU.

    Latency, GB/s, and the size from which the GPU is faster.

    A flat tensor of random codes is decoded, one call at a time, each timed until its result is there. Small tensors
    are slower on a GPU, whose launch costs more than the work; the notes say where the lines cross, for each group.
    For MXINT8 the bits of every value are compared with those that mase-cuda's rule gives.

    \b
    Examples:
      octavo lab study dequantize
      octavo lab study dequantize --device cpu,cuda --groups 8,16,32,64,128,256,512
      octavo lab study dequantize --sizes 1024,2097152,16777216,58720256,234881024     # mase-cuda's own sizes
      octavo lab study dequantize --format int4 --groups 32,128 --dtype float32
      octavo lab study dequantize --format mxfp6e2m3
    """
    import torch

    from octavo.display.console import console
    from octavo.display.progress import milestones
    from octavo.lab.studies import dequantize_tables as tables
    from octavo.lab.studies.dequantize_speed import GROUPS, SIZES, Dequantize, has_groups
    from octavo.lab.studies.stopwatch import devices_of, machine
    from octavo.search.journal import Journal

    chosen = GROUPS if groups is None else numbers("--groups", groups, "group")
    study = Dequantize(
        format,
        SIZES if sizes is None else numbers("--sizes", sizes, "number of elements", digits=10),
        () if groups is None and not has_groups(format) else chosen,
        dtype,
        rounds,
    )
    devices = devices_of(device or ("cpu,cuda" if torch.cuda.is_available() else "cpu"))
    folder = out or Path("octavo-dequantize")
    with Journal(folder) as journal, milestones(console(stderr=True)) as tell, resumable(folder):
        rows = study.run(journal, devices, tell)
    machines = {name: machine(device) for name, device in devices.items()}
    title = f"decoding to {dtype}: " + ", ".join(f"{name}: {where['name']}" for name, where in machines.items())
    facts = {"study": "dequantize", "machines": machines, "settings": asdict(study)}
    show("dequantize", rows, facts, folder, table=tables.dequantize_table, notes=tables.dequantize_notes,
         draw=partial(tables.dequantize_figure, title=title), json=json)  # fmt: skip
