"""Every rule of the linter fires on a checkpoint that breaks it, and not on the sound one it was made of."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers.gguf_models import file_of
from helpers.models import transformer
from interchange.broken_checkpoints import BREAKS, LAYER, MORE, at, edited, finding, ids, old_version, part
from octavo.interchange.check.findings import RULES, all_rules
from octavo.interchange.check.run_check import check_path


def test_every_rule_has_a_fixture():
    assert set(BREAKS) == set(RULES)


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_fires_where_it_is_broken_alone(rule, tmp_path):
    sound, broken = BREAKS[rule](tmp_path)
    base = tmp_path / "base" if (tmp_path / "base").exists() else None
    assert ids(sound, base) == set()
    assert rule in ids(broken, base)


@pytest.mark.parametrize("law", MORE)
def test_a_rule_knows_every_layout(law, tmp_path):
    rule, make = MORE[law]
    sound, broken = make(tmp_path)
    assert ids(sound) == set()
    assert rule in ids(broken)


@pytest.mark.parametrize(
    ("rule", "suffix", "row", "block", "value"),
    [("scale-nan", ".weight_scale", 3, 2, "0x7F"), ("code-nan", ".weight", 5, 0, "0xFF")],
)
def test_a_finding_names_row_block_byte_and_value(rule, suffix, row, block, value, tmp_path):
    _, broken = BREAKS[rule](tmp_path)
    found = finding(broken, rule)
    place = found.places[0]
    assert (found.subject, found.count, place.row, place.block, place.value) == (LAYER, 1, row, block, value)
    data = (broken / "model.safetensors").read_bytes()
    assert data[place.offset] == int(value, 16)


def test_scales_of_gptq_are_told_by_row_and_group(tmp_path):
    """They are stored turned, ``[groups, rows]``."""
    _, broken = MORE["a scale of GPTQ is zero"][1](tmp_path)
    place = finding(broken, "scale-zero").places[0]
    assert (place.row, place.block) == (3, 1)


def test_a_finding_lists_the_first_places_and_counts_all(tmp_path):
    _, broken = edited("nvfp4", part(".weight_scale", at(slice(0, 2), 0x7F)))(tmp_path)
    found = finding(broken, "scale-nan")
    assert (found.count, len(found.places)) == (2 * 8, 3)


def test_the_original_makes_suspicions_sure(tmp_path):
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    for rule in ("exponent-low", "factor-inverted", "blocks-vanished", "blocks-saturated"):
        _, broken = BREAKS[rule](tmp_path)
        assert finding(broken, rule).severity == "suspect"
        assert finding(broken, rule, base).severity == "error"


def test_an_old_version_of_sound_exponents_is_not_suspected(tmp_path):
    _, other = edited("mxfp4", old_version)(tmp_path)
    assert ids(other) == set()


def test_a_gguf_file_is_compared_with_the_folder_it_was_made_of(tmp_path):
    """Names are those of transformers, rows of q and k in its order."""
    model = transformer("LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2)
    model.save_pretrained(tmp_path / "base")
    (tmp_path / "x.gguf").write_bytes(file_of(model, "llama", lambda name: "Q8_0"))
    checked = check_path(tmp_path / "x.gguf", base=tmp_path / "base")
    assert not len(checked.findings)
    assert len(checked.agreements) > 10 and all(one.cosine > 0.9999 for one in checked.agreements)


def test_experts_of_gpt_oss_lie_turned_in_the_original(tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(2, 64, 96) * 0.05  # experts, in, out
    parts = [checkpoints.LAYOUTS["gpt-oss"][0](one.T.contiguous().numpy()) for one in weight]
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        f"{name}{suffix}": torch.from_numpy(np.concatenate([one[suffix] for one in parts])) for suffix in parts[0]
    }
    folder = checkpoints.write(tmp_path / "x", tensors, {"quantization_config": {"quant_method": "mxfp4"}})
    base = checkpoints.write(tmp_path / "base", {name: weight}, {})
    checked = check_path(folder, base=base)
    assert [one.text for one in checked.findings] == []
    assert checked.agreements[0].cosine > 0.99


def test_parts_in_other_files_are_not_missing(tmp_path):
    folder = checkpoints.write(tmp_path / "x", *checkpoints.llama("ct-int4"), shards=2)
    assert ids(folder) == set()
    for file in folder.glob("*.safetensors"):
        assert ids(file) == set()


def test_the_original_settles_what_looks_unfilled(tmp_path):
    """A matrix whose half is zero in the original, too, is sound; another is not."""
    name = "model.layers.1.mlp.up_proj.weight"
    tensors, config = checkpoints.base()
    tensors[name][128:] = 0
    pruned = checkpoints.write(tmp_path / "pruned", tensors, config)
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    assert finding(pruned, "tensor-unfilled").severity == "suspect"
    assert ids(pruned, pruned) == set()
    assert finding(pruned, "tensor-unfilled", base).severity == "error"


def test_float_matrices_are_compared_too(tmp_path):
    tensors, config = checkpoints.llama("ct-int4")
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 0.002 * torch.randn(tensors["lm_head.weight"].shape)
    folder = checkpoints.write(tmp_path / "x", tensors, config)
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    assert finding(folder, "layer-stale", base).subject == "lm_head"


def test_swapped_layers_are_named(tmp_path):
    _, broken = BREAKS["layer-swapped"](tmp_path)
    found = finding(broken, "layer-swapped", tmp_path / "base")
    assert "model.layers.1.mlp.up_proj" in f"{found.subject} {found.text}"
    assert "model.layers.0.mlp.up_proj" in f"{found.subject} {found.text}"


def test_clean_fixtures_have_no_findings_with_their_original(tmp_path):
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    for layout in checkpoints.LAYOUTS:
        folder = checkpoints.write(tmp_path / layout, *checkpoints.llama(layout))
        checked = check_path(folder, base=base)
        assert [(one.rule.id, one.subject, one.text) for one in checked.findings] == [], layout
        assert len(checked.agreements) == 16


def test_the_manual_lists_every_rule():
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    rows = [f"| `{rule.id}` | {rule.severity} | {rule.defect} |" for rule in all_rules()]
    assert [line for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 2] == rows
