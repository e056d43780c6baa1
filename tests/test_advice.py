"""Advice is true: what a message proposes to type is typed here, on real models, and works.

Every message of the package that writes advice with a computed part is provoked by a test below and listed in TYPED by
a part of its text; a new one fails :func:`test_every_message_with_advice_is_typed_here` until a test types it. Names
in messages that are fixed - commands, options, extras, functions - are looked up for all texts of the package at once.
"""

import ast
import difflib
import itertools
import re
import tomllib
import warnings
from functools import cache
from pathlib import Path

import octavo
import pytest
import torch
from helpers.models import transformer
from octavo import FormatError, KernelError, Recipe, UnusedLayerWarning
from octavo.recipe import Rule
from octavo.recipe.spec import METHODS, ROLES
from octavo.tensors import foreign_names
from test_documents import check_octavo, resolve
from torch import nn

PACKAGE = Path(octavo.__file__).parent
ADVICE = re.compile(
    r"\b(did you mean|such as|write|add|take|use|drop|is written|give|with the rule|in the recipe)\b[^.;]{0,40}\{"
)
TYPED = {
    "formats.py": ["did you mean"],
    "decide.py": ["a path is written"],
    "selectors.py": ["a path is written"],
    "recipe.py": ["did you mean"],
    "model_decisions.py": ["add a rule that gives both the same", "asks for gptq"],
    "fit.py": [
        "a bias is quantized from its own values", "chooses block scales anew", "has no scale to calibrate",
        "has a scale for each", "'lsq' learns scales", "takes no calibration", "is for weights", "is a cast",
    ],
    "unused_layers.py": ["quantized layers are bypassed", "a Parameter of no layer"],
    "apply_recipe.py": ["is calibrated from data"],
    "weight_scales.py": ["block scales are chosen by a rule"],
    "activation_scales.py": ["static scales of activations"],
    "pack_layers.py": ["packing would drop its tensors"],
    "packed_layer.py": ["reads the weight past the layer"],
    "token_windows.py": ["give context="],
    "direct_weight_access.py": ["is written to in a forward pass"],
    "model_passes.py": ["did you mean", "did you mean"],
    "lora_config.py": ["did you mean"],
    "importer.py": ["did you mean"],
    "config_fields.py": ["did you mean"],
    "space.py": ["did you mean"],
    "target_layers.py": ["give selector -> share"],
    "format_schedule.py": ["a schedule needs a format"],
    "ptq_qat.py": ["unknown family"],
    "weight_files.py": ["give its folder", "give its model"],
    "compression_report.py": ["a page for people"],
    "cache.py": ["has a scale for a whole tensor"],
}  # fmt: skip
"""Messages whose advice is typed below, by the name of the file, a part of each."""
ELSEWHERE = {
    "weight_files.py": ["give the folder of the model"],
    "fit.py": ["holds blocks of GGUF files"],  # tests/interchange/test_ggml_carry.py
    "subject_catalogue.py": ["give --model", "give --length", "give --data FOLDER with"],  # needs a trained run
    "readers.py": ["give --corpus"],
    "kinds.py": ["give --model"],  # needs a trained run: tests/cli/lab/test_study_of_a_folder.py
    "compression_report.py": ["is missing; give it"],  # a field of a program's own report
    "locks.py": ["another process is at work"],  # the option that the caller names
    "records.py": ["is not given; give"],
    "exporting.py": ["give a batch, such as"],
    "granularity.py": ["N:M such as"],
    "speed.py": ["give --processes"],  # needs GPUs
    "config_fields.py": ["is no field to set; give {"],  # options: tests/lab/language/test_config_fields.py
}
"""Messages whose options are checked by name alone."""


# --- the texts of the package -----------------------------------------------------------------------------------------


