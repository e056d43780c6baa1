"""Laws of octavo.compress_model: budgets are kept, and what must not matter changes nothing."""

import functools
import json
import linecache
import signal
import subprocess
import sys
import time
import warnings
from html import escape

import octavo
import pytest
import torch
from octavo.compress import compression_trials
from octavo.compress.compression_job import stored_bytes
from octavo.errors import (
    CalibrationError,
    ConfigError,
    DTypeError,
    FormatError,
    IdentityWarning,
    ModelError,
    NonFiniteError,
    TaskError,
)
from octavo.report.compression_report import read_report
from octavo.report.value_texts import prediction_line, verdict_sentence
from torch import nn

FORMATS = ("mxint8", "int4:g32", "nf4", "int2:g32")
# Bits of a parameter of so small a network: two of them are the header of the file.
BUDGET = 7.0


class Net(nn.Module):
    """Layers that are made in a given order, and called in another one."""

    def __init__(self, order=("first", "second", "last")):
        super().__init__()
        shapes = {"first": (32, 64), "second": (64, 64), "last": (64, 8)}
        for name in order:
            generator = torch.Generator().manual_seed(len(name))
            layer = nn.Linear(*shapes[name])
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.normal_(0, 0.2, generator=generator)
            setattr(self, name, layer)

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu())


def data(count=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 32, generator=generator) for _ in range(count)]


def compressed(model=None, budget=BUDGET, **options):
    options = {"data": data(), "formats": FORMATS, "progress": False, **options}
    return octavo.compress_model(model or Net(), budget, **options)


@pytest.fixture(scope="module")
def result():
    return compressed()


def test_a_notebook_shows_the_verdict(result):
    lines = str(result).splitlines()
    assert any("->" in line for line in lines) and result._repr_html_() == f"<pre>{escape(str(result))}</pre>"


def chosen(found):
    """The format of each layer, by name."""
    return {name: layer.format for name, layer in found.model.named_modules() if hasattr(layer, "packed_weight")}


def test_the_budget_is_kept_in_bytes_of_the_file(result, tmp_path):
    model = Net()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result.save(tmp_path / "small")
    size = (tmp_path / "small" / "model.octavo.safetensors").stat().st_size
    bits = 8 * size / parameters
    assert bits <= BUDGET and size > stored_bytes(result.model)
    costs = {row["key"]: row for row in result.report["costs"]}
    assert costs["bits_all"]["after"]["value"] == bits
    assert result.report["verdict"]["met"] and result.report["verdict"]["reached"] == bits
    loaded = octavo.load_model(tmp_path / "small", Net)
    assert torch.equal(loaded(data()[0]), result.model(data()[0]))
    assert costs["file_bytes"]["after"]["value"] == size
    assert read_report(tmp_path / "small")["metrics"] == json.loads(json.dumps(result.report["metrics"]))
    assert "<html" in (tmp_path / "small" / "report.html").read_text()
    with pytest.raises(FileExistsError):
        result.save(tmp_path / "small")


def test_the_recipe_gives_the_same_model_again(result, tmp_path):
    (tmp_path / "recipe.toml").write_text(result.recipe.to_toml())
    again = compressed(recipe=tmp_path / "recipe.toml")
    x = data()[1]
    assert torch.equal(again.model(x), result.model(x))
    assert again.found.search is None and "nothing was searched" in again.report["missing"]["front"]


def test_a_recipe_is_judged_by_no_goal_that_nobody_gave():
    alone = compressed(budget=None, recipe="int8").report  # more than the 4.5 bits of a search without a goal
    assert alone["verdict"]["reached"] > 4.5 and "met" not in alone["verdict"] and "goal" not in alone["verdict"]
    assert "missed" not in verdict_sentence(alone)
    assert all("budget" not in row["why"] for row in alone["rejected"])
    asked = compressed(budget=4.5, recipe="int8").report
    assert asked["verdict"]["met"] is False and "missed" in verdict_sentence(asked)


@pytest.mark.parametrize(
    "change",
    [
        {"model": Net(("last", "second", "first"))},
        {"formats": tuple(reversed(FORMATS))},
        {"formats": (*FORMATS, "fixed16.0")},  # 16 bits for whole numbers: larger and worse than all
        {"test": lambda model: 1.0},
        {"test": lambda model: float(torch.rand(()))},
    ],
    ids=["order of layers", "order of formats", "a useless format", "test data", "other test data"],
)
def test_what_must_not_matter_changes_nothing(result, change):
    found = compressed(**change)
    assert chosen(found) == chosen(result)
    assert found.found.chosen.nbytes == result.found.chosen.nbytes
    assert found.found.chosen.quality.value == pytest.approx(result.found.chosen.quality.value, rel=1e-6)


