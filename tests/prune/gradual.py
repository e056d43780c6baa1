"""A gradual pruning run small enough to train in a second.

``python gradual.py kill FOLDER KILLS SEED`` kills it; ``share FOLDER``, in processes that torchrun or
:func:`octavo.train.launch.launch` started, runs it in all of them.
"""

import json
import os
import sys
from pathlib import Path

import torch
from helpers.kills import kill_until_done
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
        folder, kills, seed = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        kill_until_done(lambda: gradual(folder), folder, kills, seed, longest=0.25)
