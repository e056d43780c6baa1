"""octavo pack of a folder of transformers: the folder that pack_model and save_model write of its model."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import octavo
import pytest
import torch
from helpers.processes import octavo_command
from octavo import ContainerError, ModelError, PackedTensor
from octavo.model_folder.pack_checkpoint import pack_tensors
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, fill_folder
from octavo.nn import PackedConv2d, PackedEmbedding, PackedLayer, PackedLinear
from octavo.tensors import container

transformers = pytest.importorskip("transformers")

PICTURE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**PICTURE, "vocab_size": 61}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 61,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61}
IDS = {"input_ids": torch.tensor([[5, 9, 2, 33, 60, 7, 3, 12], [3, 3, 8, 41, 50, 9, 19, 4]])}
BOTH = {**IDS, "decoder_input_ids": IDS["input_ids"].flip(1)}
PIXELS = {"pixel_values": torch.linspace(-2, 2, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()}

ARCHITECTURES = {
    "bert": ("BertModel", "BertConfig", SMALL, IDS),
    "bert with a tied head": ("BertForMaskedLM", "BertConfig", SMALL, IDS),
    "bert with a classifier": ("BertForSequenceClassification", "BertConfig", SMALL, IDS),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**SMALL, "max_position_embeddings": 64}, IDS),
    "distilbert": ("DistilBertModel", "DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 61}, IDS),
    "gpt2": ("GPT2Model", "GPT2Config", GPT2, IDS),
    "gpt2 with a tied head": ("GPT2LMHeadModel", "GPT2Config", GPT2, IDS),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, IDS),
    "llama with a tied head": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "tie_word_embeddings": True}, IDS),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, BOTH),
    "vit": ("ViTForImageClassification", "ViTConfig", {**PICTURE, "image_size": 32, "patch_size": 8}, PIXELS),
}  # fmt: skip
RECIPES = ("mxint8", "int4:g32@mse", "weight=int8:channel input=mxint8")
# Of Linear layers with biases, whose weights no embedding shares.
OF_LINEAR = ("type:Linear weight=int8:channel input=int8 bias=bf16", "type:Linear int4:g32@hqq")
UNTIED = ("bert", "bert with a classifier", "distilbert", "vit")

SLACK = 24 << 20  # one weight decoded, its errors in float64, and what the allocator keeps


def source(folder, architecture, dtype=torch.float32, **options):
    """A folder of transformers with random weights, and the inputs of its model."""
    name, config, values, inputs = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**values)).to(dtype)
    model.save_pretrained(folder, **options)
    return getattr(transformers, name).from_pretrained(folder), inputs


def first(outputs):
    return outputs[0] if isinstance(outputs, tuple) else next(iter(outputs.values()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_file_is_that_of_pack_model(tmp_path, architecture, dtype):
    """Every byte: tensors, structure and recipe; one file or shards, whatever recipe."""
    model, inputs = source(tmp_path / "m", architecture, dtype, max_shard_size="20KB")
    assert (tmp_path / "m" / "model.safetensors.index.json").exists()
    recipes = (*RECIPES, *(OF_LINEAR if architecture in UNTIED else ()))
    for number, recipe in enumerate(recipes if dtype == torch.float32 else recipes[:1]):
        octavo_command("pack", tmp_path / "m", "-o", tmp_path / f"x{number}", "--recipe", recipe)
        packed = octavo.pack_model(octavo.quantize_model(model, recipe, progress=False))
        octavo.save_model(packed, tmp_path / f"y{number}")
        written = [(tmp_path / f"{side}{number}" / PACKED_NAME).read_bytes() for side in "xy"]
        assert written[0] == written[1], recipe
    loaded = octavo.load_model(tmp_path / "x0")
    packed = octavo.load_model(tmp_path / "y0")
    assert isinstance(loaded, type(model))
    with torch.inference_mode():
        assert torch.equal(first(loaded(**inputs)), first(packed(**inputs)))


@pytest.mark.parametrize("architecture", ["bert with a tied head", "gpt2", "t5"])
def test_the_sparse_file_is_that_of_pack_model(tmp_path, architecture):
    model, inputs = source(tmp_path / "m", architecture, torch.float32)
    pruned = octavo.prune.fold_model(octavo.prune_model(model, 0.6))
    pruned.save_pretrained(tmp_path / "pruned")
    octavo_command("pack", tmp_path / "pruned", "-o", tmp_path / "x", "--recipe", "int8:g32", "--sparse")
    packed = octavo.pack_model(octavo.quantize_model(pruned, "int8:g32", progress=False), sparse=True)
    octavo.save_model(packed, tmp_path / "y")
    assert (tmp_path / "x" / PACKED_NAME).read_bytes() == (tmp_path / "y" / PACKED_NAME).read_bytes()
    loaded = octavo.load_model(tmp_path / "x")
    assert any(layer.is_sparse for layer in loaded.modules() if isinstance(layer, PackedLinear))
    with torch.inference_mode():
        assert torch.equal(first(loaded(**inputs)), first(packed(**inputs)))


BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 61,
}  # fmt: skip
MORE = {
    "an embedding with a forward of its own": ("BartForConditionalGeneration", "BartConfig", BART),
    "shared layers": ("AlbertForMaskedLM", "AlbertConfig", {**SMALL, "embedding_size": 16}),
    "parameters in float32": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 61}),
    "convolutions in groups": ("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}),
    "buffers of statistics": ("ResNetModel", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - set(UNTIED)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_solved_weight_that_is_tied_is_solved_once(tmp_path, architecture, dtype):
    """hqq overwrites the weight it solves; the second layer that has it gets the same codes and scales."""
    model, _ = source(tmp_path / "m", architecture, dtype)
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", "int4:g32@hqq")
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "int4:g32@hqq", progress=False)), tmp_path / "y")
    assert (tmp_path / "x" / PACKED_NAME).read_bytes() == (tmp_path / "y" / PACKED_NAME).read_bytes()


@pytest.mark.parametrize("what", MORE)
def test_the_file_of_other_kinds_is_that_of_pack_model(tmp_path, what):
    name, config, values = MORE[what]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    kind(getattr(transformers, config)(**values)).bfloat16().save_pretrained(tmp_path / "m")
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x")
    model = octavo.quantize_model(kind.from_pretrained(tmp_path / "m"), "mxint8", progress=False)
    octavo.save_model(octavo.pack_model(model), tmp_path / "y")
    assert (tmp_path / "x" / PACKED_NAME).read_bytes() == (tmp_path / "y" / PACKED_NAME).read_bytes()
    assert isinstance(octavo.load_model(tmp_path / "x"), kind)


def test_packed_experts_that_lie_one_by_one_are_no_model(tmp_path):
    """Matrices in the file, one parameter of three dimensions in the model: codes of several are not joined."""
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=2)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "m")
    (tmp_path / "x").mkdir()
    shutil.copy(tmp_path / "m" / "config.json", tmp_path / "x")
    octavo_command("pack", tmp_path / "m" / "model.safetensors", "-o", tmp_path / "x" / PACKED_NAME)
    with pytest.raises(ContainerError, match=r"transformers computes .* which is packed; octavo unpack comes first"):
        octavo.load_model(tmp_path / "x")


JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
MIXTURES = {
    "Mixtral": {**GROUPED, "num_local_experts": 2},
    "Jamba": {**GROUPED, **JAMBA, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
}


@pytest.mark.parametrize("recipe", ["mxint8", "mxint8; **experts.**=nf4", "**.weight=fp16; lm_head.weight keep"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_plan_for_tensors_alone_is_what_happens(tmp_path, mixture, dtype, recipe):
    """Where pack stores tensors, octavo recipe --model tells of tensors, why, and their bytes."""
    config = getattr(transformers, f"{mixture}Config")(**MIXTURES[mixture])
    getattr(transformers, f"{mixture}ForCausalLM")(config).to(dtype).save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "unheard-of"}))
    told = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", recipe)
    plan = json.loads(octavo_command("recipe", recipe, "--model", tmp_path / "m", "--json"))
    assert plan["without_model"] == told.split("\n\n")[0].split("\ntensor ")[0]
    assert octavo_command("recipe", recipe, "--model", tmp_path / "m").startswith(plan["without_model"])
    found = container.inspect(tmp_path / "x" / PACKED_NAME)
    assert any("experts" in entry.name and entry.format for entry in found) or "fp16" in recipe
    rows = {f"{row['module']}.{row['role']}".removesuffix(".weight"): row["format"] for row in plan["rows"]}
    unreached = {missed["name"] for missed in plan["unreached"]}
    for entry in found:
        given = rows.get(entry.name.removesuffix(".weight"))
        assert given == entry.format or (given == "fp16" and entry.dtype == "float16"), entry
        assert (entry.name in unreached) == (entry.name.removesuffix(".weight") not in rows)
    assert plan["totals"]["bytes_after"] == sum(entry.nbytes for entry in found)
    before = sum(tensor.nbytes for tensor in Checkpoint.open(tmp_path / "m").tensors().values())
    assert plan["totals"]["bytes_before"] == before
    refused = octavo_command("recipe", "type:Linear mxint8", "--model", tmp_path / "m", code=2)
    assert refused.splitlines()[-1] in octavo_command(
        "pack", tmp_path / "m", "-o", tmp_path / "y", "--recipe", "type:Linear mxint8", code=2
    )


@pytest.mark.parametrize("recipe", ["fp32", "mxint8; keep", "bias=fp16", "input=mxint8"])
def test_a_recipe_that_packs_nothing_is_refused_as_pack_model_does(tmp_path, recipe):
    model, _ = source(tmp_path / "m", "bert")
    told = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", recipe, code=2)
    assert (
        f"the recipe '{recipe}' packs none of its weights" in " ".join(told.split()) and not (tmp_path / "x").exists()
    )
    with pytest.raises(ModelError, match="no simulated layer with a quantized weight"):
        octavo.pack_model(octavo.quantize_model(model, recipe, progress=False))


SOUND = {
    **SMALL, "vocab_size": 30, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@pytest.mark.parametrize("recipe", ["mxint8", "type:Conv1d nf4; type:Linear mxint8"])
def test_a_weight_with_normalization_is_packed_as_the_model_is(tmp_path, recipe):
    torch.manual_seed(0)
    model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SOUND)).eval()
    model.save_pretrained(tmp_path / "m")
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", recipe)
    packed = octavo.pack_model(octavo.quantize_model(model, recipe, progress=False))
    sounds = torch.randn(1, 400)
    with torch.no_grad():
        wanted = packed(sounds).last_hidden_state
        assert torch.equal(octavo.load_model(tmp_path / "x")(sounds).last_hidden_state, wanted)


def test_layers_multiply_codes(tmp_path):
    kinds = {"gpt2": PackedLinear, "vit": PackedConv2d, "bert": PackedEmbedding}
    for architecture, kind in kinds.items():
        source(tmp_path / architecture, architecture)
        octavo_command("pack", tmp_path / architecture, "-o", tmp_path / f"{architecture}-x")
        loaded = octavo.load_model(tmp_path / f"{architecture}-x")
        assert any(isinstance(layer, kind) for layer in loaded.modules())
        dense = [
            layer for layer in loaded.modules() if type(layer).__name__ in ("Linear", "Conv1D", "Conv2d", "Embedding")
        ]
        assert not dense
        assert loaded.training is False


def _buffers(model):
    """Bytes of the buffers that a file holds, which are no parameters."""
    return sum(buffer.nbytes for name, buffer in model.named_buffers() if name in model.state_dict())


@pytest.mark.parametrize("architecture", ["bert", "gpt2 with a tied head", "llama with a tied head", "t5", "vit"])
def test_the_plan_that_is_told_is_what_happens(tmp_path, architecture):
    """octavo recipe --model, pack --dry-run, pack and quantize_model name the same layers."""
    model, _ = source(tmp_path / "m", architecture, torch.bfloat16)
    explained = json.loads(octavo_command("recipe", "mxint8", "--model", tmp_path / "m", "--json"))
    assert explained == json.loads(octavo.Recipe.parse("mxint8").explain(model).to_json())
    planned = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--dry-run")
    assert not (tmp_path / "x").exists()
    done = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x")
    rows = [[row.split()[:6] for row in text.splitlines() if " mxint8 " in row] for text in (planned, done)]
    assert len(rows[0]) > 3 and rows[0] == rows[1]
    assert f"{octavo.tensors.container.inspect(tmp_path / 'x' / PACKED_NAME)[0].name}"
    layers = {row["module"] for row in explained["rows"] if row["format"]}
    packed = {
        path for path, layer in octavo.load_model(tmp_path / "x").named_modules() if isinstance(layer, PackedLayer)
    }
    assert packed == layers
    again = json.loads(octavo_command("recipe", "mxint8", "--model", tmp_path / "x", "--json"))
    assert again == explained  # bytes and dtypes, too
    assert sum(entry.nbytes for entry in container.inspect(tmp_path / "x" / PACKED_NAME)) == (
        explained["totals"]["bytes_after"] + _buffers(model)
    )


def test_a_checkpoint_of_another_head_or_none_is_the_model_it_holds(tmp_path):
    """config.json may name a class that was saved without its head, or with one that it has not."""
    head, _ = source(tmp_path / "m", "bert with a tied head")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    base = transformers.BertModel(head.config)
    base.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))  # names BertForMaskedLM
    octavo_command("pack", tmp_path / "base", "-o", tmp_path / "x")
    assert isinstance(octavo.load_model(tmp_path / "x"), transformers.BertModel)
    tensors = container.load(tmp_path / "m" / "model.safetensors") | {"cls.seq_relationship.weight": torch.ones(2, 32)}
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    container.save(old, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    told = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "y")
    assert "left out" in told and "cls.seq_relationship.weight" in told
    octavo.save_model(octavo.pack_model(octavo.quantize_model(head, "mxint8", progress=False)), tmp_path / "z")
    assert (tmp_path / "y" / PACKED_NAME).read_bytes() == (tmp_path / "z" / PACKED_NAME).read_bytes()


def test_an_encoder_without_a_pooler_has_none_in_any_explanation(tmp_path):
    """octavo recipe --model tells of a float, simulated or packed folder what the model in it has."""
    bert = transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False)
    bert.save_pretrained(tmp_path / "float")
    octavo.save_model(bert, tmp_path / "saved")
    octavo.save_model(octavo.quantize_model(bert, "mxint8", progress=False), tmp_path / "simulated")
    octavo_command("pack", tmp_path / "float", "-o", tmp_path / "packed")
    told = json.loads(octavo.Recipe.parse("mxint8").explain(bert).to_json())
    for kind in ("float", "saved", "simulated", "packed"):
        assert json.loads(octavo_command("recipe", "mxint8", "--model", tmp_path / kind, "--json")) == told, kind


def test_names_of_the_hub_without_the_prefix_of_the_body(tmp_path):
    """As gpt2 has them: a class with a head in config.json, tensors of the body, masks that every layer makes itself."""
    model, _ = source(tmp_path / "m", "gpt2 with a tied head")
    tensors = container.load(tmp_path / "m" / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    container.save(old, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    assert "left out" not in octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x")
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False)), tmp_path / "y")
    assert (tmp_path / "x" / PACKED_NAME).read_bytes() == (tmp_path / "y" / PACKED_NAME).read_bytes()


@pytest.mark.parametrize("told", ["float32", "bfloat16", None])
def test_the_dtype_is_that_of_the_configuration(tmp_path, told):
    """Whatever dtype the file has, as in from_pretrained; without one it is that of the file."""
    source(tmp_path / "m", "bert", torch.float16)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"dtype": told}))
    model = transformers.BertModel.from_pretrained(tmp_path / "m")
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x")
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False)), tmp_path / "y")
    assert (tmp_path / "x" / PACKED_NAME).read_bytes() == (tmp_path / "y" / PACKED_NAME).read_bytes()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_folders_of_transformers_are_loaded(tmp_path, dtype):
    for architecture in ("gpt2 with a tied head", "vit", "t5"):  # t5 holds some weights in float32
        model, inputs = source(tmp_path / architecture, architecture, dtype, max_shard_size="20KB")
        inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        loaded = octavo.load_model(tmp_path / architecture)
        with torch.inference_mode():
            assert torch.equal(first(loaded(**inputs)), first(model(**inputs)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("architecture", ["llama with a tied head", "vit"])
def test_shards_in_half_precision_are_read_everywhere(tmp_path, architecture, dtype):
    model, inputs = source(tmp_path / "m", architecture, dtype, max_shard_size="20KB")
    count = len(list((tmp_path / "m").glob("*.safetensors")))
    assert count > 1
    inspected = json.loads(octavo_command("inspect", tmp_path / "m", "--json"))
    assert {entry["dtype"] for entry in inspected["tensors"]} == {str(dtype).removeprefix("torch.")}
    assert len(json.loads(octavo_command("compare", tmp_path / "m", "--formats", "mxint8,nf4", "--json"))) == 2
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", "fp16")
    octavo_command("unpack", tmp_path / "x", "-o", tmp_path / "y", "--dtype", "float32")
    octavo_command("unpack", tmp_path / "m", "-o", tmp_path / "z")  # one file of the same tensors
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.inference_mode():
        wanted = first(model(**inputs))
        for folder in ("m", "z"):
            assert torch.equal(first(octavo.load_model(tmp_path / folder)(**inputs)), wanted)
        for folder in ("x", "y"):
            found = first(octavo.load_model(tmp_path / folder)(**inputs))
            assert (found.float() - wanted.float()).abs().max() <= 0.05 * wanted.float().abs().max()


def packed_by_01(source_folder, target):
    """What octavo pack of 0.1 wrote: tensors by name, each along its last axis, and no model."""
    target.mkdir()
    opened = Checkpoint.open(source_folder)
    packing = pack_tensors(opened.tensors(), octavo.Recipe.parse("mxfp6e2m3"))
    fill_folder(opened, target, PACKED_NAME, packing.tensors)
    return target


def test_folders_of_01_are_loaded_or_refused_with_the_command_that_converts_them(tmp_path):
    model, inputs = source(tmp_path / "bert", "bert")
    old = packed_by_01(tmp_path / "bert", tmp_path / "old")
    packed = octavo.pack_model(octavo.quantize_model(model, "mxfp6e2m3", progress=False))
    loaded = octavo.load_model(old)
    with torch.inference_mode():
        assert torch.equal(first(loaded(**inputs)), first(packed(**inputs)))
    octavo_command("pack", old, "-o", tmp_path / "new")
    for name, tensor in container.load(old / PACKED_NAME).items():  # the same codes
        found = container.load(tmp_path / "new" / PACKED_NAME)[name]
        assert found == tensor if isinstance(tensor, PackedTensor) else torch.equal(found, tensor)
    source(tmp_path / "gpt2", "gpt2 with a tied head")
    turned = packed_by_01(tmp_path / "gpt2", tmp_path / "turned")  # blocks of Conv1D along the outputs
    with pytest.raises(ContainerError) as caught:
        octavo.load_model(turned)
    assert "holds tensors but no model" in str(caught.value)
    command = re.search(r"octavo (pack \S+ -o) NEW", str(caught.value))[1]
    octavo_command(*command.split(), tmp_path / "again")
    again = octavo.load_model(tmp_path / "again")
    assert isinstance(again, transformers.GPT2LMHeadModel)
    assert str(again.transformer.h[0].attn.c_attn.format) == "mxfp6e2m3"
    assert "already packed" in octavo_command("pack", tmp_path / "again", "-o", tmp_path / "twice", code=2)
    assert "already packed" in octavo_command("pack", old, "-o", tmp_path / "twice", "--recipe", "mxint8", code=2)
    assert not (tmp_path / "twice").exists()


def test_a_model_that_is_not_known_is_packed_as_tensors_and_says_so(tmp_path, monkeypatch):
    source(tmp_path / "m", "bert")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": "bort", "architectures": ["Bort"]}))
    told = octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x")
    assert told.startswith("tensors alone are packed") and "bort" in told.split("\n\n")[0]
    with pytest.raises(ContainerError, match=r"holds tensors but no model.*bort.*octavo.load reads"):
        octavo.load_model(tmp_path / "x")
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    assert isinstance(octavo.load_model(tmp_path / "x"), transformers.BertModel)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert "needs transformers" in octavo_command("pack", tmp_path / "m", "-o", tmp_path / "y")
    with pytest.raises(ModelError, match="needs transformers"):
        octavo.load_model(tmp_path / "y")


def test_a_weight_that_is_missing_is_named(tmp_path):
    source(tmp_path / "m", "bert")
    tensors = container.load(tmp_path / "m" / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    container.save(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    assert "encoder.layer.1.output.dense.weight is missing" in octavo_command(
        "pack", tmp_path / "m", "-o", tmp_path / "x"
    )
    with pytest.raises(ContainerError, match=r"holds tensors but no model: .*dense.weight is missing"):
        octavo.load_model(tmp_path / "m")


def test_what_a_file_says_of_layers_is_not_trusted_when_it_is_packed(tmp_path):
    source(tmp_path / "m", "bert")
    tensors = container.load(tmp_path / "m" / "model.safetensors")
    for layers, told in (({"a": [1]}, "already packed"), ([], "packed weights"), ({}, "packed weights")):
        structure = json.dumps({"version": 1, "class": "BertModel", "layers": layers, "ties": {}})
        container.save(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt", "structure": structure})
        command = ("pack", tmp_path / "m", "-o", tmp_path / f"x{len(told)}{len(layers)}{type(layers).__name__}")
        assert told in octavo_command(*command, code=2 if layers else 0)


def test_recipes_that_need_data_are_refused_before_anything_is_written(tmp_path):
    source(tmp_path / "m", "bert")
    for recipe in ("type:Linear int4:g32@gptq", "type:Linear weight=int8 input=int8@minmax"):
        command = ("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", recipe)
        told = octavo_command(*command, code=2)
        assert "calibration=batches" in told
        assert octavo_command(*command, "--dry-run", code=2) == told
    assert "matches no layer" in octavo_command(
        "pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", "x=int8", code=2
    )
    assert not (tmp_path / "x").exists()


def test_the_tokenizer_of_another_model_does_not_stay(tmp_path):
    source(tmp_path / "m", "bert")
    (tmp_path / "x").mkdir()
    for name in ("tokenizer.json", "notes.txt"):
        (tmp_path / "x" / name).write_text("of another model")
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--force")
    names = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert names == ["README.md", "config.json", PACKED_NAME, "notes.txt"]  # with a model card


def test_the_recipe_goes_with_the_model(tmp_path):
    model, _ = source(tmp_path / "m", "bert")
    octavo_command("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", "mxint8; pooler.** keep")
    loaded = octavo.load_model(tmp_path / "x")
    octavo.save_model(loaded, tmp_path / "y")
    assert container.metadata(tmp_path / "y" / PACKED_NAME)["recipe"] == "mxint8; pooler.** keep"
    octavo_command("unpack", tmp_path / "y", "-o", tmp_path / "z")
    assert "recipe" not in container.metadata(tmp_path / "z" / "model.safetensors")
    twice = octavo.quantize_model(octavo.quantize_model(model, "type:Linear mxint8"), "type:Embedding mxint8")
    octavo.save_model(twice, tmp_path / "twice")  # no one recipe gives what two gave
    assert "recipe" not in container.metadata(tmp_path / "twice" / PACKED_NAME)


PACKS = """
import sys, threading, time
from pathlib import Path
import octavo, torch
from octavo.model_folder.pack_folder import OpenFolder, save_folder
from octavo.model_folder.weight_files import Checkpoint