@pytest.mark.parametrize("correlation, told", [(0.3, True), (0.8, False), (None, False)])
def test_a_sum_that_cannot_predict_is_told(monkeypatch, correlation, told):
    monkeypatch.setattr(compression_trials.Search, "correlation", property(lambda _: correlation))
    assert any("cannot predict" in note for note in compressed().report["notes"]) is told


def test_the_model_is_not_changed(result):
    model = Net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compressed(model)
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_test_data_is_read_once_at_the_end():
    calls = []

    def evaluate(model):
        calls.append("validation")
        return octavo.evaluate(model, data(2), against=Net())

    def test(model):
        calls.append("test")
        return octavo.evaluate(model, data(3), against=Net())

    found = compressed(evaluate=evaluate, test=test)
    assert calls[-2:] == ["test", "test"] and calls.count("test") == 2
    assert [row["split"] for row in found.report["metrics"]] == ["test", "validation"]
    assert found.report["metrics"][0]["after"]["count"] == 24


def test_a_bound_of_the_loss_is_kept_with_few_bytes():
    loose, tight = (compressed(budget=None, max_loss=bound) for bound in (0.5, 0.01))
    assert loose.found.chosen.nbytes < tight.found.chosen.nbytes
    for found, bound in ((loose, 0.5), (tight, 0.01)):
        assert found.found.chosen.quality.loss - found.found.before.loss <= bound


def test_the_fast_form_measures_less(result):
    found = compressed(fast=True)
    assert found.found.search.sensitivity.method == "fisher" and len(found.found.trials) < len(result.found.trials)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"budget": 1.0}, ConfigError, "no format fits 1 bits"),
        ({"budget": -3}, ConfigError, "accepted are numbers above 0"),
        ({"budget": 4, "nbytes": 100}, ConfigError, "one goal"),
        ({"budget": None, "nbytes": 100}, ConfigError, "no format fits"),
        ({"budget": 33}, ConfigError, "fits 33 bits as it is: its file takes 32.96 bits a parameter"),
        ({"formats": ("int44",)}, FormatError, "int44"),
        ({"formats": ()}, ConfigError, "no format"),
        ({"recipe": "name:nothing int4:g32"}, FormatError, "matches no layer"),
        ({"recipe": ""}, ConfigError, "no rules"),
        ({"data": []}, CalibrationError, "no sample"),
        ({"data": [torch.zeros(2, 31)]}, CalibrationError, r"batch 0.*'first' \(Linear\)"),
        ({"data": ["a text"]}, CalibrationError, "tokenizer"),
        ({"model": "bert"}, DTypeError, "torch.nn.Module"),
        ({"model": nn.Sequential(nn.ReLU())}, ModelError, "has no parameters"),
        ({"workers": 0}, ConfigError, "workers is 0"),
    ],
)
def test_what_cannot_be_is_refused_before_work_starts(options, error, reason, tmp_path):
    def evaluate(model):
        raise AssertionError("work has started")

    with pytest.raises(error, match=reason):
        compressed(**{"evaluate": evaluate, "journal": tmp_path / "journal", **options})
    assert not list(tmp_path.rglob("model*"))


def scored(source):
    """A function ``score`` of this source, in a module of its own."""
    space = {"__name__": "made"}
    exec(compile(source, "<made>", "exec"), space)
    linecache.cache["<made>"] = (len(source), None, source.splitlines(True), "<made>")
    return space["score"]


def test_a_journal_knows_an_evaluation_by_its_code(tmp_path):
    def values():
        records = map(json.loads, (tmp_path / "study.jsonl").read_text().splitlines())
        return [record["row"] for record in records if record["settings"].get("what") == "before"]

    for source, count in [("return 1.0", 1), ("return 1.0", 1), ("return 2.0", 2)]:
        score = scored(f"def score(model):\n    {source}\n")
        compressed(evaluate=score, journal=tmp_path, fast=True)
        assert len(values()) == count
    compressed(evaluate=eval("lambda model: 2.0"), journal=tmp_path, fast=True)
    assert len(values()) == 2, "a function without a source is known by its byte code"


