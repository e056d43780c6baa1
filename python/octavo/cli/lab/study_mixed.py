"""``octavo lab study mixed``: the labs' search of a format for each layer, beside the choice by sensitivities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, run, with_subject, words
from octavo.cli.lab.study_nas import StorageOption

if TYPE_CHECKING:
    from octavo.lab.studies.measured_points import Laboratory


@with_subject
def mixed(
    subject: SubjectOptions,
    out: OutOption = None,
    storage: StorageOption = None,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="lab-a: exponents of 2-4 bits, biases 3-15; lab-b: 4-6 bits, 13-17.")
    ] = "lab-a",
    groups: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="full, integer, block, minifloat, log, binary.  [default: all]"),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Fractions of integers by hand: mase-a: max(4, w-2); mase-b: w/2."),
    ] = None,
    samplers: Annotated[str, typer.Option(metavar="NAMES", help="tpe, random, nsga2, grid.")] = "tpe,random",
    trials: Annotated[int, typer.Option(metavar="N", help="Evaluations of each search.")] = 24,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the samplers and of calibration.")] = 0,
    points: Annotated[int, typer.Option(metavar="N", help="Evaluations of the ladder, at most.")] = 8,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """The labs' mixed-precision search, one best-so-far curve a group of formats, beside the ladder of this package.

    A search gives every Linear layer a scheme of MASE, or float, with widths, fractions, exponents, biases and blocks
    of inputs, weights and biases apart. The ladder measures every layer in every format once and evaluates a few points
    of the best assignments; the table tells how many evaluations each needs for the same accuracy in no more bytes.
    Nothing is trained. Needs Optuna: pip install "octavo[search]".

    \b
    Examples:
      octavo lab study mixed
      octavo lab study mixed --preset lab-b --groups block,minifloat --trials 30
      octavo lab study mixed --groups integer --baseline mase-a
      octavo lab study mixed --model minilm --data data/ --trained minilm
    """
    from octavo.lab.mase.search_spaces import GROUPS, mixed_space
    from octavo.lab.studies import architecture_tables as tables
    from octavo.lab.studies.mixed_precision import MixedPrecision, against_ladder, linear_layers
    from octavo.report.architecture_plots import best_so_far_figure

    names = words(groups or ("integer,block" if quick else ",".join(GROUPS)))
    for name in names:
        mixed_space(preset, name, ["layer"], baseline)  # names are checked before a model is opened
    study = MixedPrecision(tuple(words(samplers)), min(trials, 6) if quick else trials, seed, points=points)

    def work(laboratory: Laboratory) -> list[dict[str, Any]]:
        layers = linear_layers(laboratory.subject.model())
        spaces = {name: mixed_space(preset, name, layers, baseline) for name in names}
        return study.run(laboratory, spaces, storage)

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
