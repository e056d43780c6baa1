"""One bar for all long work: on a terminal it tells label, share and text, elsewhere it says nothing."""

import ast
import io
import re
from contextlib import redirect_stderr
from pathlib import Path

import octavo
import pytest
from octavo.display.console import console
from octavo.display.progress import Bar, Stages, milestones, progress, status
from octavo.display.training_output import Display

PACKAGE = Path(octavo.__file__).parent
TRAINED = {"kind": "train", "step": 3, "loss": 0.5, "learning_rate": 1e-3, "clock": {"samples_per_s": 7.0}}


class Screen(io.StringIO):
    """What a terminal, or a file, gets."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(request, monkeypatch):
    made = Screen(terminal=request.param)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return made


def shown(screen):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


def by_bar():
    with Bar("packing", 4) as bar:
        bar.move(2, text="half[red]\x07")
        bar.move(advance=2)


def by_bytes():
    with progress("packing", 4000) as done:
        done("half[red]\x07", 2000)
        done("half[red]\x07", 2000)


def by_stages():
    with Stages(True).stage("packing", 4) as advance:
        for _ in range(4):
            advance()


def by_status():
    with status("packing") as tell:
        tell("packing half[red]\x07")


@pytest.mark.parametrize("work", [by_bar, by_bytes, by_stages, by_status])
def test_work_is_told_on_a_terminal_alone(work, screen):
    with redirect_stderr(screen):
        work()
    assert ("packing" in shown(screen)) is screen.isatty()
    assert "\x07" not in shown(screen)  # a name may hold anything
    assert not screen.isatty() or work is by_stages or r"half[red]\x07" in shown(screen)
    assert screen.isatty() or screen.getvalue() == ""


def test_milestones_are_lines_in_a_file(screen):
    with redirect_stderr(screen), milestones(console(stderr=True)) as tell:
        tell("first half", 0.5)
        tell("second half", 1.0)
    assert screen.isatty() or screen.getvalue() == "first half\nsecond half\n"
    assert "second half" in shown(screen)


def test_a_run_tells_lines_where_there_is_no_terminal_and_keeps_its_bar_where_there_is(screen):
    with redirect_stderr(screen), Display(4, step=0, enabled=True) as display:
        display.line(TRAINED)
        display.say("a note")
    text = shown(screen)
    assert "a note" in text and "loss 0.5000" in text and ("step 3/4" in text) is not screen.isatty()
    silent = Screen(terminal=screen.isatty())
    with redirect_stderr(silent), Display(4, step=0, enabled=False) as display:
        display.line(TRAINED)
        display.step(4)
        display.say("a note")
    assert silent.getvalue() == ""


def test_a_function_of_the_callers_is_told_of_every_part(screen):
    told = []
    with redirect_stderr(screen), Stages(lambda *part: told.append(part)).stage("packing", 2) as advance:
        advance()
        advance()
    with redirect_stderr(screen), Stages(False).stage("packing", 2) as advance:
        advance()
    assert told == [("packing", 1, 2), ("packing", 2, 2)] and screen.getvalue() == ""


def test_there_is_one_bar():
    """No other file draws one."""
    drawing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if {"rich.progress", "tqdm", "rich.status", "rich.live"} & set(names):
                drawing.add(str(path.relative_to(PACKAGE)))
    assert drawing == {"display/progress.py"}
