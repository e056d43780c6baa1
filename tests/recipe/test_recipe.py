"""Recipes: one grammar in four written forms, and who gets what from which rule."""

import copy
import json
import pickle
import subprocess
import sys

import octavo
import pytest
import torch
from helpers.models import transformer
from hypothesis import given
from hypothesis import strategies as st
from octavo import DTypeError, Format, FormatError, ModelError, Recipe, Rule
from octavo.recipe import Selector
from octavo.recipe.spec import INT32, Calibration, LayerPlan, Spec
from torch import nn

# --- a model with everything ------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.products = Matmul()


class Matmul(nn.Module):
    quant_roles = ("input",)


class Mixer(nn.MultiheadAttention):
    """A subclass, which may compute something else: none is made of layers."""


class Model(nn.Module):
    def __init__(self, tied=False, width=32):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(2))
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.LayerNorm(width)
        self.mixer = Mixer(width, 4)
        self.head = nn.Linear(width, 50)
        if tied:
            self.head.weight = self.embed.weight


LINEARS = ["blocks.0.query", "blocks.0.key", "blocks.1.query", "blocks.1.key", "head"]
WEIGHTS = ["embed", *LINEARS[:4], "conv", "head"]


def got(text, model=None, role="weight"):
    """Formats of one role by layer."""
    plan = Recipe.of(text).plan(model or Model())
    return {path: str(spec) for path, layer in plan.items() if (spec := getattr(layer, role))}


# --- written forms ----------------------------------------------------------------------------------------------------

FORMATS = ["fp32", "bf16", "int8", "int4:g32", "int8:channel", "uint4:g32", "mxint8", "mxfp4", "bfp8/16", "fixed8.4"]
BLOCKS = ["mxint8@mse", "mxfp4@ceil", "bm8e4/16@floor"]
QUANTILES = st.floats(min_value=0, max_value=1, exclude_min=True)
STATIC = st.one_of(st.sampled_from(["minmax", "mse", "kl", "lsq"]), QUANTILES.map(lambda q: f"quantile:{q!r}"))
PLAIN = st.sampled_from([*FORMATS, *BLOCKS, "keep"])
CALIBRATED = st.tuples(st.sampled_from(["int8", "int4", "fixed8"]), STATIC).map("@".join)
TEXTS = st.text(min_size=1, max_size=12)
NAMES = st.one_of(TEXTS, st.from_regex(r"[a-z0-9*?.;= \"\[\]:]{1,16}", fullmatch=True))


@st.composite
def rules(draw):
    kind = draw(st.sampled_from([None, "type", "name", "glob", "regex"]))
    selector = {}
    if kind == "type":
        selector["type"] = draw(st.sampled_from(["Linear", "Conv2d", "keep", "mxint8"]))
    elif kind == "regex":
        selector["regex"] = draw(st.sampled_from([r"a\.\d{1,2};", r"(?=x)y", '"', r"encoder\..*", "int8", "weight"]))
    elif kind:
        selector[kind] = draw(st.one_of(NAMES, st.sampled_from(["int8", "keep", "weight", "type:Linear", "last:x"])))
    if kind and draw(st.booleans()):
        selector["pick"] = draw(st.sampled_from(["first", "last"]))
    gives = {}
    if draw(st.booleans()):
        gives["weight"] = draw(st.one_of(PLAIN, CALIBRATED, st.sampled_from(["int4:g32@gptq", "int4:g32@hqq"])))
    for role in ("input", "output"):
        if draw(st.booleans()):
            gives[role] = draw(st.one_of(PLAIN, CALIBRATED))
    if draw(st.booleans()):
        gives["bias"] = draw(st.one_of(PLAIN, st.just("int32")))
    try:
        return Rule(**selector, **(gives or {"keep": True}))
    except FormatError as error:
        assert "cannot be read" in str(error)  # a glob with a set such as [z-a]
        return Rule(**gives) if gives else Rule(keep=True)


RECIPES = st.lists(rules(), max_size=4).map(Recipe)


@given(RECIPES)
def test_every_written_form_reads_back_as_the_same_recipe(recipe):
    assert Recipe.parse(str(recipe)) == recipe
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert Recipe.from_dict(recipe.as_dict()) == recipe
    assert Recipe(eval(repr(rule), {"Rule": Rule}) for rule in recipe) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == copy.deepcopy(recipe) == recipe
    assert hash(Recipe.parse(str(recipe))) == hash(recipe)


