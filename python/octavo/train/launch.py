"""Starts the processes of a run on this machine, like torchrun but without its agent.

The parent forwards signals to the workers and returns their exit code. Workers find each other through a TCP store of
the parent, and end when it ends (:mod:`octavo.storage.children`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from octavo.errors import SettingError
from octavo.storage import children, system

# Seconds before workers are killed after one of them has failed, and after one has ended on a signal.
_AFTER_FAILURE, _AFTER_SIGNAL = 5.0, 120.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGNAL_CODES = tuple(128 + number for number in _SIGNALS)
_POLL_S = 0.02


def launch(command: Sequence[str], processes: int) -> int:
    """Run ``command`` in ``processes`` processes on this machine and return the exit code.

    ``command``: a script with its arguments, or ``-m`` and a module with its arguments. SIGINT and SIGTERM are
    forwarded; the processes write a checkpoint and end with 130 or 143, as does this one. If a process fails or is
    killed, the others are ended, and its exit code is returned: for a signal 128 plus its number.

    Raises SettingError on Windows, which has no groups of processes.
    """
    if not system.POSIX:
        raise SettingError(f"{processes} processes: this system has no groups of processes; train with one process")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    watched, ours = os.pipe()
    workers: list[subprocess.Popen[bytes]] = []
    with _forward_signals(workers):
        try:
            for rank in range(processes):
                workers.append(
                    subprocess.Popen(
                        children.command(command, watched),
                        env=_environment(rank, processes, store.port),
                        pass_fds=(watched,),
                        process_group=0,  # Ctrl-C of a terminal then reaches only this process, which forwards it
                    )
                )
            return _wait(workers)
        finally:
            for worker in workers:
                _end(worker)
            os.close(watched)
            os.close(ours)


def _environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set for the process ``rank``."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": f"octavo-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    threads = {"OMP_NUM_THREADS": "1"} if processes > 1 else {}
    return {**threads, **os.environ, **{name: str(value) for name, value in variables.items()}}


@contextmanager
def _forward_signals(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Forward signals to the workers inside, including workers that are started later."""

    def pass_on(number: int, _: object) -> None:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return 0, or the exit code of the first worker that failed; the others then get a grace period."""
    code, deadline = 0, float("inf")
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        failed = next((rank for rank, worker in enumerate(workers) if worker.poll()), None)
        if failed is not None and code == 0:
            code = _code(workers[failed])
            if workers[failed].returncode < 0:
                cause = f"process {failed} of {len(workers)} was ended by {_name(workers[failed].returncode)}"
                print(f"error: {cause}; the same command goes on from the newest checkpoint", file=sys.stderr)
                return code  # the others wait for it and have no error of their own
            deadline = time.monotonic() + (_AFTER_SIGNAL if code in _SIGNAL_CODES else _AFTER_FAILURE)
    return code or next((_code(worker) for worker in workers if worker.poll()), 0)


def _code(worker: subprocess.Popen[bytes]) -> int:
    return worker.returncode if worker.returncode >= 0 else 128 - worker.returncode


def _name(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker that still runs, with its child processes."""
    if worker.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)  # noqa: TID251
        worker.wait()
