"""``octavo lab study compile``, and what studies of speed share: options, the journal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import numbers, resumable, show

if TYPE_CHECKING:
    import torch

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where results go.  [default: octavo-STUDY-DEVICE]")
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAMES",
        help="cpu, cuda, cuda:N, or two in one table.  [default: cuda where there is a GPU]",
    ),
]
BatchOption = Annotated[int, typer.Option(metavar="N", help="Texts per call.")]
RoundsOption = Annotated[int, typer.Option(metavar="N", help="Timings of each contestant; the median counts.")]


def compile_(
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Model of transformers that reads texts.  [default: a tiny BERT]"),
    ] = None,
    recipe: Annotated[
        str, typer.Option(metavar="TEXT", help="Recipe that quantizes and packs the model.")
    ] = "type:Linear mxint8",
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="inductor; aot_eager and eager capture graphs and compile nothing.")
    ] = "inductor",
    batch: BatchOption = 8,
    length: Annotated[int, typer.Option(metavar="N", help="Tokens per text.")] = 64,
    layers: Annotated[int, typer.Option(metavar="N", help="Layers of the tiny BERT.")] = 2,
    width: Annotated[int, typer.Option(metavar="N", help="Its width, a multiple of 64.")] = 128,
    rounds: RoundsOption = 15,
    calls: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Also the total time of so many calls, the first in, such as 5,50."),
    ] = None,
    device: DevicesOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Time of torch.compile against eager execution.

    The table has the first call, every later one, and graph breaks.

    A tiny BERT with fresh weights, or the model of a folder, is called in float32, quantized (simulated) and packed, in
    eager mode and compiled. The first compiled call starts with empty caches; later calls are medians of rounds that
    take turns. A graph break is a place where Python has to go on between two compiled pieces.

    \b
    Examples:
      octavo lab study compile
      octavo lab study compile --calls 5,50
      octavo lab study compile --model bert/ --device cpu,cuda
      octavo lab study compile --recipe 'type:Linear int8:channel input=int8:channel'
      octavo lab study compile --batch 32 --layers 6 --width 384
      octavo lab study compile --backend aot_eager       # without a C++ compiler: capture alone
    """
    from octavo.lab.studies import speed_tables as speed_studies
    from octavo.lab.studies.compile_speed import Compile
    from octavo.lab.studies.stopwatch import devices_of

    totals = () if calls is None else numbers("--calls", calls, "number of calls")
    study = Compile(
        recipe, backend, batch, length, layers, width, rounds, totals, None if model is None else str(model)
    )
    measure("compile", study, devices_of(device), out, json=json, table=speed_studies.compile_table,
         notes=speed_studies.compile_notes, draw=speed_studies.compile_figure)  # fmt: skip


def measure(
    name: str, study: Any, devices: dict[str, torch.device], out: Path | None, *, draw: Any, **shown: Any
) -> None:
    """Measure what the journal does not hold yet, on each device; save and show all. Rows of two name their device."""
    from dataclasses import asdict

    from octavo.display.console import console
    from octavo.display.progress import milestones
    from octavo.lab.studies.stopwatch import machine
    from octavo.search.journal import Journal

    folder = out or Path(f"octavo-{name}-{'-'.join(device.type for device in devices.values())}")
    with Journal(folder) as journal, milestones(console(stderr=True)) as tell, resumable(folder):
        by_device = {place: study.run(journal, device, tell) for place, device in devices.items()}
    several = len(devices) > 1
    rows = [{"device": place, **row} if several else row for place, own in by_device.items() for row in own]
    machines = {place: machine(device) for place, device in devices.items()}
    names = ", ".join(str(where["name"]) for where in machines.values())
    title = f"{name}: {names}, torch {next(iter(machines.values()))['torch']}"
    where = {"machines": machines} if several else {"machine": next(iter(machines.values()))}
    facts = {"study": name, **where, "settings": asdict(study)}
    show(name, rows, facts, folder, draw=partial(draw, title=title), **shown)
