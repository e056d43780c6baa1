"""docs/lab/nouns.md shows what it says: each command runs, at its smallest size; presets, names and pages are there."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from data.byte_pair_texts import END, corpus
from helpers.quick import spread
from helpers.text_folders import labelled_file, text_folder
from octavo.cli import app
from octavo.compress import readers, sentiment
from octavo.lab.classifiers import training_run as classifier_run
from octavo.lab.language.language_presets import PRESETS
from octavo.lab.polynomials import train_configs, training_run
from octavo.lab.studies import subject_catalogue
from test_documents import LINK, command_line, resolve
from typer.testing import CliRunner

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lab" / "nouns.md"
ROWS = re.findall(r"^\| (?!noun |---)(.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NOUNS = 264
CODE = re.compile(r"`([^`]+)`")
COMMANDS = sorted({code for _, shown in ROWS for code in CODE.findall(shown) if code.startswith("octavo ")})

SMALL = {  # options by command: those that make it small, or run where there is no GPU
    "eval polynomials": {},
    "generate": {"--tokens": "2"},
    "lab expand": {},
    "lab bench diffusion": {"--samples": "2", "--tokens": "8", "--steps": "1,2"},
    "lab bench experts": {"--tokens": "300"},
    "lab bench gpt": {"--arms": "gqa", "--seeds": "1", "--tokens": "1024", "--validation-tokens": "128", "--trials": "1"},
    "lab bench polynomials": {"--steps": "1", "--val-steps": "1", "--batch": "8", "--device": "cpu", "--epoch": "16", "--val-epoch": "8"},
    "lab study attention": {"--rounds": "1", "--contexts": "16"},
    "lab study combined": {"--formats": "int2:g32,int4:g32", "--samples": "8", "--seeds": "1"},
    "lab study compile": {
        "--backend": "eager", "--batch": "1", "--length": "8", "--layers": "1", "--width": "64", "--rounds": "1",
        "--calls": "1,2", "--device": "cpu",
    },
    "lab study dequantize": {"--sizes": "1024", "--groups": "32", "--rounds": "1"},
    "lab study lora": {"--ranks": "1", "--seeds": "1", "--bases": ""},
    "lab study memory": {"--device": "cpu", "--recipes": "mxint8", "--texts": "4"},
    "lab study mixed": {"--trials": "1", "--points": "1"},
    "lab study nas": {"--trials": "1", "--sampler-seeds": "1", "--seeds": "1", "--texts": "64", "--scale": "tiny"},
    "lab study prune": {"--sparsities": "0.5", "--seeds": "1", "--epochs": "0.5", "--cooldown": "0.1"},
    "lab study ptq-qat": {"--families": "int", "--widths": "4", "--seeds": "1", "--device": "cpu"},
    "tokenize train": {"--size": "300"},
    "lab train gpt": {"--tokens": "2048", "--vocabulary": "300", "--validation-tokens": "128"},
    "lab train polynomials": {"--batch": "8", "--accumulation": "1", "--precision": "fp32", "--device": "cpu"},
}  # fmt: skip
ADDED = {"lab study mixed": {"--groups": "LinearInteger", "--samplers": "random"}}
"""Options that make a command small where the page leaves them out."""
REPLACED = {  # values of the page, by option: smaller ones
    "--set": "context=64",
    "--epochs": "0.5",
    "--until": "3.3821",
    "--budgets": "0.001h",
}


@pytest.mark.parametrize(("noun", "shown"), ROWS, ids=[noun for noun, _ in ROWS])
def test_a_noun_is_shown_by_something_that_is_there(noun, shown):
    codes, links = CODE.findall(shown), LINK.findall(shown)
    assert codes or links
    for link in links:
        assert (PAGE.parent / link.partition("#")[0]).exists(), link
    for code in codes:
        if re.fullmatch(r"octavo(\.\w+)+", code):
            resolve(code)
        elif re.search(r"\bpresets? [^;]*`" + re.escape(code) + "`", shown) and not code.startswith("octavo "):
            assert code in PRESETS, code


def test_no_noun_is_missing():
    assert len(ROWS) == NOUNS
    assert len(COMMANDS) > 60


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Small files and folders behind the capital words of the page."""
    return functools.partial(_place, tmp_path_factory.mktemp("places"))


