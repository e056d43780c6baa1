"""Whatever an argument is, a public function works or raises an OctavoError that names it, and leaves nothing behind.

``valid_calls.py`` has a valid call of every public function of the rooms below; here each argument in turn is replaced
by each of ``hostile_values.py``. Errors of the operating system about a path that is missing or taken are its own.
"""

import importlib
import inspect
import os
import signal
import traceback
import warnings
from contextlib import contextmanager
from importlib.util import find_spec

import octavo
import pytest
import torch
from arguments import data_calls  # noqa: F401 - enters its calls
from arguments.hostile_values import few, many, some
from arguments.valid_calls import CALLS, RECORDS, SLOW
from helpers.quick import spread

ROOMS = (
    "search",
    "graph",
    "prune",
    "quant",
    "lora",
    "recipe",
    "train",
    "report",
    "data",
    "engine",
    "lab.architectures",
    "lab.polynomials",
    *(["peft"] if find_spec("peft") else []),
)
LIMIT_S = 60


def public():
    """Yield the name and the object of every public function, class, and method that takes an argument."""
    seen = set()
    for room in ("", *ROOMS):
        module = importlib.import_module(f"octavo.{room}".rstrip("."))
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or thing in seen or (isinstance(thing, type) and issubclass(thing, BaseException)):
                continue
            seen.add(thing)
            if thing is octavo.train.Task:  # a protocol, which users fill
                continue
            known = f"{room.rpartition('.')[2]}.{name}".lstrip(".")
            if parameters(thing):
                yield known, thing
            for method, given in vars(thing).items() if isinstance(thing, type) else ():
                bound = getattr(thing, method)
                if not method.startswith("_") and callable(bound) and parameters(bound, given):
                    yield f"{known}.{method}", bound


def parameters(call, given=None):
    """The parameters of a function, without ``self`` where ``given``, what its class holds, is a plain method."""
    found = list(inspect.signature(call).parameters.values())
    return found[1:] if inspect.isfunction(given) else found


PUBLIC = dict(public())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a function that makes a folder to work in, and works in it."""
    count = iter(range(10**9))

    def make():
        at = tmp_path / str(next(count))
        (at / "full").mkdir(parents=True)
        (at / "full" / "file").write_text("x")
        (at / "junk").write_bytes(b"\xff\x00\xfe{")
        monkeypatch.chdir(at)
        return at

    return make


@contextmanager
def limited():
    """Raise BaseException where the block hangs."""

    def ring(*_):
        raise KeyboardInterrupt(f"hangs: more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def listing(folder):
    return {os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)}


def fault(make, at, argument, value):
    """Return what is wrong with how a call takes a value for an argument; None where nothing is."""
    call, arguments = make(at)
    before, resumed = listing(at), (str(at / "journal"), str(at / "search"))  # what was measured is found there again
    try:
        with limited():
            call(**{**arguments, argument: value})
        return None
    except octavo.InternalError as error:
        return f"InternalError: {error}"
    except octavo.OctavoError as error:
        told = str(error)
        if left := {file for file in listing(at) - before if not file.startswith(resumed)}:
            return f"left {sorted(left)} behind: {told}"
        return None if names(told, argument, value) else f"does not name the argument: {told}"
    except OSError as error:
        is_named = written(value)[:20] in str(error) or str(error.filename) in written(value)
        return None if is_named else f"{type(error).__name__}: {error}"
    except BaseException as error:
        if callable(value) and not is_ours(error):
            return None
        return f"{type(error).__name__}: {str(error)[:300]}"


# What messages call an argument whose name says less.
NOUNS = {
    "data": ("calibration", "batch", "stream", "text"), "batches": ("batch", "calibration"), "calibration": ("batch",), "budget": ("bits",),
    "given": ("recipe", "pipeline", "pass", "schedule", "configuration", "trainconfig", "metric"), "text": ("recipe", "json"), "inputs": ("torch.export", "layer", "shape"),
    "path": ("folder",), "model": ("layer", "weight", "recipe", "fuse", "adapter", "lora: 'type:linear'"), "context": ("settings",), "content": ("measurement",), "stream": ("ids",), "tokens": ("ids",), "point": ("assignment",), "steps": ("pass",),
    "lines": ("character",), "paths": ("files of text",), "sources": ("files of text",), "reader": ("no read",), "writer": ("no write",),
    "also_after": ("stage",), "also_on": ("stage",), "weight": ("value",), "config": ("rank", "option"), "samples": ("batch",),
    "test": ("evaluate",), "share": ("selector",), "exclude": ("selector",), "against": ("model", "agreement"), "train": ("loss",),
    **dict.fromkeys(("type", "name", "glob", "regex", "kind"), ("selector",)),
}  # fmt: skip


def is_ours(error):
    """Whether an error was raised in a file of the package, and not in a function that was given to it."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(os.path.dirname(octavo.__file__))


def names(told, argument, value):
    """Whether a message has the name of an argument, or the value as a text, or its class."""
    told = " ".join(told.split())
    nouns = (argument, argument.removesuffix("s"), *NOUNS.get(argument, ()))
    texts = (" ".join(read(value).split())[:20] for read in (shown, written))
    return (
        any(noun in told.lower() for noun in nouns)
        or getattr(value, "__name__", type(value).__name__) in told
        or any(text and text in told for text in texts)
    )


def written(value):
    try:
        return str(value)
    except Exception:
        return ""


def faults(name, place, values):
    at = place()
    _, arguments = CALLS[name](at)
    found = []
    for argument in arguments:
        at = place()
        empty = listing(at)
        for value in values(at):
            if listing(at) != empty:
                at = place()
                empty = listing(at)
            if wrong := fault(CALLS[name], at, argument, value):
                found.append((argument, shown(value), wrong))
    return found


def shown(value):
    try:
        return ascii(value)[:60]
    except Exception:
        return type(value).__name__


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No warnings of calls that are accepted; random numbers and settings of torch as they were."""
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_rng_state(state)


def test_every_public_function_has_a_valid_call():
    """A new public function, method or argument comes with its place in ``valid_calls.py``."""
    known = {name.partition(" ")[0] for name in CALLS}
    assert set(PUBLIC) - known - RECORDS == set()
    assert set(PUBLIC) >= RECORDS and not RECORDS & known


@pytest.mark.parametrize("name", CALLS)
def test_valid_calls_are_valid_and_have_all_arguments(name, place):
    call, arguments = CALLS[name](place())
    plain = [one for one in parameters(call) if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    assert {one.name for one in plain} - set(arguments) == set()
    call(**arguments)


@pytest.mark.parametrize("name", spread(CALLS, 2))
def test_hostile_arguments_are_refused_by_name(name, place):
    assert faults(name, place, some if name in SLOW else few) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_all_hostile_arguments_are_refused_by_name(name, place):
    assert faults(name, place, many) == []