@given(st.text(alphabet='ab*.:;=@" \tint8kepwhgm[]()\\', max_size=30))
def test_any_text_is_a_recipe_or_an_error(text):
    try:
        recipe = Recipe.parse(text)
    except FormatError:
        return
    assert Recipe.parse(str(recipe)) == recipe


def test_the_short_text_means_what_its_keywords_say():
    text = "int4:g32; type:Linear weight=int4:g32@gptq input=int8@quantile:0.999; last:Linear keep; encoder.**.query=mxint8"
    assert Recipe.parse(text) == Recipe(
        [
            Rule(weight="int4:g32"),
            Rule(type="Linear", weight="int4:g32@gptq", input=Spec(Format("int8"), Calibration("quantile", 0.999))),
            Rule(type="Linear", pick="last", keep=True),
            Rule(glob="encoder.**.query", weight=Format("mxint8")),
        ]
    )


def test_toml_is_read_from_a_text_and_from_a_file(tmp_path):
    text = '[[rules]]\nweight = "mxint8@mse"\n\n[[rules]]\ntype = "Linear"\npick = "last"\nkeep = true\n'
    (tmp_path / "r.toml").write_text(text)
    assert Recipe.from_toml(text) == Recipe.of(tmp_path / "r.toml") == Recipe.parse("mxint8@mse; last:Linear keep")
    assert Recipe.from_toml(text).to_toml() == text


def test_mse_is_a_block_rule_of_block_formats_and_a_calibration_of_others():
    [blocks], [scaled] = Recipe.parse("mxint8@mse"), Recipe.parse("int8@mse")
    assert blocks.gives == (("weight", Spec(Format("mxint8"), scale="mse")),)
    assert scaled.gives == (("weight", Spec(Format("int8"), Calibration("mse"))),)


def test_a_format_without_role_is_of_the_weight_or_of_the_bias_that_the_path_names():
    assert Recipe.parse("a.b.bias=bf16") == Recipe([Rule(glob="a.b.bias", bias="bf16")])
    assert Recipe.parse("a.b=bf16") == Recipe([Rule(glob="a.b", weight="bf16")])


