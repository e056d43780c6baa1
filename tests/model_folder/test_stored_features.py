"""What a file says about a model is a list of features: each is written, checked and read back without the others."""

import json

import octavo
import pytest
import torch
from octavo import ContainerError
from octavo.model_folder import structure
from octavo.model_folder.features import FEATURES
from octavo.model_folder.stored_feature import Stage, StoredFeature
from octavo.model_folder.structure import KEY
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.tensors import container
from torch import nn

STORED = [feature for feature in FEATURES if feature.stage < Stage.FILLED]


def described(folder):
    """The description that the file of a folder holds."""
    return json.loads(container.metadata(folder / PACKED_NAME)[KEY])


def test_a_plain_model_has_no_feature(tmp_path):
    octavo.save_model(nn.Linear(4, 4), tmp_path)
    assert described(tmp_path) == {"version": 1, "class": "Linear", "layers": {}, "ties": {}}


def test_a_new_feature_is_one_entry_of_the_list(tmp_path, monkeypatch):
    motto = StoredFeature(
        "motto",
        describe=lambda model: vars(model).get("motto"),
        restore=lambda restoration, value: setattr(restoration.model, "motto", value),
    )
    monkeypatch.setattr(structure, "FEATURES", (*FEATURES, motto))
    model = nn.Linear(4, 4)
    model.motto = ["festina", "lente"]
    octavo.save_model(model, tmp_path)
    loaded = octavo.load_model(tmp_path, nn.Linear(4, 4))
    assert loaded.motto == model.motto and torch.equal(loaded.weight, model.weight)


@pytest.mark.parametrize("value", [None, 5, "text", [5], [["a"]], {"a": 5}], ids=str)
@pytest.mark.parametrize("key", sorted({feature.key for feature in STORED}))
def test_values_of_other_types_are_typed_errors_naming_the_file(tmp_path, key, value):
    octavo.save_model(nn.Linear(4, 4), tmp_path)
    file = tmp_path / PACKED_NAME
    metadata = container.metadata(file)
    metadata[KEY] = json.dumps(described(tmp_path) | {key: value})
    container.save(octavo.load(file), file, metadata=metadata, overwrite=True)
    with pytest.raises(ContainerError, match=r"model\.octavo\.safetensors"):
        octavo.load_model(tmp_path, nn.Linear(4, 4))