def test_an_evaluation_that_cannot_be_known_is_named_and_measured_anew(tmp_path):
    stream = (2.0 for _ in range(100))
    for count in (1, 2):
        with pytest.warns(IdentityWarning, match="evaluate closure 'stream' content, a generator"):
            compressed(evaluate=lambda model: next(stream), recipe="nf4", journal=tmp_path)
        settings = [json.loads(line)["settings"] for line in (tmp_path / "study.jsonl").read_text().splitlines()]
        assert [one["what"] for one in settings].count("before") == count
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdentityWarning)
        compressed(evaluate=lambda model: next(stream), recipe="nf4")  # no journal asks


def test_qualities_are_numbers_or_measurements():
    assert compressed(evaluate=lambda model: float(model(data()[0]).mean()), formats=("nf4",)).report["metrics"]
    with pytest.raises(DTypeError, match="evaluate returned a str"):
        compressed(evaluate=lambda model: "good")


SCRIPT = """
from compress.test_compress_model import compressed, trained
found = {call}(journal={journal!r})
print(found.recipe, found.found.chosen.quality.value)
"""


def trained(**options):
    """A run whose 60 updates are the longest part of it."""
    options = {"recipe": "int2:g32", "train": True, "train_steps": 60, **options}
    return compressed(budget=11, **options)


def state_of(found):
    return {name: value.clone() for name, value in found.model.state_dict().items() if isinstance(value, torch.Tensor)}


def test_training_brings_the_packed_model_nearer_to_the_float_one():
    found = trained()
    after = found.found.chosen
    assert after.series == "trained" and after.quality.value < 0.8 * after.start.quality.value  # KL, less is better
    assert found.report["metrics"][0]["others"]["before training"]["value"] == after.start.quality.value
    assert any("weights were trained" in note for note in found.report["notes"])
    assert octavo.evaluate(found.model, [torch.cat(data(6))[1::3]], against=Net()).value == after.quality.value


def test_training_takes_a_loss_of_ones_own():
    def loss(model, batch):
        return (model(batch) - 3).square().mean()

    found = trained(train=loss, evaluate=lambda model: -float((model(data()[0]) - 3).square().mean()), train_steps=20)
    assert found.found.chosen.series == "trained"
    assert any("the loss loss" in note for note in found.report["notes"])
    for wrong, error, reason in [
        (lambda model, batch: 3.0, TaskError, "a float; accepted is a tensor of one value"),
        (lambda model, batch: model(batch), TaskError, "a tensor of one value"),
    ]:
        with pytest.raises(error, match=reason):
            trained(train=wrong)
    with pytest.raises(ConfigError, match="0 updates"):
        trained(train_steps=0)


@pytest.mark.slow
def test_a_run_killed_while_it_trains_ends_with_the_same_bits(tmp_path):
    wanted, journal = trained(), tmp_path / "journal"
    script = SCRIPT.format(call="trained", journal=str(journal))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    end = time.monotonic() + 600
    while time.monotonic() < end and child.poll() is None and not list(journal.glob("trained-*/checkpoints/*")):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert list(journal.glob("trained-*/checkpoints/*"))
    found, again = trained(journal=journal), trained(journal=journal)
    for other in (found, again):
        assert all(torch.equal(value, state_of(other)[name]) for name, value in state_of(wanted).items())
        assert other.found.chosen.quality.value == wanted.found.chosen.quality.value


def test_solvers_and_corrected_biases_are_tried_and_told(result):
    assert {trial.series for trial in result.found.trials} >= {"front", "uniform", "tuned"}
    assert any(trial.corrected for trial in result.found.trials)
    (row,) = result.found.search.tuned
    rejected = {one["what"] for one in result.report["rejected"]}
    for step in row["steps"]:
        assert step["kept"] == (step["loss"] < row["before"]) or len(row["steps"]) > 1
        assert step["kept"] or f"{step['method']} on {', '.join(step['formats'])}" in rejected
    assert row["loss"] <= row["before"]


def test_a_killed_run_goes_on_where_it_was(result, tmp_path):
    """SIGKILL while points are measured: the journal is whole, the same call ends as an undisturbed one."""
    journal = tmp_path / "journal"
    script = SCRIPT.format(call="compressed", journal=str(journal))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    end = time.monotonic() + 600
    while time.monotonic() < end and not (journal / "study.jsonl").exists():
        time.sleep(0.01)
    while time.monotonic() < end and child.poll() is None:
        if len((journal / "study.jsonl").read_bytes().splitlines()) > 4:
            break
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = (journal / "study.jsonl").read_bytes()
    found = compressed(journal=journal)
    assert str(found.recipe) == str(result.recipe)
    assert found.found.chosen.quality.value == result.found.chosen.quality.value
    lines = kept[: kept.rfind(b"\n") + 1]
    assert (journal / "study.jsonl").read_bytes().startswith(lines)  # nothing that was measured is measured again


