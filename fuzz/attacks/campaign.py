"""Mutated folders and files of every kind that Octavo reads: ``python fuzz/attacks/campaign.py KIND --count N --seed S``.

One process imports everything once and forks a child for a batch of cases. A case is bad if it ends the process, raises
what is neither an OctavoError nor an OSError, takes more memory than twice its files and 200 MB, more than 20 seconds, or
if anything of the folder was executed, a pickle in it opened, or something outside it copied. ``--case I`` runs one case
and shows its error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attacks import folders, mutate

LIMIT_S, SPARE_MIB, BATCH = 20.0, 200, 32
SECRET = "octavo-secret-of-the-environment"
KINDS = (
    "saved-bert", "saved-module", "recipe-model", "pack", "compress", "classifier", "run", "container", "recipes",
    "seq2seq", "gpt", "lora", "journal", "gguf", "compressed-tensors", "packed-folders",
)  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass
class Findings:
    """What a campaign found: how cases ended, and those that are bad with their reason."""

    kind: str
    cases: int = 0
    ended: Counter = field(default_factory=Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        reasons = Counter(case["bad"] for case in self.bad)
        counts = ", ".join(
            f"{name} {reasons.get(name, 0)}" for name in ("signal", "untyped", "memory", "time", "executed")
        )
        ended = ", ".join(f"{name} {count}" for name, count in self.ended.most_common(6))
        rate = self.cases / max(self.seconds, 1e-9)
        return f"{self.kind}: {self.cases} cases, {counts}; {self.seconds:.0f} s, {rate:.0f} a second ({ended})"


def campaign(kind: str, count: int, seed: int = 0, first: int = 0, stop_after: int = 50) -> Findings:
    """Run ``count`` cases of a kind; equal arguments are equal cases."""
    found, begin = Findings(kind), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="octavo-fuzz-", dir=_fast()) as top, _quiet():
        seeds = _seeds(kind, Path(top))
        gc.collect()
        gc.freeze()
        at = first
        while at < first + count and len(found.bad) < stop_after:
            results = _batch(kind, seeds, seed, range(at, min(at + BATCH, first + count)), Path(top) / "case")
            for result in results:
                found.cases += 1
                found.ended[result["ended"]] += 1
                if result.get("bad"):
                    found.bad.append({"case": at, **result})
                at += 1
        gc.unfreeze()
    found.seconds = time.perf_counter() - begin
    return found


def _fast() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the warnings of transformers and of torch to themselves while valid folders are made."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.environ["OCTAVO_FUZZ_SECRET"] = SECRET
    yield


def _seeds(kind: str, top: Path) -> list[folders.Folder]:
    import torch
    from attacks import readers

    torch.set_num_threads(1)
    makers, _ = readers.READERS[kind]
    made = []
    for number, make in enumerate(makers):
        make(top / f"valid-{number}")
        made.append(folders.read(top / f"valid-{number}"))
    if kind == "recipes":
        readers._MODEL = readers._foreign("bert")
        made = [{name: data} for name, data in made[0].items()]
    readers.READERS[kind][1](top / "valid-0")  # whatever is imported on the way is imported once
    shutil.rmtree(top / "out", ignore_errors=True)
    return made


def _batch(kind: str, seeds: list, seed: int, cases: range, place: Path) -> list[dict[str, Any]]:
    """Run cases in one child until one ends it; return a result for each that was begun."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _in_child(kind, seeds, seed, cases, place, writer)
        finally:
            os._exit(0)
    os.close(writer)
    results: list[dict[str, Any]] = []
    text, killed = b"", False
    while True:
        ready, _, _ = select.select([reader], [], [], LIMIT_S + 10)
        if not ready:
            os.kill(child, signal.SIGKILL)
            killed = True
        chunk = os.read(reader, 1 << 16)
        text += chunk
        if not chunk:
            break
    os.close(reader)
    _, status, _ = os.wait4(child, 0)
    lines = [json.loads(line) for line in text.split(b"\n")[:-1]]
    results = [line for line in lines if "ended" in line]
    if len(results) < len(lines) - len(results):  # a case was begun and did not end
        name = (
            signal.Signals(os.WTERMSIG(status)).name
            if os.WIFSIGNALED(status)
            else f"exit {os.waitstatus_to_exitcode(status)}"
        )
        results.append({"ended": name, "bad": "time" if killed or name == "SIGXCPU" else "signal", "told": name})
    shutil.rmtree(place, ignore_errors=True)
    return results


