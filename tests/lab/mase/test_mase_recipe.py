"""MASE's dictionaries as recipes: who gets what is as it was, and what would have gone wrong is told."""

import copy

import pytest
from octavo import FormatError, Recipe
from octavo.lab.mase import recipe
from torch import nn

INTEGER = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 6,
    "weight_frac_width": 5,
    "bias_width": 8,
    "bias_frac_width": 4,
}
FLOAT = {"config": {"name": None}}
FIXED = "weight=fixed6.5 input=fixed8.4 bias=fixed8.4"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer_0 = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16, bias=False))
        self.head = nn.Linear(16, 4)


def by(how, default=FLOAT, **entries):
    return {"by": how, "default": default, **{key: {"config": value} for key, value in entries.items()}}


def weights(imported, model):
    return {path: str(layer.weight) for path, layer in imported.recipe.plan(model).items() if layer.weight}


def test_the_teaching_dictionary_is_one_rule():
    config = by("type", linear=INTEGER)
    before = copy.deepcopy(config)
    imported = recipe(config)
    assert config == before and recipe(config) == imported  # MASE takes 'by' out of it
    assert imported.recipe == Recipe.parse(f"type:Linear {FIXED}")
    assert any("set by hand" in note for note in imported.notes)


SCHEMES = [
    ({"name": "binary_scaling", "weight_width": 1, "weight_stochastic": False, "weight_bipolar": True, "binary_training": True}, "binary:unit"),
    ({"name": "binary_residual", "weight_width": 1, "weight_stochastic": 0, "weight_bipolar": 1, "binary_training": True}, "binary"),
    ({"name": "integer", "weight_width": 8, "weight_frac_width": -3}, "fixed8.-3"),
    ({"name": "fixed", "weight_width": 8}, "fixed8.4"),
    ({"name": "integer", "floor": True, "weight_width": 8, "weight_frac_width": "NA"}, "fixed8.4"),
    ({"name": "minifloat_ieee", "weight_width": 8, "weight_exponent_width": 4, "weight_exponent_bias": None}, "e4m3:finite"),
    ({"name": "minifloat_ieee", "weight_width": 6, "weight_exponent_width": 3}, "e3m2"),
    ({"name": "minifloat_ieee", "weight_width": 8, "weight_exponent_width": 4, "weight_exponent_bias": 9}, "e4m3b9"),
    ({"name": "minifloat_denorm", "weight_width": 8, "weight_exponent_width": 4}, "denorm8e4"),
    ({"name": "log", "weight_width": 8, "weight_exponent_bias": 60}, "log8b60"),
    ({"name": "block_fp", "weight_width": 8, "weight_exponent_width": 8, "weight_block_size": [1, 16]}, "bfp8/16"),
    ({"name": "block_minifloat", "weight_width": 8, "weight_exponent_width": 4, "weight_exponent_bias_width": 8, "weight_block_size": [16]}, "bm8e4/16"),
    ({"name": "block_log", "weight_width": 8, "weight_exponent_bias_width": 8, "weight_block_size": 16}, "blog8/16"),
    ({"name": "mxint", "weight_width": 8, "weight_block_size": 32}, "mxint8"),
    ({"name": "mxint_hardware", "weight_width": 8, "weight_exponent_width": 8, "weight_parallelism": [1, 16]}, "mxint8/16"),
    ({"name": "mxfp", "weight_exponent_width": 2, "weight_frac_width": 1, "weight_block_size": 32}, "mxfp4"),
    ({"name": "binary", "weight_width": 2, "weight_stochastic": False, "weight_bipolar": True}, "binary:unit"),
    ({"name": "ternary", "weight_width": 2, "weight_scaling_factor": True}, "ternary"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "wanted"), SCHEMES, ids=[f"{c['name']}-{w}" for c, w in SCHEMES])
def test_every_scheme_is_a_format(config, wanted):
    imported = recipe(by("type", linear=config))
    assert imported.recipe == Recipe.parse(f"type:Linear {wanted}")
    assert not any("left out" in note for note in imported.notes)


# The keys of an entry of MASE's own configuration for residual signs.
RESIDUAL = {
    "name": "binary_residual", "binary_training": True, "data_in_residual_sign": True, "data_in_levels": 2,
    "data_in_width": 32, "data_in_frac_width": 16, "data_in_stochastic": 0, "data_in_bipolar": 1, "weight_width": 1,
    "weight_stochastic": 0, "weight_bipolar": 1, "bias_width": 32, "bias_stochastic": 0, "bias_bipolar": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "binary input=binary2"),
        ({"data_in_levels": 3}, "binary input=binary3"),
        ({"data_in_levels": 1}, "binary input=binary"),
        ({"data_in_residual_sign": False}, "binary"),
        ({"binary_training": False}, "input=binary2"),
    ],
)
def test_residual_signs_are_levels_of_inputs_and_leave_the_bias(changes, wanted):
    imported = recipe(by("type", linear={**RESIDUAL, **changes}))
    assert imported.recipe == Recipe.parse(f"type:Linear {wanted}")
    assert not any("left out" in note for note in imported.notes)
    assert any("bias" in note for note in imported.notes)


