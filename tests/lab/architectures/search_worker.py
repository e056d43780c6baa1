"""A worker of a search, run as a process that tests kill: python search_worker.py STORAGE LOG SAMPLER TRIALS SECONDS."""

import os
import sys
import time

from octavo.lab.architectures.search_loop import run_search
from octavo.lab.architectures.space import Axis, Space

SPACE = Space(
    (
        Axis("layers", (1, 2, 3, 4)),
        Axis("kind", ("linear", "identity")),
        Axis("rank", (1, 2, 3, 4), when=lambda point: point["kind"] == "linear"),
        Axis("width", (1, 2)),
    ),
    dict,
)
POINTS = 4 * (4 + 1) * 2


def measured(point):
    return {"accuracy": point["layers"] + point.get("rank", 2.5), "bytes": 10 * point["layers"] * point["width"]}


def main(storage, log, sampler, trials, seconds):
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def evaluate(build):
        os.write(file, f"begin {build.identity} {os.getpid()} {time.monotonic()}\n".encode())
        time.sleep(float(seconds))
        os.write(file, f"end {build.identity} {os.getpid()} {time.monotonic()}\n".encode())
        return measured(build.point)

    run_search(
        SPACE, evaluate, storage=storage, name="kills", sampler=sampler, objectives=["accuracy", "bytes min"],
        trials=int(trials) or None, lease_s=30,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
