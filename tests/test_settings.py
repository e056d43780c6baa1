"""Settings of the environment that make no sense: SettingError in one line, and exit code 2 on the command line."""

import os
import subprocess
import sys
import textwrap

import pytest

WRONG = [
    ("OCTAVO_NUM_THREADS", "1" * 5000, "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "257", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "18446744073709551616", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "-3", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "2\n3", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "1e2", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", "\u0664", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_NUM_THREADS", " ", "accepted are 0 (all cores) to 256"),
    ("OCTAVO_SIMD", "sse9\nx", "accepted are scalar, neon, avx2, avx512"),
    ("OCTAVO_SIMD", "a" * 100_000, "accepted are scalar, neon, avx2, avx512"),
    ("OCTAVO_STRICT", "yes", "accepted are 0 and 1"),
    ("OCTAVO_CUDA_SYNC", "2", "accepted are 0 and 1"),
    ("OCTAVO_CUDA_PLAIN", "\udcff", "accepted are 0 and 1"),
]


def run(*arguments, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("name, value, accepted", WRONG, ids=[f"{name}-{value[:6]!r}" for name, value, _ in WRONG])
def test_a_setting_that_makes_no_sense_is_a_typed_error_of_one_line(name, value, accepted):
    done = run("-c", "import octavo", **{name: value})
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "SettingError" in last and name in last and accepted in last and len(last) < 300
    for command in (["-m", "octavo", "formats"], ["-m", "octavo", "--help"]):
        done = run(*command, **{name: value})
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert name in done.stderr and accepted in done.stderr


def test_the_console_script_refuses_in_one_line(tmp_path):
    script = tmp_path / "octavo"
    script.write_text("import sys\nfrom octavo.cli import main\nsys.exit(main())\n")
    done = run(str(script), "formats", OCTAVO_NUM_THREADS="lots")
    assert done.returncode == 2 and done.stderr.startswith("error: OCTAVO_NUM_THREADS='lots'"), done.stderr


@pytest.mark.parametrize("value, threads", [("0003", 3), ("256", 256), ("0" * 400 + "2", 2)])
def test_a_number_of_threads_may_be_written_with_zeros(value, threads):
    done = run("-c", "import octavo; print(octavo._core.num_threads())", OCTAVO_NUM_THREADS=value)
    assert done.stdout.strip() == str(threads), done.stderr


@pytest.mark.parametrize("first", ["", "import octavo"])
def test_a_subinterpreter_is_refused_by_name(first):
    code = f"""
        {first or "pass"}
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        inside = '''
        try:
            import octavo
        except ImportError as error:
            print("refused:", error, flush=True)
        '''
        import textwrap
        interpreters.run_string(interpreters.create(), textwrap.dedent(inside))
        import octavo
        print("main:", octavo.Format("mxint8"), flush=True)
    """
    done = run("-c", textwrap.dedent(code))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("refused: octavo cannot be imported in a subinterpreter"), lines
    assert lines[1] == "main: mxint8"