UNREADABLE = {
    ";": "empty rule",
    "mxint8;": "empty rule",
    "=mxint8": "is not GLOB=FORMAT",
    "a=": "is not GLOB=FORMAT",
    "a=mxint9000": "width 9000",
    "mxfp6e3m3": "did you mean 'mxfp6e3m2'",
    "mxint8,mxfp4": "rules are separated by ';'",
    "mxint8, layer.*=mxfp4": "rules are separated by ';'",
    "type:Linear wieght=int8": "unknown role 'wieght'",
    "weight=int8 weight=int4": "given twice",
    'a" int8': "a quote is not closed",
    '"a"b int8': "quote the whole",
    "last:=int8": "needs a pattern",
    "type:a.b=int8": "no name of a class",
    "regex:a( int8": "cannot be read",
    "a[z-a]=int8": "cannot be read",
    "int8@": "unknown calibration",
    "int8@often": "unknown calibration 'often'",
    "int8@quantile:x": "'x' is not a number",
    "int8@quantile:2": "the share lies above 0",
    "int8@mse:2": "takes no argument",
    "int8@floor": "no block scale",
    # what a role cannot hold
    "input=int8@gptq": "'gptq' is for weights",
    "output=int8@hqq": "'hqq' is for weights",
    "mxint8@kl": "block scales anew",
    "input=mxfp4@minmax": "block scales anew",
    "input=int8:channel@kl": "known at run time only",
    "input=int8:g32@mse": "known at run time only",
    "fixed8.4@minmax": "no scale to calibrate",
    "nf4@lsq": "'lsq' learns scales of int and fixed",
    "e4m3@hqq": "or gptq",
    "fp16@gptq": "is a cast",
    "bias=int8@mse": "from its own values",
    "bias=int32@mse": "takes no calibration",
    "weight=int32": "a format of biases",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_text_that_cannot_be_read_says_why(text):
    with pytest.raises(FormatError, match="recipe") as error:
        Recipe.parse(text)
    assert UNREADABLE[text] in str(error.value)


BAD_TABLES = {
    "not a recipe": ({"rule": []}, "'rules'"),
    "more keys": ({"rules": [], "version": 1}, "'rules'"),
    "a text for a rule": ({"rules": ["int8"]}, "rule 1 is 'int8'"),
    "an unknown key": ({"rules": [{"wieght": "int8"}]}, "rule 1: unknown key 'wieght'; did you mean 'weight'"),
    "two selectors": ({"rules": [{"type": "Linear", "glob": "a", "keep": True}]}, "one selector"),
    "nothing given": ({"rules": [{"type": "Linear"}]}, "gives nothing"),
    "keep and a format": ({"rules": [{"keep": True, "weight": "int8"}]}, "keep and weight"),
    "keep as a text": ({"rules": [{"keep": "yes"}]}, "true and false"),
    "a number": ({"rules": [{"weight": 8}]}, "got 8"),
    "a pick of all": ({"rules": [{"pick": "last", "keep": True}]}, "needs a selector"),
    "a third pick": ({"rules": [{"type": "Linear", "pick": "middle", "keep": True}]}, "first and last"),
    "a pattern of another kind": ({"rules": [{"glob": 3, "keep": True}]}, "needs a pattern"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_is_no_recipe_says_why_and_is_not_changed(case):
    table, message = BAD_TABLES[case]
    before = copy.deepcopy(table)
    with pytest.raises(FormatError) as error:
        Recipe.from_dict(table)
    assert message in str(error.value)
    assert table == before
    numbers = '{"rules":[' + "9" * 5000 + "]}"
    for read, text in (
        (Recipe.from_toml, "[[rules]\n"),
        (Recipe.from_toml, "a=" + "[" * 100_000),
        (Recipe.from_toml, "a=" + "9" * 5000),
        (Recipe.from_toml, "a." * 30_000 + "a=1"),
        (Recipe.from_toml, '"a" . ' * 30_000 + "a=1"),
        (Recipe.from_toml, "[" + "a." * 30_000 + "a]"),
        (Recipe.from_json, "{"),
        (Recipe.from_json, "[" * 100_000),
        (Recipe.from_json, numbers),
    ):
        with pytest.raises(FormatError, match=r"not (TOML|JSON)"):
            read(text)


def test_a_recipe_is_a_value():
    table = {"rules": [{"type": "Linear", "weight": "int8"}]}
    before = copy.deepcopy(table)
    recipe = Recipe.of(table)
    recipe.plan(Model())
    assert table == before
    with pytest.raises(AttributeError, match="immutable"):
        recipe.rules = ()
    with pytest.raises(FormatError, match=r"Rule\(\.\.\.\)"):
        Recipe(["int8"])
    assert Recipe.of(recipe) is recipe and len(recipe) == 1


def test_reading_a_recipe_loads_no_torch():
    code = "import octavo, sys; octavo.Recipe.parse('int8; a.*=keep').to_toml(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"


# --- selectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "matched", "others"),
    [
        ("a.*", ["a.b", "a."], ["a.b.c", "a", "ab"]),
        ("a.**", ["a.b", "a.b.c"], ["a", "ab.c"]),
        ("**.c", ["c", "a.c", "a.b.c"], ["ac", "a.bc"]),
        ("a.**.c", ["a.c", "a.b.c", "a.b.b.c"], ["ac", "a.bc"]),
        ("**b**", ["b", "abc", "a.b.c"], ["a.c"]),
        ("a?", ["ab"], ["a.", "a", "abc"]),
        ("a[01].[!x]", ["a0.y", "a1.z"], ["a2.y", "a0.x", "a0.."]),
        ("a[0].b", ["a0.b", "a[0].b"], ["a.b"]),
        ("**", ["", "a", "a.b"], []),
    ],
)
def test_a_star_stays_between_dots_and_two_cross_them(glob, matched, others):
    selector = Selector("glob", glob)
    assert [path for path in matched if not selector.matches_path(path)] == []
    assert [path for path in others if selector.matches_path(path)] == []


def test_selectors_select():
    assert list(got("int8")) == WEIGHTS  # every Linear, Conv and Embedding, in the order of the model
    assert list(got("type:Linear int8")) == LINEARS
    assert list(got("type:Module int8", Model())) == WEIGHTS  # bases count
    assert list(got("name:blocks.0.key int8")) == ["blocks.0.key"]
    assert list(got("blocks.*.key int8")) == ["blocks.0.key", "blocks.1.key"]
    assert list(got("blocks.**.weight=int8")) == LINEARS[:4]  # the names of tensors match, too
    assert list(got(r"regex:blocks\.\d\.(query|key) int8")) == LINEARS[:4]
    assert list(got("first:Linear int8")) == ["blocks.0.query"]
    assert list(got("last:Linear int8")) == ["head"]
    assert list(got("last:glob:blocks.** int8")) == ["blocks.1.key"]


def test_subclasses_are_selected_by_the_names_of_their_bases():
    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), Special(4, 4))
    assert list(got("type:Linear int8", model)) == ["0", "1"]
    assert list(got("type:Special int8", model)) == ["1"]