def _in_child(kind: str, seeds: list, seed: int, cases: range, place: Path, writer: int) -> None:
    answers = os.memfd_create("answers")
    os.pwrite(answers, b"y\n" * 64, 0)
    os.dup2(answers, 0)  # whoever asks is told yes
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    spare = 8 << 30
    with open("/proc/self/statm") as opened:
        size = int(opened.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + spare, size + spare))
    executed: list[str] = []
    _watch(str(place), kind, executed)
    for case in cases:
        os.write(writer, json.dumps({"begun": case}).encode() + b"\n")
        executed.clear()
        result = _one(kind, seeds, seed, case, place, executed)
        os.write(writer, json.dumps(result).encode() + b"\n")
        if result.get("bad") == "memory":
            return


def _watch(place: str, kind: str, executed: list[str]) -> None:
    """Note every way in which something of a folder may come to run, and the network."""

    def hook(event: str, args: tuple) -> None:
        if event in ("exec", "compile"):
            name = args[0].co_filename if event == "exec" else args[1]
            if str(name).startswith(place):
                executed.append(f"{event} {name}")
        elif event == "open" and isinstance(args[0], str) and args[0].startswith(place):
            is_pickle = args[0].endswith(_PICKLES) and kind != "run"
            if (args[0].endswith((".py", ".pyc")) and kind != "pack" and kind != "compress") or is_pickle:
                executed.append(f"open {args[0]}")
        elif event in (
            "socket.connect",
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "pickle.find_class",
        ):
            executed.append(f"{event} {args}"[:200])

    sys.addaudithook(hook)


def _one(kind: str, seeds: list, seed: int, case: int, place: Path, executed: list[str]) -> dict[str, Any]:
    from attacks import readers
    from octavo import OctavoError

    rng = random.Random(f"{kind} {seed} {case}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    os.chdir(place)
    result: dict[str, Any] = {"ended": "ok"}
    while True:
        try:
            nbytes = folders.write(folders.mutate_folder(rng, rng.choice(seeds)), place / "in")
            break
        except Exception:  # what no file system holds, and values that cannot be written
            shutil.rmtree(place / "in", ignore_errors=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, resource.RLIM_INFINITY))
    executed.clear()
    gc.collect(0)
    before = _peak(reset=True)
    begin = time.perf_counter()
    try:
        readers.READERS[kind][1](place / "in")
    except (OctavoError, OSError) as error:
        result = {"ended": type(error).__name__, "told": str(error)[:300]}
    except BaseException as error:
        result = {"ended": type(error).__name__, "bad": "untyped", "told": traceback.format_exc()[-1500:]}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    seconds, grown = time.perf_counter() - begin, _peak() - before
    if seconds > LIMIT_S:
        result |= {"bad": "time", "seconds": seconds}
    if grown > 2 * nbytes + (SPARE_MIB << 20):
        result |= {"bad": "memory", "grown_mib": grown >> 20}
    leaked = [str(name) for name in _copied(place / "out")]
    if os.path.exists(mutate.SENTINEL) or executed or leaked:
        result |= {"bad": "executed", "executed": [*executed, *leaked][:5]}
    return result


def _copied(out: Path) -> list[Path]:
    """Files of the output that hold what lies outside the folder."""
    if not out.is_dir():
        return []
    files = [file for file in out.rglob("*") if file.is_file()]
    return [file for file in files if file.stat().st_size > 1 << 26 or SECRET.encode() in file.read_bytes()]


def _peak(*, reset: bool = False) -> int:
    """The most bytes resident since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w") as opened:
            opened.write("5")
    with open("/proc/self/status") as opened:
        return next(int(line.split()[1]) << 10 for line in opened if line.startswith("VmHWM"))


def show(kind: str, seed: int, case: int) -> None:
    """Run one case in this process and show what it is and how it ends."""
    with tempfile.TemporaryDirectory(prefix="octavo-fuzz-", dir=_fast()) as top, _quiet():
        seeds = _seeds(kind, Path(top))
        result = _one(kind, seeds, seed, case, Path(top) / "case", [])
        for name in sorted(Path(top, "case", "in").rglob("*")):
            print(name.relative_to(Path(top) / "case"), file=sys.stderr)
        print(json.dumps(result, indent=2).replace("\\n", "\n"), file=sys.stderr)


def main() -> int:
    """Run the command line; the exit status tells whether a case was bad."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this case alone and show it")
    given = parser.parse_args()
    if given.case is not None:
        show(given.kind, given.seed, given.case)
        return 0
    failed = False
    for kind in KINDS if given.kind == "all" else (given.kind,):
        found = campaign(kind, given.count, given.seed, given.first)
        print(found, flush=True)
        for case in found.bad:
            print(json.dumps(case).replace("\\n", "\n"), flush=True)
        failed |= bool(found.bad)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
