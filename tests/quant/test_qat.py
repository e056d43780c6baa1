"""Quantization-aware training: through octavo.train, with learned scales, with formats that change, and resumed."""

import pytest
import torch
from helpers.models import same_tensors
from octavo import Format, FormatError, ModelError, quantize_model
from octavo.quant import FormatSchedule, freeze_scales
from octavo.recipe.spec import Calibration, Spec
from octavo.train import TrainConfig, train
from train.tiny import Model, Rule

CONFIG = dict(batch_size=12, learning_rate=1e-2, log_every=1, device="cpu", schedule="constant")


def calibration():
    return [Rule().sequences(range(10**7, 10**7 + 64))["tokens"]]


def tiny(recipe, **options):
    return quantize_model(Model(), recipe, calibration=calibration(), **options)


def fit(model, folder, steps, **options):
    changes = {name: options.pop(name) for name in ("evaluate_every", "compile", "precision") if name in options}
    return train(model, Rule(), TrainConfig(steps=steps, **CONFIG, **changes), folder, progress=False, **options)


@pytest.mark.parametrize(
    "recipe",
    [
        "mxint4; type:Linear input=mxint8",
        "int4:channel@lsq; embed int4:channel@lsq; type:Linear input=int8@lsq",
        "ternary:channel; last:Linear int8:channel input=int8:channel",
    ],
)
def test_a_model_learns_in_small_formats(tmp_path, recipe):
    model = tiny(recipe)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    result = fit(model, tmp_path, 60)
    assert result.metrics["tokens"] > 0.9
    assert all(not torch.equal(p, start[name]) for name, p in model.named_parameters())


def test_training_recovers_what_rounding_lost(tmp_path):
    """At two bits a trained model is lost, and trained again in the format it is not."""
    task, model = Rule(), Model()
    fit(model, tmp_path / "float", 60)
    recipe = "int2; type:Linear input=int2"
    rounded = quantize_model(model, recipe)
    exact, count = task.evaluate(rounded.eval())["tokens"]
    assert exact / count < 0.5
    assert fit(rounded.train(), tmp_path / "qat", 60).metrics["tokens"] > 0.85


def test_evaluating_changes_no_statistic(tmp_path):
    recipe = "int4:channel@lsq; type:Linear input=uint8@mse"
    models = [tiny(recipe), tiny(recipe)]
    fit(models[0], tmp_path / "never", 12)
    fit(models[1], tmp_path / "often", 12, evaluate_every=1)
    assert same_tensors(*(model.state_dict() for model in models))


# --- formats that change ----------------------------------------------------------------------------------------------


def formats(model, role="weight"):
    return {str(getattr(model.get_submodule(name), f"{role}_quantizer").format) for name in ("embed", "hidden", "head")}


def test_formats_follow_the_schedule(tmp_path):
    seen = []

    def watch(model, step):
        seen.append((step, formats(model)))

    schedule = FormatSchedule({0: "int8", 4: "int6", 7: "int4:g8@mse"})
    fit(tiny("mxint8"), tmp_path, 9, callbacks=[schedule, watch])
    assert seen == [(n, {"int8" if n < 4 else "int6" if n < 7 else "int4:g8"}) for n in range(9)]


def test_by_hand_a_schedule_counts_its_steps():
    model, schedule = tiny("int8"), FormatSchedule({1: "int4"})
    assert schedule.at(0) is None and schedule.at(5) == Spec(Format("int4"))
    for expected in ("int8", "int4", "int4"):
        schedule.step(model)
        assert formats(model) == {expected}


@pytest.mark.parametrize("stop", [3, 4, 5])
@pytest.mark.parametrize("recipe", ["int8:channel; type:Linear input=int8@mse", "int8:channel@lsq; type:Linear input=int8@lsq"])  # fmt: skip
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, recipe, stop):
    """Before, at and after the step where formats change."""

    def schedules():
        weights = {4: "int5:channel@mse"} if "lsq" not in recipe else {4: "int5:channel"}
        return [FormatSchedule(weights), FormatSchedule({4: "int6"}, roles=["input"])]

    whole, parts = tiny(recipe), tiny(recipe)
    fit(whole, tmp_path / "whole", 9, callbacks=schedules())
    fit(parts, tmp_path / "parts", stop, callbacks=schedules())
    again = tiny(recipe)
    fit(again, tmp_path / "parts", 9, callbacks=schedules())
    assert same_tensors(whole.state_dict(), again.state_dict())
    assert formats(again) == {"int5:channel"}


