"""What an update computes, what ends a run, and what it writes down."""

import io
import json
import sys
import types

import octavo
import pytest
import torch
from helpers.models import same_tensors
from octavo.errors import DTypeError, NonFiniteError
from octavo.train import (
    ConfigError,
    OptimizerError,
    PackageError,
    TaskError,
    TrainConfig,
    adamw,
    read_metrics,
    seed_all,
    train,
)
from octavo.train.distributed import Processes
from octavo.train.metric_files import Metrics
from octavo.train.precision import Precision
from octavo.train.update import Updater
from torch import nn
from train.tiny import Model, Rule, config, lines, losses, run

# Sums of a few hundred float32 numbers in another order, through 40 updates.
REORDERED = 2e-6
# bfloat16 has 8 bits: 0.4% an activation, which averages out over a batch.
BF16 = 2e-2

ALONE = Processes(0, 1, torch.device("cpu"))


def weights(folder, name="last.safetensors"):
    return octavo.load(folder / name)


# --- one update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 5, 12])
def test_accumulated_micro_batches_equal_one_batch(tmp_path, parts):
    """Sequences differ in length and 5 does not divide 12: a mean of means would differ."""
    for number in (1, parts):
        run(tmp_path / str(number), model=Model(), accumulation=number, log_every=1)
    assert (losses(tmp_path / "1") - losses(tmp_path / str(parts))).abs().max() < REORDERED


def test_the_loss_is_the_mean_over_tokens_of_plain_torch(tmp_path):
    """The first three updates, written out."""
    made = config(steps=3, accumulation=1, log_every=1, clip=0.05, weight_decay=0.1, ema=None, schedule="constant")
    train(Model(), Rule(), made, tmp_path, progress=False)
    model, task = Model(), Rule()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=made.learning_rate, weight_decay=0.1, foreach=False, fused=False)
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = made.learning_rate * (step + 1) / made.warmup
        loss_sum, count, _ = task.loss(model, task.batch(step, 0, 0, 12))
        optimizer.zero_grad()
        (loss_sum / count).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        line = lines(tmp_path)[step]
        assert line["loss"] == pytest.approx((loss_sum / count).item(), rel=1e-6)
        assert line["gradient_norm"] == pytest.approx(norm.item(), rel=1e-5) and norm > 0.05
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights(tmp_path)[name], value, atol=1e-6, rtol=1e-5)


def test_every_sequence_of_every_update_is_asked_for_once(tmp_path):
    task = Rule()
    run(tmp_path, task=task, accumulation=5)
    asked = sorted((step, position) for step, start, size in task.asked for position in range(start, start + size))
    assert asked == [(step, position) for step in range(40) for position in range(12)]


def test_evaluating_does_not_change_what_is_trained(tmp_path):
    class Random(Rule):
        def evaluate(self, model):
            return {"exact": float(torch.rand(()))}

    run(tmp_path / "often", task=Random(), evaluate_every=1)
    run(tmp_path / "never", task=Random(), evaluate_every=None)
    assert same_tensors(weights(tmp_path / "often"), weights(tmp_path / "never"))
    assert lines(tmp_path / "often") == lines(tmp_path / "never")


def test_a_run_is_determined_by_its_seed_not_by_what_ran_before(tmp_path):
    run(tmp_path / "a")
    torch.rand(7)
    run(tmp_path / "b")
    run(tmp_path / "c", seed=1)
    assert same_tensors(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same_tensors(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_ranks_draw_different_numbers_reproducibly():
    def drawn(seed, rank):
        seed_all(seed, rank)
        return torch.rand(3).tolist()

    assert drawn(0, 0) == drawn(0, 0) and drawn(0, 1) == drawn(0, 1)
    assert len({tuple(drawn(seed, rank)) for seed in (0, 1) for rank in (0, 1)}) == 4


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_follow_the_losses_of_32(tmp_path, precision):
    for name in ("fp32", precision):
        run(tmp_path / name, model=Model(), precision=name, log_every=1)
    assert (losses(tmp_path / "fp32") - losses(tmp_path / precision)).abs().max() < BF16
    assert not torch.equal(losses(tmp_path / "fp32"), losses(tmp_path / precision))
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / precision).values())


class Infinite(Rule):
    """The loss of the given updates is infinite."""

    def __init__(self, *updates):
        super().__init__()
        self.updates = updates

    def batch(self, step, micro, start, size):
        factor = torch.tensor(float("inf") if step in self.updates else 1.0)
        return {**super().batch(step, micro, start, size), "factor": factor}

    def loss(self, model, batch):
        loss_sum, count, counts = super().loss(model, batch)
        return loss_sum * batch["factor"], count, counts


