"""The labs' space: as many models as it has points, types where layers are, and networks that are what the point says."""

import itertools
import random

import octavo
import pytest
import torch
from octavo.errors import SettingError
from octavo.lab.architectures.bert_spaces import SCALES, bert_space
from octavo.lab.classifiers import Classifier, ClassifierConfig
from torch import nn

FIXED = {"vocabulary": 20, "classes": 2, "positions": 16}


def network(spec):
    return Classifier(ClassifierConfig.from_dict({name: value for name, value in spec.items() if name != "class"}))


@pytest.mark.parametrize("scale", SCALES)
def test_lab32_is_32_models(scale):
    space = bert_space("lab32", scale, **FIXED)
    points = list(space.points())
    assert len(points) == len({space.identity(point) for point in points}) == 32
    space.check_axes()


def test_the_labs_space_has_300_shapes_and_a_type_for_each_square_layer():
    space = bert_space("labs", "labs", **FIXED)
    sizes = SCALES["labs"]
    assert len(sizes.layers) * len(sizes.heads) * len(sizes.hidden) * len(sizes.intermediate) == 300
    space.check_axes()
    for seed in range(50):
        point = space.draw(random.Random(seed))
        square = point["hidden"] == point["intermediate"]
        assert len(point) == 4 + (6 if square else 4) * point["layers"] + 1


def test_different_points_are_different_models():
    space = bert_space("labs", "tiny", **FIXED)
    points = list(itertools.islice(space.points(), 2000)) + [space.draw(random.Random(seed)) for seed in range(200)]
    distinct = {tuple(sorted(point.items())) for point in points}
    assert len({space.identity(point) for point in points}) == len(distinct)


def test_a_network_has_the_layers_that_its_point_says():
    space = bert_space("labs", "tiny", **FIXED)
    for seed in range(6):
        point = space.draw(random.Random(seed))
        model = network(space.spec(point)).eval()
        assert len(model.encoder) == point["layers"] and model.pooler.__class__.__name__.lower() == point["pooler"]
        for layer in range(point["layers"]):
            part = model.encoder[layer].attention
            for name in ("query", "key", "value", "output"):
                assert isinstance(getattr(part, name), nn.Linear) == (point[f"{layer}.{name}"] == "linear")
        answers = model(torch.randint(1, 20, (3, 8)))
        assert answers.shape == (3, 2) and answers.isfinite().all()


def test_layers_that_are_the_identity_are_saved_and_loaded(tmp_path):
    given = ClassifierConfig(
        vocabulary=20, width=16, feed_forward=16, identity_layers=["pooler", "encoder.0.feed_forward.up"]
    )
    torch.manual_seed(0)
    model = Classifier(given).eval()
    octavo.save_model(model, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model")
    ids = torch.randint(1, 20, (2, 5))
    assert loaded.config == given and torch.equal(loaded.eval()(ids), model(ids))
    torch.manual_seed(0)
    plain = Classifier(ClassifierConfig(vocabulary=20, width=16, feed_forward=16))
    assert "identity_layers" not in plain.config.as_dict()
    assert all(torch.equal(plain.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("given", [["encoder.0.feed_forward.up"], ["encoder.9.attention.query"], "pooler", [1]])
def test_only_square_layers_can_be_the_identity(given):
    with pytest.raises(SettingError, match="identity_layers"):
        ClassifierConfig(vocabulary=20, identity_layers=given)


def test_unknown_spaces_are_refused():
    with pytest.raises(SettingError, match="lab32, labs"):
        bert_space("lab33", **FIXED)
    with pytest.raises(SettingError, match="labs, tiny"):
        bert_space("labs", "huge", **FIXED)