def own_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

def pack(folder, target):
    source = Checkpoint.open(folder)
    packed = OpenFolder.open(source).pack(octavo.Recipe.parse("mxint8"))
    save_folder(source, Path(target), packed.model, force=False)

def watch():
    while not over:
        seen.append(own_bytes())
        time.sleep(0.002)

torch.set_num_threads(1)
pack(sys.argv[1], sys.argv[2])  # what Python loads on first use
seen, over = [own_bytes()], False
watcher = threading.Thread(target=watch)
watcher.start()
pack(sys.argv[3], sys.argv[4])
over = True
watcher.join()
print(max(seen) - seen[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_packing_takes_the_packed_bytes_and_one_weight(tmp_path):
    """Pages of the mapped checkpoint do not count: the system takes them back when it needs them."""
    sizes = {
        "small": {**GROUPED, "vocab_size": 64},
        "large": {**GROUPED, "hidden_size": 512, "intermediate_size": 2048},
    }
    sizes["large"]["num_hidden_layers"] = 8
    for name, values in sizes.items():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values))
        model.save_pretrained(tmp_path / name, max_shard_size="40MB")
    given = [tmp_path / part for part in ("small", "x", "large", "y")]
    done = subprocess.run([sys.executable, "-c", PACKS, *given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    dense, packed = sum(p.nbytes for p in model.parameters()), (tmp_path / "y" / PACKED_NAME).stat().st_size
    assert int(done.stdout.splitlines()[-1]) <= packed + SLACK < dense / 2
