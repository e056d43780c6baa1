"""Folders of compressed-tensors are models: packed layers carry codes, and values are those that transformers decodes."""

import json
import random
import warnings

import octavo
import pytest
import torch
from helpers.compressed_models import ARGS, folder_of, mixture, weights
from helpers.models import transformer
from octavo.errors import ContainerError, ModelError, OctavoError
from octavo.interchange.compressed_tensors_folder import open_folder
from octavo.interchange.conversion import Conversion, as_folder
from octavo.interchange.foreign_readers import reader_of

pytest.importorskip("transformers")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def llama(**config):
    return transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, **{"layers": 2, **config}
    )


def mixed(name):
    """Every form in one model."""
    forms = {
        "q_proj": ("words", weights(4)), "k_proj": ("words", weights(3, symmetric=False), True),
        "v_proj": ("nvfp4", ARGS["nvfp4"]), "o_proj": ("bytes", weights(8, strategy="channel")),
        "gate_proj": ("mxfp4", ARGS["mxfp4"]), "up_proj": ("mxfp8", ARGS["mxfp8"]),
        "down_proj": ("float", weights(8, "float", "block", block=(16, 32))),
    }  # fmt: skip
    return forms.get(name.rpartition(".")[2])


def values_of(model):
    return {
        name: value.decode() if isinstance(value, octavo.PackedTensor) else value
        for name, layer in model.named_modules()
        if isinstance(value := getattr(layer, "weight", None), torch.Tensor | octavo.PackedTensor)
        for name in [f"{name}.weight"]
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("files", [1, 3])
def test_a_model_of_all_forms_has_the_values_of_its_folder(tmp_path, dtype, files):
    values = folder_of(llama(), tmp_path / "ct", mixed, dtype=dtype, files=files)
    with pytest.warns(octavo.OctavoWarning, match="2 of 21 tensors are decoded to .*: no format has E4M3 codes"):
        model = octavo.load_model(tmp_path / "ct")
    layer = model.model.layers[0]
    assert (
        str(layer.self_attn.k_proj.weight.format) == "uint3:g32" and type(layer.mlp.up_proj).__name__ == "PackedLinear"
    )
    mine = values_of(model)
    for name, value in values.items():
        if not name.endswith("v_proj.weight") or dtype == torch.bfloat16:  # nvfp4 is rounded to bfloat16 there
            assert torch.equal(mine[name], value.to(dtype)), name
    assert model(IDS).logits.dtype == dtype


def symmetric(name):
    """What transformers reads layer by layer: no packed zero points."""
    picked = ("words", weights(3)) if "k_proj" in name else mixed(name)
    return picked and picked[:2]


def asymmetric(name):
    return "words", weights(4, symmetric=False)


@pytest.mark.parametrize(
    ("choose", "dtype"),
    [(asymmetric, torch.float32), (asymmetric, torch.bfloat16), (symmetric, torch.bfloat16)],  # mx* are bfloat16 there
    ids=["asymmetric-float32", "asymmetric-bfloat16", "symmetric-bfloat16"],
)
def test_values_are_those_of_transformers(tmp_path, choose, dtype):
    pytest.importorskip("compressed_tensors")
    transformers = pytest.importorskip("transformers")
    is_mixed = choose is symmetric
    folder_of(
        llama(tie_word_embeddings=True), tmp_path, lambda name: None if name == "lm_head" else choose(name),
        dtype=dtype, tie=True,
    )  # fmt: skip
    # dequantize=True knows one scheme alone; without it weights are decoded at the first call.
    packing = {} if is_mixed else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **packing)
        theirs(IDS)
        mine = octavo.load_model(tmp_path)
    found = values_of(mine)
    for name, value in theirs.state_dict().items():
        if name in found:
            assert torch.equal(found[name], value), name
    assert mine.lm_head.weight is mine.model.embed_tokens.weight


def test_targets_name_layers_by_class_name_and_expression(tmp_path):
    values = folder_of(
        llama(),
        tmp_path,
        lambda name: (
            ("words", weights(3 if "layers.1.mlp" in name else 2 if "down" in name else 4)) if "proj" in name else None
        ),
    )
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    groups = {args["weights"]["num_bits"]: args for args in fields["quantization_config"]["config_groups"].values()}
    groups[3]["targets"], groups[2]["targets"], groups[4]["targets"] = (
        [r"re:model\.layers\.1\.mlp.*"], ["model.layers.0.mlp.down_proj"], ["Linear"],
    )  # fmt: skip
    file.write_text(json.dumps(fields))
    assert all(torch.equal(values_of(octavo.load_model(tmp_path))[name], value) for name, value in values.items())
    groups[4]["targets"] = ["Embedding"]
    file.write_text(json.dumps(fields))
    with pytest.raises(ContainerError, match="no target of config_groups is for"):
        octavo.load_model(tmp_path)


def test_expressions_without_end_are_refused_by_every_reader(tmp_path):
    folder_of(llama(), tmp_path, lambda name: ("words", weights(4 if "mlp" in name else 3)))
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    for group, target in zip(
        fields["quantization_config"]["config_groups"].values(), ("re:(a+)+$", "re:("), strict=True
    ):
        group["targets"] = [target]
    file.write_text(json.dumps(fields))
    for read in (octavo.load_model, reader_of(tmp_path).contents):
        with pytest.raises(ContainerError, match="the target 're:"):
            read(tmp_path)


