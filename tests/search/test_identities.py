"""A journal answers for the same model, data and code alone: identities know every part, and are equal elsewhere."""

import copy
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from octavo.errors import IdentityWarning
from octavo.search import file_content, measure_sensitivity, object_digest, verify
from octavo.search.fingerprints import identity_of
from octavo.search.pareto_front import Point
from search import identity_subjects
from search.identity_subjects import ALL, FUNCTIONS, MODELS, SUBJECTS, TRANSFORMERS, changes, digest
from torch import nn

SAMPLED = 17  # one change of so many is made in the fast suite


def check_changes(name, step):
    """Hold the law on every ``step``-th part of a subject; return how many there were."""
    subject = ALL[name]()
    before, count = digest(subject), 0
    for path, change, restore in list(changes(subject, name))[::step]:
        change()
        assert digest(subject) != before, f"{path} was changed, and the identity is that of before"
        restore()
        count += 1
    assert digest(subject) == before
    return count


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_part_of_a_subject_is_in_its_identity(name):
    assert check_changes(name, SAMPLED if name in MODELS else 5)


@pytest.mark.slow
def test_every_part_of_all_subjects_is_in_their_identity():
    pytest.importorskip("transformers")
    count = sum(check_changes(name, 3 if name in TRANSFORMERS else 1) for name in ALL)
    assert len(ALL) == 20 and count >= 500


def check_processes(tmp_path, names, seeds):
    """Hold the law: in another process, from another place, with another seed of hashes, subjects are the same."""
    copied = tmp_path / "subjects_by_another_name.py"
    copied.write_text("# A comment, which moves all lines.\n\n" + Path(identity_subjects.__file__).read_text())
    here = {f"{name} {seed}": digest(ALL[name](seed)) for name in names for seed in range(seeds)}
    command = [sys.executable, "-W", "ignore", str(copied), str(seeds), *names]
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert json.loads(made.stdout) == here
    assert len(set(here.values())) == len(here) == seeds * len(names)
    return len(here)


def test_a_subject_is_the_same_in_another_process(tmp_path):
    assert check_processes(tmp_path, list(SUBJECTS), 2)


@pytest.mark.slow
def test_200_subjects_are_the_same_in_another_process(tmp_path):
    pytest.importorskip("transformers")
    assert check_processes(tmp_path, list(ALL), 10) == 200


# Torch gives copies of parametrized modules a class of their own.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "parametrized"])
def test_copies_have_the_identity_of_the_original(name):
    model = ALL[name]()
    assert digest(copy.deepcopy(model)) == digest(model)


