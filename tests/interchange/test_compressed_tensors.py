"""Weights of compressed-tensors: codes and scales are carried over, values are those of the definition and of the package."""

import json
import random
import warnings

import pytest
import torch
from helpers.compressed_models import ARGS, config, layer, peer_values, weight_of, weights, words
from octavo.errors import ContainerError
from octavo.interchange.compressed_tensors_config import CompressedTensorsConfig, _repeats
from octavo.interchange.compressed_tensors_folder import CompressedTensors
from octavo.interchange.compressed_tensors_weights import nvfp4_divisor, nvfp4_level
from octavo.interchange.packed_words import pack_codes, rows_of_words, words_of_rows

CASES = {
    **{
        f"{bits} bits{'' if symmetric else ', zeros'}{', sparse' if sparse else ''}":
        ("words", weights(bits, symmetric=symmetric), sparse)
        for bits in range(1, 9) for symmetric in (True, False) for sparse in ((False, True) if 32 % bits else (False,))
    },
    **{
        f"{form} {strategy}{'' if symmetric else ', zeros'}":
        (form, weights(4 if form == "words" else 8, strategy=strategy, symmetric=symmetric, block=(16, 32) if strategy == "block" else None), False)
        for form in ("words", "bytes") for strategy in ("tensor", "channel", "block") for symmetric in (True, False)
    },
    "bytes group": ("bytes", weights(8), False),
    "bytes of 4 bits": ("bytes", weights(4), False),
    "ragged": ("words", weights(4, group=48), False),
    **{f"float {strategy}": ("float", weights(8, "float", strategy, block=(16, 32) if strategy == "block" else None), False)
       for strategy in ("tensor", "channel", "group", "block")},
    **{form: (form, args, False) for form, args in ARGS.items()},
}  # fmt: skip
DECODED = {"float tensor", "float channel", "float group", "float block"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_definition(name, dtype):
    form, args, sparse = CASES[name]
    rng = torch.Generator().manual_seed(1)
    parts, values = layer((48, 160 if name == "ragged" else 96), rng, args, form, dtype, sparse)
    weight = weight_of(parts, args, form, version="0.12.0" if sparse else "0.20.0")
    assert torch.equal(weight.decode(), values) and weight.nbytes == sum(part.nbytes for part in parts.values())
    carried = weight.carry(torch.float32)
    if name in DECODED:
        assert carried == "no format has E4M3 codes with scales that are no powers of two"
    else:
        assert torch.equal(carried.decode(values.dtype), values)


@pytest.mark.parametrize(("text", "name"), [("int4:g32", "4 bits"), ("uint3:g32", "3 bits, zeros, sparse"), ("int8", "bytes tensor"),
    ("uint8:channel", "bytes channel, zeros"), ("int4:g32", "words block"), ("int2:g32", "1 bits"), ("mxfp6e2m3", "mxfp6")])  # fmt: skip
def test_codes_are_carried_into_the_format_that_holds_them(text, name):
    form, args, sparse = CASES[name]
    parts, _ = layer((32, 64), torch.Generator().manual_seed(2), args, form, torch.float32, sparse)
    assert str(weight_of(parts, args, form).carry(torch.float32).format) == text


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("dense", [True, False])
def test_words_and_code_streams_are_each_other(bits, dense):
    rng = torch.Generator().manual_seed(bits)
    for count in (1, 7, 31, 32, 33, 100):
        codes = torch.randint(0, 1 << bits, (3, count), generator=rng)
        stored = words(codes, bits, sparse=not dense)
        stream = rows_of_words(stored, count, bits, dense=dense)
        assert torch.equal(stream, pack_codes(codes, bits))
        assert torch.equal(words_of_rows(stream, count, bits, dense=dense), stored)


def test_powers_of_two_beside_e4m3_codes_are_carried():
    """As DeepSeek stores them: one for a block."""
    rng = torch.Generator().manual_seed(3)
    for strategy, expected in (("tensor", "mxfp8e4m3"), ("channel", "mxfp8e4m3"), ("block", "mxfp8e4m3")):
        args = weights(8, "float", strategy, block=(16, 64) if strategy == "block" else None)
        parts, values = layer(
            (40, 160), rng, args, "float", scales=lambda size: 2.0 ** torch.randint(-20, 20, size, generator=rng)
        )
        carried = weight_of(parts, args, "float").carry(torch.float32)
        assert str(carried.format) == expected and torch.equal(carried.decode(), values)
    parts["weight_scale"] = torch.ones_like(parts["weight_scale"])
    assert str(weight_of(parts, args, "float").carry(torch.float32).format) == "e4m3"


def test_groups_by_index_are_carried_where_they_lie_beside_each_other():
    args = weights(4)
    parts, values = layer((8, 96), torch.Generator().manual_seed(4), args, "words")
    for index in (torch.arange(96) // 32, torch.full((96,), -1)):
        weight = weight_of({**parts, "weight_g_idx": index.int()}, args, "words")
        assert torch.equal(weight.carry(torch.float32).decode(), values)
    mixed = torch.arange(96) % 3
    weight = weight_of({**parts, "weight_g_idx": mixed.int()}, args, "words")
    assert "weight_g_idx" in weight.carry(torch.float32)
    numbers = values / parts["weight_scale"].repeat_interleave(32, 1)
    assert torch.equal(weight.decode(), numbers.round() * parts["weight_scale"][:, mixed])


UNEQUAL = {
    "NaN": ("words", "weight_scale", torch.nan, "scale nan"),
    "infinite": ("words", "weight_scale", torch.inf, "scale inf"),
    "signed": ("words", "weight_scale", -0.5, "scale -0.5 has a sign"),
    "beyond float16": ("words", "weight_scale", 1e6, "scales of groups are float16 here"),
    "E8M0": ("mxfp4", "weight_scale", 255, "scale code 255; up to 252 both mean the same"),
    "E8M0 of E4M3": ("mxfp8", "weight_scale", 247, "scale code 247; up to 246 both mean the same"),
    "divisor": ("nvfp4", "weight_global_scale", 0.0, "weight_global_scale 0.0, by which no factor"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_no_format_holds_is_told(name):
    form, part, value, told = UNEQUAL[name]
    args = ARGS.get(form, weights())
    parts, _ = layer((4, 64), torch.Generator().manual_seed(5), args, form)
    parts[part].view(-1)[-1] = value
    weight = weight_of(parts, args, form)
    assert told in weight.carry(torch.float32)
    assert weight.decode().shape == (4, 64)


def test_scales_of_nvfp4_without_a_sign_are_carried():
    parts, _ = layer((4, 64), torch.Generator().manual_seed(5), ARGS["nvfp4"], "nvfp4")
    parts["weight_scale"].view(torch.uint8)[1, 2] = 0x7F
    assert weight_of(parts, ARGS["nvfp4"], "nvfp4").carry(torch.float32).startswith("row 1, group 2: scale code 127")


def test_the_factor_of_a_tensor_gives_the_values_of_its_divisor():
    """All significands of products, so that a factor that is equal here is equal everywhere."""
    scales = torch.arange(1, 127, dtype=torch.uint8)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    rng = torch.Generator().manual_seed(6)
    found = 0
    for divisor in torch.rand(2000, generator=rng) * 5000 + 0.01:
        level = nvfp4_level(divisor.reshape(1), scales)
        if level is not None:
            found += 1
            steps = scales.view(torch.float8_e4m3fn).float().unsqueeze(1)
            assert torch.equal(
                (values * (steps / divisor)).bfloat16(), (values * (steps * torch.tensor(level))).bfloat16()
            )
    assert found == 2000


def test_a_divisor_gives_the_values_of_the_factor_of_a_tensor():
    scales = torch.arange(1, 127, dtype=torch.uint8)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    steps = scales.view(torch.float8_e4m3fn).float().unsqueeze(1)
    again = 0
    for level in (torch.rand(1000, generator=torch.Generator().manual_seed(7)) / 1000).tolist():
        divisor = nvfp4_divisor(level, scales)
        assert torch.equal(
            (values * (steps / torch.tensor([divisor]))).bfloat16(), (values * (steps * torch.tensor(level))).bfloat16()
        )
        again += nvfp4_level(torch.tensor([divisor]), scales) == level
    assert again > 700
    assert nvfp4_divisor(0.0, scales) is None and nvfp4_level(torch.tensor([torch.nan]), scales) is None


REFUSED = {
    "dtype": ({"weight_packed": lambda part: part.to(torch.int64)}, {}, "'a.b.weight_packed': int64; read are int32"),
    "no scale": ({"weight_scale": None}, {}, "'a.b.weight_packed': no weight_scale is beside it"),
    "no shape": ({"weight_shape": None}, {}, "'a.b.weight_packed': no weight_shape is beside it"),
    "no weight": ({"weight_packed": None}, {}, "no weight is beside it"),
    "rows": ({"weight_shape": lambda part: part + 1}, {}, "'a.b.weight_shape': [9, 65]; weight_packed is [8, 8]"),
    "negative": ({"weight_shape": lambda part: -part}, {}, "'a.b.weight_shape': [-8, -64]"),
    "columns": ({"weight_shape": lambda part: part * torch.tensor([1, 1 << 30])}, {}, "8 words a row; 68719476736 codes"),
    "words": ({"weight_packed": lambda part: part[:, :7]}, {}, "7 words a row; 64 codes of 4 bits are 8"),
    "scales": ({"weight_scale": lambda part: part[:, :1]}, {}, "'a.b.weight_scale': float32 [8, 1]; expected"),
    "scale dtype": ({"weight_scale": lambda part: part.double()}, {}, "'a.b.weight_scale': float64 [8, 2]"),
    "order": ({"weight_g_idx": lambda _: torch.arange(3)}, {}, "'a.b.weight_g_idx': int64 [3]; expected"),
    "both": ({"weight": lambda _: torch.ones(8, 64)}, {}, "'a.b.weight_packed': weight is beside it"),
    "cube": ({"weight_packed": lambda part: part.view(2, 4, 8)}, {}, "shape [2, 4, 8]; read are matrices"),
    "zeros": ({}, {"symmetric": False}, "no weight_zero_point is beside it, and symmetric is false"),
    "bits": ({}, {"num_bits": 5}, "8 words a row; 64 codes of 5 bits are 10, before 0.18 11"),
    "kind": ({}, {"type": "float"}, "'a.b.weight_packed': of words; by the configuration the weight is 4-bit float"),
    "unknown": ({}, {"sizes": 1}, "weights: 'sizes' is not known; accepted are actorder"),
    "bits 9": ({}, {"num_bits": 9}, "num_bits 9 of type 'int'; read are int 1 to 8"),
    "bits true": ({}, {"num_bits": True}, "num_bits True of type 'int'"),
    "list": ({}, {"type": [1]}, "num_bits 4 of type [1]"),
    "group 0": ({}, {"group_size": 0}, "group_size is 0; accepted are whole numbers above 0"),
    "no group": ({}, {"group_size": None}, "group_size is None, and strategy is 'group'"),
    "strategy": ({}, {"strategy": "token"}, "strategy is 'token'; read are tensor"),
    "block": ({}, {"strategy": "block"}, "block_structure is None; accepted are two whole numbers"),
    "symmetric": ({}, {"symmetric": 1}, "symmetric is 1; accepted is a boolean"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_tensors_and_fields_are_refused_by_name(name):
    changes, fields, told = REFUSED[name]
    parts, _ = layer((8, 64), torch.Generator().manual_seed(7), weights(), "words")
    for part, change in changes.items():
        value = None if change is None else change(parts.get(part))
        parts = {key: one for key, one in parts.items() if key != part} | ({} if value is None else {part: value})
    with pytest.raises(ContainerError) as error:
        weight_of(parts, weights() | fields, "words")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"format": "sparse-bitmask"}, "format is 'sparse-bitmask'; read are dense"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is"),
        ({"transform_config": {"config_groups": {}}}, "transform_config is"),
        ({"config_groups": None}, "config_groups is None; accepted is an object"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config_groups: 'W4A16' is ['Linear']; accepted is an object"),
        ({"config_groups": {"a": {"targets": [1]}}}, "targets is [1]; accepted are texts"),
        ({"config_groups": {"a": {"targets": ["re:("]}}}, "the target 're:(' is no regular expression"),
        ({"config_groups": {"a": {"targets": ["re:(a+)+b"]}}}, "matching may take hours"),
        ({"kv_cache_scheme": 1}, "kv_cache_scheme is 1; accepted is an object"),
        (
            {"config_groups": {"a": {"targets": ["re:a"] * 5000}}},
            "5000 targets are expressions; accepted are up to 4096",
        ),
    ],
)
def test_configurations_are_refused_by_field(fields, told):
    with pytest.raises(ContainerError) as error:
        values = config(weights(), "words") | fields
        CompressedTensorsConfig.read(values, "x/config.json").check_expressions(["model.layers.0.mlp"])
    assert told in str(error.value) and str(error.value).startswith("x/config.json: quantization_config")


@pytest.mark.parametrize(
    ("text", "count", "nested"),
    [
        (r".*lm_head", 1, False),
        (r"model.layers.\d+.mlp.gate$", 1, False),
        (r".*(q|k|v)_proj$", 1, False),
        (r".*?experts.*?down", 2, False),
        (r"(?:model\.)?layers\.(?:1|2)\..*", 2, False),
        (r"[*+]a\(b\*", 0, False),
        (r"(a+)+$", 2, True),
        (r"(a|aa)*b", 1, True),
        (r"((a)b*)*", 2, True),
        (r"(a?){30}", 2, True),
    ],
)
def test_expressions_that_backtrack_without_end_are_told(text, count, nested):
    assert _repeats(text) == (count, nested)


def several(**targets):
    """A configuration whose groups have these targets, told apart by their bits."""
    groups = {
        f"group_{bits}": {"targets": names, "weights": weights(bits), "format": "pack-quantized"}
        for bits, names in zip((2, 3, 4, 5), targets.values(), strict=False)
    }
    return {"config_groups": groups, "format": "mixed-precision"}


TARGETS = (
    {"a": ["Linear"], "b": ["model.layers.1.mlp.up_proj"], "c": [r"re:.*down_proj$"]},
    {"a": [r"re:.*self_attn.*", "Linear"], "b": [r"re:model\.layers\.0\..*"]},
    {"a": ["Linear"], "b": ["Embedding"]},
    {"a": ["model.layers.0.self_attn.q_proj"], "b": [r"re:.*q_proj"], "c": ["Module"]},
)


@pytest.mark.parametrize("targets", TARGETS)
def test_schemes_are_chosen_as_the_package_chooses_them(targets):
    peer = pytest.importorskip("compressed_tensors.utils.match")
    read = CompressedTensorsConfig.read(several(**targets), "x")
    by_target = {target: scheme for scheme in read.schemes for target in scheme.targets}
    linear, table = torch.nn.Linear(1, 1), torch.nn.Embedding(1, 1)
    for name in (
        "lm_head",
        *(f"model.layers.{n}.{m}" for n in (0, 1) for m in ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")),
    ):
        for module in (linear, table):
            matched = peer.match_targets(name, module, by_target)
            classes = [kind.__name__ for kind in type(module).__mro__]
            if matched:
                assert read.scheme_of((name,), classes) == by_target[matched[0]], name
            else:
                with pytest.raises(ContainerError, match="no target of config_groups"):
                    read.scheme_of((name,), classes)


def test_rounding_of_activations_and_caches_is_told():
    values = config(weights(8, strategy="channel"), "bytes", kv_cache_scheme={"num_bits": 8, "type": "float"})
    values["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True, "strategy": "token"}
    parts, _ = layer((4, 8), torch.Generator().manual_seed(8), weights(8, strategy="channel"), "bytes")
    tensors = {f"a.{part}": value for part, value in parts.items()} | {
        "a.input_scale": torch.ones(1),
        "s.k_scale": torch.ones(1),
    }
    packing = CompressedTensors.read(tensors, values, "x/config.json")
    assert packing.taken == tensors.keys()
    assert packing.notes() == [
        "inputs of layers are not rounded; the configuration rounds them (8-bit int, token, scales of each call)",
        "keys and values are not rounded; the configuration rounds them (8-bit float, tensor, scales of the file)",
    ]


@pytest.mark.parametrize("shape", [(0, 64), (8, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("form", ["words", "bytes", "float"])
def test_weights_without_elements_are_read(shape, form):
    args = weights(4 if form == "words" else 8, "float" if form == "float" else "int", symmetric=form != "bytes")
    parts, values = layer(shape, torch.Generator().manual_seed(9), args, form)
    weight = weight_of(parts, args, form)
    assert torch.equal(weight.decode(), values)
    carried = weight.carry(torch.float32)
    assert (form == "float" and carried.__class__ is str) or tuple(carried.shape) == shape


def test_rows_without_elements_may_claim_any_width():
    """No memory is taken by what a shape claims."""
    parts = {"weight_packed": torch.empty(0, 1 << 30, dtype=torch.int32), "weight_scale": torch.empty(0, 1),
             "weight_shape": torch.tensor([0, 1 << 33])}  # fmt: skip
    weight = weight_of(parts, weights(4, strategy="channel"), "words")
    assert weight.carry(torch.float32).shape == (0, 1 << 33) and weight.decode().shape == (0, 1 << 33)


def mutated(rng, form):
    """Tensors and a configuration of which one thing is another."""
    args = ARGS.get(
        form,
        weights(
            rng.randrange(1, 9) if form == "words" else 8,
            "float" if form == "float" else "int",
            symmetric=form == "float" or rng.random() < 0.5,
        ),
    )
    parts, _ = layer((8, 64), torch.Generator().manual_seed(rng.randrange(1 << 30)), args, form)
    values = json.loads(json.dumps(config(args, form)))
    scheme = values["config_groups"]["group_0"]["weights"]
    name = rng.choice(list(parts))
    part = parts[name]
    match rng.randrange(7):
        case 0:
            del parts[name]
        case 1:
            shape = [rng.choice((0, 1, 2, 7, size, size + 1)) for size in part.shape] + [1] * (rng.random() < 0.2)
            parts[name] = torch.zeros(shape, dtype=part.dtype)
        case 2:
            kind = rng.choice(
                (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float32, torch.bool, torch.float8_e4m3fn)
            )
            parts[name] = torch.zeros(part.shape).to(kind)
        case 3:
            data = part.contiguous().view(-1).view(torch.uint8)
            for _ in range(rng.randrange(1, 9)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 4:
            other = rng.choice(("weight", "weight_g_idx", "weight_global_scale", "weight_zero_point", "weight_shape"))
            parts[other] = torch.randint(-2, 3, rng.choice(((8, 64), (64,), (2,), (8, 2), ()))).to(
                rng.choice((torch.int32, torch.int64, torch.float32))
            )
        case 5:
            key = rng.choice((*scheme, "group_size", "block_structure", "actorder", "x"))
            scheme[key] = rng.choice(
                (
                    None,
                    -1,
                    0,
                    1,
                    3,
                    1 << 70,
                    1.5,
                    True,
                    "",
                    "int",
                    "float",
                    "block",
                    "group",
                    "channel",
                    [],
                    [0, 0],
                    [16, 32],
                    {},
                )
            )
        case _:
            target = rng.choice((values, values["config_groups"]["group_0"]))
            target[rng.choice((*target, "version", "kv_cache_scheme"))] = rng.choice(
                (None, 0, "", "0.1", "9" * 5000, [], ["re:.*"], {}, {"num_bits": []}, "dense", "nvfp4-pack-quantized")
            )
    return parts, values


def attack(seed, count):
    rng = random.Random(seed)
    ended = 0
    for number in range(count):
        parts, values = mutated(rng, rng.choice(("words", "bytes", "float", *ARGS)))
        tensors = {f"a.b.{part}": value for part, value in parts.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                packing = CompressedTensors.read(tensors, values, "x/config.json")
                packing.settle({})
                for weight in packing.weights.values():
                    carried = weight.carry(torch.float32)
                    decoded = weight.decode()
                    assert isinstance(carried, str) or carried.shape == decoded.shape
        except ContainerError as error:
            ended += 1
            assert "quantization_config" in str(error) or "tensor 'a.b." in str(error), (number, error)
    assert ended > count // 4


def test_damaged_weights_are_refused_by_name_or_read():
    attack(10, 600)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(11, 10_000)


PEER = [name for name in CASES if "sparse" not in name and name != "ragged"]


def compare(name, shape, dtype):
    pytest.importorskip("compressed_tensors")
    form, args, _ = CASES[name]
    parts, _ = layer(shape, torch.Generator().manual_seed(12), args, form, dtype)
    if form in ("mxfp4", "mxfp6", "mxfp8"):
        parts["weight_scale"].view(-1)[:4] = torch.tensor([0, 1, 5, 246], dtype=torch.uint8)
    weight = weight_of(parts, args, form)
    values = peer_values(parts, args, form)
    assert torch.equal(weight.decode(), values) and weight.decode().dtype == values.dtype
    if name not in DECODED:
        assert torch.equal(weight.carry(values.dtype).decode(), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PEER)
def test_values_are_those_of_the_package(name, dtype):
    compare(name, (32, 96), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", PEER)
def test_a_million_values_are_those_of_the_package(name):
    compare(name, (1024, 1024), torch.float32)
