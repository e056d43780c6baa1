"""Children of :mod:`octavo.storage.children` end with their parent, and run what Python would run."""

import os
import signal
import subprocess
import sys

import pytest
from helpers.processes import are_gone
from octavo.storage import children

PARENT = """
import subprocess, sys, time
from octavo.storage import children
child = subprocess.Popen(children.command([sys.argv[1]]), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(tmp_path, number):
    (tmp_path / "child.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "child.py")], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.communicate()
    assert are_gone([child])


def test_a_child_whose_parent_is_gone_already_ends_at_once(tmp_path):
    command = children.command([str(tmp_path / "never.py")])
    command[3] = str(os.getppid())  # not who starts it
    assert subprocess.run(command).returncode == 1


def test_exit_codes_arguments_and_errors_come_through(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nif sys.argv[1:] == ['fail']: 1 / 0\nsys.exit(int(sys.argv[1]))\n")
    for argument, code in (("0", 0), ("7", 7), ("fail", 1)):
        done = subprocess.run(children.command([str(tmp_path / "script.py"), argument]), capture_output=True)
        assert done.returncode == code
    assert b"ZeroDivisionError" in done.stderr