def test_embeddings_have_the_formats_that_a_solver_is_given_without_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    texts = [torch.randint(0, 64, (8, 5), generator=torch.Generator().manual_seed(i)) for i in range(6)]
    found = octavo.compress_model(model, 8.2, data=texts, formats=("int3:g32@gptq", "mxint8"), progress=False)
    formats = chosen(found)
    assert str(formats["0"]) == "int3:g32" and found.report["verdict"]["reached"] <= 8.2


# --- models that are not as simple --------------------------------------------------------------------------------------


def some_data(count=4, width=16):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(8, width, generator=generator) for _ in range(count)]


def quality(model):
    return 1.0


@pytest.mark.parametrize("fast", [False, True])
def test_a_model_in_training_mode_stays_as_it_was(fast):
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    octavo.compress_model(model, 30, data=some_data(), fast=fast, progress=False)
    assert model.training and all(torch.equal(model.state_dict()[name], was) for name, was in before.items())


class Spare(nn.Module):
    """A layer that is never called, and one whose weight is read past it."""

    def __init__(self):
        super().__init__()
        self.spare, self.read, self.used = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        return self.used(nn.functional.linear(x, self.read.weight))


def test_layers_that_no_pass_calls_get_no_solver_that_needs_inputs():
    done = octavo.compress_model(Spare().eval(), 30, data=some_data(), progress=False)
    assert done.report["verdict"]["met"]