def test_a_fixed_scale_goes_on_to_cover_its_range():
    model = tiny("type:Linear input=int8@minmax")
    before = model.hidden.input_quantizer.scales * 127
    FormatSchedule({0: "int4"}, roles=["input"]).step(model)
    torch.testing.assert_close(model.hidden.input_quantizer.scales * 7, before)
    FormatSchedule({0: "uint6"}, roles=["input"]).step(model)
    torch.testing.assert_close(model.hidden.input_quantizer.scales * 63, 2 * before, rtol=1e-3, atol=0)
    FormatSchedule({0: "mxint8"}, roles=["input"]).step(model)
    assert not model.hidden.input_quantizer.is_static


def test_learned_scales_stay_the_parameters_they_were():
    model = tiny("type:Linear weight=int8:channel@lsq input=int8@lsq")
    held = [model.hidden.weight_quantizer.scales, model.hidden.input_quantizer.scales]
    values = [p.detach().clone() for p in held]
    FormatSchedule({0: "int6:channel"}).step(model)
    FormatSchedule({0: "fixed6"}, roles=["input"]).step(model)
    assert model.hidden.weight_quantizer.scales is held[0] and model.hidden.input_quantizer.scales is held[1]
    assert all(p.requires_grad and not torch.equal(p, value) for p, value in zip(held, values, strict=True))
    names = [name for name, _ in model.named_parameters()]
    assert names.count("hidden.weight_quantizer.scales") == 1
    with pytest.raises(
        FormatError, match="hidden: weight: 'int6:channel' has 32 learned scales, 'int4:g8' would have 64"
    ):
        FormatSchedule({0: "int4:g8"}).step(model)


def test_frozen_scales_stand_still_while_weights_go_on(tmp_path):
    model = tiny("int4:channel@lsq; head int4:g8")
    fit(model, tmp_path / "first", 5)
    freeze_scales(model)
    scales = {name: t.clone() for name, t in model.state_dict().items() if name.endswith("scales")}
    weight = model.head.weight.detach().clone()
    fit(model, tmp_path / "second", 5)
    assert len(scales) == 3 and all(torch.equal(model.state_dict()[name], t) for name, t in scales.items())
    assert not torch.equal(model.head.weight, weight)


def test_schedules_that_mean_nothing_are_refused():
    for made, told in (
        (lambda: FormatSchedule({}), "needs a format"),
        (lambda: FormatSchedule({-1: "int8"}), "whole numbers from 0"),
        (lambda: FormatSchedule({0: "int4@gptq"}), "step 0: 'int4@gptq'"),
        (lambda: FormatSchedule({0: "keep"}), "step 0: 'keep'"),
        (lambda: FormatSchedule({0: "int99"}), "int99"),
        (lambda: FormatSchedule({0: "int8"}, roles=["bias"]), "accepted are sequences of weight, input, output"),
    ):
        with pytest.raises(FormatError, match=told):
            made()
    for model, role in ((Model(), "weight"), (tiny("int8"), "input")):
        with pytest.raises(ModelError, match=f"no quantized layer with a format for {role}"):
            FormatSchedule({0: "int8"}, roles=[role]).step(model)


# --- other ways to run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["int4:g8; type:Linear input=int8@lsq", "mxfp4; type:Linear input=mxfp8e4m3"])
def test_a_compiled_step_computes_what_the_eager_one_does(recipe):
    task, results = Rule(), []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = tiny(recipe)
        loss = torch.compile(task.loss, fullgraph=True, backend="aot_eager") if compiled else task.loss
        value, _, _ = loss(model, task.batch(0, 0, 0, 12))
        value.backward()
        results.append([value.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_autocast_trains(tmp_path):
    assert fit(tiny("mxint8; type:Linear input=mxint8"), tmp_path, 60, precision="bf16").metrics["tokens"] > 0.9


def test_a_distributed_wrapper_trains_quantized_models(tmp_path):
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        recipe, task = "int4:channel@lsq; type:Linear input=uint8@mse", Rule()
        plain, wrapped = tiny(recipe), DistributedDataParallel(tiny(recipe))
        for model in (plain, wrapped):
            for step in range(2):
                task.loss(model, task.batch(step, 0, 0, 12))[0].backward()
        for a, b in zip(plain.parameters(), wrapped.module.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    finally:
        distributed.destroy_process_group()


def test_a_calibration_by_lsq_starts_from_mse():
    learned, fixed = tiny("int4:channel@lsq; type:Linear input=int4@lsq"), tiny("int4:channel@mse; type:Linear input=int4@mse")  # fmt: skip
    assert Calibration("lsq") == learned.hidden.weight_quantizer.spec.calibration
    for role in ("weight_quantizer", "input_quantizer"):
        a, b = getattr(learned.hidden, role), getattr(fixed.hidden, role)
        assert a.is_learned and torch.equal(a.scales.detach(), b.scales.flatten())
