"""``octavo lab study sensitivity`` and ``combined``: formats that are chosen by what they cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, run, with_subject, words

FormatsOption = Annotated[
    str | None,
    typer.Option(metavar="FORMATS", help="Candidates, as recipes write them.  [default: eight of 3.5 to 8.25 bits]"),
]
_SEEDS, _SAMPLES = Usual(2, 1), Usual(64, 16)
SamplesOption = Annotated[int | None, _SAMPLES.option("Training texts that sensitivities are measured on.")]


@with_subject
def sensitivity(
    subject: SubjectOptions,
    out: OutOption = None,
    formats: FormatsOption = None,
    roles: Annotated[
        str, typer.Option(metavar="NAMES", help="weight: weights; input: inputs of layers; or both.")
    ] = "weight",
    samples: SamplesOption = None,
    estimate: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Estimate from one backward pass, too.")
    ] = True,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Loss of every format in every group of layers.

    One group is rounded at a time, and outputs are compared with those of the float model.

    Layers that read one tensor, such as query, key and value, form one group. Only what comes after the changed layer
    runs. The picture is a heat map; the values are in the CSV file beside it.

    \b
    Examples:
      octavo lab study sensitivity
      octavo lab study sensitivity --formats int2:g32,int3:g32,nf4,mxint8 --roles weight,input
      octavo lab study sensitivity --model minilm --data data/ --trained minilm
    """
    from octavo.lab.studies import search_tables
    from octavo.lab.studies.format_sensitivity import FORMATS, FormatSensitivity
    from octavo.report.search_plots import sensitivity_figure

    chosen = tuple(words(formats)) if formats is not None else FORMATS
    study = FormatSensitivity(chosen, tuple(words(roles)), _SAMPLES.of(samples, quick=quick), estimate)

    def draw(rows: Any, *, metric: str, title: str) -> Any:
        return sensitivity_figure(rows, title=title)

    run(
        "sensitivity", study.run, search_tables.sensitivity_table, search_tables.sensitivity_notes, draw,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip


@with_subject
def combined(
    subject: SubjectOptions,
    out: OutOption = None,
    budget: Annotated[
        float, typer.Option(metavar="BITS", help="Bits a parameter, embeddings and scales counted.")
    ] = 4.5,
    formats: FormatsOption = None,
    sparsity: Annotated[float, typer.Option(metavar="SHARE", help="Share of the weights of each layer that go.")] = 0.5,
    epochs: Annotated[float, typer.Option(help="Passes over the training texts, after quantizing and pruning.")] = 1.0,
    samples: SamplesOption = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="mase: 8 bits with fractions by hand, activations pruned, too.")
    ] = None,
    seeds: Annotated[int | None, _SEEDS.seeds()] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Search, pruning and training combined, in one table.

    The best recipe that is found is pruned, with and without training after it.

    Sensitivities give the best assignment of formats for every budget; several within the budget are compared on
    validation texts. The closest to the float model is quantized, pruned by magnitude in each layer, and trained. The
    float model, and each step alone, are rows of the same table, trained as long.

    \b
    Examples:
      octavo lab study combined
      octavo lab study combined --baseline mase --seeds 3
      octavo lab train classifier --model minilm --data data/ -o minilm
      octavo lab study combined --model minilm --data data/ --trained minilm --budget 4
      octavo lab study combined --model minilm --data imdb/ --corpus imdb --length 256
    """
    from octavo.lab.classifiers.kinds import check_model
    from octavo.lab.studies import search_tables
    from octavo.lab.studies.combined import Combined
    from octavo.lab.studies.format_sensitivity import FORMATS
    from octavo.lab.studies.lora_ranks import Tuning
    from octavo.report.search_plots import combined_figure

    check_model(subject.model, trained=subject.trained is not None)
    chosen = tuple(words(formats)) if formats is not None else FORMATS
    study = Combined(
        budget, chosen, sparsity, _SEEDS.of(seeds, quick=quick), Tuning(epochs), _SAMPLES.of(samples, quick=quick),
        2 if quick else 6, baseline,
    )  # fmt: skip
    run(
        "combined", study.run, search_tables.combined_table, search_tables.combined_notes, combined_figure,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip
