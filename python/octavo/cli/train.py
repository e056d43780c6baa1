"""``octavo train``: train the models this project makes itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.errors import SettingError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Train a model; a run that was stopped goes on where it was."
)


@app.callback()
def _train() -> None:
    """Train a model; a run that was stopped goes on where it was."""


@app.command("polynomials")
def polynomials(
    arch: Annotated[
        str, typer.Option(metavar="NAME", help="lstm, hybrid (the shipped one) or transformer.")
    ] = "hybrid",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Run folder.  [default: octavo-ARCH]")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates of the weights.  [default: those of the shipped model]")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Lines in an update, over all processes.")] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Largest learning rate.")] = None,
    seed: Annotated[
        int, typer.Option(help="Of weights and data order; validation and test lines are always the same.")
    ] = 0,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="fp32, bf16 or fp16.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches that an update is cut into.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu or cuda.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    ddp: Annotated[
        int | None, typer.Option(metavar="N", help="Train in N processes (DistributedDataParallel through torchrun).")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    export_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Number format of the exported weights.")
    ] = "mxint8",
    json: JsonOption = False,
) -> None:
    """Train a model that expands polynomials, test it on unseen lines and export it for the engine.

    Lines are generated; the 20,000 validation and 20,000 test lines never occur in training. FOLDER gets metrics.jsonl,
    checkpoints, and at the end model/, which octavo.Engine and `octavo expand --model` run. Stopped, by Ctrl-C or by
    kill -9, the same command goes on from the newest checkpoint and ends with the same bits.

    \b
    Examples:
      octavo train polynomials --steps 500               a taste, some minutes
      octavo train polynomials --precision bf16          the shipped model
      octavo train polynomials --arch transformer --ddp 2
      torchrun --nproc-per-node 8 -m octavo train polynomials --device cuda --compile
    """
    from octavo.models.polynomials.run import train_polynomials
    from octavo.train.distributed import launch

    if ddp is not None:
        if ddp < 1:
            raise SettingError(f"--ddp is {ddp}; accepted are 1 process and more")
        raise typer.Exit(launch(["-m", "octavo", *_without_ddp(sys.argv[1:])], ddp))
    given = {
        "steps": steps,
        "batch_size": batch,
        "learning_rate": rate,
        "precision": precision,
        "accumulation": accumulation,
        "device": device,
        "compile": compile or None,
        "seed": seed,
    }
    report = train_polynomials(
        arch,
        out or Path(f"octavo-{arch}"),
        {name: value for name, value in given.items() if value is not None},
        export_format=export_format,
        tensorboard=tensorboard,
    )
    if report is None:
        return
    from octavo.report.console import console, print_json

    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    for label, text in report.results():
        stdout.print(f"{label:18} {text}")


def _without_ddp(arguments: list[str]) -> list[str]:
    """Return the command line for one process: without ``--ddp N`` and ``--ddp=N``."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--ddp":
            skip = True
        elif not argument.startswith("--ddp="):
            kept.append(argument)
    return kept