def test_a_single_layer_is_a_model():
    assert got("mxint8", nn.Linear(8, 8)) == {"": "mxint8"}


def test_a_module_in_two_places_is_selected_by_either_name():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": shared})
    assert got("b int8", model) == got("a int8", model) == {"a": "int8"}


# --- plans ------------------------------------------------------------------------------------------------------------


def test_the_last_rule_that_matches_decides_for_each_role():
    recipe = "type:Linear weight=int4 input=int8; blocks.** weight=mxint8; head keep; head output=bf16"
    plan = Recipe.parse(recipe).plan(Model())
    assert plan["blocks.0.query"] == LayerPlan(weight=Spec(Format("mxint8")), input=Spec(Format("int8")))
    assert plan["head"] == LayerPlan(output=Spec(Format("bf16")))
    assert list(plan) == LINEARS


def test_what_is_kept_is_not_in_the_plan():
    assert Recipe().plan(Model()) == {}
    assert Recipe.parse("keep").plan(Model()) == {}
    assert list(got("int8; type:Linear fp32")) == ["embed", "conv"]


def test_a_rule_gives_each_role_to_the_layers_that_have_it():
    assert list(got("weight=int8 bias=bf16", role="bias")) == ["blocks.0.query", "blocks.1.query", "conv", "head"]
    assert list(got("weight=int8 input=int8", role="input")) == [*LINEARS[:4], "conv", "head"]
    assert list(got("embed output=int8", role="output")) == ["embed"]


def test_modules_that_declare_roles_are_layers():
    assert got("type:Matmul input=mxint8", role="input") == {f"blocks.{n}.products": "mxint8" for n in range(2)}
    assert got("**.products input=int8@mse", role="input")["blocks.0.products"] == "int8@mse"
    assert "blocks.0.products" not in got("input=int8", role="input")


