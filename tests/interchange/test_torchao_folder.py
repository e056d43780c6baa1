"""Weights of torchao: values are those of the package, and of its definition, written here apart."""

import json
import random
import warnings

import octavo
import pytest
import torch
from helpers.packed_folders import VALUES, damaged, same_bits, values_in
from octavo.errors import ContainerError
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.layer_packing import entries_of
from octavo.interchange.stored_weights import StoredFolder
from octavo.interchange.torchao_folder import weights_of

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SETTINGS = {"quant_method": "torchao"}
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")
FORMATS = {"float8_e4m3fn": "mxfp8e4m3", "float8_e5m2": "mxfp8e5m2", "float4_e2m1fn_x2": "mxfp4", "nvfp4": "nvfp4"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def dtype_record(name):
    return {"_type": "torch.dtype", "_data": name}


def layer(shape, rng, element, dtype="float32", span=(110, 140)):
    """Parts of random codes and scales, the record of the metadata, and the values."""
    rows, columns = shape
    kind = getattr(torch, dtype)
    is_pair = element in ("float4_e2m1fn_x2", "nvfp4")
    codes = torch.randint(0, 16 if is_pair else 256, shape, generator=rng)
    if element == "float8_e4m3fn":
        codes[codes & 127 == 127] = 0
    elif element == "float8_e5m2":
        codes[codes & 127 > 123] = 0
    if is_pair:
        stored, elements = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), torch.cat([E2M1, -E2M1])[codes]
    else:
        stored = codes.to(torch.uint8).view(getattr(torch, element))
        elements = stored.float()
    record = {"orig_dtype": dtype_record(dtype), "is_swizzled_scales": False, "act_quant_kwargs": None}
    if element == "nvfp4":
        scales = torch.randint(0, 127, (rows, columns // 16), generator=rng).to(torch.uint8).view(torch.float8_e4m3fn)
        factor = (torch.rand((), generator=rng) + 0.01) / 1000
        values = (elements * (factor * scales.float()).repeat_interleave(16, 1)).to(kind)
        parts = {"qdata": stored, "scale": scales, "per_tensor_scale": factor}
        return parts, {"_type": "NVFP4Tensor", "_data": {**record, "block_size": 16}}, values
    exponents = torch.randint(*span, (rows, columns // 32), generator=rng).to(torch.uint8)
    step = (2.0 ** (exponents.float() - 127)).to(kind).repeat_interleave(32, 1)
    record |= {"block_size": 32, "elem_dtype": dtype_record(element), "kernel_preference": None}
    parts = {"qdata": stored, "scale": exponents.view(torch.float8_e8m0fnu)}
    return parts, {"_type": "MXTensor", "_data": record}, elements.to(kind) * step


def packing_of(parts, record, names=None):
    tensors = {f"a.b._weight_{part}": value for part, value in parts.items()}
    record = {**record, "_tensor_data_names": list(parts) if names is None else names}
    metadata = {"a.b.weight": json.dumps(record), "tensor_names": '["a.b.weight"]', "format": "pt"}
    return weights_of(
        StoredFolder(entries_of(tensors), SETTINGS, "x/config.json", tensors.__getitem__, lambda name: b"", metadata)
    )


def weight_of(parts, record, **more):
    return packing_of(parts, record, **more).weights["a.b.weight"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("element", [*ELEMENTS, "nvfp4"])
def test_values_are_those_of_the_definition(element, dtype):
    parts, record, values = layer((32, 128), generator(1), element, dtype)
    weight = weight_of(parts, record)
    carried = weight.carry(weight.dtype)
    assert weight.dtype == values.dtype and same_bits(weight.decode(), values)
    assert str(carried.format) == FORMATS[element] and same_bits(carried.decode(), values)
    assert torch.equal(carried.codes, parts["qdata"].view(torch.uint8))
    assert torch.equal(carried.scales, parts["scale"].view(torch.uint8))


def test_every_scale_code_is_carried_with_its_values_or_decoded():
    for element in ELEMENTS:
        for dtype in ("float32", "bfloat16", "float16"):
            for code in range(256):
                parts, record, _ = layer((2, 32), generator(code), element, dtype)
                parts["scale"] = torch.full((2, 1), code, dtype=torch.uint8).view(torch.float8_e8m0fnu)
                weight = weight_of(parts, record)
                carried = weight.carry(weight.dtype)
                if not isinstance(carried, str):
                    assert same_bits(carried.decode(), weight.decode()), (element, dtype, code)
                else:
                    assert code > 120 or dtype == "float16"


def peer_weight(shape, rng, element, dtype, swizzled=False):
    """The tensors and the record that the package stores of a random matrix, and what it decodes them to."""
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    matrix = torch.randn(shape, generator=rng).to(dtype)
    if element == "nvfp4":
        packed = NVFP4Tensor.to_nvfp4(
            matrix, per_tensor_scale=matrix.abs().max().float() / (448 * 6), is_swizzled_scales=swizzled
        )
    else:
        packed = MXTensor.to_mx(matrix, getattr(torch, element), 32, is_swizzled_scales=swizzled)
    tensors, metadata = flatten_tensor_state_dict({"a.b.weight": packed})
    parts = {name.removeprefix("a.b._weight_"): value for name, value in tensors.items()}
    return parts, json.loads(metadata["a.b.weight"]), packed.dequantize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("element", [*ELEMENTS, "nvfp4"])
def test_values_are_those_of_the_package(element, dtype):
    parts, record, values = peer_weight((64, 128), generator(2), element, dtype)
    weight = weight_of(parts, record, names=record["_tensor_data_names"])
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(dtype).decode(), values)


@pytest.mark.parametrize("shape", [(128, 128), (96, 320), (300, 64)], ids=str)
@pytest.mark.parametrize("element", [*ELEMENTS, "nvfp4"])
def test_swizzled_scales_are_put_in_rows(element, shape):
    parts, record, values = peer_weight(shape, generator(6), element, torch.bfloat16, swizzled=True)
    weight = weight_of(parts, record, names=record["_tensor_data_names"])
    assert record["_data"]["is_swizzled_scales"] is True
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(torch.bfloat16).decode(), values)


@pytest.mark.slow
@pytest.mark.parametrize("element", [*ELEMENTS, "nvfp4"])
def test_a_million_values_are_those_of_the_package(element):
    parts, record, values = peer_weight((1024, 1024), generator(3), element, torch.bfloat16)
    weight = weight_of(parts, record, names=record["_tensor_data_names"])
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(torch.bfloat16).decode(), values)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_swizzled_scales": True}, r"tensor 'a.b._weight_scale': shape \[8, 2\]; expected are 512 swizzled scales"),
        ({"is_swizzled_scales": 1}, "metadata of tensor 'a.b.weight': is_swizzled_scales is 1; accepted are true"),
        ({"block_size": 64}, "block_size is 64; read are 32"),
        ({"elem_dtype": dtype_record("float6_e2m3")}, "elem_dtype is 'float6_e2m3'; read are float8_e4m3fn"),
        ({"orig_dtype": dtype_record("int8")}, "orig_dtype is 'int8'; read are float32"),
        ({"orig_dtype": "float32"}, "orig_dtype is 'float32'; accepted is"),
    ],
)
def test_other_attributes_are_refused_by_name(fields, message):
    parts, record, _ = layer((8, 64), generator(4), "float8_e4m3fn")
    with pytest.raises(ContainerError, match=message):
        packing_of(parts, {**record, "_data": {**record["_data"], **fields}})