def texts_of(path: Path) -> list[str]:
    """Texts that a file holds, without docstrings; what is computed in one stands in braces."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = (ast.Module, ast.FunctionDef, ast.ClassDef)
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node) if part is not node}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (it.value if isinstance(it, ast.Constant) else f"{{{ast.unparse(it.value)}}}" for it in node.values)
            found.append("".join(parts))
    return found


@cache
def package_texts() -> dict[str, list[str]]:
    """Return the texts of each file, by its path in the package."""
    return {str(path.relative_to(PACKAGE)): texts_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


NO_ADVICE = ("got {", "took {", "take {taken}", "last target take", "cannot take it", "does not take {", "adds up", "add up to",
             "would drop its submodule", "unless other inputs use", "so that its use", "because {", "alone give differences")  # fmt: skip


def test_every_message_with_advice_is_typed_here():
    for file, texts in package_texts().items():
        known = TYPED.get(Path(file).name, []) + ELSEWHERE.get(Path(file).name, [])
        for text in texts:
            if ADVICE.search(text) and not any(part in text for part in NO_ADVICE):
                assert any(part in text for part in known), f"{file}: type what this advises in a test: {text!r}"
    for name, parts in [*TYPED.items(), *ELSEWHERE.items()]:
        texts = [text for file, held in package_texts().items() if Path(file).name == name for text in held]
        for part in parts:
            assert any(part in text for text in texts), f"{name} has no message with {part!r} any more"


COMMAND = re.compile(r"(?<![\w.\"/-])octavo ((?:[a-z]+ ){0,2}[a-z]+(?: --[a-z-]+)*)(?= |$|[;:,.'\"])")


def commands_named() -> list[str]:
    from test_documents import command_line

    first = set(command_line().commands)
    found = {line for texts in package_texts().values() for text in texts for line in COMMAND.findall(text)}
    return sorted(line for line in found if line.split()[0] in first)


def test_commands_in_messages_exist():
    from test_documents import command_line

    lines = commands_named()
    assert len(lines) > 15
    for line in lines:
        words = line.split()
        command = command_line().commands[words[0]]
        if not hasattr(command, "commands") or words[1:2] not in [[name] for name in command.commands]:
            words = [words[0], *(word for word in words[1:] if word.startswith("-"))]
        check_octavo(words)


def test_options_in_messages_are_those_of_a_command():
    from test_documents import command_line

    def options(command):
        below = getattr(command, "commands", {})
        return {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }.union(*(options(other) for other in below.values()))

    known = options(command_line()) | {"--help", "--release", "--arch", "--no-deps"}
    named = {
        (file, option)
        for file, texts in package_texts().items()
        for text in texts
        if " " in text
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    }
    assert len(named) > 30
    assert sorted((file, option) for file, option in named if option not in known) == []


def test_extras_that_messages_install_exist():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra for texts in package_texts().values() for text in texts for extra in re.findall(r"octavo\[(\w+)\]", text)
    }
    assert named and named <= set(project["optional-dependencies"])


def test_functions_that_messages_name_exist():
    name = re.compile(r"(?<![\w./'\"@-])octavo(?:\.[A-Za-z_]\w*)+(?=\(|[ ,;:)]|$)")
    found = {it for texts in package_texts().values() for text in texts if " " in text for it in name.findall(text)}
    assert len(found) > 15
    for path in sorted(found):
        if not path.endswith((".safetensors", ".json", ".toml", ".tmp", ".old")):
            resolve(path)


# --- names of formats that others use ---------------------------------------------------------------------------------

NEAREST = {
    "fp8": "e4m3", "FP8": "e4m3", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "mxfp8": "mxfp8e4m3", "fp6": "mxfp6e3m2",
    "fp4": "mxfp4", "q4_0": "int4:g32", "Q4_0": "int4:g32", "q4_1": "uint4:g32", "Q4_K_M": "uint4:g32", "Q4_K_S": "uint4:g32",
    "Q5_0": "int5:g32", "Q5_K_M": "uint5:g32", "Q6_K": "int6:g32", "Q8_0": "int8:g32", "Q3_K_M": "uint3:g32", "Q2_K": "uint2:g32",
    "IQ4_NL": "nf4", "gptq": "int4:g128@gptq", "GPTQ": "int4:g128@gptq", "awq": "uint4:g128@gptq", "hqq": "uint4:g64@hqq",
    "int8wo": "int8:channel", "int8_weight_only": "int8:channel", "w8a16": "int8:channel", "int4wo": "int4:g128",
    "w4a16": "int4:g128", "int4_weight_only": "int4:g128", "nf4_dq": "nf4", "nf4-dq": "nf4", "bnb-4bit": "nf4",
    "load_in_8bit": "weight=int8:channel input=int8:channel", "w8a8": "weight=int8:channel input=int8:channel",
    "smoothquant": "weight=int8:channel input=int8:channel", "8da4w": "weight=int4:g32 input=int8:channel",
    "w8a8_fp8": "weight=mxfp8e4m3 input=mxfp8e4m3", "bitnet": "ternary:channel", "float16": "fp16", "bfloat16": "bf16",
    "float32": "fp32", "block_fp": "bfp8/16", "block_minifloat": "bm8e4/16", "block_log": "blog8/16", "mxint": "mxint8",
    "integer": "fixed8", "minifloat_denorm": "denorm8e4", "binary_residual": "binary2:channel",
}  # fmt: skip
"""Names that people know, and the text of Octavo that a message proposes first."""


def proposed(message: str) -> list[str]:
    """What a message asks whether it was meant."""
    return re.findall(r"'([^']+)'", message.split("did you mean")[1])


@pytest.mark.parametrize("name", NEAREST)
def test_a_name_that_others_use_is_answered_with_the_nearest_text(name):
    for read in (octavo.Format, lambda text: Recipe.parse(f"type:Linear {text}"), lambda text: Recipe.parse(text)):
        with pytest.raises(FormatError, match="did you mean") as error:
            read(name)
        assert proposed(str(error.value))[0] == NEAREST[name]


def test_every_text_that_is_proposed_for_a_foreign_name_works():
    texts = sorted({text for _, found in foreign_names._FORMATS for text in found})
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    for text in texts:
        assert octavo.encode(x, text).decode().shape == x.shape, text
        with pytest.raises(FormatError):
            octavo.Format("no" + text)
    model, ids = transformer("BertModel", layers=1, inner=128), [torch.randint(50, (4, 8))]
    for recipe in sorted({recipe for _, recipe in foreign_names._RECIPES}):
        layers = f"type:Linear {recipe}"
        packed = octavo.pack_model(octavo.quantize_model(model, layers, calibration=ids, progress=False))
        assert torch.isfinite(packed(ids[0]).last_hidden_state).all(), recipe


def test_no_foreign_name_hides_a_format():
    for fmt in octavo.formats():
        assert foreign_names.suggestion(str(fmt)) is None or octavo.Format(str(fmt)) == fmt


@pytest.mark.parametrize("text", ["mxfp6e3m3", "MXINT8", "int4g32", "nf5", "bpf8/16", "e4m4:finit"])
def test_a_spelling_that_is_proposed_is_a_format(text):
    try:
        octavo.Format(text)
    except FormatError as error:
        if "did you mean" in str(error):
            for spelling in proposed(str(error)):
                octavo.Format(spelling)


# --- recipes on models ------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A head with the weight of an embedding, which is called as a layer or read past it."""

    def __init__(self, read=False):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50, bias=False)
        self.head.weight, self.read = self.embed.weight, read

    def forward(self, ids):
        x = self.inner(self.embed(ids))
        return nn.functional.linear(x, self.head.weight) if self.read else self.head(x)