def test_quantized_layers_are_layers_and_their_parts_are_not():
    class Quantized(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.weight_quantizer = nn.Module()
            self.weight_quantizer.scales = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x

    model = nn.Sequential(Quantized())
    assert got("int8", model) == {"0": "int8"}
    assert [tensor.name for tensor in Recipe.parse("int8").explain(model).unreached] == ["0.bias"]


FAULTS = {
    "enc.*.query=int8": "rule 'enc.*.query int8' matches no layer; nearest names: ",
    "blocks.0.qurey=int8": "nearest names: blocks.0.query",
    "*key=int8": "'*' does not cross a dot, '**' does",
    "blocks.0=int8": "'blocks.0' holds layers: select them with 'blocks.0.**'",
    "type:Linaer int8": "nearest types: Linear",
    "wieght=int8": "is the role 'weight' meant?",
    "type:Embedding input=int8": "embed (Embedding): rule 'type:Embedding input=int8' gives a format to its input, and there is none; it has weight, output",
    "blocks.*.key bias=bf16": "gives a format to its bias",
    "norm=bf16": "norm.weight: rule 'norm bf16' matches only what cannot be packed or quantized: LayerNorm takes no formats",
    "mixer.out_proj=int8": "MultiheadAttention reads its weights itself",
    "type:Embedding int4:g32@gptq": "embed.weight: rule 'type:Embedding int4:g32@gptq' asks for gptq",
    "type:Linear bias=int32": "the weight is kept",
    "type:Linear weight=mxint8 input=int8@mse bias=int32": "the weight is 'mxint8'",
    "type:Linear weight=int8 input=int16@mse bias=int32": "the input is 'int16'",
    "type:Linear weight=int8 input=int8 bias=int32": "calibrate the input, as 'int8@minmax'",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_rule_that_does_not_fit_the_model_says_why(text):
    with pytest.raises(FormatError) as error:
        Recipe.parse(text).plan(Model())
    assert FAULTS[text] in str(error.value)


def test_an_int32_bias_goes_with_integer_operands():
    plan = Recipe.parse("type:Linear weight=int8:channel input=int8@minmax bias=int32").plan(Model())
    assert plan["head"].bias == Spec(INT32)
    assert plan["blocks.0.key"].bias is None


def test_layers_with_another_forward_are_reached_unless_other_layers_stand_in_them():
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return 3 * super().forward(ids)

    class Branched(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.more = nn.Linear(4, 4)

        def forward(self, x):
            return self.more(x) + super().forward(x)

    model = nn.Sequential(Scaled(4, 4), nn.Linear(4, 4), Branched())
    assert list(got("int8", model)) == ["0", "1", "2.more"]
    with pytest.raises(FormatError, match="Branched has a forward of its own"):
        Recipe.parse("type:Branched int8").plan(model)


def test_only_modules_have_plans():
    with pytest.raises(octavo.DTypeError, match="model is a dict"):
        Recipe.parse("int8").plan({})
    with pytest.raises(octavo.ShapeError, match="run the model once"):
        Recipe.parse("int8").plan(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(FormatError, match="dtype float64; accepted are float32"):
        Recipe.parse("int8").plan(nn.Linear(3, 3).double())


# --- ties -------------------------------------------------------------------------------------------------------------


def test_one_parameter_has_one_decision():
    model = Model(tied=True)
    assert got("embed mxint8", model) == got("head mxint8", model) == {"embed": "mxint8", "head": "mxint8"}
    assert got("embed=int4:g32; head=int4:g32", model) == {"embed": "int4:g32", "head": "int4:g32"}
    assert "embed" not in got("type:Linear int8; head keep", model)


@pytest.mark.parametrize("text", ["int4:g32; last:Linear keep", "embed int8; head int4"])
def test_layers_that_share_a_parameter_cannot_be_told_different_things(text):
    with pytest.raises(FormatError, match=r"embed\.weight and head\.weight are one tensor") as error:
        Recipe.parse(text).plan(Model(tied=True))
    fix = str(error.value).split("such as '")[1].removesuffix("'")
    Recipe.parse(f"{text}; {fix}").plan(Model(tied=True))
    Recipe.parse(text).plan(Model())


def test_the_way_out_of_gptq_for_a_tied_embedding_is_one():
    with pytest.raises(FormatError, match="gptq") as error:
        Recipe.parse("int4:g32@gptq").plan(Model(tied=True))
    fix = str(error.value).split("add '")[1].split("'")[0]
    plan = Recipe.parse(f"int4:g32@gptq; {fix}").plan(Model(tied=True))
    assert plan["head"].weight == plan["embed"].weight == Spec(Format("int4:g32"))
    assert str(plan["conv"].weight) == "int4:g32@gptq"


# --- explaining -------------------------------------------------------------------------------------------------------


def test_every_parameter_is_explained_or_unreached():
    model = Model(tied=True)
    explained = Recipe.parse("int8; blocks.**=mxint8@mse; blocks.0.key=keep; conv bias=bf16").explain(model)
    reached = {f"{row.module}.{row.role}" for row in explained.rows}
    missed = {tensor.name for tensor in explained.unreached}
    assert reached | missed == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert not reached & missed
    row = next(row for row in explained.rows if row.module == "blocks.0.key")
    assert (row.format, row.rule, row.overrode) == (None, "blocks.0.key keep", ("int8", "blocks.** mxint8@mse"))
    reasons = {tensor.name: tensor.reason for tensor in explained.unreached}
    assert "MultiheadAttention" in reasons["mixer.in_proj_weight"] and "LayerNorm" in reasons["norm.weight"]
    assert reasons["head.bias"] == "no rule names it"


@pytest.mark.parametrize("fmt", ["mxint8", "int4:g32", "nvfp4", "int8:channel", "binary", "bf16"])
def test_bytes_are_those_of_the_encoded_tensors_and_shared_ones_count_once(fmt):
    model = Model(tied=True)
    totals = Recipe.parse(fmt).explain(model).totals
    quantized = [p for n, p in model.named_parameters() if n.removesuffix(".weight") in WEIGHTS]
    packed = [octavo.encode(p.detach().flatten(1), fmt).nbytes for p in quantized]
    others = sum(p.nbytes for p in model.parameters()) - sum(p.nbytes for p in quantized)
    assert totals.bytes_after == sum(packed) + others
    assert totals.bytes_before == sum(p.nbytes for p in model.parameters())
    assert totals.quantized == sum(p.numel() for p in quantized)
    assert totals.bits_of_quantized == 8 * sum(packed) / totals.quantized
    assert totals.bits_of_all == 8 * totals.bytes_after / totals.parameters


def test_an_explanation_prints_and_is_data():
    explained = Recipe.parse("type:Linear weight=int8 input=int8@mse; embed mxint8").explain(Model(tied=False))
    text = str(explained)
    for shown in ("blocks.0.query", "int8@mse", "no rule reached", "mixer.in_proj_weight", "5 inputs"):
        assert shown in text
    assert "<table>" in explained._repr_html_() and "blocks.0.query" in explained._repr_html_()
    rows = explained.to_rows()
    assert rows[0]["module"] == "embed" and rows[0]["bits"] == 8.25
    assert json.loads(explained.to_json())["totals"]["inputs"] == 5
    empty = Recipe().explain(Model())
    assert (
        empty.rows == () and empty.totals.bytes_before == empty.totals.bytes_after and "no rule reached" in str(empty)
    )


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tensors():
    return {
        "embed.weight": torch.randn(50, 40),
        "block.0.q.weight": torch.randn(40, 40).to(torch.bfloat16),
        "block.0.q.bias": torch.randn(40),
        "block.1.conv.weight": torch.randn(4, 5, 6).half(),
        "norm.weight": torch.randn(40),
        "cell.weight_ih": torch.randn(4, 4),
        "scale": torch.tensor(2.0),
        "position_ids": torch.arange(50)[None],
        "wide": torch.randn(3, 3).double(),
        "layers[0].weight": torch.randn(2, 2),
    }


def assigned(text, tensors):
    return {name: str(spec) for name, spec in Recipe.parse(text).assign(tensors).items() if spec}


def test_a_checkpoint_is_told_by_names(tensors):
    default = ["embed.weight", "block.0.q.weight", "cell.weight_ih", "layers[0].weight"]
    assert list(assigned("mxint8", tensors)) == default
    assert list(assigned("**=mxint8", tensors)) == [*default[:2], "block.1.conv.weight", *default[2:]]
    assert assigned("mxint8; block.**=mxfp4; block.1.*=int4:g32; embed=keep", tensors) == {
        "block.0.q.weight": "mxfp4",
        "block.1.conv.weight": "int4:g32",
        "cell.weight_ih": "mxint8",
        "layers[0].weight": "mxint8",
    }
    assert assigned("int4:g32; mxint8", tensors)["embed.weight"] == "mxint8"
    assert assigned("layers[0].weight=nf4; cell=nf4", tensors) == {"cell.weight_ih": "nf4", "layers[0].weight": "nf4"}
    assert assigned("norm=bf16; block.0.q.bias=mxfp4", tensors) == {"block.0.q.bias": "mxfp4", "norm.weight": "bf16"}
    assert assigned("bias=bf16; embed mxfp4@mse", tensors) == {"embed.weight": "mxfp4@mse", "block.0.q.bias": "bf16"}
    assert list(Recipe.parse("mxint8").assign(tensors)) == list(tensors)


def test_a_model_and_its_checkpoint_agree():
    model = Model()
    for text in ("**=mxint8", "blocks.**=int4:g32; **.key=keep", "blocks.0.query.bias=bf16; head weight=nf4 bias=fp16"):
        recipe = Recipe.parse(text)
        reached = {f"{row.module}.{row.role}": row.format for row in recipe.explain(model).rows}
        tensors = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("mixer")}
        for name, spec in recipe.assign(tensors).items():
            assert (spec and str(spec)) == reached.get(name)


NOT_OF_CHECKPOINTS = {
    "blok.0.q.weight=mxint8": "nearest names: block.0.q",
    "BLOCK.0.Q=mxint8": "nearest names: block.0.q",
    "*q=mxint8": "'*' does not cross a dot",
    "scale=mxint8": "cannot be packed",
    "position_ids=mxint8": "int64",
    "wide=mxint8": "float64",
    "norm*=mxint8": "names it in full",
    "type:Linear int8": "a checkpoint holds names, not types",
    "last:glob:block.** int8": "does not hold its layers in order",
    "weight=int8 input=int8": "a checkpoint holds no inputs",
    "int4:g32@gptq": "'int4:g32@gptq' needs a model",
    "int8@mse": "'int8@mse' needs a model",
    "bias=int32": "'int32' needs a model",
}


@pytest.mark.parametrize("text", NOT_OF_CHECKPOINTS)
def test_what_a_checkpoint_cannot_have_is_refused(tensors, text):
    with pytest.raises(FormatError) as error:
        Recipe.parse(text).assign(tensors)
    assert NOT_OF_CHECKPOINTS[text] in str(error.value)


@pytest.mark.parametrize("tensors", [{"a.weight": 3}, {"a.weight": None}, {3: torch.ones(2, 2)}, [torch.ones(2)], None])
def test_what_is_no_checkpoint_is_refused(tensors):
    with pytest.raises(DTypeError, match="tensor"):
        Recipe.parse("int8").assign(tensors)


@pytest.mark.parametrize("name", ["scale", "position_ids", "wide"])
def test_anything_can_be_kept(tensors, name):
    assert Recipe.parse(f"{name}=keep").assign(tensors)[name] is None


class _Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.inner(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "program",
    [lambda module: torch.jit.trace(module, torch.ones(1, 8)), torch.jit.script],
    ids=["traced", "scripted"],
)
def test_programs_of_torchscript_are_refused_by_name_and_left_alone_inside_of_models(program):
    compiled = program(nn.Sequential(nn.Linear(8, 8)))
    for job in (
        lambda: octavo.quantize_model(compiled, "int8"),
        lambda: octavo.prune_model(compiled, sparsity=0.5),
    ):
        with pytest.raises(ModelError, match=r"Module: TorchScript.*the module that was traced"):
            job()
    pruned = octavo.prune_model(_Holder(compiled), sparsity=0.5)
    assert pruned.head.weight.count_nonzero() == 32 and pruned.inner.state_dict()["0.weight"].count_nonzero() == 64
    packed = octavo.pack_model(octavo.quantize_model(_Holder(compiled), "int8"))
    assert torch.equal(packed.inner(torch.ones(1, 8)), compiled(torch.ones(1, 8)))
    assert "head" in str(octavo.explain(packed))


def test_experts_that_got_the_same_are_one_row():
    model = transformer(
        "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2, layers=1
    )
    text = str(Recipe.parse("int4:g32; **.experts.2.down_proj int8").explain(model))
    rows = [line.split()[:2] for line in text.splitlines() if ".experts." in line]
    name = "model.layers.0.mlp.experts"
    assert rows == [
        [f"{name}.*.gate_up_proj", "(4)"], [f"{name}.*.down_proj", "(3)"], [f"{name}.2.down_proj", "weight"]
    ]  # fmt: skip
    assert len(Recipe.parse("int4:g32").explain(model).rows) == 8 + 4 + 2


def test_batched_experts_of_a_checkpoint_are_selected_and_their_biases_are_not():
    names = {"mlp.experts.down_proj": (4, 32, 64), "mlp.experts.down_proj_bias": (4, 64), "conv.weight": (4, 32, 64)}
    assigned = Recipe.parse("int4:g32").assign({name: torch.zeros(shape) for name, shape in names.items()})
    assert [name for name, spec in assigned.items() if spec] == ["mlp.experts.down_proj"]


def test_a_recipe_for_a_packed_model_is_refused_with_the_way_to_its_floats():
    packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(32, 32)), "int8:g32", progress=False))
    with pytest.raises(FormatError, match=r"^rule 'mxfp4' matches no layer: .* packed already; octavo unpack"):
        octavo.quantize_model(packed, "mxfp4", progress=False)