def test_signs_with_scaling_round_all_three_tensors_or_in_evaluation_none():
    roles = {f"{role}_{key}": value for role in ("data_in", "weight", "bias") for key, value in [("stochastic", 0), ("bipolar", 1)]}  # fmt: skip
    config = {"name": "binary_scaling", "binary_training": True, **roles}
    wanted = "type:Linear binary:unit input=binary:unit bias=binary:unit"
    assert recipe(by("type", linear=config)).recipe == Recipe.parse(wanted)
    assert recipe(by("type", linear={**config, "binary_training": False})).recipe == Recipe()


@pytest.mark.parametrize("config", [{"name": None}, {"name": "NA"}, {**INTEGER, "bypass": True}])
def test_what_is_bypassed_is_kept(config):
    assert recipe(by("type", linear=config)).recipe == Recipe()
    imported = recipe(by("type", {"config": INTEGER}, linear=config), Model())
    assert weights(imported, Model()) == {"embed": "fixed6.5"}


def test_an_entry_decides_about_every_role():
    config = by("type", {"config": INTEGER}, linear={"name": "log", "weight_width": 4})
    plan = recipe(config, Model()).recipe.plan(Model())
    assert str(plan["head"].weight) == "log4" and plan["head"].input is plan["head"].bias is None


def test_of_patterns_the_first_one_wins():
    narrow, wide = {"name": "log", "weight_width": 4}, {"name": "log", "weight_width": 8}
    config = by("regex_name", **{r"layer_0\..*": narrow, ".*": wide})
    imported = recipe(config)
    assert weights(imported, Model()) == {"embed": "log8", "layer_0.0": "log4", "layer_0.2": "log4", "head": "log8"}
    assert any("first pattern" in note for note in imported.notes)


def test_names_of_the_graph_are_resolved_by_the_model():
    config = by("name", layer_0_2=INTEGER, head=INTEGER, pooler=INTEGER)
    imported = recipe(config, Model())
    assert imported.recipe == Recipe.parse(f"name:layer_0.2 {FIXED}; name:head {FIXED}")
    assert any(note.startswith("pooler: left out") for note in imported.notes)
    graph = recipe(by("regex_name", **{r"layer_0_\d": INTEGER}), Model())
    assert graph.recipe == Recipe.parse(f"name:layer_0.0 {FIXED}; name:layer_0.2 {FIXED}")
    assert any("model= resolves" in note for note in recipe(config).notes)


def test_what_has_no_place_is_told():
    linear = {**INTEGER, "data_out_width": 8, "data_out_frac_width": 4, "additional": 3, "weight_colour": "red"}
    config = by("type", {"config": INTEGER}, linear=linear, conv2d=INTEGER, relu=INTEGER)
    imported = recipe(config, Model())
    told = "\n".join(imported.notes)
    for part in (
        "'additional'",
        "'weight_colour'",
        "relu: left out",
        "conv2d: left out: the model has none",
        "embeddings",
    ):
        assert part in told
    assert "lose their bias" in "\n".join(recipe(by("type", conv1d=INTEGER)).notes)
    assert str(imported.recipe.plan(Model())["head"].output) == "fixed8.4"


REFUSED = {
    "no by": ({"linear": {"config": INTEGER}}, "the key 'by'"),
    "another by": ({"by": "colour"}, "by is 'colour'"),
    "no config": ({"by": "type", "linear": INTEGER}, "linear: an entry is"),
    "a misspelt type": (by("type", lienar=INTEGER), "did you mean 'linear'"),
    "an unknown scheme": (by("type", linear={"name": "lutnet", "weight_width": 8}), "scheme 'lutnet' has no format"),
    "a width that is missing": (by("type", linear={"name": "log", "weight_exponent_bias": 3}), "weight_width is missing"),
    "a space to search": (by("type", linear={"name": "log", "weight_width": [4, 8]}), "a space to search"),
    "a width that is not there": (by("type", linear={"name": "integer", "weight_width": 99}), "'integer' would be 'fixed99.49'"),
    "no settings": (by("type", linear={"name": "integer"}), "without settings"),
    "a whole row": (by("type", linear={"name": "block_fp", "weight_width": 8, "weight_block_size": [-1]}), "positive integers"),
    "an element of its own": (by("type", linear={"name": "mxfp", "weight_exponent_width": 5, "weight_frac_width": 3, "weight_block_size": 32}), "e5m3"),
    "zero and one": (by("type", linear={"name": "binary", "weight_bipolar": False}), "0 and 1"),
    "no pattern": (by("regex_name", **{"(": INTEGER}), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case):
    config, message = REFUSED[case]
    with pytest.raises(FormatError) as error:
        recipe(config)
    assert message in str(error.value)
