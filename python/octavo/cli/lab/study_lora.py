"""``octavo lab study lora``: full fine-tuning against adapters."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, numbers, run, with_subject

_SEEDS = Usual(2, 1)


@with_subject
def lora(
    subject: SubjectOptions,
    out: OutOption = None,
    ranks: Annotated[str | None, typer.Option(metavar="N", help="Ranks of the adapters.  [default: 1,4,16]")] = None,
    bases: Annotated[
        str,
        typer.Option(metavar="TEXTS", help="Recipes that pack the base, separated by '|'; '' for the float one alone."),
    ] = "int4:g32",
    epochs: Annotated[float, typer.Option(help="Passes over the training texts.")] = 1.0,
    rate: Annotated[float, typer.Option(help="Learning rate of adapters, as a multiple of full fine-tuning's.")] = 10.0,
    seeds: Annotated[int | None, _SEEDS.option("Repetitions with other adapters, orders and dropout.")] = None,
    peft: Annotated[
        bool | None, typer.Option("--peft/--no-peft", help="PEFT's adapters, too.  [default: where it is installed]")
    ] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Full fine-tuning against LoRA, on float and packed models.

    Accuracy, trained parameters, bytes of the optimizer's state, peak memory and time of a step. A base knows another
    task: the tiny model goes on from one generated task to another, minilm from its pretraining to --corpus. Its head
    is fresh, stays float, and is trained whole; adapters go on all other linear layers, the same ones with PEFT.

    \b
    Examples:
      octavo lab study lora
      octavo lab study lora --ranks 1,2,4,8,16,32 --bases 'mxint8 | int4:g32 | nf4'
      octavo lab study lora --model minilm --data data/ --held-out 10000 --seeds 1
    """
    from octavo.lab.studies import result_files as studies
    from octavo.lab.studies.lora_ranks import LoraRanks, Tuning, has_peft
    from octavo.lab.studies.subject_catalogue import open_base
    from octavo.report.study_plots import lora_figure

    study = LoraRanks(
        numbers("--ranks", ranks or ("4" if quick else "1,4,16"), "rank"),
        tuple(text.strip() for text in bases.split("|") if text.strip()),
        _SEEDS.of(seeds, quick=quick),
        Tuning(epochs, rate),
        has_peft() if peft is None else peft,
    )
    run(
        "lora", study.run, studies.lora_table, studies.lora_notes, lora_figure,
        subject=subject, out=out, quick=quick, json=json, opener=open_base,
    )  # fmt: skip
