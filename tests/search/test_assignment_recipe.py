"""A recipe of an assignment gives every layer what was assigned, in few rules, and can be written and read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo import Recipe, quantize_model
from octavo.errors import ConfigError
from octavo.search import Group, Sensitivity, to_recipe
from torch import nn

FORMATS = ("int4:g32", "int8", "mxint8@ceil", "keep")
INPUTS = ("int8", "keep")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = (nn.Linear(32, 32) for _ in range(3))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)


def table(model, *, inputs=False, kept=()):
    """Groups of the layers of a model; the values do not matter."""
    groups = []
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding) and path not in kept:
            groups.append(Group(path, "weight", (path,), (f"{path}.weight",), layer.weight.numel()))
            if inputs and isinstance(layer, nn.Linear):
                groups.append(Group(f"{path} input", "input", (path,)))
    shape = (len(groups), len(FORMATS))
    return Sensitivity(tuple(groups), FORMATS, np.zeros(shape), np.ones(shape), 0, 1, kept=tuple(kept))


def given_formats(model, recipe):
    """What a recipe gives each layer: weight and input."""
    plans = recipe.plan(model)
    return {
        path: tuple(str(spec) if (spec := getattr(plans[path], role)) else "keep" for role in ("weight", "input"))
        for path in plans
    }


@given(st.data(), st.booleans(), st.sets(st.sampled_from(["words", "head", "blocks.1.k", "blocks.0.q"])))
def test_every_layer_gets_what_was_assigned(data, inputs, kept):
    model = Model()
    held = table(model, inputs=inputs, kept=sorted(kept))
    choice = {
        group.name: data.draw(st.sampled_from(FORMATS if group.role == "weight" else INPUTS)) for group in held.groups
    }
    recipe = to_recipe(choice, held)
    wanted = {}
    for group in held.groups:
        for layer in group.layers:
            wanted.setdefault(layer, ["keep", "keep"])[group.role == "input"] = choice[group.name]
    assert given_formats(model, recipe) == {
        layer: tuple(texts) for layer, texts in wanted.items() if set(texts) != {"keep"}
    }
    assert Recipe.parse(str(recipe)) == recipe and Recipe.from_toml(recipe.to_toml()) == recipe


def test_what_is_alike_is_one_rule():
    model = Model()
    held = table(model)
    choice = dict.fromkeys((group.name for group in held.groups), "int4:g32")
    assert str(to_recipe(choice, held)) == "int4:g32"
    for block in range(3):
        choice[f"blocks.{block}.out"] = "int8"
    assert str(to_recipe(choice, held)) == "int4:g32; blocks.*.out int8"
    choice["blocks.1.out"], choice["head"] = "keep", "keep"
    assert str(to_recipe(choice, held)) == "int4:g32; blocks.*.out int8; blocks.1.out weight=keep; head weight=keep"
    nothing = to_recipe(dict.fromkeys(choice, "keep"), held)
    assert len(nothing) == 0
    assert quantize_model(model, to_recipe(choice, held), progress=False).blocks[0].out.weight_quantizer is not None


def test_layers_left_out_stay_as_they_are():
    model = Model()
    held = table(model, kept=("blocks.0.q",))
    choice = dict.fromkeys((group.name for group in held.groups), "int8")
    assert "blocks.0.q" not in given_formats(model, to_recipe(choice, held))


def test_an_assignment_names_every_group():
    held = table(Model())
    with pytest.raises(ConfigError, match=r"'blocks.0.k' is missing"):
        to_recipe({"words": "int8"}, held)
    choice = dict.fromkeys((group.name for group in held.groups), "int8")
    with pytest.raises(ConfigError, match="'zebra' is no group"):
        to_recipe(choice | {"zebra": "int8"}, held)
