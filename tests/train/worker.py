"""What tests run in other processes.

``kill FOLDER KILLS SEED``, ``two FOLDER PAUSE`` and, under torchrun, ``share FOLDER CHANGES``.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from helpers.kills import kill_until_done
from octavo import LockedError
from octavo.storage import locks
from train.tiny import Model, Rule, run


class Lasting(Rule):
    """Lasts long enough that two runs are at work at once."""

    def batch(self, *given):
        time.sleep(0.005)
        return super().batch(*given)


def two(folder, pause):
    """Train in two children at once, the second ``pause`` seconds later. Print their codes: 3 is a refusal."""
    locks._PATIENCE = 0.0
    children = []
    for _ in range(2):
        children.append(os.fork())  # no thread runs yet, and autograd has none: torch refuses to train otherwise
        if children[-1] == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    run(folder, task=Lasting())
                    status = 0
                except LockedError:
                    status = 3
            os._exit(status)
        time.sleep(pause)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


class Slow(Rule):
    """Pauses as long as the environment says, so that a test can send a signal in time."""

    def batch(self, *arguments):
        time.sleep(float(os.environ.get("OCTAVO_TEST_PAUSE", "0")))
        return super().batch(*arguments)


def share(folder, changes):
    """Train in one of several processes, and write down which sequences this one asked for."""
    model, task = Model(), Slow()
    run(folder, task=task, model=model, **json.loads(changes))
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    told = {"asked": task.asked, "weights": weights, "drawn": torch.rand(4).tolist()}
    Path(f"{folder}.rank{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    if what == "kill":
        folder, kills, seed = Path(arguments[0]), int(arguments[1]), int(arguments[2])
        kill_until_done(lambda: run(folder), folder, kills, seed, longest=0.15)
    elif what == "two":
        two(Path(arguments[0]), float(arguments[1]))
    else:
        share(*arguments)
