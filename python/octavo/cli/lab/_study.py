"""Shared by the commands of ``octavo lab study``: options, opening of subjects, lists, saving, showing."""

from __future__ import annotations

import functools
import inspect
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from octavo.cli._texts import CorpusOption, HeldOutOption, LengthOption, TestOption
from octavo.errors import InterruptedRun, SettingError

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from octavo.lab.studies.measured_points import Laboratory
    from octavo.lab.studies.subject import Subject

ModelOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FOLDER",
        help="tiny, minilm, polynomials, or the folder of a model of transformers, which is fine-tuned first unless "
        "its head has as many classes as the texts.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|FILE",
        help="The folder of a --corpus, or a file of labelled texts (.tsv, .jsonl).  [default: a generated task]",
    ),
]
TrainedOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Run of octavo lab train classifier to study.  [default: trained first, inside --out]"
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where results go.  [default: octavo-STUDY-MODEL]")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:N.  [default: cuda where torch finds a GPU]"),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="A look in a minute or two: fewer texts, points and seeds.")]


@dataclass(frozen=True)
class Usual:
    """The number of an option that is not on the command line: ``whole``, or ``fast`` with --quick."""

    whole: int
    fast: int

    def option(self, text: str) -> Any:
        """Return the option; its default is None, so that --quick never overrides a number that was typed."""
        return typer.Option(metavar="N", help=f"{text}  [default: {self.whole}; with --quick {self.fast}]")

    def seeds(self) -> Any:
        """Return the option of repetitions."""
        return self.option("Repetitions with other calibration texts and orders.")

    def of(self, typed: int | None, *, quick: bool) -> int:
        """Return the number that was typed, or the usual one."""
        return typed if typed is not None else self.fast if quick else self.whole


@dataclass(frozen=True)
class SubjectOptions:
    """What a study is about, as the options say it: the model, and the texts it reads."""

    model: ModelOption = "tiny"
    data: DataOption = None
    trained: TrainedOption = None
    corpus: CorpusOption = None
    test: TestOption = None
    length: LengthOption = None
    held_out: HeldOutOption = None
    device: DeviceOption = None

    def open(
        self,
        opener: Callable[..., Subject],
        folder: Path,
        *,
        device: torch.device,
        quick: bool,
        tell: Callable[[str], None],
    ) -> Subject:
        """Return the model with its texts, on a device."""
        return opener(
            self.model, folder, data=self.data, trained=self.trained, corpus=self.corpus, test=self.test,
            length=self.length, held_out=self.held_out, device=device, quick=quick, tell=tell,
        )  # fmt: skip


def with_subject(command: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Return a command that takes the options of :class:`SubjectOptions` in place of its parameter ``subject``.

    ``without``: options that it does not take.
    """
    hints, options = get_type_hints(command, include_extras=True), get_type_hints(SubjectOptions, include_extras=True)
    options = {name: hint for name, hint in options.items() if name not in without}
    defaults = {field.name: field.default for field in fields(SubjectOptions)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "subject":
            parameters += [
                parameter.replace(name=name, annotation=kind, default=defaults[name]) for name, kind in options.items()
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(subject=SubjectOptions(**{name: values.pop(name) for name in options}), **values)

    del call.__wrapped__  # its signature is another one
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def run(
    study: str,
    work: Callable[[Laboratory], list[dict[str, Any]]],
    table: Callable[[Any], Any],
    notes: Callable[[Any], list[str]],
    draw: Callable[..., Any],
    *,
    subject: SubjectOptions,
    out: Path | None,
    quick: bool,
    json: bool,
    opener: Callable[..., Subject] | None = None,
) -> None:
    """Open the model and the journal, do the work, save and show what came of it.

    ``opener``: a function of :mod:`octavo.lab.studies.subject_catalogue`; None: that of trained models.
    """
    from octavo.display.console import console
    from octavo.display.progress import milestones
    from octavo.lab.studies.measured_points import Laboratory
    from octavo.lab.studies.stopwatch import chosen_device, machine
    from octavo.lab.studies.subject_catalogue import open_subject
    from octavo.search.journal import Journal

    folder = out or Path(f"octavo-{study}-{Path(subject.model).resolve().name}{'-quick' if quick else ''}")
    errors, device = console(stderr=True), chosen_device(subject.device)
    with Journal(folder) as journal, resumable(folder):
        opened = subject.open(opener or open_subject, folder, device=device, quick=quick, tell=errors.print)
        with milestones(errors) as tell:
            rows = work(Laboratory(opened, journal, folder, tell=tell))
    where = machine(device)  # trained weights depend on it: sums run in another order
    facts = {
        "study": study, "metric": opened.metric, "subject": opened.identity, "held_out": opened.held_out,
        "machine": where,
    }  # fmt: skip
    title = f"{study}: {opened.name}" + (" (quick)" if quick else "")
    draw_rows = partial(draw, metric=opened.metric, title=title)
    told = ["The test texts are training texts that were held out, not the test file."] if opened.held_out else []
    show(study, rows, facts, folder, table=table, notes=lambda rows: notes(rows) + told, draw=draw_rows, json=json)


def show(
    study: str,
    rows: list[dict[str, Any]],
    facts: dict[str, Any],
    folder: Path,
    *,
    table: Callable[[Any], Table],
    notes: Callable[[Any], list[str]],
    draw: Callable[[Any], Any],
    json: bool,
    journal: str = "study.jsonl",
    further: Mapping[str, Callable[[Any], Any]] | None = None,
) -> None:
    """Write CSV, JSON and the picture into ``folder``, and print the table, or JSON.

    ``facts``: what the rows are about; the command line is added to them. ``journal``: where points are kept.
    ``further``: pictures besides, of the same rows, by the names of their files.
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.errors import PackageError
    from octavo.lab.studies import result_files as studies
    from octavo.report import study_plots

    facts = {**facts, "command": ["octavo", *sys.argv[1:]]}
    studies.save(folder, rows, facts)
    written = [studies.CSV, studies.JSON, journal]
    try:
        for name, picture in {study: draw, **(further or {})}.items():
            written += [path.name for path in study_plots.save(picture(rows), folder, name)]
    except PackageError as missing:
        console(stderr=True).print(str(missing))
    if json:
        print_json({**facts, "rows": rows, "folder": str(folder)})
        return
    shown = console()
    print_table(shown, table(rows))
    shown.print()
    for line in notes(rows):
        shown.print(line)
    shown.print(f"written to {folder}: {', '.join(written)}")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say of a study that a signal ends that the same command goes on. Raises InterruptedRun."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        number = signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM
        if isinstance(end, SystemExit) and end.code != 128 + number:
            raise
        raise InterruptedRun(f"interrupted: the same command goes on from {folder}", number) from None


def words(text: str) -> list[str]:
    """Return words separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str, what: str = "width", *, digits: int = 6) -> tuple[int, ...]:
    """Read whole numbers of up to ``digits`` digits with commas between. Raises SettingError naming option and word."""
    found = []
    for word in words(text):
        if not (word.isascii() and word.isdigit() and len(word) <= digits):
            raise SettingError(f"{option}: {word!r} is no {what}; accepted are whole numbers separated by commas")
        found.append(int(word))
    return tuple(found)
