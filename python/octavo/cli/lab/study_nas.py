"""``octavo lab study nas``: searches for an architecture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli._texts import CorpusOption, HeldOutOption, LengthOption, TestOption
from octavo.cli.lab._study import DataOption, DeviceOption, OutOption, QuickOption, Usual, resumable, show, words
from octavo.errors import SettingError

StorageOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="A file, or postgresql://USER@HOST/DATABASE for many workers.  [default: inside --out]"
    ),
]

_TRIALS, _SAMPLER_SEEDS, _SEEDS = Usual(32, 6), Usual(5, 2), Usual(3, 2)


def nas(
    preset: Annotated[str, typer.Option(metavar="NAME", help="lab32: 32 models; labs: the whole space.")] = "lab32",
    scale: Annotated[str, typer.Option(metavar="NAME", help="tiny: trains in seconds; labs: their sizes.")] = "tiny",
    data: DataOption = None,
    corpus: CorpusOption = None,
    test: TestOption = None,
    length: LengthOption = None,
    held_out: HeldOutOption = None,
    out: OutOption = None,
    storage: StorageOption = None,
    samplers: Annotated[
        str | None, typer.Option(metavar="NAMES", help="grid, random, tpe, nsga2.  [default: all; labs: random,tpe]")
    ] = None,
    trials: Annotated[
        int | None, _TRIALS.option("Distinct networks of each search; the grid of lab32 goes through all 32.")
    ] = None,
    sampler_seeds: Annotated[int | None, _SAMPLER_SEEDS.option("Searches of each sampler.")] = None,
    seeds: Annotated[int | None, _SEEDS.option("Trainings of the chosen network.")] = None,
    epochs: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Of each training; several: one network at each of them.")
    ] = "1",
    point: Annotated[
        str | None,
        typer.Option(metavar="CHOICES", help="That network, as 'layers=2 heads=2 ...'.  [default: the first]"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Quantizes every network after its training: three curves.")
    ] = None,
    sparsity: Annotated[float, typer.Option(metavar="SHARE", help="Of the weights that are pruned, too.")] = 0.0,
    tune_epochs: Annotated[float, typer.Option(metavar="N", help="Training after that; 0 for none.")] = 1.0,
    warm: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Run of octavo lab train classifier whose weights are taken over."),
    ] = None,
    stop: Annotated[str | None, typer.Option(metavar="RULE", help="median or asha: ends bad trainings early.")] = None,
    texts: Annotated[int | None, typer.Option(metavar="N", help="Training texts at most.  [default: all]")] = None,
    device: DeviceOption = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Search a space of BERT architectures.

    Axes are depth, heads, widths, and square layers that are linear or the identity.

    Each network is trained from fresh weights and measured on validation texts; test texts are read once, for the
    chosen one. No network is built twice: a search finds what another has built. The same command goes on after
    kill -9, and may be run by several workers at a time. Needs Optuna: pip install "octavo[search]".

    \b
    Examples:
      octavo lab study nas --quick
      octavo lab study nas --sampler-seeds 20
      octavo lab study nas --recipe 'type:Linear int4:g32' --sparsity 0.5     # none, compressed, trained again
      octavo lab study nas --preset labs --samplers random,tpe --trials 24 --stop median
      octavo lab study nas --epochs 1,2,3,4 --point 'layers=2 heads=2 hidden=64 intermediate=64 type=linear'
      octavo lab study nas --data data/ --corpus imdb --scale labs --storage postgresql://me@server/octavo
    """
    from octavo.display.console import console
    from octavo.display.progress import milestones
    from octavo.lab.architectures.stopping import Stopping
    from octavo.lab.architectures.trial_storage import NAME
    from octavo.lab.classifiers.text_classifier import LONGEST
    from octavo.lab.studies import architecture_tables as tables
    from octavo.lab.studies.architecture_builds import ArchitectureBuilds, Compression
    from octavo.lab.studies.architectures import Architectures, EpochCurve
    from octavo.lab.studies.stopwatch import chosen_device, machine
    from octavo.lab.studies.subject_catalogue import open_split
    from octavo.report import architecture_plots

    lengths = _numbers("--epochs", epochs)
    names = words(samplers or ("grid,random,tpe,nsga2" if preset == "lab32" else "random,tpe"))
    if not 0 <= sparsity < 1:
        raise SettingError(f"--sparsity is {sparsity:g}; accepted are shares from 0 to below 1")
    if texts is not None and texts < 64:
        raise SettingError(f"--texts is {texts}; accepted are whole numbers of at least 64, the texts of an update")
    compression = Compression(recipe, sparsity, tune_epochs) if recipe or sparsity else None
    study: Any
    if len(lengths) > 1:
        study = EpochCurve(
            lengths, None if point is None else _point(point), preset, scale, _SEEDS.of(seeds, quick=quick)
        )
    else:
        stopping = None if stop is None else Stopping(stop)
        study = Architectures(
            preset, scale, tuple(names), _TRIALS.of(trials, quick=quick), _SAMPLER_SEEDS.of(sampler_seeds, quick=quick),
            _SEEDS.of(seeds, quick=quick), lengths[0], stopping,
        )  # fmt: skip
    place = chosen_device(device)
    split = open_split(data, corpus, held_out, test=test, quick=quick)
    most = 2000 if quick and texts is None else texts
    if most is not None:
        split = split.fewer(most)
    folder = out or Path(f"octavo-nas-{preset}{'-quick' if quick else ''}")
    folder.mkdir(parents=True, exist_ok=True)
    builds = ArchitectureBuilds(split, length=length or LONGEST, compression=compression, warm=warm, device=place)
    with milestones(console(stderr=True)) as tell, resumable(folder):
        found = study.run(builds, storage or folder, folder, tell)
    facts = {"study": "nas", "metric": "validation accuracy", "context": builds.context(), "machine": machine(place)}
    title, metric = f"nas: {preset}, {scale}{' (quick)' if quick else ''}", "validation accuracy"
    shown: dict[str, Any] = {"folder": folder, "json": json, "journal": storage or NAME}
    if isinstance(study, EpochCurve):
        show(
            "nas-epochs", found, facts, table=tables.epoch_table, notes=lambda rows: [f"network: {rows[0]['network']}"],
            draw=partial(architecture_plots.epoch_figure, metric=metric, title=title), **shown,
        )  # fmt: skip
        return
    summaries = found.summaries()
    axes = [axis.name for axis in found.space.axes][:6]
    show(
        "nas", found.rows(), {**facts, "summaries": summaries, "chosen": found.chosen},
        table=lambda rows: tables.sampler_table(summaries),
        notes=lambda rows: tables.search_notes(summaries, found.chosen, builds.majority),
        draw=partial(
            architecture_plots.best_so_far_figure, lines="sampler", panels="curve", metric=metric, title=title,
            titles=tables.TOLD,
        ),
        further={"nas-axes": partial(architecture_plots.axis_figure, axes_of=axes, metric=metric, title=title)},
        **shown,
    )  # fmt: skip


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers separated by commas. Raises SettingError."""
    found = []
    for word in words(text):
        try:
            found.append(float(word))
        except ValueError:
            raise SettingError(f"{option}: {word!r} is no number; accepted are some such as 1,2,3") from None
    if not found:
        raise SettingError(f"{option}: no number; accepted are some such as 1,2,3")
    return tuple(found)


def _point(text: str) -> dict[str, Any]:
    """Read choices such as ``layers=2 type=linear``. Raises SettingError."""
    found: dict[str, Any] = {}
    for word in text.split():
        name, sign, choice = word.partition("=")
        if not sign or not name or not choice:
            raise SettingError(f"--point: {word!r}; accepted are choices such as layers=2")
        found[name] = int(choice) if choice.isdigit() else choice
    return found
