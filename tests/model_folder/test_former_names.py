"""Files and checkpoints of Octavo 0.1 spell ``weight_quantiser``: they are read as they were meant."""

import json

import octavo
import torch
from octavo.model_folder.structure import KEY
from octavo.nn.former_names import current_name, current_names
from octavo.tensors import container
from octavo.train import checkpoint
from torch import nn


def with_s(name: str) -> str:
    return name.replace("_quantizer", "_quantiser")


def test_a_folder_with_the_former_names_is_loaded(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4))
    model = octavo.quantize_model(model, "int8:channel input=int8@minmax", calibration=[torch.randn(4, 32)])
    octavo.save_model(model, tmp_path)
    file = tmp_path / "model.octavo.safetensors"
    tensors, metadata = octavo.load(file), container.metadata(file)
    metadata[KEY] = with_s(metadata[KEY])
    del metadata["digests"]  # 0.1 wrote none
    assert any("_quantizer." in name for name in tensors)
    container.save({with_s(name): value for name, value in tensors.items()}, file, metadata=metadata)
    x = torch.randn(3, 32)
    again = octavo.load_model(tmp_path, nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4)))
    assert torch.equal(again(x), model.eval()(x))
    assert json.loads(metadata[KEY])["layers"]


def test_a_checkpoint_with_the_former_names_is_read(tmp_path):
    saved = {
        "step": 3,
        "optimiser": {"state": {}},
        "model": {"0.weight_quantiser.scale": torch.ones(1)},
        "average": None,
    }
    checkpoint.save(tmp_path, 3, saved, keep=1)
    _, content = checkpoint.load_newest(tmp_path)
    assert content["optimizer"] == {"state": {}}
    assert list(content["model"]) == ["0.weight_quantizer.scale"]


def test_only_whole_parts_of_a_name_are_others():
    assert current_name("a.b.input_quantiser.scale") == "a.b.input_quantizer.scale"
    assert current_name("my_quantisers.weight") == "my_quantisers.weight"
    assert current_names({"a_quantiser.scale": 1}) == {"a_quantizer.scale": 1}