def test_other_tensors_are_refused_by_name():
    parts, record, _ = layer((8, 64), generator(5), "float8_e4m3fn")
    with pytest.raises(ContainerError, match="_type is 'Int4Tensor'; read are MXTensor, NVFP4Tensor"):
        packing_of(parts, {**record, "_type": "Int4Tensor"})
    with pytest.raises(ContainerError, match="its 'scale' is not in the folder"):
        packing_of({"qdata": parts["qdata"]}, record)
    with pytest.raises(ContainerError, match=r"tensor 'a.b._weight_scale': float8_e8m0fnu \[8, 1\]; expected"):
        packing_of({**parts, "scale": parts["scale"][:, :1]}, record)
    with pytest.raises(ContainerError, match=r"tensor 'a.b._weight_qdata': the metadata do not say what it is"):
        packing_of(parts, {"_type": "Tensor"})


def test_folders_are_models(tmp_path):
    pytest.importorskip("transformers")
    from helpers.checkpoints import base, write

    tensors, config = base()
    metadata, values = {"format": "pt"}, {}
    for number, name in enumerate(name for name in list(tensors) if "proj" in name):
        element = [*ELEMENTS, "nvfp4"][number % 4]
        parts, record, values[name] = layer(tuple(tensors.pop(name).shape), generator(number), element)
        record["_data"]["act_quant_kwargs"] = {"_type": "x", "_data": {}}
        metadata[name] = json.dumps({**record, "_tensor_data_names": list(parts)})
        path = name.removesuffix(".weight")
        tensors |= {f"{path}._weight_{part}": value for part, value in parts.items()}
    config["quantization_config"] = SETTINGS
    write(tmp_path, tensors, config)
    octavo.save(tensors, tmp_path / "model.safetensors", metadata=metadata)
    reader = reader_of(tmp_path)
    assert reader.kind == "a folder of torchao"
    mine = values_in(octavo.load_model(tmp_path))
    assert all(same_bits(mine[name], value) for name, value in values.items())
    assert reader.open(tmp_path).notes() == ["inputs of layers are not rounded; torchao rounds them"]
    listed = {one.name: one for one in reader.contents(tmp_path)[0]}
    assert listed["model.layers.0.self_attn.q_proj.weight"].format == "torchao MXTensor (mxfp8e4m3)"


