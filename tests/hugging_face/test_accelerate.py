"""accelerate, torch's own savers and the hub's save, load, move and dispatch packed models by the names of buffers."""

import copy
import io
import logging
import re

import octavo
import pytest
import torch
from helpers.models import packed, tensor_bytes, transformer

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("transformers")

IDS = torch.tensor([[3, 17, 9, 4, 21, 40], [7, 7, 2, 30, 5, 1]])
RECIPES = ["int4:g32", "nvfp4", "uint4:g32", "e4m3"]  # with scales, levels, zeros, and none of them


def model_of(recipe="int4:g32", seed=0, **config):
    return packed(transformer("LlamaForCausalLM", layers=1, seed=seed, **config), recipe)


def output(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_model_has_no_empty_tensors_and_loads_with_and_without_a_device_map(recipe, tmp_path, caplog):
    model = model_of(recipe)
    with caplog.at_level(logging.WARNING):
        accelerate.Accelerator(cpu=True).save_model(model, tmp_path)
    assert not [record for record in caplog.records if "shared tensor" in record.getMessage()]
    assert all(tensor.numel() for tensor in octavo.load(tmp_path / "model.safetensors").values())
    for device_map in (None, {"": "cpu"}):
        other = model_of(recipe, seed=1)
        accelerate.load_checkpoint_in_model(other, tmp_path, device_map=device_map, strict=True)
        assert torch.equal(output(other), output(model)), device_map


def test_the_names_of_a_tied_head_are_told_and_loaded(tmp_path, caplog):
    model = model_of(tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        accelerate.Accelerator(cpu=True).save_model(model, tmp_path)
    told = [record.getMessage() for record in caplog.records if "shared tensor" in record.getMessage()]
    assert len(told) == 1 and set(re.findall(r"'([\w.]+)'", told[0])) == {
        "lm_head.weight_codes",
        "lm_head.weight_scales",
    }
    other = model_of(tie_word_embeddings=True, seed=1)
    accelerate.load_checkpoint_in_model(other, tmp_path)
    assert torch.equal(output(accelerate.dispatch_model(other, {"": "cpu"}, force_hooks=True)), output(model))


@pytest.mark.parametrize("recipe", RECIPES)
def test_dispatched_and_offloaded_models_compute_the_same(recipe, tmp_path):
    model = model_of(recipe)
    expected = output(model)
    dispatched = accelerate.dispatch_model(copy.deepcopy(model), {"": "cpu"}, force_hooks=True)
    assert torch.equal(output(dispatched), expected)
    offloaded = accelerate.cpu_offload(copy.deepcopy(model), torch.device("cpu"), offload_buffers=True)
    assert torch.equal(output(offloaded), expected)
    on_disk = accelerate.disk_offload(copy.deepcopy(model), tmp_path, torch.device("cpu"), offload_buffers=True)
    assert torch.equal(output(on_disk), expected)


def test_device_maps_count_the_bytes_of_codes():
    model = model_of()
    sizes = accelerate.utils.compute_module_sizes(model)
    assert sizes[""] == tensor_bytes(model)


@pytest.mark.parametrize("recipe", RECIPES)
def test_state_dicts_are_plain_tensors_that_torch_reads_without_running_code(recipe):
    model, other, file = model_of(recipe), model_of(recipe, seed=1), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(output(other), output(model))


def test_states_of_distributed_checkpoints_are_those_of_the_model():
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model, other = model_of(), model_of(seed=1)
    set_model_state_dict(other, get_model_state_dict(model))
    assert torch.equal(output(other), output(model))


def test_prepared_models_are_what_they_were():
    model = model_of()
    assert torch.equal(output(accelerate.Accelerator(cpu=True).prepare(copy.deepcopy(model))), output(model))