def _place(top, kind):
    path = top / kind
    if path.exists():
        return path / "model" if kind in PRESETS else path
    if kind == "LINES":
        path.write_text("".join(f"{a}*(x+{b})={a}*x+{a * b}\n" for a in range(2, 9) for b in range(1, 9)))
    elif kind == "EXPRESSIONS":
        path.write_text("(2*x+3)*(4-x)\n5*(x-1)\n")
    elif kind in ("TEXT", "PLAYS"):
        path = top / f"{kind}.txt"
        path.write_text(END.join(corpus(2500, seed + len(kind)) for seed in range(4)))
    elif kind == "TEXTS":
        path = labelled_file(top / "TEXTS.tsv", 60)
    elif kind == "IMDB":
        path.mkdir()
        for name, count in zip(readers.CORPORA["imdb"].files.values(), (60, 20), strict=True):
            rows = ({"text": f"film {row} was good", "label": row % 2} for row in range(count))
            (path / name).write_text("".join(f'{{"text": "{row["text"]}", "label": {row["label"]}}}\n' for row in rows))
    elif kind == "classifier":
        text_folder(path, head="ForSequenceClassification", num_labels=2)
    elif kind in PRESETS:
        options = ("--preset", kind, "--data", _place(top, "TEXT"), "-o", path)
        run("lab train gpt", *options, *(word for option in SMALL["lab train gpt"].items() for word in option))
        path = path / "model"
    elif kind == "BENCH":
        options = ("--data", _place(top, "TEXT"), "-o", path)
        run(
            "lab bench gpt",
            *options,
            *(word for option in SMALL["lab bench gpt"].items() if option[0] != "--trials" for word in option),
        )
    return path


MODELS = {  # of MODEL and OTHER
    "generate": ("nocap_baseline", "TEXT"),
    "lab bench diffusion": ("masked_diffusion", "nocap_baseline"),
    "lab bench experts": ("moe_2", "PLAYS"),
}


def run(command, *options):
    result = CliRunner().invoke(app, [*command.split(), *map(str, options)], prog_name="octavo")
    assert result.exit_code == 0, f"{command} {options}: {result.output}\n{result.exception!r}"
    return result


def smallest(words, top, places):
    """The words of a command with smaller values, and with paths that are there."""
    command = next(
        (name for name in sorted(SMALL, key=len, reverse=True) if words[: len(name.split())] == name.split()), ""
    )
    options = dict(SMALL.get(command, {}))
    if command == "lab train polynomials":
        options |= {"--validation": "8", "--epochs": "0.5"} if "--preset" in words else {"--steps": "2"}
    model, other = MODELS.get(command or words[0], ("classifier", "classifier"))
    paths = {
        "MODEL": model, "OTHER": other, "TEXT": "TEXT", "TEXTS": "TEXTS", "LINES": "LINES", "IMDB": "IMDB", "BENCH": "BENCH",
    }  # fmt: skip
    options |= {option: value for option, value in ADDED.get(command, {}).items() if option not in words}
    if command == "lab expand":
        paths["LINES"] = "EXPRESSIONS"
    typed = []
    for at, word in enumerate(words):
        option = words[at - 1] if at else ""
        if word in ("PAGE", "FOLDER"):
            typed.append(str(top / word.lower()))
        elif word == "PROMPT":
            typed.append("the film was")
        elif word in paths:
            typed.append(str(places(paths[word])))
        elif option in options:
            typed.append(options.pop(option))
        else:
            typed.append(REPLACED.get(option, word))
    synonyms = {"--contexts": "--lengths"}
    typed += [
        part for option, value in options.items() if synonyms.get(option) not in typed for part in (option, value)
    ]
    return typed


@pytest.fixture
def small(monkeypatch):
    """Few texts and lines, and trainings of few updates."""
    load = subject_catalogue.signs.load
    monkeypatch.setattr(subject_catalogue.signs, "load", lambda train, **_: load(64, validation=16, test=32))
    monkeypatch.setattr(sentiment, "load", functools.partial(sentiment.load, validation=16))
    parameters = classifier_run.Hyperparameters(epochs=1, batch_size=16, learning_rate=1e-3, precision="fp32")
    monkeypatch.setitem(classifier_run.HYPERPARAMETERS, "tiny", parameters)
    for module in (train_configs, training_run):
        monkeypatch.setattr(module, "TEST", 20)
        monkeypatch.setattr(module, "VALIDATION", 20)
    monkeypatch.setattr(training_run, "CALIBRATION", 16)


@pytest.mark.parametrize("command", spread(COMMANDS, 20))
def test_every_command_of_the_page_runs(command, tmp_path, places, small, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = smallest(shlex.split(command)[1:], tmp_path, places)
    found = command_line()
    while hasattr(found, "commands"):
        found, words = found.commands[words[0]], words[1:]
    if (
        "--out" not in words
        and any("--out" in parameter.opts for parameter in found.params)
        and command.split()[1] not in ("eval", "graph")
    ):
        words += ["--out", str(tmp_path / "out")]
    if "--ddp" in words:  # torchrun begins processes with the words of this one
        typed = [sys.executable, "-m", "octavo", *command_name(command).split(), *words]
        ended = subprocess.run(typed, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
    else:
        run(command_name(command), *words)


def command_name(command):
    """The words before its options and arguments."""
    found, names = command_line(), []
    for word in shlex.split(command)[1:]:
        if not hasattr(found, "commands"):
            break
        found = found.commands[word]
        names.append(word)
    return " ".join(names)
