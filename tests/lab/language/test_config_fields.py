"""Any field from the command line, and presets put together."""

from dataclasses import fields, replace

import pytest
from lab.language.language_worker import TINY, text_file, tokens
from octavo.errors import ConfigError, ModelError, OctavoError, SettingError
from octavo.lab.language import bench_arms
from octavo.lab.language.attention_backend import check_attention
from octavo.lab.language.bench_arms import arm, check_run
from octavo.lab.language.bench_report import BenchReport
from octavo.lab.language.config_fields import SIZES, accepted, with_field
from octavo.lab.language.gpt import RDrop
from octavo.lab.language.language_bench import BenchPlan, run_bench
from octavo.lab.language.language_presets import BASE, PRESETS, preset
from octavo.lab.language.language_run import train_language
from octavo.lab.language.language_scales import SCALES
from octavo.lab.language.train_command import Choices
from torch.profiler import ProfilerActivity, profile

TRUE = replace(SCALES["true"], end_of_text=0)


def written(value):
    """Return a value as it is typed."""
    if isinstance(value, tuple):
        return ":".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


@pytest.mark.parametrize("name", [BASE, "modern_skips", "moe_8", "lion", "reptile", "test_time_training", "retro"])
def test_every_accepted_field_is_set_to_what_it_is_without_a_change(name):
    config = preset(name, replace(TINY, end_of_text=0))
    names = accepted(config)
    assert set(SIZES) < set(names) and len(names) == len(set(names)) > 40
    for field in set(names) - set(SIZES):
        group, _, bare = field.rpartition(".")
        owners = [config, *config.phases, config.optimizer, config.reptile, config.test_time, config.model]
        owners += [mixer for _, mixer in config.model.mixers]
        owners += [getattr(config.model, part.name) for part in fields(config.model)]
        part = {"stage": config.phases[0], "mixer": config.model.mixers[0][1]}
        part |= {name: getattr(config, name) for name in ("optimizer", "reptile", "test_time")}
        sought = [part.get(group) or getattr(config.model, group, config)] if group else owners
        value = next(getattr(owner, bare) for owner in sought if hasattr(owner, bare))
        if value == ():
            continue  # no text stands for a tuple of none
        assert with_field(config, field, written(value)) == config, field


def test_a_field_changes_itself_and_nothing_else():
    base = preset(BASE, TINY)
    assert arm(f"{BASE}@kv_heads=1", TINY).model.mixer(0) == replace(base.model.mixer(0), kv_heads=1)
    assert arm(f"{BASE}@stage.window=5,micro_tokens=16", TINY) == replace(
        base, micro_tokens=16, phases=(replace(base.phases[0], window=5),)
    )
    assert arm(f"{BASE}@betas=0.8:0.95,clip=none", TINY).optimizer.betas == (0.8, 0.95)
    assert arm("mtp_parallel@ahead=4", TINY).model.objective.ahead == 4
    assert arm("mtp_repeated@weights=1:0.5:0.25:0.1", TINY).model.objective.weights == (1, 0.5, 0.25, 0.1)
    assert arm(f"{BASE}@dropout=0.1,tied=false,layers=2", TINY).model.layers == 2
    for name in PRESETS:
        assert arm(name, replace(TINY, end_of_text=0)) == preset(name, replace(TINY, end_of_text=0))


@pytest.mark.parametrize("context", [512, 1024, 2048, 4096, 8192, 16384])
def test_another_context_keeps_the_tokens_of_an_update(context):
    for name in (BASE, "length_curriculum", "pooled_mean", "recomputed_context"):
        config, usual = arm(f"{name}@context={context}", TRUE), preset(name, TRUE)
        assert config.context == context
        for stage, other in zip(config.stages(), usual.stages(), strict=True):
            assert stage.batch_size * stage.context == other.batch_size * other.context
            assert stage.context / other.context == context / 1024
    assert arm("mtp_parallel@ahead=4,context=512", TRUE).context == 512


