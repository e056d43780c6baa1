"""Fresh interpreters, the command line in this process, deaths of processes."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

import octavo
from octavo.cli import app
from typer.testing import CliRunner

PACKAGE = str(Path(octavo.__file__).parents[1])


def python(
    code: str,
    *arguments: object,
    text: str | None = None,
    timeout: float = 120,
    path: Iterable[object] = (),
    **environment: object,
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds this package and the folders of ``path``; ``text`` is its standard input."""
    found = os.pathsep.join([*map(str, path), PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": found, **{name: str(value) for name, value in environment.items()}}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, input=text, timeout=timeout, env=variables)


def octavo_command(*arguments: object, code: int = 0, text: str | None = None) -> str:
    """Run the command line in this process, which must end with ``code``; return its output, errors among it."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text, prog_name="octavo")
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


def are_gone(pids: Iterable[int], seconds: float = 10.0) -> bool:
    """Whether all processes end within ``seconds``; a zombie that nobody has waited for yet has ended."""

    def alive(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)