def test_a_model_of_transformers_is_known_by_its_configuration_and_again_when_it_is_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = TRANSFORMERS["llama"]()
    model.save_pretrained(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    first = digest(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a").eval())
    assert digest(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").eval()) == first
    config["rope_parameters"]["rope_theta"] = 2.0
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    assert digest(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").eval()) != first


# --- answers of journals --------------------------------------------------------------------------------------------

POINT = Point({"a": "int4"}, 100, 4.0, 1.0, 100)


def asked(evaluate, folder):
    """What a journal answers, and whether the function was called for it."""
    called = []

    def counted(built):
        called.append(1)
        return evaluate(built)

    with warnings.catch_warnings():
        warnings.simplefilter("error", IdentityWarning)
        return verify([POINT], lambda point: None, counted, journal=folder, progress=False).rows[0].measured, len(
            called
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_answer_of_a_journal_is_stale(name, tmp_path):
    subject = ALL[name]()
    first, called = asked(subject, tmp_path)
    assert called == 1 and asked(ALL[name](), tmp_path) == (first, 0), "the same function is not measured again"
    for path, change, restore in list(changes(subject, name))[:: 5 if name == "closing" else 2]:
        change()
        try:
            fresh = subject(None)
        except (TypeError, IndexError, KeyError, RuntimeError):  # the change broke the function
            fresh = None
        if isinstance(fresh, float):
            assert asked(subject, tmp_path) == (fresh, 1), f"{path} was changed"
        restore()
    assert asked(subject, tmp_path) == (first, 0)


class Scaled(nn.Module):
    """A model with a scale where a state_dict does not show it."""

    def __init__(self, scale):
        super().__init__()
        self.linear = nn.Linear(16, 8)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 128).reshape(8, 16).sin())
            self.linear.bias.zero_()
        self._scale = torch.tensor(scale)

    def forward(self, x, more=None):
        return (self._scale * self.linear(x) + (0 if more is None else more)).log_softmax(-1)


def test_sensitivities_are_measured_anew_for_another_model_data_or_output(tmp_path):
    x = torch.linspace(-2, 2, 64).reshape(4, 16)

    def loss(scale=1.0, batches=None, gain=1.0, folder=tmp_path):
        found = measure_sensitivity(
            Scaled(scale), batches or [{"x": x, "more": 1.0}], ["int2:g16"], journal=folder, progress=False,
            output=lambda made, batch: gain * made,
        )  # fmt: skip
        return found.loss.tolist()

    first = loss()
    lines = (tmp_path / "study.jsonl").read_bytes()
    assert loss() == first and (tmp_path / "study.jsonl").read_bytes() == lines
    others = [{"scale": 3.0}, {"batches": [{"x": x, "more": 2.0}]}, {"gain": 4.0}, {"batches": [{"x": 2 * x}]}]
    for place, other in enumerate(others):
        assert loss(**other) == loss(**other, folder=tmp_path / str(place))
        assert (tmp_path / "study.jsonl").read_bytes() != lines
        lines = (tmp_path / "study.jsonl").read_bytes()


def test_compressions_are_measured_anew_for_other_data_that_evaluate_closes_over(tmp_path):
    def quality(targets, folder):
        def evaluate(model):
            return -float((model(torch.ones(2, 16)) - targets["y"]).square().mean())

        found = octavo.compress_model(
            Scaled(1.0), data=[torch.ones(2, 16)], evaluate=evaluate, recipe="int4:g16", journal=folder, progress=False
        )
        return found.found.before.value

    assert quality({"y": torch.zeros(1)}, tmp_path / "a") != quality({"y": torch.ones(1)}, tmp_path / "a")
    assert quality({"y": torch.ones(1)}, tmp_path / "a") == quality({"y": torch.ones(1)}, tmp_path / "b")


def test_a_training_that_was_stopped_does_not_go_on_for_another_model(tmp_path):
    def trained(scale, folder):
        return octavo.compress_model(
            Scaled(scale), data=[torch.ones(2, 16), -torch.ones(2, 16)], recipe="int2:g16", train=True, train_steps=3,
            journal=folder, progress=False,
        )  # fmt: skip

    trained(1.0, tmp_path / "a")
    found, fresh = trained(5.0, tmp_path / "a"), trained(5.0, tmp_path / "b")
    assert found.found.chosen.quality.value == fresh.found.chosen.quality.value
    assert len(list((tmp_path / "a").glob("trained-*"))) == 2


# --- files and arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path], ids=["text", "path"])
def test_a_file_that_a_function_names_is_known_by_content(tmp_path, kind):
    file = tmp_path / "valid.txt"
    file.write_text("1 2 3")
    read = kind(file)

    def evaluate(model):
        return float(open(read).read().split()[0])

    first = digest(evaluate)
    file.write_text("2 2 3")
    second = digest(evaluate)
    assert second != first
    file.unlink()
    assert digest(evaluate) not in (first, second)


def test_open_files_are_known_by_content_and_place(tmp_path):
    (tmp_path / "data").write_text("some lines")
    with open(tmp_path / "data") as file, open(tmp_path / "log", "w") as log:
        first = digest([file, log])
        log.write("more")
        log.flush()
        assert digest([file, log]) == first
        file.read(3)
        assert digest([file, log]) != first
    assert digest(io.StringIO("a")) != digest(io.StringIO("b"))


def test_large_files_are_known_by_parts_of_them_size_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(file_content, "WHOLE", 1000)
    monkeypatch.setattr(file_content, "PART", 8)
    file = tmp_path / "tokens.bin"
    np.zeros(4096, np.uint16).tofile(file)
    mapped = np.memmap(file, np.uint16, mode="r+")
    first = digest(mapped), digest(Path(file))
    assert (digest(np.memmap(file, np.uint16, mode="r")), digest(Path(file))) == first
    os.utime(file, ns=(0, 1))
    second = digest(mapped), digest(Path(file))
    mapped[-1] = 1  # within the last part
    third = digest(mapped), digest(Path(file))
    assert len({*first, *second, *third}) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.complex64, torch.bool])
def test_tensors_are_known_by_dtype_shape_and_values_and_not_by_strides(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    first = digest(tensor)
    assert digest(tensor.t().contiguous().t()) == digest(tensor.clone()) == first
    assert len({first, digest(tensor.reshape(4, 3)), digest(tensor.float()), digest(tensor.flip(0))}) == 4


# --- what has no content --------------------------------------------------------------------------------------------


class Hostile:
    """Raises from wherever it is looked at."""

    def __reduce_ex__(self, protocol):
        raise RuntimeError("no")

    def __getattr__(self, name):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


def cyclic():
    one, other = {"a": [1]}, Scaled(1.0)
    one["a"].append(one)
    other._held = other
    return [one, other]


def deep():
    found = []
    for _ in range(20_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "make",
    [
        cyclic, deep, Hostile, lambda: 10**5000, lambda: threading.Lock(), lambda: {frozenset({("a", 1)}), "b"},
        lambda: np.random.default_rng(3), lambda: torch.Generator().manual_seed(3), lambda: iter([1, 2]),
        lambda: torch.eye(3).to_sparse(), lambda: np.array([{"a": 1}, None], dtype=object), lambda: lambda x: x + 1,
        lambda: functools.partial(print, [1]), lambda: "\ud800", lambda: [float("nan"), -0.0], lambda: slice(1, None),
        lambda: torch.ones(2, device="meta"), lambda: memoryview(b"ab"), lambda: np.dtype("f4"), lambda: type("Any", (), {}),
        lambda: threading.Event(), lambda: torch.utils.data.DataLoader([1, 2]), lambda: [].append,
    ],
)  # fmt: skip
def test_what_can_be_read_is_known_whatever_it_is(make):
    assert digest(make()) == digest(make())


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: (i for i in range(3)), "generator"), (threading.local, "thread"), (lambda: sys._getframe(), "frame"),
        (lambda: torch.jit.script(nn.ReLU()), "ScriptM"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_cannot_be_read_is_named_and_never_the_same(make, told):
    found = identity_of(subject={"inside": [make()]})
    assert "subject['inside'][0]" in found.unknown[0] and told in found.unknown[0]
    assert identity_of(subject={"inside": [make()]}).digests != found.digests


def test_an_object_of_too_many_objects_is_not_known(monkeypatch):
    monkeypatch.setattr(object_digest, "MOST", 1000)
    many = ()
    for _ in range(60):
        many = (many, many)  # 2 ** 60 tuples, if each is looked at
    assert "more than 1,000 objects" in identity_of(subject=many).unknown[0]


def test_a_warning_names_what_cannot_be_known_where_a_journal_asks(tmp_path):
    stream = iter(lambda: 1.0, None)
    for _ in range(2):
        with pytest.warns(IdentityWarning, match="evaluate closure 'stream' content, a generator"):
            generator = (value for value in stream)
            asked_anew(generator, tmp_path)
    assert len((tmp_path / "study.jsonl").read_text().splitlines()) == 2


def asked_anew(stream, folder):
    verify([POINT], lambda point: None, lambda built: next(stream), journal=folder, progress=False)
