"""Anonymous memory of a command while it runs: pages that belong to no file."""

import subprocess
import sys
import time
from pathlib import Path

IMPORTS = "import octavo.cli, octavo.compress.text_compression, transformers.models.llama.modeling_llama"


def anonymous(pid):
    """Return the bytes of anonymous pages of a process; 0 once it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def after_imports():
    """Return the anonymous bytes of a process that has imported what the command line runs a text model with."""
    program = f"{IMPORTS}; print(); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    found = anonymous(child.pid)
    child.communicate(b"\n")
    return found


def peak_of(command, log):
    """Run a command, its output into the file ``log``; return its exit status and its peak of anonymous bytes."""
    with open(log, "w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak = 0
        while child.poll() is None:
            peak = max(peak, anonymous(child.pid))
            time.sleep(0.02)
    return child.returncode, peak