class Activated(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(16, 32), nn.Linear(32, 5), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def test_a_journal_knows_the_code_of_a_model_and_of_a_function(tmp_path):
    def left(function, evaluate=None):
        model = Activated(function).eval()
        made = octavo.compress_model(
            model, 24, data=some_data(), evaluate=evaluate, progress=False, journal=tmp_path / "j"
        )
        return made.report["metrics"][0]["after"]["value"]

    alone = octavo.compress_model(Activated(torch.sin).eval(), 24, data=some_data(), progress=False)
    assert left(torch.relu) != left(torch.sin) == alone.report["metrics"][0]["after"]["value"]
    assert left(torch.relu, functools.partial(_told, value=1.0)) == 1.0
    assert left(torch.relu, functools.partial(_told, value=0.25)) == 0.25
    assert [left(torch.relu, lambda model, at=at: at) for at in (0.5, 0.75)] == [0.5, 0.75]


def _told(model, value):
    return value


@pytest.mark.parametrize("where", ["data", "weight"])
def test_what_is_not_finite_is_named(where):
    data, model = some_data(), Activated(torch.relu).eval()
    if where == "data":
        data[3][0, 0] = float("nan")
    else:
        with torch.no_grad():
            model.first.weight[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=f"batch {3 if where == 'data' else 0}: the float model's output"):
        octavo.compress_model(model, 24, data=data, evaluate=quality, progress=False)


@pytest.mark.parametrize("exclude", ["first", "**"])
def test_a_goal_that_excluded_layers_do_not_reach_is_refused_before_work(exclude):
    done = []
    with pytest.raises(ConfigError, match="no format fits 8 bits"):
        octavo.compress_model(
            Activated(torch.relu).eval(),
            8,
            data=some_data(),
            exclude=[exclude],
            progress=lambda *told: done.append(told),
        )
    assert not done


def test_a_report_says_that_the_only_sample_calibrates_and_measures():
    done = octavo.compress_model(Activated(torch.relu).eval(), 24, data=[some_data(1)[0][:1]], progress=False)
    assert "the sample that calibrates" in {part["split"]: part["source"] for part in done.report["data"]}["validation"]


def test_goals_of_zero_are_told_by_name():
    with pytest.raises(ConfigError, match="latency is 0 s"):
        octavo.compress_model(Activated(torch.relu), latency=0, data=some_data(), progress=False)
    with pytest.raises(ConfigError, match="max_loss is -1; accepted are numbers of at least 0"):
        octavo.compress_model(Activated(torch.relu), max_loss=-1, data=some_data(), progress=False)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 2


class OwnRouter(nn.Module):
    """A table that no layer holds and no rule reaches, for it chooses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(100, 32))

    def forward(self, ids):
        return nn.functional.one_hot(ids, 100).float() @ self.weight.exp()


class TiedToRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.other, self.head = OwnRouter(), nn.Linear(32, 32), nn.Linear(32, 100, bias=False)
        self.head.weight = self.rows.weight

    def forward(self, ids):
        return self.head(self.other(self.rows(ids)))


def test_a_weight_that_another_holder_keeps_is_priced_as_it_is_packed():
    """Of a table that no layer reads a packed head would be a copy."""
    torch.manual_seed(0)
    model, ids = TiedToRouter().eval(), torch.randint(100, (2, 8))
    found = octavo.search.measure_sensitivity(model, [ids], ["int4:g32"], progress=False)
    assert found.kept == ("head",) and any("head.weight stays as it is" in note for note in found.notes)
    wanted = octavo.graph.capture(model, ids).costs("int4:g32").weight_bytes
    packed = octavo.pack_model(octavo.quantize_model(model, "int4:g32", progress=False))
    assert wanted == octavo.graph.capture(packed, ids).costs().weight_bytes == stored_bytes(packed)


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [{"budget": BUDGET}, {"budget": None, "max_loss": 0.01}], ids=str)
def test_what_was_not_chosen_has_a_true_reason_and_all_its_values(goal):
    """Over the budget, over the bound, or worse: recomputed from the values beside it."""
    found = compressed(**goal)
    report, best, before = found.report, found.found.chosen, found.found.before
    trials = [trial for trial in found.found.trials if trial is not best]
    rows = report["rejected"][: len(trials)]
    assert rows
    for trial, row in zip(trials, rows, strict=True):
        assert row["bits"] == pytest.approx(8 * row["bytes"] / report["model"]["parameters"])
        if "over the budget" in row["why"]:
            assert row["bits"] > BUDGET
        elif "loses more than the bound" in row["why"]:
            assert trial.quality.loss - before.loss > 0.01
        elif "bytes more" in row["why"]:
            assert trial.nbytes > best.nbytes
        else:
            assert "worse" in row["why"] and trial.quality.loss > best.quality.loss
    assert report["machine"]["cpu"] and report["machine"]["simd"]


def test_prediction_and_measurement_have_one_unit(result):
    alike = result.report["prediction"]
    assert "measured" not in alike and alike["unit"] == "nats"  # KL, added up and measured
    other = compressed(evaluate=lambda model: -float((model(data(1)[0]) - Net()(data(1)[0])).square().mean()))
    told = other.report["prediction"]
    assert "measured" not in told and told["label"] == alike["label"] and told["unit"] == "nats"
    assert told["quality"]["label"].startswith("loss of ") and "calibration data" in told["told"]
    trial = other.found.chosen
    whole = torch.cat(data())
    logs = [model(whole).double().log_softmax(-1) for model in (Net().eval(), other.model)]
    assert trial.divergence == pytest.approx(float((logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean()), rel=1e-3)
    if trial.point is not None:
        assert told["chosen"] == {
            "label": trial.label, "predicted": trial.point.loss, "measured": trial.divergence
        }  # fmt: skip
    line = prediction_line(told)
    assert line.startswith(told["label"]) and "rank correlation" in line
    assert all("measured_loss" not in point for point in other.report["front"]["points"])


def test_examples_that_changed_are_those_that_lost_most():
    from octavo.compress.changed_examples import SHOWN, changed_examples
    from octavo.compress.compression_job import Examples
    from octavo.train.measurement import mean_of, share_of

    texts = [f"text {number}" for number in range(40)]
    old, new = [number % 3 > 0 for number in range(40)], [number % 4 > 0 for number in range(40)]
    before, after = share_of("exact match", old, "x"), share_of("exact match", new, "x")
    told = Examples(texts, lambda model, places: [f"{model}{place}" for place in places], [str(n) for n in range(40)])
    found = changed_examples(told, "a", "b", before, after)
    worse = [place for place in range(40) if old[place] and not new[place]]
    assert (found["worse"], found["better"]) == (len(worse), sum(b and not a for a, b in zip(old, new, strict=True)))
    shown = [int(row["expected"]) for row in found["rows"]]
    assert len(shown) == SHOWN and shown[: len(worse)] == worse[:SHOWN]
    assert found["rows"][0] == {"text": f"text {worse[0]}", "before": f"a{worse[0]}", "after": f"b{worse[0]}", "expected": str(worse[0])}  # fmt: skip
    losses = [mean_of("KL", values, "min", "x") for values in ([0.0] * 40, [number / 100 for number in range(40)])]
    found = changed_examples(Examples(texts), "a", "b", *losses)
    assert [row["after"] for row in found["rows"]] == [f"KL {number / 100:.4g}" for number in range(39, 29, -1)]
    assert changed_examples(Examples(texts[:5]), "a", "b", *losses) is None  # values of tokens
    assert changed_examples(told, "a", "b", before, before) is None