def test_models_that_the_package_quantized_have_its_values(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torchao")
    from helpers.checkpoints import base, write
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, config = base()
    packed = {
        name: MXTensor.to_mx(value, torch.float4_e2m1fn_x2, 32) for name, value in tensors.items() if "proj" in name
    }
    flat, metadata = flatten_tensor_state_dict({**tensors, **packed})
    config["quantization_config"] = SETTINGS
    write(tmp_path, flat, config)
    octavo.save(flat, tmp_path / "model.safetensors", metadata={**metadata, "format": "pt"})
    mine = values_in(octavo.load_model(tmp_path))
    assert all(same_bits(mine[name], value.dequantize()) for name, value in packed.items())


def test_models_that_transformers_quantized_and_saved_have_its_values(tmp_path):
    """The scales are swizzled there."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchao")
    from helpers.checkpoints import base, write
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig

    write(tmp_path / "float", *base())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "float",
        quantization_config=transformers.TorchAoConfig(NVFP4WeightOnlyConfig()),
        dtype=torch.bfloat16,
    )
    theirs.save_pretrained(tmp_path / "packed")
    mine = values_in(octavo.load_model(tmp_path / "packed"))
    packed = {name: one.weight for name, one in theirs.named_modules() if name.endswith("_proj")}
    assert len(packed) == 14
    assert all(same_bits(mine[f"{name}.weight"], weight.dequantize()) for name, weight in packed.items())


def attack(seed, count):
    rng, ended = random.Random(seed), 0
    for number in range(count):
        parts, record, _ = layer((8, 64), generator(rng.randrange(1 << 30)), rng.choice([*ELEMENTS, "nvfp4"]))
        names = list(parts)
        parts, values = damaged(rng, parts, record["_data"], ("per_tensor_scale", "is_swizzled_scales", "block_size"))
        record = {**record, "_data": values}
        if rng.random() < 0.1:
            record[rng.choice(list(record))] = rng.choice(VALUES)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for weight in packing_of(parts, record, names).weights.values():
                    carried, decoded = weight.carry(torch.float32), weight.decode()
                    assert decoded.shape == weight.shape and decoded.dtype == weight.dtype
                    assert isinstance(carried, str) or carried.shape == weight.shape
        except ContainerError as error:
            ended += 1
            assert "tensor 'a.b." in str(error), (number, error)
    assert ended > count // 4


def test_damaged_weights_are_refused_by_name_or_read():
    attack(50, 400)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(51, 10_000)