def updater(model, task, made):
    precision = Precision(made.precision, torch.device("cpu"))
    return Updater(model, task, made, processes=ALONE, precision=precision, optimizer=adamw(model, made)), precision


def test_fp16_skips_an_infinite_gradient_and_halves_the_scale():
    model = Model()
    update, precision = updater(model, Infinite(2), config(precision="fp16"))
    for step in range(4):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        scale = precision.scaler.get_scale()
        done = update(step)
        assert done.skipped == (step == 2)
        assert same_tensors(before, model.state_dict()) == (step == 2)
        assert precision.scaler.get_scale() == (scale / 2 if step == 2 else scale)


def test_skipped_updates_are_counted_and_left_out_of_the_loss(tmp_path):
    run(tmp_path, task=Infinite(5, 6, 12, 13, 14, 15), precision="fp16")
    second, fourth = lines(tmp_path)[1], lines(tmp_path)[3]
    assert second["skipped"] == 2 and second["loss"] < 5
    assert fourth["skipped"] == 4 and fourth["loss"] is None


def test_fp16_gives_up_when_no_scale_helps(tmp_path):
    with pytest.raises(NonFiniteError, match="not finite at any loss scale"):
        run(tmp_path, task=Infinite(*range(100)), precision="fp16", steps=100)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gradient_that_is_not_finite_is_an_error_with_step_and_parameter(tmp_path, precision):
    with pytest.raises(NonFiniteError, match=r"step 9: the gradient of 'embed.weight' is not finite; the loss is inf"):
        run(tmp_path, task=Infinite(9), precision=precision)


def test_narrow_weights_are_refused(tmp_path):
    with pytest.raises(DTypeError, match=r"embed.weight: trained weights are float32 .* got torch.bfloat16"):
        run(tmp_path, model=Model().bfloat16())


def test_small_updates_are_not_lost(tmp_path):
    """1000 steps of 1e-5 move a weight of 1 by 1e-2, whatever the activations are (bf16 has no 1 - 1e-5)."""

    class Push:
        def batch(self, step, micro, start, size):
            return torch.ones(size, 1)

        def loss(self, model, batch):
            return model(batch).float().sum(), len(batch), {}

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    made = TrainConfig(steps=1000, batch_size=2, learning_rate=1e-5, weight_decay=0.0, precision="bf16", device="cpu")
    train(model, Push(), made, tmp_path, progress=False)
    assert model.weight.item() == pytest.approx(0.99, abs=1e-4)


# --- the moving average -----------------------------------------------------------------------------------------------


def test_the_average_is_exported_and_evaluated_and_the_weights_stay(tmp_path):
    class Recording(Rule):
        seen = None

        def evaluate(self, model):
            self.seen = {name: value.clone() for name, value in model.state_dict().items()}
            return {"exact": 0.0}

    task, averaged, plain = Recording(), Model(), Model()
    run(tmp_path / "averaged", task=task, model=averaged)
    run(tmp_path / "plain", model=plain, ema=None)
    assert same_tensors(task.seen, weights(tmp_path / "averaged"))
    assert same_tensors(averaged.state_dict(), plain.state_dict()) and same_tensors(
        plain.state_dict(), weights(tmp_path / "plain")
    )
    assert not same_tensors(averaged.state_dict(), weights(tmp_path / "averaged"))


# --- the end of a run -------------------------------------------------------------------------------------------------


class Scores(Rule):
    """Evaluations that read from a list."""

    def __init__(self, scores, goal="max"):
        super().__init__()
        self.scores, self.goal = list(scores), goal

    def evaluate(self, model):
        return {"exact": self.scores.pop(0)}


@pytest.mark.parametrize(
    ("scores", "goal", "stop", "best_step"),
    [
        ([1, 2, 2, 2, 9], "max", 16, 8),
        ([5, 4, 4.5, 3, 4, 3, 3], "min", 24, 16),
        ([float("nan"), float("nan"), 9], "max", 8, None),
        ([1, 0, 2, 1, 3, 2, 4, 3, 5, 4], "max", 40, 36),
    ],
)
def test_a_run_ends_after_evaluations_without_improvement(tmp_path, scores, goal, stop, best_step):
    result = run(tmp_path, task=Scores(scores, goal), patience=2, evaluate_every=4)
    assert (result.step, result.best_step) == (stop, best_step)
    assert result.reason == ("early" if stop < 40 else "finished")
    again = run(tmp_path, task=Scores([]), patience=2, evaluate_every=4)
    assert again.reason == result.reason and again.step == stop
    assert (tmp_path / "best.safetensors").exists() == (best_step is not None)


