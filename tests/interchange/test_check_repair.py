"""Repairs are exact, go into a copy, and leave nothing of the broken rule."""

import json

import pytest
import torch
from helpers import checkpoints
from interchange.broken_checkpoints import BREAKS, edited, ids, part
from octavo import load
from octavo.interchange.check.repair import write_repaired
from octavo.interchange.check.run_check import check_path


def repaired(rule, broken, out, base=None):
    findings = [one for one in check_path(broken, base=base).findings if one.rule.id == rule]
    assert all(one.edits for one in findings)
    write_repaired(broken, out, findings)
    return out


@pytest.mark.parametrize(
    "rule", ["gptq-zero-version", "g-idx-ignored", "tie-flag", "index-disagrees", "index-size", "layer-not-ignored"]
)
def test_a_repaired_copy_does_not_break_the_rule(rule, tmp_path):
    sound, broken = BREAKS[rule](tmp_path)
    out = repaired(rule, broken, tmp_path / "out")
    assert ids(out) == set()
    for file in broken.glob("*.safetensors"):
        assert (out / file.name).read_bytes() == file.read_bytes()
    if rule.startswith("index"):
        name = "model.safetensors.index.json"
        assert json.loads((out / name).read_text()) == json.loads((sound / name).read_text())


def test_gptq_widths_and_groups_come_from_the_tensors(tmp_path):
    for key, value in (("bits", 8), ("group_size", 64)):
        tensors, config = checkpoints.llama("gptq-4")
        config["quantization_config"][key] = value
        broken = checkpoints.write(tmp_path / f"{key}-broken", tensors, config)
        out = repaired("config-bits", broken, tmp_path / key)
        assert ids(out) == set()
        assert json.loads((out / "config.json").read_text())["quantization_config"][key] in (4, 32)


def test_a_width_that_all_tensors_of_a_group_contradict_is_corrected(tmp_path):
    _, broken = BREAKS["config-bits"](tmp_path)
    out = repaired("config-bits", broken, tmp_path / "out")
    assert ids(out) == set()
    tensors, config = checkpoints.llama("ct-int4")
    tensors |= {name: part for name, part in checkpoints.llama("ct-int8")[0].items() if "layers.0.mlp.up" in name}
    mixed = checkpoints.write(tmp_path / "mixed", tensors, config)
    (one,) = [one for one in check_path(mixed).findings if one.rule.id == "config-bits"]
    assert not one.edits  # the other layers have what is stated


def test_a_nan_over_zeros_becomes_a_scale_of_0(tmp_path):
    layer = "model.layers.1.mlp.up_proj"

    def change(tensors, config):
        tensors[f"{layer}.weight_packed"][3, 16:24] = 0
        part(".weight_scale", lambda data: data.__setitem__((3, 2), 0xFF))(tensors, config)

    _, broken = edited("nvfp4", change)(tmp_path)
    assert ids(broken) == {"scale-nan"}
    out = repaired("scale-nan", broken, tmp_path / "out")
    assert ids(out) == set()
    before, after = load(broken / "model.safetensors"), load(out / "model.safetensors")
    name = f"{layer}.weight_scale"
    assert after[name].view(torch.uint8)[3, 2] == 0
    changed = before[name].view(torch.uint8) != after[name].view(torch.uint8)
    assert int(changed.sum()) == 1


def test_a_nan_over_other_codes_is_not_repaired(tmp_path):
    _, broken = BREAKS["scale-nan"](tmp_path)
    assert not any(one.edits for one in check_path(broken).findings)


def test_low_exponents_are_raised_where_the_original_shows_them(tmp_path):
    sound, broken = BREAKS["exponent-low"](tmp_path)
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    assert not any(one.edits for one in check_path(broken).findings)
    out = repaired("layer-scaled", broken, tmp_path / "out", base)
    assert ids(out, base) == set()
    assert (out / "model.safetensors").read_bytes() == (sound / "model.safetensors").read_bytes()
