import pytest
from helpers.processes import python
from octavo.errors import FormatError

HEAVY = ("torch", "numpy", "transformers", "rich")
COMMANDS = (
    "formats",
    "compare",
    "pack",
    "unpack",
    "inspect",
    "compress",
    "lab expand",
    "recipe",
    "prune",
    "report",
    "doctor",
)


MAIN = "from octavo.cli import main; main()"


@pytest.mark.parametrize("code", ["import octavo", "from octavo.cli import app"])
def test_importing_loads_nothing_heavy(code):
    loaded = f"{code}; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(loaded).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["-V"],
        *([*command.split(), "--help"] for command in COMMANDS),
    ],
)
def test_help_loads_nothing_heavy(args):
    code = f"""
import sys
from octavo.cli import main
try:
    main()
finally:
    heavy = [name for name in {HEAVY} if name in sys.modules]
    assert not heavy, heavy
"""
    result = python(code, *args)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert result.stdout


def test_inspecting_does_not_load_torch(model):
    code = f"import sys; from octavo.cli import app; app({['inspect', str(model)]}, standalone_mode=False)"
    assert python(f"{code}; print('torch' in sys.modules)").stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(octavo, command):
    text = octavo(*command.split(), "--help").output
    assert "Example" in text
    assert f"octavo {command}" in text.split("Example")[1]


def test_an_error_is_one_line_on_stderr_with_exit_code_2():
    result = python(MAIN, "formats", "mxfp6e3m3")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "error: unknown format 'mxfp6e3m3'; did you mean 'mxfp6e3m2'?\n"


def test_debug_shows_the_traceback(octavo):
    result = octavo("--debug", "formats", "mxfp6e3m3", code=1)
    assert isinstance(result.exception, FormatError)


def test_a_closed_pipe_ends_quietly():
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {MAIN!r}, 'formats'], "
    code += "stdout=subprocess.PIPE, stderr=subprocess.PIPE); p.stdout.close(); print(p.stderr.read().decode())"
    assert python(code).stdout.strip() == ""


@pytest.mark.slow
def test_output_needs_no_unicode():
    code = f"import sys; sys.stdout.reconfigure(encoding='ascii'); {MAIN}"
    result = python(code, "formats", "mxfp4")
    assert result.returncode == 0, result.stderr


def test_the_library_has_19_commands_and_those_of_the_laboratory_stand_under_lab():
    import typer
    from octavo.cli import app

    command = typer.main.get_command(app)
    listed = {name for name, one in command.commands.items() if not one.hidden}
    assert len(listed - {"lab"}) == 19 and "lab" in listed
    assert set(command.commands["lab"].commands) == {"train", "bench", "study", "expand"}
    assert set(command.commands) - listed == {"train", "bench", "study", "expand"}


@pytest.mark.parametrize("name", ["train", "bench", "study", "expand"])
def test_former_names_of_the_laboratorys_commands_still_work(octavo, name):
    assert (
        octavo(name, "--help").output.replace("octavo ", "octavo lab ", 1).split()
        == octavo("lab", name, "--help").output.split()
    )


def test_our_warnings_are_one_line_without_the_place_in_the_source():
    code = """
import warnings
from octavo.cli._app import tell_warnings
from octavo.errors import OctavoWarning
tell_warnings()
warnings.warn("two\\nlines", OctavoWarning)
warnings.warn("of another package", UserWarning)
"""
    ours, others, *_ = python(code).stderr.splitlines()
    assert ours == "warning: two lines" and others.endswith("UserWarning: of another package")
