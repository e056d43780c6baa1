"""``octavo lab study prune``: accuracy, bytes and time against sparsity."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, run, with_subject, words
from octavo.errors import SettingError

_SEEDS = Usual(2, 1)


@with_subject
def prune(
    subject: SubjectOptions,
    out: OutOption = None,
    sparsities: Annotated[
        str | None, typer.Option(metavar="SHARES", help="Shares that go.  [default: 0.1,0.3,0.5,0.7,0.9]")
    ] = None,
    criteria: Annotated[
        str, typer.Option(metavar="NAMES", help="random, magnitude (L1), wanda, taylor.")
    ] = "random,magnitude",
    scopes: Annotated[str | None, typer.Option(metavar="NAMES", help="local, global.  [default: both]")] = None,
    granularities: Annotated[
        str,
        typer.Option(metavar="NAMES", help="What goes whole: element, row, column, head, neuron, N:M, block:RxC, ..."),
    ] = "element",
    recipe: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Quantizes the models before they are pruned.  [default: float]")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="mase: weights, the head too, and activations together, by magnitude and at random."
        ),
    ] = None,
    tune: Annotated[bool, typer.Option("--tune/--no-tune", help="Fine-tune every pruned model, too.")] = True,
    gradual: Annotated[
        bool, typer.Option("--gradual", help="Prune in the first 70 % of fine-tuning, step by step, not before it.")
    ] = False,
    epochs: Annotated[float, typer.Option(help="Passes over the training texts in that.")] = 1.0,
    cooldown: Annotated[
        float, typer.Option(metavar="S", help="Seconds of rest between runs, for a laptop that grows hot.")
    ] = 0.0,
    seeds: Annotated[int | None, _SEEDS.seeds()] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Accuracy, bytes and time against sparsity.

    Accuracy is measured before and after fine-tuning.

    Masks go on all Linear layers but the head, and stay in fine-tuning. Bytes are of saved files, float and packed to 8
    bits; times are of eight texts, all models in turn. The row "dense" is the model itself, trained as long as the
    others. Every finished run is a checkpoint: a line of study.jsonl. ± is the 95 % interval over seeds; differences
    are points of percent to the model before.

    \b
    Examples:
      octavo lab study prune
      octavo lab study prune --criteria random,magnitude,wanda,taylor --scopes local --sparsities 0.5,0.8 --no-tune
      octavo lab study prune --baseline mase --sparsities 0.5 --cooldown 30
      octavo lab study prune --granularities neuron,row --scopes local --sparsities 0.5
      octavo lab study prune --model minilm --data data/ --trained minilm --recipe 'type:Linear int8:channel'
    """
    from octavo.lab.classifiers.kinds import check_model
    from octavo.lab.studies import result_files as studies
    from octavo.lab.studies.lora_ranks import Tuning
    from octavo.lab.studies.pruning import Prune
    from octavo.report.study_plots import prune_figure

    check_model(subject.model, trained=subject.trained is not None)
    study = Prune(
        _shares(("0.5" if quick else "0.1,0.3,0.5,0.7,0.9") if sparsities is None else sparsities),
        tuple(words(criteria)),
        tuple(words(scopes or ("local" if quick else "local,global"))),
        tuple(words(granularities)),
        _SEEDS.of(seeds, quick=quick),
        Tuning(epochs) if tune else None,
        recipe,
        baseline,
        gradual,
        cooldown,
    )
    run(
        "prune", study.run, studies.prune_table, studies.prune_notes, prune_figure,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip


def _shares(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas. Raises SettingError."""
    found = []
    for word in words(text):
        try:
            found.append(float(word))
        except ValueError:
            raise SettingError(f"--sparsities: {word!r} is no share; accepted are numbers such as 0.5") from None
    if not found:
        raise SettingError(f"--sparsities: {text!r} holds no share; accepted are numbers such as 0.5")
    return tuple(found)
