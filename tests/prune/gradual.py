"""A gradual pruning run small enough to train in a second.

``python gradual.py kill FOLDER KILLS SEED`` kills it; ``share FOLDER``, in processes that torchrun or
:func:`octavo.train.launch.launch` started, runs it in all of them.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from octavo.prune import Cubic, Iterative, callback, prune_model, report
from octavo.train import checkpoint
from train.tiny import Model, run

SCHEDULES = {"cubic": Cubic(steps=25, every=4, start=3), "iterative": Iterative(rounds=4, every=8, start=2)}


def pruned(criterion="movement", schedule="cubic", **options):
    """The model of the run, with masks that prune nothing yet."""
    chosen = {"criterion": criterion, "schedule": SCHEDULES[schedule], "scope": "global", **options}
    if criterion == "wanda":
        chosen |= {"calibration": [torch.arange(8)[None], torch.arange(3, 11)[None]], "scope": "local"}
    return prune_model(Model(dropout=0.1), 0.8, **chosen)


def gradual(folder, model=None, task=None, **changes):
    """Train to 40 steps and 80 % of the weights pruned."""
    model = pruned() if model is None else model
    return run(folder, task, model, callbacks=[callback(model)], **changes)


def content(folder):
    """The bytes of the weights, and everything in the newest checkpoint but clocks."""
    held = checkpoint.load(checkpoint.available(folder)[0])
    held.pop("clock"), held["state"]["window"].pop("seconds")
    weights = [(folder / name).read_bytes() for name in ("last.safetensors", "best.safetensors")]
    return checkpoint.digest(held), weights


def kill(folder, kills, seed):
    """Train in a child, kill it after a random time, again and again; then let it finish. Print where it got."""
    moments, reached = random.Random(seed), []
    for attempt in range(kills + 1):
        child = os.fork()  # no thread runs yet: torch is told to use one
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                gradual(folder)
                status = 0
            os._exit(status)
        if attempt < kills:
            time.sleep(moments.uniform(0.01, 0.25))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            break
        if not os.WIFSIGNALED(status):
            sys.exit(f"the child failed in attempt {attempt}")
        held = checkpoint.available(Path(folder))
        reached.append(held[0].name if held else None)
    print(json.dumps(reached))


def share(folder):
    """Train in several processes, and write what each of them holds in the end."""
    model = pruned()
    gradual(folder, model)
    told = {"state": checkpoint.digest(dict(model.state_dict())), "pruned": report(model).pruned}
    folder.with_name(f"{folder.name}.rank{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "share":
        share(Path(sys.argv[2]))
    else:
        kill(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