@pytest.mark.parametrize(
    ("change", "message"),
    [("contxt=3", r"'contxt' is no field of this run; did you mean 'context'\? accepted are .*kv_heads"),
     ("window=3", "accepted are stage.window and mixer.window"), ("head.ahead=2", "is no field"),
     ("kv_heads=1.5", "whole number"), ("kv_heads=3", "divisors of heads, 2"), ("betas=0.9", "2 values"),
     ("qk_norm=yes", "true and false"), ("learning_rate=x", "a number"), ("clip=inf", "a number"),
     ("learning_rate=-1", "above 0"), ("schedule=cubic", "trapezoid"), ("heads=3", "cuts the width, 16"),
     ("context=1", "at least 2"), ("layers=0", "at least 1"), ("batch=0", "at least 1"), ("stage.window=0", "window"),
     ("tokens=9", "give --tokens"), ("compile=true", "give --compile"), ("context", "FIELD=VALUE"),
     ("weight_decay=2", "weight_decay"), ("rotary=quarter", "rotary"), ("order=backwards", "documents")],
)  # fmt: skip
def test_what_is_no_field_or_no_value_is_refused_with_what_is_accepted(tmp_path, change, message):
    choices = Choices(fields=(change,), scale="micro", tokens=4096)
    if change == "heads=3":
        choices, message = replace(choices, fields=("heads=7",)), "cuts the width"
    if change == "kv_heads=3":
        message = "divisors of heads, 4"
    with pytest.raises(OctavoError, match=message):
        choices.prepare(tmp_path / "none.txt", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_what_fits_no_model_is_refused_before_weights_are_made():
    with pytest.raises(SettingError, match="cuts the width"):
        check_run(arm(f"{BASE}@heads=3", TINY))
    with pytest.raises(ModelError, match="noise"):
        check_run(arm("r_drop@dropout=0", TINY))
    with pytest.raises(ConfigError):
        check_run(arm(f"{BASE}@precision=fp7", TINY))


# --- kernels of attention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["@", "@,", "@layers=2,", "@ "])
def test_a_field_without_text_is_refused(text):
    with pytest.raises(SettingError, match="sets no field; accepted is FIELD=VALUE"):
        arm(BASE + text, TINY)


@pytest.mark.parametrize("name", ["math", pytest.param("flash", marks=pytest.mark.slow)])
def test_a_run_trains_with_the_kernel_that_it_names(tmp_path, name):
    data, scale = tokens(tmp_path / "text")

    def run(folder, **fields):
        config = replace(preset(BASE, scale), tokens=128, **fields)
        return train_language(config, data, folder, device="cpu", progress=False)

    plain = run(tmp_path / "plain")
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        report = run(tmp_path / name, attention=name)
    forward = {
        "flash": "aten::_scaled_dot_product_flash_attention_for_cpu",
        "math": "aten::_scaled_dot_product_attention_math",
    }
    names = {event.key for event in seen.key_averages()}
    assert forward[name] in names
    assert report.validation.nats == pytest.approx(plain.validation.nats, abs=1e-4)
    assert "attention" not in preset(BASE, TINY).as_dict()
    assert arm(f"{BASE}@attention={name}", TINY).as_dict()["attention"] == name


def test_a_kernel_that_the_device_has_not_is_refused_with_those_it_has(tmp_path):
    for name, message in (("cudnn", "accepted here: auto, .*math"), ("triton", "auto, flash, efficient, math, cudnn")):
        with pytest.raises(ConfigError, match=message):
            check_attention(arm(f"{BASE}@attention={name}", TINY), "cpu")


# --- presets together -------------------------------------------------------------------------------------------------


def test_stages_of_two_presets_are_joined_field_by_field():
    both = arm("layer_drop+length_curriculum", TINY)
    assert both.model.in_training.layer_drop == 0.1 and both.schedule == "one_cycle"
    found = [(round(one.share, 6), one.context, one.batch, one.noise) for one in both.phases]
    assert found == [(0.333333, 4, 16, 1), (0.333333, 8, 8, 1), (0.133333, 16, 4, 1), (0.2, 16, 4, 0)]
    assert arm("length_curriculum+layer_drop", TINY).phases == both.phases
    assert arm("layer_drop+random_ltd", TINY).phases == preset("layer_drop", TINY).phases
    assert sum(one.share for one in both.phases) == pytest.approx(1, abs=1e-12)
    check_run(both)
    with pytest.raises(SettingError, match="both change context of the stages"):
        arm("length_curriculum+recomputed_context", TINY)


def test_a_mask_becomes_the_noise_of_r_drop():
    both = arm("token_dropout+r_drop", TINY)
    assert both.model.objective == RDrop(share=0.15) and both.model.in_training.dropout == 0.1
    assert arm("r_drop+token_dropout", TINY) == both
    assert both.phases == preset("token_dropout", TINY).phases
    alone = preset("masked_agreement", TINY)
    assert alone.model.objective == RDrop(share=0.15) and alone.model.in_training.dropout == 0
    assert "share" not in preset("r_drop", TINY).as_dict()["model"]["objective"]
    with pytest.raises(SettingError, match="both change objective"):
        arm("token_dropout+cocont", TINY)


@pytest.mark.usefixtures("micro_scale")
def test_arms_of_other_contexts_are_compared_on_the_same_tokens(tmp_path):
    names = (BASE, f"{BASE}@context=32", "layer_drop+length_curriculum", "token_dropout+r_drop")
    plan = BenchPlan(scale="micro", arms=names, seeds=1, tokens=256, device="cpu")
    lines = run_bench(plan, text_file(tmp_path), tmp_path / "b")
    assert {line["validation"]["context"] for line in lines} == {16, 32}
    assert len({line["validation"]["tokens"] for line in lines}) == 1
    report = BenchReport(lines)
    assert any("32: nocap_baseline@context=32" in note for note in report.notes())
    with pytest.raises(OctavoError, match="do not compare"):
        BenchReport([{key: line[key] for key in line if key != "stream_sha256"} for line in lines])
    assert bench_arms.arms(",".join(names)) == list(names)