def test_packed_tables_are_read_by_their_class(tmp_path):
    model = llama(tie_word_embeddings=False, vocab_size=96)
    folder_of(model, tmp_path, lambda name: ("words", weights(4)) if name == "lm_head" else None)
    tensors, fields = octavo.load(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    for part in ("packed", "scale", "shape"):
        tensors[f"model.embed_tokens.weight_{part}"] = tensors[f"lm_head.weight_{part}"]
    del tensors["model.embed_tokens.weight"]
    fields["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Embedding", "Linear"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    octavo.save(tensors, tmp_path / "model.safetensors")
    loaded = octavo.load_model(tmp_path)
    assert type(loaded.model.embed_tokens).__name__ == "PackedEmbedding"
    assert torch.equal(loaded.model.embed_tokens.weight.decode(), loaded.lm_head.weight.decode())


@pytest.mark.parametrize("form", ["words", "mxfp4", "bytes"])
def test_experts_are_packed_layers(tmp_path, form):
    """transformers has one tensor of all experts; here each has layers of its own, with the codes of the folder."""
    args = ARGS.get(form, weights(4 if form == "words" else 8, strategy="group" if form == "words" else "channel"))
    expected = mixture(tmp_path / "ct", (form, args))
    model = octavo.load_model(tmp_path / "ct")
    layers = [layer_ for layer_ in model.modules() if type(layer_).__name__ == "PackedLinear"]
    assert len(layers) == 6
    with torch.no_grad():
        logits, theirs = model(IDS).logits, expected(IDS).logits
        assert (logits - theirs).abs().max() <= 1e-4 * theirs.abs().max()
        Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
        assert torch.equal(octavo.load_model(tmp_path / "own")(IDS).logits, logits)
    with as_folder(open_folder(tmp_path / "ct"), packed=False) as (folder, _):
        plain = octavo.load_model(folder)
        for name, value in expected.state_dict().items():
            assert torch.equal(plain.state_dict()[name], value), name


def test_experts_with_scales_of_their_own_are_decoded(tmp_path):
    expected = mixture(tmp_path, ("bytes", weights(8, strategy="tensor")))
    with pytest.warns(octavo.OctavoWarning, match="2 of .* tensors are decoded to float32: 2 of .*the model joins it"):
        model = octavo.load_model(tmp_path)
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("packed", [True, False])
def test_a_model_folder_has_the_model_of_its_folder(tmp_path, packed):
    values = folder_of(
        llama(),
        tmp_path / "ct",
        lambda name: mixed(name) if "v_proj" not in name else None,
        dtype=torch.bfloat16,
        kv_cache_scheme={"num_bits": 8, "type": "float"},
    )
    (tmp_path / "ct" / "vocab.txt").write_text("a\n")
    cache = "keys and values are not rounded; the configuration rounds them (8-bit float, tensor, scales of the file)"
    with as_folder(open_folder(tmp_path / "ct"), packed=packed) as (folder, notes):
        assert notes[-1] == cache and len(notes) == (2 if packed else 1)
        assert (folder / "vocab.txt").read_text() == "a\n"
        assert "quantization_config" not in json.loads((folder / "config.json").read_text())
        loaded = values_of(octavo.load_model(folder))
        for name, value in values.items():
            assert torch.equal(loaded[name], value), name
    with pytest.raises(FileExistsError):
        Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "ct")


def test_saved_models_are_folders_of_ours(tmp_path):
    folder_of(llama(), tmp_path / "ct", lambda name: mixed(name) and ("words", weights(4)))
    (tmp_path / "ct" / "tokenizer.json").write_text("{}")
    model = octavo.load_model(tmp_path / "ct")
    octavo.save_model(model, tmp_path / "own")
    assert reader_of(tmp_path / "own") is None and (tmp_path / "own" / "tokenizer.json").read_text() == "{}"
    again = octavo.load_model(tmp_path / "own")
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    with pytest.raises(ModelError, match="a folder of compressed-tensors says what to build; leave model out"):
        octavo.load_model(tmp_path / "ct", llama())


def test_tensors_of_another_shape_than_the_configuration_says_are_refused(tmp_path):
    folder_of(llama(), tmp_path, lambda name: mixed(name) and ("words", weights(4)))
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"intermediate_size": 64}))
    with pytest.raises(ContainerError, match=r"proj.weight': shape \[.*\]; by the configuration"):
        octavo.load_model(tmp_path)


def test_damaged_folders_are_refused_or_read(tmp_path):
    folder_of(llama(layers=1), tmp_path / "ct", mixed)
    rng, files = random.Random(0), ("config.json", "model.safetensors")
    whole = {name: (tmp_path / "ct" / name).read_bytes() for name in files}
    ended = 0
    for _ in range(120):
        for name, data in whole.items():
            (tmp_path / "ct" / name).write_bytes(data)
        name = rng.choice(files)
        data = bytearray(whole[name])
        end = len(data) if name == "config.json" else 8 + int.from_bytes(data[:8], "little")
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(end)] = rng.choice((rng.randrange(256), *b'0123456789{}[]",:'))
        (tmp_path / "ct" / name).write_bytes(data[: rng.randrange(end) if rng.random() < 0.1 else None])
        try:
            if (reader := reader_of(tmp_path / "ct")) is not None:
                reader.contents(tmp_path / "ct")
                opened = open_folder(tmp_path / "ct")
                for one in opened.names:
                    opened.carried(one)
        except OctavoError:
            ended += 1
    assert ended > 60