def tied_models():
    transformers = pytest.importorskip("transformers")
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    gpt = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return {
        "t5": transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=50, **t5)).eval(),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, **gpt)).eval(),
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **small)).eval(),
        "own": Tied().eval(),
    }  # fmt: skip


def inputs_of(name):
    ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "decoder_input_ids": ids} if name == "t5" else (ids,)


def call(model, given):
    with torch.no_grad():
        return model(**given) if isinstance(given, dict) else model(*given)


def head_of(model):
    """The path of a linear layer whose weight an embedding has, too."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return next(path for path, m in model.named_modules() if isinstance(m, nn.Linear) and id(m.weight) in tables)


def followed(text, apply, most=4):
    """Add what messages advise to a recipe until it is taken; return it."""
    for _ in range(most):
        try:
            apply(text)
            return text
        except FormatError as error:
            advice = re.search(r"(?:such as|add) '(.+?)'(?: after it)?$", str(error))
            assert advice, error
            text = f"{text}; {advice[1]}"
    raise AssertionError(f"the advice leads nowhere: {text}")


@pytest.mark.parametrize(
    "later", ["HEAD keep", "HEAD mxint8", "HEAD int4:g32@gptq", "type:Embedding keep", "type:Embedding mxint8"]
)
def test_advice_for_tied_weights_gives_what_the_later_rule_says(later):
    for name, model in tied_models().items():
        head = head_of(model)
        text = f"int4:g32; {later.replace('HEAD', head)}"
        made = followed(text, lambda recipe, model=model: Recipe.parse(recipe).plan(model))
        assert made != text, name  # it was refused
        wanted = later.split()[1].partition("@")[0]  # an embedding has no inputs for gptq
        plan = Recipe.parse(made).plan(model)
        shared = [
            path for path, m in model.named_modules() if getattr(m, "weight", None) is model.get_submodule(head).weight
        ]
        for path in shared:
            got = plan[path].weight if path in plan else None
            assert ("keep" if got is None else str(got.format)) == wanted, (name, path, made)


def test_gptq_for_every_layer_of_tied_models_ends_in_a_recipe_that_works():
    for name, model in tied_models().items():
        made = followed("int4:g32@gptq", lambda recipe, model=model: Recipe.parse(recipe).plan(model))
        given = inputs_of(name)
        octavo.quantize_model(model, made, calibration=[given if isinstance(given, dict) else given[0]], progress=False)


@pytest.mark.parametrize("recipe", ["int4:g32", "int8:channel input=int8:channel"])
def test_no_layer_is_said_to_be_bypassed_whose_weight_others_use(recipe):
    """T5 holds its embedding as ``shared``, too, which nothing calls."""
    for name, model in tied_models().items():
        for make in (octavo.quantize_model, lambda m, r: octavo.pack_model(octavo.quantize_model(m, r))):
            with warnings.catch_warnings():
                warnings.simplefilter("error", UnusedLayerWarning)
                call(make(model, recipe), inputs_of(name))


def warned(quantized, given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(quantized, given)
    return [entry.message for entry in caught if isinstance(entry.message, UnusedLayerWarning)]


def test_the_rule_of_a_bypass_warning_ends_the_warning_and_keeps_tied_weights_rounded():
    class Spare(Tied):
        def __init__(self):
            super().__init__(read=True)
            self.spare = nn.Linear(32, 32)

    recipe = "int4:g32 ; type:Linear input=int8:channel"
    (warning,) = warned(octavo.quantize_model(Spare(), recipe, progress=False), inputs_of("own"))
    assert warning.layers == ("spare", "head")
    again = octavo.quantize_model(Spare(), f"{recipe}; {warning.rule}", progress=False)
    assert warned(again, inputs_of("own")) == []
    assert again.head.weight_quantizer is not None and type(again.spare) is nn.Linear


def test_the_rule_for_a_weight_that_is_no_layers_parameter_too_is_taken():
    class TwiceRouter(Tied):  # which no rewriting takes
        def __init__(self):
            super().__init__()
            self.table = self.embed.weight

    with pytest.warns(UnusedLayerWarning, match="a Parameter of no layer") as caught:
        octavo.quantize_model(TwiceRouter(), "int4:g32", progress=False)
    (rule,) = {entry.message.rule for entry in caught if isinstance(entry.message, UnusedLayerWarning)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnusedLayerWarning)
        octavo.quantize_model(TwiceRouter(), f"int4:g32; {rule}", progress=False)


def test_the_rule_of_strict_mode_and_of_writes_into_weights_is_taken():
    class Reads(nn.Module):
        def __init__(self, write=False):
            super().__init__()
            self.inner, self.write = nn.Linear(32, 32), write

        def forward(self, x):
            if self.write:
                self.inner.weight.mul_(2)
            return nn.functional.linear(x, self.inner.weight)

    x = (torch.randn(2, 32),)
    packed = octavo.pack_model(octavo.quantize_model(Reads(), "mxint8", progress=False))
    with octavo.strict(), pytest.raises(KernelError, match="with the rule") as error:
        call(packed, x)
    rule = re.search(r"the rule '(.+?)'", str(error.value))[1]
    call(octavo.quantize_model(Reads(), f"mxint8; {rule}", progress=False), x)
    with pytest.raises(octavo.ModelError, match="is written to") as error:
        call(octavo.quantize_model(Reads(write=True), "mxint8", progress=False), x)
    rule = re.search(r"the rule '(.+?)'", str(error.value))[1]
    call(octavo.quantize_model(Reads(write=True), f"mxint8; {rule}", progress=False), x)


@pytest.mark.parametrize(
    "selector", ["last:vit.layers.**", "last:**.q_proj", "first:**.attention.**", "last:classifier", "type:*.q_proj"]
)
def test_a_path_where_a_type_stands_is_written_as_a_path(selector):
    model = transformer("ViTForImageClassification")
    with pytest.raises(FormatError, match="a path is written") as error:
        Recipe.parse(f"{selector} int8").plan(model)
    written = re.search(r"a path is written '(.+?)'", str(error.value))[1]
    made = f"{written} int8"
    try:
        assert Recipe.parse(made).plan(model)
    except FormatError as error:  # the glob may need '**' in place of '*'
        assert "'*' does not cross a dot, '**' does" in str(error)
        assert Recipe.parse(made.replace("*", "**")).plan(model)


@pytest.mark.parametrize("selector", ["vit.layers", "vit", "*.q_proj", "vit.layrs.0", "wieght"])
def test_hints_for_paths_that_select_nothing_select_something(selector):
    model = transformer("ViTForImageClassification")
    with pytest.raises(FormatError, match="matches no layer") as error:
        Recipe.parse(f"{selector} int8").plan(model)
    message = str(error.value)
    if hint := re.search(r"select them with '(.+?)'", message):
        assert Recipe.parse(f"{hint[1]} int8").plan(model)
    elif "'*' does not cross a dot" in message:
        assert Recipe.parse(f"{selector.replace('*', '**')} int8").plan(model)
    for path in re.search(r"nearest names: ([^;]+)", message)[1].split(", "):
        assert Recipe.parse(f"name:{path} int8").plan(model)


def test_the_advice_of_every_format_that_a_role_cannot_hold_is_taken():
    """All formats with all calibrations in all roles: dropping the calibration, or another format, as it says."""
    seen = set()
    formats = [*map(str, octavo.formats()), "int32"]
    for text, role, method in itertools.product(formats, ROLES, METHODS):
        try:
            Rule(type="Linear", **{role: f"{text}@{method}"})
        except FormatError as error:
            message = str(error)
            if dropped := re.search(r"drop @(\w+)", message):
                assert dropped[1] == method
                if text == "int32" and role != "bias":
                    continue
                Rule(type="Linear", **{role: text})
                seen.add("drop")
            if rules := re.search(r"or take (@\w+), (@\w+) or (@\w+)", message):
                for rule in rules.groups():
                    Rule(type="Linear", **{role: text + rule})
                seen.add("rules")
            if "is for weights" in message:
                for other in re.search(r"give the \w+ ([\w, ]+)$", message)[1].replace(" or ", ", ").split(", "):
                    Rule(type="Linear", **{role: f"int8@{other}"})
                seen.add("methods")
            if "'lsq' learns scales" in message:
                Rule(type="Linear", **{role: "int8@lsq"})
                seen.add("lsq")
    assert seen == {"drop", "rules", "methods", "lsq"}


def test_calibration_data_or_the_format_that_is_written_instead_are_taken():
    model = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(octavo.CalibrationError, match="or write") as error:
        octavo.quantize_model(model, "int8 input=int8@mse", progress=False)
    instead = re.search(r"or write '(.+?)'", str(error.value))[1]
    octavo.quantize_model(model, f"int8 input={instead}", progress=False)
    octavo.quantize_model(model, "int8 input=int8@mse", calibration=[torch.randn(2, 32)], progress=False)


def test_block_scales_and_static_scales_are_refused_with_what_is_taken():
    from octavo.quant.activation_scales import check_format
    from octavo.quant.weight_scales import weight_scales
    from octavo.recipe.spec import Calibration, Spec

    for text in ("mxint8", "bfp8/16", "nvfp4"):
        with pytest.raises(FormatError, match="chosen by a rule") as error:
            weight_scales(Spec(octavo.Format(text), Calibration("quantile")), torch.randn(4, 32), "a layer")
        for rule in re.findall(r"'(\S+@\w+)'", str(error.value))[1:]:
            octavo.quantize_model(nn.Sequential(nn.Linear(32, 8)), rule, progress=False)
    with pytest.raises(FormatError, match="take intW, uintW or fixedW") as error:
        check_format(Spec(octavo.Format("int8:channel"), Calibration("mse")), "a layer")
    for text in ("int8@mse", "uint8@mse", "fixed8@mse", "int8:channel"):
        data = [torch.randn(2, 32)]
        octavo.quantize_model(nn.Sequential(nn.Linear(32, 8)), f"int8 input={text}", calibration=data, progress=False)


def test_what_packing_would_drop_is_kept_as_the_message_says():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    quantized = octavo.quantize_model(model, "mxint8", progress=False)
    quantized[0].register_buffer("extra", torch.zeros(3))
    with pytest.raises(octavo.ModelError, match="keep it in the recipe") as error:
        octavo.pack_model(quantized)
    path = str(error.value).split(":")[0]
    kept = octavo.quantize_model(model, f"mxint8; name:{path} keep", progress=False)
    kept[0].register_buffer("extra", torch.zeros(3))
    assert octavo.pack_model(kept)(torch.randn(2, 32)).shape == (2, 8)


def test_the_context_that_is_given_for_too_long_windows_is_taken():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, **sizes)).eval()
    ids = torch.randint(50, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    with pytest.raises(octavo.OctavoError, match="positions; give context=") as error:
        octavo.evaluate(model, ids, context=64)
    most = int(re.search(r"give context=(\d+)", str(error.value))[1])
    assert octavo.evaluate(model, ids, context=most).metric == "perplexity"


# --- names that were misspelt -----------------------------------------------------------------------------------------


def misspelt_pass():
    from octavo.graph.model_passes import find_pass

    return find_pass


def lora_options(name):
    from octavo.lora.lora_config import LoraConfig

    return LoraConfig.of({"rank": 2}, **{name: vars(LoraConfig(rank=2)).get(name, 1)})


def pass_options(name):
    from octavo.graph.model_passes import find_pass

    return find_pass("quantize").configured({name: "int8"})


def mase_type(name):
    from octavo.lab.mase.importer import recipe

    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4, "data_in_width": 8, "data_in_frac_width": 4}
    return recipe({"by": "type", name: {"config": {**config, "bias_width": 8, "bias_frac_width": 4}}})


def config_field(name):
    from octavo.lab.architectures.config_fields import config_spec
    from octavo.lab.classifiers import ClassifierConfig

    return config_spec(ClassifierConfig, vocabulary=30, **{name: 2})


def axis_name(name):
    from octavo.lab.architectures import Axis, Space

    space = Space([Axis("layers", (1, 2)), Axis("width", (8,), when=lambda point: point["layers"] > 1)], dict)
    return space.checked({"layers": 2, name: 8})


def rule_key(name):
    return Recipe.from_dict({"rules": [{"type": "Linear", name: "int8"}]})


MISSPELT = {
    "pass": (lambda name: misspelt_pass()(name), "quantise", octavo.ModelError),
    "lora": (lora_options, "alfa", octavo.ModelError),
    "mase": (mase_type, "linaer", FormatError),
    "config": (config_field, "layer", octavo.errors.SettingError),
    "recipe": (rule_key, "wieght", FormatError),
    "options of a pass": (pass_options, "recip", octavo.ModelError),
    "axis": (axis_name, "widht", octavo.errors.SettingError),
}


@pytest.mark.parametrize("kind", MISSPELT)
def test_the_name_that_is_proposed_for_a_misspelt_one_is_taken(kind):
    use, wrong, error_class = MISSPELT[kind]
    with pytest.raises(error_class, match="did you mean") as error:
        use(wrong)
    proposal = proposed(str(error.value))[0]
    assert difflib.SequenceMatcher(None, wrong, proposal).ratio() > 0.5
    use(proposal)


# --- files and folders ------------------------------------------------------------------------------------------------


def test_the_folder_that_is_named_in_place_of_a_file_is_taken(tmp_path):
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.report import read_report

    folder = tmp_path / "run"
    octavo.save_model(
        octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(8, 8)), "int8")), folder / "model"
    )
    for given in (folder, folder / "model" / "config.json"):
        if given.suffix:
            given.write_text("{}")
        with pytest.raises(octavo.ContainerError, match="give its") as error:
            Checkpoint.open(given)
        assert Checkpoint.open(str(error.value).rpartition(", ")[2]).files
    (tmp_path / "report.html").write_text("<html>")
    with pytest.raises(octavo.errors.DataError, match=r"give report\.json beside it"):
        read_report(tmp_path / "report.html")


def test_the_mapping_that_is_shown_for_an_empty_one_is_taken():
    from octavo.quant.format_schedule import FormatSchedule

    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(octavo.ModelError, match="such as") as error:
        octavo.prune_model(model, {})
    shown = ast.literal_eval(re.search(r"such as (\{.*\})", str(error.value))[1])
    (share,) = shown.values()
    octavo.prune_model(nn.ModuleDict({"encoder": model}), shown)
    octavo.prune_model(model, {"**": share})
    with pytest.raises(FormatError, match="such as") as error:
        FormatSchedule({})
    FormatSchedule(ast.literal_eval(re.search(r"such as (\{.*\})", str(error.value))[1]))


def test_the_family_that_is_shown_for_an_unknown_one_is_taken():
    from octavo.lab.studies.ptq_qat import family

    with pytest.raises(octavo.errors.SettingError, match="such as") as error:
        family("nothing")
    names, _, form = re.search(r"accepted are (.+), or formats such as '(.+)'", str(error.value))[0].partition(", or ")
    for name in names.removeprefix("accepted are ").split(", "):
        assert family(name)
    assert family(re.search(r"'(.+)'", form)[1])


# --- lines of other packages ------------------------------------------------------------------------------------------


def test_lines_that_other_packages_log_are_left_out_and_others_are_not(caplog):
    import logging

    from octavo.cli import _other_packages

    loggers = {name: logging.getLogger(name) for name, _ in _other_packages._LINES}
    before = {name: list(logger.filters) for name, logger in loggers.items()}
    try:
        _other_packages.quiet()
        told = "%s is an Enum subclass and is now natively supported by torch.compile as an opaque value type."
        logging.getLogger("torch.utils._pytree").warning(told, "KernelPreference")  # when torchao is imported
        logging.getLogger("torchao").warning("Skipping import of cpp extensions due to incompatible torch version")
        logging.getLogger("torchao").warning("something else")
        logging.getLogger("torch.utils._pytree").warning("another matter")
        assert [record.message for record in caplog.records] == ["something else", "another matter"]
    finally:
        for name, logger in loggers.items():
            logger.filters[:] = before[name]


@pytest.mark.parametrize("text", ["int8", "fixed8", "nvfp4", "int5"])
def test_a_cache_takes_the_format_that_its_refusal_names(text):
    pytest.importorskip("transformers", minversion="5.24")
    from octavo.transformers import QuantizedCache

    with pytest.raises(FormatError) as refusal:
        QuantizedCache(text)
    advised = re.findall(r"such as '([^']+)'", str(refusal.value))
    x = torch.randn(1, 2, 3, 32)
    keys, _ = QuantizedCache(advised[-1]).update(x, x, 0)
    assert torch.equal(keys, octavo.quantize(x, advised[-1]))
