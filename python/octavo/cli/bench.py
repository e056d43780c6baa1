"""``octavo bench``: steps and tokens a second of training and validation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import JsonOption

if TYPE_CHECKING:
    from octavo.systems.polynomials.speed import Speed

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _bench() -> None:
    """Measure the speed of whole jobs, not of kernels."""


@app.command("polynomials")
def polynomials(
    arch: Annotated[str, typer.Option(metavar="NAME", help="lstm, hybrid or transformer.")] = "hybrid",
    processes: Annotated[int, typer.Option(metavar="N", help="Processes of the DDP configurations.")] = 2,
    batch: Annotated[int, typer.Option(help="Lines in a step, over all processes.")] = 512,
    steps: Annotated[int, typer.Option(help="Training steps to measure.")] = 20,
    val_steps: Annotated[int, typer.Option(help="Validation steps to measure.")] = 4,
    precision: Annotated[str, typer.Option(metavar="NAME", help="fp32, bf16 or fp16.")] = "fp32",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where speed.json and speed.md go.")
    ] = Path("octavo-speed"),
    json: JsonOption = False,
) -> None:
    """Train and validate in four configurations: baseline, DDP, key/value cache, both.

    Each configuration runs in processes of its own, one after the other; together some minutes on 2 cores. A step of
    training is an update; a step of validation generates the answers of a batch.

    \b
    Examples:
      octavo bench polynomials
      octavo bench polynomials --processes 8 --batch 6144 --precision bf16
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.systems.polynomials.speed import SpeedConfig, configurations, measure_all
    from octavo.systems.polynomials.speed_table import SpeedReport
    from octavo.systems.polynomials.train_configs import model_config

    model_config(arch)
    base = SpeedConfig(architecture=arch, batch=batch, steps=steps, val_steps=val_steps, precision=precision)
    configurations(base, processes)
    stderr = console(stderr=True)
    if os.getloadavg()[0] > 0.5:
        stderr.print(
            f"note: other work runs on this machine (load {os.getloadavg()[0]:.1f}); it makes the figures worse"
        )

    def done(name: str, speed: Speed) -> None:
        stderr.print(f"{name}: {speed.train_steps_per_s:.3g} training, {speed.val_steps_per_s:.3g} validation steps/s")

    report = SpeedReport(measure_all(base, processes, done))
    report.save(out)
    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    print_table(stdout, report.table())
    stdout.print()
    for note in report.notes():
        stdout.print(note)
    stdout.print(f"written: {out / 'speed.md'}, {out / 'speed.json'}")