class Aimed(Scores):
    """Its goal is a score of 5."""

    def __init__(self, scores, in_a_row=1):
        super().__init__(scores)
        self.reached_in_a_row = in_a_row

    def reached(self, metrics):
        return metrics["exact"] >= 5


@pytest.mark.parametrize(
    ("scores", "in_a_row", "stop"), [([1, 5, 1, 9], 1, 8), ([5, 6, 1, 5, 6, 7, 8], 3, 24), ([1] * 10, 1, 40)]
)
def test_a_run_ends_where_the_task_s_goal_is_reached_and_stays_there(tmp_path, scores, in_a_row, stop):
    result = run(tmp_path, task=Aimed(scores, in_a_row), evaluate_every=4)
    assert (result.step, result.reason) == (stop, "reached" if stop < 40 else "finished")
    again = run(tmp_path, task=Aimed([], in_a_row), evaluate_every=4)
    assert (again.step, again.reason) == (result.step, result.reason)


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path):
    run(tmp_path / "whole", task=Scores([1, 3, 2, 0]), ema=None)
    run(tmp_path / "half", task=Scores([1, 3]), ema=None, schedule="constant", steps=20)
    run(tmp_path / "constant", task=Scores([1, 3, 2, 0]), ema=None, schedule="constant")
    assert same_tensors(weights(tmp_path / "constant", "best.safetensors"), weights(tmp_path / "half"))
    assert not same_tensors(weights(tmp_path / "whole", "best.safetensors"), weights(tmp_path / "whole"))


# --- what is written --------------------------------------------------------------------------------------------------


def test_every_line_of_metrics_is_strict_json(tmp_path):
    run(tmp_path, task=Scores([float("nan"), float("inf"), 1, 2]))
    text = (tmp_path / "metrics.jsonl").read_text()

    def refuse(constant):
        raise AssertionError(constant)

    parsed = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert parsed == read_metrics(tmp_path) and text.endswith("\n")
    assert [line["step"] for line in parsed if line["kind"] == "train"] == list(range(4, 44, 4))
    assert [line["metrics"]["exact"] for line in parsed if line["kind"] == "evaluation"] == [None, None, 1, 2]
    for line in parsed:
        assert {"train_s", "evaluate_s", "compile_s"} <= line["clock"].keys()
        if line["kind"] == "train":
            assert {"loss", "learning_rate", "gradient_norm", "tokens", "counts"} <= line.keys()
            assert line["clock"]["samples_per_s"] > 0 and line["clock"]["tokens_per_s"] > 0


def test_tokens_are_counted_and_sums_kept(tmp_path):
    result = run(tmp_path)
    task = Rule()
    tokens = sum(int((task.batch(step, 0, 0, 12)["targets"] >= 0).sum()) for step in range(40))
    assert result.tokens == tokens == lines(tmp_path)[-1]["tokens"]
    last = lines(tmp_path, "evaluation")[-1]
    assert last["sums"]["exact"][1] == 24
    assert last["metrics"]["exact"] == last["sums"]["exact"][0] / 24 == result.metrics["exact"]


def test_run_json_tells_what_ran_and_every_start(tmp_path):
    run(tmp_path)
    run(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    assert TrainConfig.from_dict(record["config"]) == config() and record["fingerprint"] == config().fingerprint()
    assert [start["step"] for start in record["starts"]] == [0, 40]
    assert record["trained"] == sum(p.numel() for p in Model().parameters())
    for start in record["starts"]:
        assert start["versions"]["torch"] == torch.__version__ and start["machine"]["cores"] and start["command"]


def test_without_a_terminal_there_are_lines_and_in_silence_nothing(tmp_path, capsys):
    train(Model(), Rule(), config(), tmp_path / "lines")
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("step 4/40  loss ") and "samples/s" in printed[0]
    assert sum("evaluation: exact" in line for line in printed) == 4 and "\x1b" not in "".join(printed)
    run(tmp_path / "silence")
    assert capsys.readouterr() == ("", "")


def test_tensorboard_is_an_error_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PackageError, match="pip install tensorboard"):
        Metrics(tmp_path, upto=0, write=True, tensorboard=True)


def test_tensorboard_gets_every_number_of_every_line(tmp_path, monkeypatch):
    written = []

    class Board:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    module = types.ModuleType("tensorboard")
    module.SummaryWriter = Board
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    train(Model(), Rule(), config(), tmp_path, progress=False, tensorboard=True)
    assert written[0] == (str(tmp_path / "tensorboard"), 1) and written[-1] == "closed"
    names = {name for name, _, step in written[1:-1] if step == 40}
    assert {"train/loss", "train/clock/samples_per_s", "train/counts/correct", "evaluation/metrics/exact"} <= names


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    train(Model(), Rule(), config(), tmp_path)
    assert "40/40" in shown.getvalue() and "step 40/40  evaluation: exact" in shown.getvalue()


