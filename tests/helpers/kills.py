"""Runs that are killed again and again, each time resumed; for scripts, since only a process without threads may fork."""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from octavo.train import checkpoint


def kill_until_done(train: Callable[[], object], folder: Path, kills: int, seed: int, longest: float) -> None:
    """Call ``train`` in a child, which is killed within ``longest`` seconds, ``kills`` times; then let it finish.

    Prints the newest checkpoint in ``folder`` after each kill, as JSON. A child that fails ends this process.
    """
    moments = random.Random(seed)
    reached = []
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                train()
                status = 0
            os._exit(status)
        if attempt < kills:
            time.sleep(moments.uniform(0.01, longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            break
        if not os.WIFSIGNALED(status):
            sys.exit(f"the child failed in attempt {attempt}")
        checkpoints = checkpoint.available(folder)
        reached.append(checkpoints[0].name if checkpoints else None)
    print(json.dumps(reached))
