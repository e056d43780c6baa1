"""``octavo lab study mixed``: the labs' search of a format for each layer, beside the choice by sensitivities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, run, with_subject, words
from octavo.cli.lab.study_nas import StorageOption

if TYPE_CHECKING:
    from octavo.lab.studies.measured_points import Laboratory

_TRIALS = Usual(24, 6)


@with_subject
def mixed(
    subject: SubjectOptions,
    out: OutOption = None,
    storage: StorageOption = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="lab-a: widths 8-32, exponents of 2-4 bits, biases 3-15; lab-b: widths 4-16, exponents of 4-6 bits, "
            "biases 13-17.",
        ),
    ] = "lab-a",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Layer classes, such as LinearInteger, or groups: full, integer, block, minifloat, log, binary.  "
            "[default: all]",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Fractions of integers by hand: mase-a: max(4, w-2); mase-b: w/2."),
    ] = None,
    samplers: Annotated[str, typer.Option(metavar="NAMES", help="tpe, random, nsga2, grid.")] = "tpe,random",
    trials: Annotated[int | None, _TRIALS.option("Evaluations of each search.")] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Train in every trial, so many passes at the full rate, as the labs do: 1.  [default: no training]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the samplers and of calibration.")] = 0,
    points: Annotated[int, typer.Option(metavar="N", help="Evaluations of the ladder, at most.")] = 8,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """The labs' search of mixed precision, beside our own.

    A curve for each class of layers shows the best accuracy so far. The ladder of this package stands beside it.

    A search gives every Linear layer one class of MASE, and each of its tensors widths, fractions, exponents, biases
    and blocks of its own: an axis for each, called as in the labs. With --epochs 1 every trial trains first, as theirs
    do; classes without a gradient (BlockMinifloat, BinaryResidualSign) are evaluated alone. Settings that no format has
    take the nearest. The ladder measures every layer in every format once and evaluates a few points of the best
    assignments; the table tells how many evaluations each needs for the same accuracy in no more bytes.
    Needs Optuna: pip install "octavo[search]".

    \b
    Examples:
      octavo lab study mixed --quick
      octavo lab study mixed --preset lab-a --epochs 1                       # the labs' search
      octavo lab study mixed --preset lab-b --groups LinearMinifloatDenorm,LinearInteger --epochs 1 --trials 30
      octavo lab study mixed --groups integer --baseline mase-a
      octavo lab study mixed --model minilm --data data/ --trained minilm
    """
    from octavo.lab.mase.search_spaces import CLASSES, classes_of
    from octavo.lab.studies import architecture_tables as tables
    from octavo.lab.studies.mixed_precision import MixedPrecision, against_ladder
    from octavo.report.architecture_plots import best_so_far_figure

    classes = classes_of(words(groups) if groups is not None else ("integer", "block") if quick else tuple(CLASSES))
    evaluations = _TRIALS.of(trials, quick=quick)
    study = MixedPrecision(classes, preset, baseline, tuple(words(samplers)), evaluations, epochs, seed, points=points)

    def work(laboratory: Laboratory) -> list[dict[str, Any]]:
        return study.run(laboratory, storage)

    def draw(rows: Any, *, metric: str, title: str) -> Any:
        shown = [{**row, "search": row["sampler"]} for row in rows]
        ladder = [row for row in rows if row["sampler"] == "ladder"]
        for sampler in study.samplers:
            shown += [{**row, "search": sampler} for row in ladder]
        shown = [row for row in shown if row["search"] != "ladder"]
        return best_so_far_figure(shown, lines="group", panels="search", metric=f"validation {metric}", title=title)

    run(
        "mixed", work, lambda rows: tables.mixed_table(against_ladder(rows)), tables.mixed_notes, draw,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip
