"""Folders of compressed-tensors that are written: readers have the values of the model, and what was read comes back."""

import json
import random
import warnings

import octavo
import pytest
import torch
from helpers.compressed_models import ARGS, folder_of, layer, mixture, peer_values, weight_of, weights
from helpers.models import transformer
from octavo.errors import ContainerError, FormatError, ModelError, OctavoError
from octavo.interchange.compressed_tensors_folder import open_folder
from octavo.interchange.compressed_tensors_former import NAME, FormerFolder
from octavo.interchange.compressed_tensors_pack import NoFormatError, parts_of
from octavo.interchange.conversion import Conversion
from octavo.interchange.convert import convert

pytest.importorskip("transformers")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
KIND = "compressed-tensors"


def llama(**config):
    return transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, **{"layers": 2, **config}
    )


def saved(folder, dtype=torch.float32, **config):
    model = llama(**config).to(dtype)
    model.save_pretrained(folder)
    return folder


HELD = (
    *(f"int{bits}:g32" for bits in range(2, 9)), *(f"uint{bits}:g32" for bits in range(2, 9)), "int4", "int4:channel", "int8:channel",
    "uint4:channel", "uint8", "mxint8", "mxint4", "mxint4/16", "bfp8/32", "bfp4/16", "ternary", "ternary:channel", "ternary:unit",
    "fixed8.7", "fixed8", "fixed8:channel", "mxfp4", "mxfp6e2m3", "mxfp8e4m3", "nvfp4", "e4m3",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("text", HELD)
def test_a_reader_has_the_values_of_every_format(text, dtype):
    torch.manual_seed(0)
    packed = octavo.encode(torch.randn(40, 96).to(dtype) / 8, text)
    weight = parts_of(packed, dtype).weight("a", "x")
    values = weight.decode()
    expected = packed.decode(torch.bfloat16 if text == "nvfp4" else dtype)
    assert torch.equal(values.to(expected.dtype), expected)
    carried = weight.carry(dtype)
    assert torch.equal(carried.decode(expected.dtype), expected)
    if text.startswith(("int", "uint", "mxfp")):  # no divisor gives one in six factors of nvfp4
        assert carried == packed


@pytest.mark.parametrize("text", HELD)
def test_the_package_has_the_values_of_every_format(text):
    packed = octavo.encode(torch.randn(40, 96, generator=torch.Generator().manual_seed(1)) / 8, text)
    stored = parts_of(packed, torch.float32)
    form = {"words": "words", "floats": "float"}.get(stored.form, stored.form)
    parts = {part: make() for part, make in stored.makers.items()}
    values = peer_values(parts, stored.scheme.as_dict(), form)
    assert torch.equal(values.float(), packed.decode(values.dtype).float())


@pytest.mark.parametrize(
    ("text", "columns", "told"),
    [
        ("nf4", 64, "compressed-tensors has no such format"),
        ("int9:g32", 64, "compressed-tensors has no such format"),
        ("log8", 64, "compressed-tensors has no such format"),
        ("ufixed8.4", 64, "compressed-tensors has no such format"),
        ("mxfp8e5m2", 64, "compressed-tensors has no such format"),
        ("mxfp4/16", 64, "compressed-tensors has no such format"),
        ("int4:g32", 80, "80 columns, which groups of 32 do not divide"),
        ("mxfp4", 80, "80 columns, which groups of 32 do not divide"),
        ("nvfp4", 72, "72 columns, which groups of 16 do not divide"),
    ],
)
def test_what_it_has_not_is_refused(text, columns, told):
    with pytest.raises(NoFormatError, match=told):
        parts_of(octavo.encode(torch.ones(4, columns), text), torch.float32)


def test_values_that_readers_would_not_have_are_refused():
    packed = octavo.encode(torch.full((2, 64), 1e38), "mxfp8e4m3")
    packed.scales[1, 1] = 250
    with pytest.raises(NoFormatError, match=r"row 1, column 32: .*, where readers have inf"):
        parts_of(packed, torch.float32)
    packed = octavo.encode(torch.ones(2, 64), "mxint8")
    packed.scales[0, 0] = 255
    with pytest.raises(NoFormatError, match="scale code 255, which is NaN"):
        parts_of(packed, torch.float32)


def floats_of(folder, into):
    """The float model of a model folder, as transformers opens it; nvfp4 in bfloat16, to which readers round."""
    transformers = pytest.importorskip("transformers")
    own, state = octavo.load_model(folder), {}
    for name, module in own.named_modules():
        for part in ("weight", "bias"):
            value = getattr(module, part, None)
            if isinstance(value, octavo.PackedTensor):
                value = value.decode(torch.bfloat16 if str(value.format) == "nvfp4" else None).to(own.dtype)
            if value is not None:
                state[f"{name}.{part}"] = value.detach()
    own.config.save_pretrained(into)
    fields = json.loads((into / "config.json").read_text())
    fields.pop("quantization_config", None)
    (into / "config.json").write_text(json.dumps(fields))
    octavo.save(state, into / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(into)


RECIPES = (
    "int4:g32; lm_head=keep", "uint4:g32", "int8:channel", "mxfp4; lm_head=keep", "mxint8", "nvfp4",
    "mxint8; **.v_proj=mxint4; **.down_proj=mxfp4; lm_head=keep",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_transformers_has_the_logits_of_the_model(tmp_path, recipe, dtype):
    pytest.importorskip("compressed_tensors")
    transformers = pytest.importorskip("transformers")
    from octavo.cli import pack

    source = saved(tmp_path / "float", dtype, tie_word_embeddings=False)
    rules = f"type:Linear {recipe}"
    report = convert(source, tmp_path / "ct", KIND, recipe=rules)
    rounded = "nvfp4" in recipe and dtype == torch.float32
    assert all(one.exact for one in report.tensors) != rounded
    pack.run(source, tmp_path / "own", rules)
    # nvfp4 is encoded together with what vLLM joins it with, which octavo pack does not.
    own = floats_of(tmp_path / ("ct" if recipe == "nvfp4" else "own"), tmp_path / "again")
    several = ";" in recipe and "v_proj" in recipe
    asked = {} if several else {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    if several and dtype == torch.float32:
        pytest.skip("transformers gives layers of mxfp4 bfloat16 weights in a float32 model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ct", **asked)
        with torch.no_grad():
            read(IDS)
            assert torch.equal(read(IDS).logits, own(IDS).logits)


def ct_tensors(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= octavo.load(file)
    return tensors


def assert_same_bytes(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype and mine[name].shape == tensor.shape, name
        assert torch.equal(mine[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


EVERY = {
    "q_proj": ("words", weights(4)), "k_proj": ("words", weights(3, symmetric=False), True),
    "v_proj": ("nvfp4", ARGS["nvfp4"]), "o_proj": ("bytes", weights(8, strategy="channel", symmetric=False)),
    "gate_proj": ("mxfp4", ARGS["mxfp4"]), "up_proj": ("mxfp8", ARGS["mxfp8"]),
    "down_proj": ("words", weights(1, strategy="block", block=(16, 32))),
}  # fmt: skip
SINGLE = [
    *(("words", weights(bits, symmetric=symmetric), sparse) for bits in (1, 2, 3, 5, 8) for symmetric in (True, False) for sparse in (True, False)),
    *((form, weights(8 if form == "bytes" else 4, strategy=strategy, symmetric=symmetric, block=(16, 32) if strategy == "block" else None))
      for form in ("words", "bytes") for strategy in ("tensor", "channel", "group", "block") for symmetric in (True, False)),
    ("mxfp6", ARGS["mxfp6"]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("number", range(len(SINGLE)))
def test_weights_that_were_read_lie_as_they_lay(number, dtype):
    from octavo.interchange.compressed_tensors_former import _former

    form, args, *sparse = SINGLE[number]
    parts, _ = layer((40, 96), torch.Generator().manual_seed(number), args, form, dtype, *sparse)
    if args.get("group_size") and number % 2:
        parts["weight_g_idx"] = torch.arange(96, dtype=torch.int32) // 32 if number % 4 > 1 else torch.full((96,), -1)
    weight = weight_of(parts, args, form)
    packed = weight.carry(torch.float32)
    again = {part: make() for part, make in parts_of(packed, torch.float32, _former(weight)).makers.items()}
    assert_same_bytes(again, parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_folder_comes_back_with_the_same_tensors(tmp_path, dtype):
    folder_of(llama(), tmp_path / "ct", lambda name: EVERY.get(name.rpartition(".")[2]), dtype=dtype, files=2)
    first = octavo.load(next(iter(sorted((tmp_path / "ct").glob("*.safetensors")))))
    first |= {
        "model.layers.0.self_attn.k_scale": torch.tensor(0.5),
        "model.layers.1.mlp.up_proj.input_scale": torch.ones(1),
    }
    octavo.save(first, sorted((tmp_path / "ct").glob("*.safetensors"))[0])
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    report = convert(tmp_path / "own", tmp_path / "again", KIND)
    assert_same_bytes(ct_tensors(tmp_path / "again"), ct_tensors(tmp_path / "ct"))
    mine, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("again", "ct"))
    assert mine == theirs and not (tmp_path / "again" / NAME).exists()
    assert all(one.exact for one in report.tensors) == (dtype == torch.bfloat16)
    convert(tmp_path / "ct", tmp_path / "copy", KIND)
    assert_same_bytes(ct_tensors(tmp_path / "copy"), ct_tensors(tmp_path / "ct"))


def test_saved_models_keep_how_their_weights_lay(tmp_path):
    folder_of(llama(), tmp_path / "ct", lambda name: EVERY.get(name.rpartition(".")[2]), dtype=torch.bfloat16)
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    octavo.save_model(octavo.load_model(tmp_path / "own"), tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "again", KIND)
    assert_same_bytes(ct_tensors(tmp_path / "again"), ct_tensors(tmp_path / "ct"))


def test_weights_that_are_others_now_are_written_as_they_are(tmp_path):
    folder_of(llama(), tmp_path / "ct", lambda name: EVERY.get(name.rpartition(".")[2]), dtype=torch.bfloat16)
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    model = octavo.load_model(tmp_path / "own")
    weight = model.model.layers[0].self_attn.v_proj.weight
    weight.levels[0] *= 3  # the divisor that was read is another one now
    octavo.save_model(model, tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "again", KIND)
    read = octavo.load_model(tmp_path / "again")
    assert torch.equal(read.model.layers[0].self_attn.v_proj.weight.decode(), weight.decode())
    assert torch.equal(read(IDS).logits, model(IDS).logits)


def test_factors_that_no_divisor_gives_are_told(tmp_path):
    """Products of a short factor lie in the middle of two bfloat16: rounded to even, which no quotient is."""
    packed = octavo.encode(torch.randn(64, 96, generator=torch.Generator().manual_seed(2)).bfloat16(), "nvfp4")
    packed.scales.copy_(torch.arange(384).view(64, 6) % 127)
    packed.levels[0] = 7 / 8192
    stored = parts_of(packed, torch.bfloat16)
    assert stored.note == "codes and scales are; values within one unit in the last place of bfloat16"
    values, own = stored.weight("a", "x").decode(), packed.decode()
    units = (values.view(torch.int16) - own.view(torch.int16)).abs()
    assert 0 < units.max() <= 1
    packed.levels[0] = 0
    with pytest.raises(NoFormatError, match="which no divisor gives"):
        parts_of(packed, torch.bfloat16)


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    source = saved(tmp_path / "float", tie_word_embeddings=True)
    with pytest.raises(FormatError) as error:
        convert(source, tmp_path / "ct", KIND, recipe="nf4; **.q_proj=int4:g48")
    assert str(error.value).startswith(
        "model.embed_tokens.weight: 'nf4': compressed-tensors has no such format; model.layers.0"
    )
    assert "64 columns, which groups of 48 do not divide" in str(error.value) and "and 7 more" in str(error.value)
    assert str(error.value).endswith("--decode writes the same values as floats") and not (tmp_path / "ct").exists()
    report = convert(source, tmp_path / "ct", KIND, recipe="nf4; **.up_proj=int4:g32", decode=True)
    notes = {one.source.rpartition(".")[0].rpartition(".")[2]: one.note for one in report.tensors}
    assert (
        notes["q_proj"].startswith("decoded: ")
        and notes["up_proj"] is None
        and "tables stay floats" in notes["embed_tokens"]
    )
    octavo.load_model(tmp_path / "ct")


def test_heads_that_have_the_table_stay_tied(tmp_path):
    source = saved(tmp_path / "float", tie_word_embeddings=True)
    convert(source, tmp_path / "ct", KIND, recipe="int8:g32")
    entry = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    assert entry["ignore"] == ["lm_head"] and entry["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert entry["format"] == "pack-quantized" and entry["config_groups"]["group_0"]["weights"]["group_size"] == 32
    model = octavo.load_model(tmp_path / "ct")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_several_groups_name_their_layers(tmp_path):
    source = saved(tmp_path / "float", tie_word_embeddings=False)
    report = convert(source, tmp_path / "ct", KIND, recipe="type:Linear nvfp4; **.o_proj=int4:g32; lm_head=keep")
    entry = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    groups = entry["config_groups"]
    assert (
        groups["group_0"]["targets"] == ["Linear"]
        and groups["group_0"]["weights"]["scale_dtype"] == "torch.float8_e4m3fn"
    )
    assert groups["group_1"]["targets"] == [f"model.layers.{number}.self_attn.o_proj" for number in (0, 1)]
    assert entry["ignore"] == ["lm_head"] and entry["format"] == "mixed-precision"
    assert report.notes == ["10 weights of nvfp4 share a factor with those that vLLM joins them with"]
    tensors = ct_tensors(tmp_path / "ct")
    for parent, parts in (("self_attn", "qkv"), ("mlp", ("gate", "up"))):
        layer_ = f"model.layers.1.{parent}"
        assert len({tensors[f"{layer_}.{part}_proj.weight_global_scale"].item() for part in parts}) == 1
    values, decoded = octavo.load(source / "model.safetensors"), octavo.load_model(tmp_path / "ct")
    weight = decoded.model.layers[1].self_attn.k_proj.weight
    error = (weight.decode() - values["model.layers.1.self_attn.k_proj.weight"]).norm()
    assert error < 0.12 * values["model.layers.1.self_attn.k_proj.weight"].norm()


def test_factors_that_differ_within_joined_layers_are_told(tmp_path):
    from octavo.cli import pack

    pack.run(saved(tmp_path / "float"), tmp_path / "own", "type:Linear nvfp4; lm_head=keep")
    assert convert(tmp_path / "own", tmp_path / "ct", KIND).notes == [
        "vLLM joins q, k, v and gate, up and takes one weight_global_scale of them; in 4 places they differ"
    ]
    report = convert(tmp_path / "float", tmp_path / "hqq", KIND, recipe="type:Linear nvfp4@mse; lm_head=keep")
    assert report.notes == ["10 weights of nvfp4 share a factor with those that vLLM joins them with"]


def test_scales_are_those_of_the_model_where_they_can_be(tmp_path):
    source = saved(tmp_path / "float", torch.float16)
    assert not convert(source, tmp_path / "ct", KIND, recipe="type:Linear int4:g32; lm_head=keep").notes
    scale = octavo.load(tmp_path / "ct" / "model.safetensors")["model.layers.0.mlp.up_proj.weight_scale"]
    assert scale.dtype == torch.float16
    source = saved(tmp_path / "bfloat", torch.bfloat16)
    (note,) = convert(source, tmp_path / "ct2", KIND, recipe="type:Linear int4:g32; lm_head=keep").notes
    assert note.startswith("scales of 14 weights are float32, since bfloat16 does not hold them")
    scale = octavo.load(tmp_path / "ct2" / "model.safetensors")["model.layers.0.mlp.up_proj.weight_scale"]
    assert scale.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 9}, "version is 9; this Octavo reads 1"),
        ({"weights": []}, r"weights is \[\]; accepted is an object"),
        ({"weights": {"a": {"form": "x", "fills": {}}}}, "form 'x'"),
        ({"extra": {"a": {"dtype": "float32", "shape": [1 << 39], "data": ""}}}, "0 bytes, and the shape is"),
        ({"extra": {"a": {"dtype": "abs", "shape": [1], "data": ""}}}, "accepted are a dtype and a shape"),
        ({"extra": {"a": {"dtype": "int8", "shape": [1], "data": "*"}}}, "data is no base64"),
    ],
)
def test_a_damaged_file_of_the_former_folder_is_refused(tmp_path, change, told):
    folder_of(llama(layers=1), tmp_path / "ct", lambda name: EVERY.get(name.rpartition(".")[2]))
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    content = json.loads((tmp_path / "own" / NAME).read_text())
    assert FormerFolder.read(tmp_path / "own").text() == (tmp_path / "own" / NAME).read_text()
    (tmp_path / "own" / NAME).write_text(json.dumps(content | change))
    with pytest.raises(ContainerError, match=told):
        convert(tmp_path / "own", tmp_path / "again", KIND)
    (tmp_path / "own" / NAME).unlink()  # as the message says
    convert(tmp_path / "own", tmp_path / "again", KIND)


def test_targets_that_are_there_are_refused(tmp_path):
    source = saved(tmp_path / "float")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ContainerError, match="a file; the output is a folder"):
        convert(source, tmp_path / "file", KIND)
    with pytest.raises(ContainerError, match="the output would lie in the input"):
        convert(source, source / "in", KIND)
    convert(source, tmp_path / "ct", KIND)
    with pytest.raises(FileExistsError):
        convert(source, tmp_path / "ct", KIND)
    convert(source, tmp_path / "ct", KIND, overwrite=True)
    assert "quantization_config" not in json.loads((tmp_path / "ct" / "config.json").read_text())


def test_codes_go_from_llama_cpp_to_vllm_and_back(tmp_path):
    """Files of one package become files of the other without a rounding: Q4_0 and Q8_0 are integers with scales."""
    source = saved(tmp_path / "float", tie_word_embeddings=False)
    convert(
        source,
        tmp_path / "x.gguf",
        "gguf",
        recipe="type:Linear int8:g32; **.down_proj=uint4:g32; lm_head=keep",
        decode=True,
    )
    report = convert(tmp_path / "x.gguf", tmp_path / "ct", KIND)
    assert all(one.exact for one in report.tensors) and not (tmp_path / "ct" / "gguf.json").exists()
    first, second = octavo.load_model(tmp_path / "x.gguf"), octavo.load_model(tmp_path / "ct")
    for name, layer_ in first.named_modules():
        if isinstance(getattr(layer_, "weight", None), octavo.PackedTensor):
            assert layer_.weight == second.get_submodule(name).weight, name
    convert(tmp_path / "ct", tmp_path / "y.gguf", "gguf")
    assert torch.equal(octavo.load_model(tmp_path / "y.gguf")(IDS).logits, first(IDS).logits)


def test_damaged_texts_of_the_former_folder_are_refused_or_read(tmp_path):
    folder_of(llama(layers=1), tmp_path / "ct", lambda name: EVERY.get(name.rpartition(".")[2]))
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    whole, rng, ended = (tmp_path / "own" / NAME).read_text(), random.Random(0), 0
    for _ in range(40):
        data = list(whole)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.choice('0123456789{}[]",:abcx')
        (tmp_path / "own" / NAME).write_text("".join(data))
        try:
            convert(tmp_path / "own", tmp_path / "again", KIND, overwrite=True)
        except OctavoError:
            ended += 1
    assert 5 < ended < 40


@pytest.mark.parametrize("form", ["words", "mxfp4"])
def test_experts_come_back_with_the_same_tensors(tmp_path, form):
    mixture(tmp_path / "ct", (form, ARGS.get(form, weights(4))))
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    report = convert(tmp_path / "own", tmp_path / "again", KIND)
    assert_same_bytes(ct_tensors(tmp_path / "again"), ct_tensors(tmp_path / "ct"))
    mine, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("again", "ct"))
    assert mine == theirs and all(one.exact for one in report.tensors)
    (tmp_path / "own" / NAME).unlink()
    with pytest.raises(ModelError, match="has parameters that are layers in the file"):
        convert(tmp_path / "own", tmp_path / "new", KIND)
    with pytest.raises(ModelError, match="has parameters that are layers in the file"):
        convert(tmp_path / "own", tmp_path / "x.onnx", "onnx-matmulnbits")


def nodes(value):
    """Every place in a JSON value: the object or list, and the key."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


def attack_former(folder, count, seed):
    whole, rng, ended = json.loads((folder / NAME).read_text()), random.Random(seed), 0
    for number in range(count):
        content = json.loads(json.dumps(whole))
        places = [place for key in ("weights", "experts", "names", "extra") for place in nodes(content[key])]
        for _ in range(rng.randrange(1, 3)):
            owner, key = rng.choice(places)
            values = (
                None,
                0,
                -1,
                1,
                2,
                1 << 39,
                1.5,
                True,
                "",
                "x",
                "words",
                "bytes",
                "float32",
                "int32",
                [],
                [1, 1 << 30],
                {},
            )
            owner[key] = rng.choice(values)
        (folder / NAME).write_text(json.dumps(content))
        try:
            convert(folder, folder.parent / "again", KIND, overwrite=True)
        except OctavoError as error:
            ended += 1
            assert NAME in str(error) or "experts" in str(error) or "tensor" in str(error), (number, error)
    return ended


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_values_of_the_former_folder_are_refused_or_count_for_nothing(tmp_path, count):
    mixture(tmp_path / "ct", ("words", weights(4)))
    Conversion.of(open_folder(tmp_path / "ct"), packed=True).write(tmp_path / "own")
    assert attack_former(tmp_path / "own", count, count) > count // 5
    folder_of(llama(layers=1), tmp_path / "ct2", lambda name: EVERY.get(name.rpartition(".")[2]))
    Conversion.of(open_folder(tmp_path / "ct2"), packed=True).write(tmp_path / "own2")
    assert attack_former(tmp_path / "own2", count, count) > count // 5


PRESETS = (
    "W4A16", "W4A16_ASYM", "W8A16", "W3A16", "W8A8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16",
    "MXFP8A16", "MXFP6A16",
)  # fmt: skip


def package_folder(preset, path):
    """A small model that the package quantized and wrote."""
    peer = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    model = transformer(
        "LlamaForCausalLM", width=128, heads=4, inner=256, num_key_value_heads=2, layers=1
    ).bfloat16()  # fmt: skip
    scheme = peer.quantization.QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=["lm_head"])
    peer.quantization.apply_quantization_config(model, scheme)
    for module in model.modules():
        if not hasattr(module, "quantization_scheme"):
            continue
        args, weight = module.quantization_scheme.weights, module.weight.data.float()
        if args.strategy in ("group", "tensor_group"):
            groups, axes, keep = weight.unflatten(1, (-1, args.group_size)), (2,), False
        elif args.strategy == "block":
            rows, columns = args.block_structure
            padded = torch.zeros(-(-len(weight) // rows) * rows, -(-weight.shape[1] // columns) * columns)
            padded[: len(weight), : weight.shape[1]] = weight
            groups, axes, keep = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)), (1, 3), False
        else:
            groups, axes, keep = weight, (1,) if args.strategy == "channel" else (0, 1), True
        given_scale = {}
        if hasattr(module, "weight_global_scale"):
            module.weight_global_scale.data.fill_(6 * 448 / float(weight.abs().max()))
            given_scale = {"global_scale": module.weight_global_scale.data}
        scales, zeros = calculate_qparams(groups.amin(axes, keep), groups.amax(axes, keep), args, **given_scale)
        module.weight_scale.data.copy_(scales.reshape(module.weight_scale.shape))
        if getattr(module, "weight_zero_point", None) is not None:
            module.weight_zero_point.data.copy_(zeros.reshape(module.weight_zero_point.shape))
        if hasattr(module, "input_scale"):
            module.input_scale.data.fill_(0.5)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(path)
    compressor.update_config(path)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.filterwarnings("ignore")
def test_folders_of_the_package_are_read_and_come_back(tmp_path, preset):
    transformers = pytest.importorskip("transformers")
    package_folder(preset, tmp_path / "ct")
    mine = octavo.load_model(tmp_path / "ct")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ct", quantization_config=transformers.CompressedTensorsConfig(dequantize=True)
    )
    for name, value in theirs.state_dict().items():
        if name.endswith("_proj.weight"):
            weight = mine.get_submodule(name.removesuffix(".weight")).weight
            assert torch.equal(weight.decode() if isinstance(weight, octavo.PackedTensor) else weight, value), name
    conversion = Conversion.of(open_folder(tmp_path / "ct"), packed=True)
    conversion.write(tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "again", KIND)
    if preset.startswith("FP8"):  # decoded
        assert "no format has E4M3 codes with scales that are no powers of two" in conversion.notes[0]
        return
    assert_same_bytes(ct_tensors(tmp_path / "again"), ct_tensors(tmp_path / "ct"))
    mine, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("again", "ct"))
    assert mine == theirs
