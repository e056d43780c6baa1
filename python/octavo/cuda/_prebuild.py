"""Compiles kernels in parallel processes, because NVRTC compiles one kernel at a time per process.

A worker reads one task per line on stdin and answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from octavo import _core, errors
from octavo.errors import InternalError, SettingError
from octavo.storage.system import cores

if TYPE_CHECKING:
    from octavo.tensors.formats import Format

_Task = tuple[str, str, str, int]  # name, format, architecture, position among the format's programs


@dataclass(frozen=True)
class Prebuilt:
    """The result of a prebuild: kernels ``compiled`` now and ``found`` in the cache, architectures, seconds."""

    compiled: int
    found: int
    archs: tuple[str, ...]
    seconds: float


def compile_all(
    archs: list[str],
    formats: list[Format],
    processes: int | None,
    progress: Callable[[int, int, str], object] | None,
) -> Prebuilt:
    """Compile every program of ``formats`` for ``archs`` that the folder of compiled kernels lacks.

    Raises SettingError if the cache is disabled or for less than one process, KernelCompileError for the first program
    that NVRTC refuses.
    """
    start = time.perf_counter()
    if processes is not None and (type(processes) is not int or processes < 1):
        raise SettingError(f"processes is {processes!r}; accepted are whole numbers from 1 on")
    here = _core._cuda_info()
    if "cache" not in here:
        why = here["missing"]["cache"]
        raise SettingError(f"compiled kernels are not kept: {why}; set OCTAVO_CACHE_DIR to a folder")
    tasks = list(_tasks(archs, formats))
    done = compiled = 0
    lock = Lock()
    waiting = iter(tasks)

    def work() -> None:
        nonlocal done, compiled
        with _Worker() as worker:
            while True:
                with lock:
                    task = next(waiting, None)
                if task is None:
                    return
                count = worker.compile(task)
                with lock:
                    done, compiled = done + 1, compiled + count
                    if progress is not None:
                        progress(done, len(tasks), f"{task[0]} {task[2]}")

    wanted = processes or cores()
    with ThreadPoolExecutor(max(1, min(wanted, len(tasks)))) as pool:
        jobs = [pool.submit(work) for _ in range(min(wanted, len(tasks)))]
        for job in jobs:
            try:
                job.result()
            except BaseException:
                with lock:
                    waiting = iter(())  # the other workers finish the kernel that they compile
                raise
    return Prebuilt(compiled, done - compiled, tuple(archs), time.perf_counter() - start)


def _tasks(archs: list[str], formats: list[Format]) -> Iterator[_Task]:
    """Yield each program once; some formats share programs."""
    seen = set()
    for arch in archs:
        for fmt in formats:
            for position, (name, key) in enumerate(_core._cuda_programs(fmt.core, arch)):
                if key not in seen:
                    seen.add(key)
                    yield name, str(fmt), arch, position


class _Worker:
    """A process that compiles. It is a separate command, because multiprocessing forks or reruns the main program."""

    def __enter__(self) -> _Worker:
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from octavo.cuda._prebuild import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self

    def compile(self, task: _Task) -> bool:
        """Compile one program; return whether it was not in the cache."""
        requests, taken = self._process.stdin, self._process.stdout
        assert requests is not None and taken is not None  # both are pipes
        try:
            requests.write(json.dumps(task) + "\n")
            requests.flush()
            answer = json.loads(taken.readline())
        except (BrokenPipeError, ValueError):
            raise InternalError(f"the process that compiles '{task[0]}' for {task[2]} died") from None
        if "error" in answer:
            kind = getattr(errors, answer["kind"], InternalError)
            raise kind(*answer["error"])
        return bool(answer["compiled"])

    def __exit__(self, *error: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def serve() -> None:
    """Compile the task of each line of stdin, until it ends. Ctrl-C is ignored here and handled by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        _, fmt, arch, position = json.loads(line)
        try:
            answer: dict[str, object] = {"compiled": _core._cuda_prebuild(_core.Format(fmt), arch, position)}
        except Exception as error:  # the parent raises it
            answer = {"kind": type(error).__name__, "error": [str(argument) for argument in error.args]}
        print(json.dumps(answer), flush=True)