# --- refusals ---------------------------------------------------------------------------------------------------------


def covering(parameters):
    return lambda model, made: torch.optim.SGD(parameters(model), lr=made.learning_rate)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            lambda model: [p for name, p in model.named_parameters() if name != "norm.bias"],
            "norm.bias: held .* 0 times",
        ),
        (lambda model: [*model.parameters(), nn.Parameter(torch.zeros(1))], "1 parameters .* none of the 7"),
        (lambda model: [p.requires_grad_(p.ndim > 1) for p in model.parameters()], "hidden.bias: .* needs no gradient"),
    ],
)
def test_an_optimizer_must_hold_every_trained_parameter_once(tmp_path, parameters, message):
    with pytest.raises(OptimizerError, match=message):
        train(Model(), Rule(), config(), tmp_path, optimizer=covering(parameters), progress=False)


def test_a_parameter_held_twice_is_refused():
    from octavo.train.optimizer import check_coverage

    model = Model()
    optimizer = adamw(model, config())
    optimizer.param_groups[1]["params"].append(model.head.weight)
    with pytest.raises(OptimizerError, match=r"head.weight: held by the optimizer 2 times"):
        check_coverage(model, optimizer)


def test_a_model_without_anything_to_train_is_refused(tmp_path):
    with pytest.raises(OptimizerError, match="nothing to train"):
        run(tmp_path, model=Model().requires_grad_(False))


def test_frozen_parameters_stay_and_need_no_optimizer(tmp_path):
    model = Model()
    model.embed.requires_grad_(False)
    before = model.embed.weight.clone()
    run(tmp_path, model=model)
    assert torch.equal(model.embed.weight, before) and "embed.weight" in weights(tmp_path)


def test_tied_weights_are_trained_once_and_kept_under_both_names(tmp_path):
    class Tied(Model):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(16, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            return super().forward(tokens) + self.out(self.embed(tokens))

    run(tmp_path, model=Tied())
    held = weights(tmp_path)
    assert torch.equal(held["embed.weight"], held["out.weight"])


def broken(**methods):
    return type("Broken", (Rule,), methods)()


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (broken(loss=None), TaskError, "has no method 'loss'"),
        (broken(goal="up"), TaskError, "goal is 'up'; accepted: 'max', 'min'"),
        (broken(evaluate=None), ConfigError, "evaluate_every is 10, but Broken has no method 'evaluate'"),
        (broken(state_dict=lambda self: {}), TaskError, "one of state_dict and load_state_dict"),
        (broken(batch=lambda *_: {"x": object()}), TaskError, "batch holds a object"),
        (broken(evaluate=lambda *_: {"other": 1.0}), TaskError, "returned other; the task's metric is 'exact'"),
        (broken(evaluate=lambda *_: {"exact": "good"}), TaskError, "returned a str for 'exact'"),
        (broken(evaluate=lambda *_: {"exact": (1, 2, 3)}), TaskError, "returned 3 numbers for 'exact'"),
        (broken(loss=lambda _, m, b: (m(b["tokens"]).sum((1, 2)), 1, {})), TaskError, r"of shape \(6,\); accepted"),
        (broken(loss=lambda _, m, b: (m(b["tokens"]).sum().half(), 1, {})), TaskError, "float16 of shape"),
        (broken(loss=lambda _, m, b: (m(b["tokens"]).sum(), 0, {})), TaskError, "step 0: the loss counted 0 tokens"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused(tmp_path, task, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path, task=task)


def test_a_device_that_is_not_there_is_refused(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(
        ConfigError, match=r"device is 'cuda', but PyTorch .* finds no GPU.*use device='cpu', or 'auto'"
    ):
        run(tmp_path, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gpu_follows_the_losses_of_the_cpu(tmp_path, precision):
    run(tmp_path / "cpu", model=Model(), log_every=1)
    run(tmp_path / "gpu", model=Model(), log_every=1, device="cuda", precision=precision)
    difference = (losses(tmp_path / "cpu") - losses(tmp_path / "gpu")).abs().max()
    assert difference < (1e-4 if precision == "fp32" else BF16)


@pytest.mark.slow
def test_a_compiled_run_follows_the_plain_one(tmp_path):
    for name, compiled in (("plain", False), ("compiled", True)):
        run(tmp_path / name, model=Model(), log_every=1, compile=compiled)
    assert (losses(tmp_path / "plain") - losses(tmp_path / "compiled")).abs().max() < 1e-5
    clock = read_metrics(tmp_path / "compiled")[-1]["clock"]
    assert clock["compile_s"] > clock["train_s"] > 0
