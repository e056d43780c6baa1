"""Folders of random codes and scales as packages pack them, their values, and damaged ones. No package is loaded."""

import json
import random
import warnings

import octavo
import torch
from octavo.errors import ContainerError
from octavo.interchange.layer_packing import read_packing

from helpers.checkpoints import base, write

LABEL = "x/config.json"


def weight_of(find, parts, settings, name="a.b.weight"):
    """The weight that tensors of a layer ``a.b`` make; ``parts`` by the suffixes of their names."""
    packing = read_packing(find, {f"a.b.{part}": value for part, value in parts.items()}, settings, LABEL)
    packing.settle({name: (name, "Linear", "Module")})
    return packing.weights[name]


def same_bits(mine, theirs):
    """Whether floats have equal bits; zeros of either sign are one, and so are NaNs."""
    return mine.dtype == theirs.dtype and bool(((mine == theirs) | (mine.isnan() & theirs.isnan())).all())


def folder_of(path, layer, settings, dtype=torch.float32, shards=1, beside=None):
    """Write a small llama whose projections ``layer(shape, rng)`` gives as parts and values; return the values.

    ``beside``: name of the file that has the settings in the place of ``config.json``.
    """
    tensors, config = base()
    tensors = {name: value.to(dtype) for name, value in tensors.items()}
    rng, values = torch.Generator().manual_seed(0), {}
    for name in [name for name in tensors if "proj" in name]:
        parts, values[name] = layer(tuple(tensors.pop(name).shape), rng)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": value.clone() for part, value in parts.items()}
    config["dtype"] = str(dtype).removeprefix("torch.")
    if beside is None:
        config["quantization_config"] = settings
    write(path, tensors, config, shards)
    if beside is not None:
        (path / beside).write_text(json.dumps(settings))
    return values


def values_in(model):
    """The decoded weights of a model by name."""
    return {
        f"{name}.weight": value.decode() if isinstance(value, octavo.PackedTensor) else value.detach()
        for name, layer in model.named_modules()
        if isinstance(value := getattr(layer, "weight", None), torch.Tensor | octavo.PackedTensor)
    }


VALUES = (
    None, -1, 0, 1, 3, 4, 16, 1 << 70, 1.5, float("nan"), True, False, "", "gptq", "gptq_v2", "gemm", "marlin", "NVFP4",
    "FP8", "nf4", "9" * 5000, [], [0, 0], [16, 32], {}, {"x": []},
)  # fmt: skip
KINDS = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.bool, torch.float8_e4m3fn
)  # fmt: skip


def damaged(rng, parts, settings, keys):
    """Parts and settings of which one thing is another."""
    parts, settings = dict(parts), json.loads(json.dumps(settings))
    name = rng.choice(list(parts))
    part = parts[name]
    match rng.randrange(6):
        case 0:
            del parts[name]
        case 1:
            shape = [rng.choice((0, 1, 2, 7, size, size + 1)) for size in part.shape] + [1] * (rng.random() < 0.2)
            parts[name] = torch.zeros(shape, dtype=part.dtype)
        case 2:
            parts[name] = torch.zeros(part.shape).to(rng.choice(KINDS))
        case 3:
            data = part.contiguous().clone().view(-1).view(torch.uint8)
            for _ in range(rng.randrange(1, 9)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            parts[name] = data.view(part.dtype).view(part.shape)
        case 4:
            other = rng.choice((*parts, "weight", *keys))
            size = rng.choice(((8, 64), (64,), (2,), (8, 2), ()))
            parts[other] = torch.randint(-2, 3, size).to(rng.choice(KINDS))
        case _:
            settings[rng.choice((*settings, *keys))] = rng.choice(VALUES)
    return parts, settings


def attack(find, made, seed, count, keys=()):
    """Read damaged weights: each is a typed error that names a tensor or field, or is read.

    ``made(rng)``: sound parts and settings. ``keys``: further names of parts and settings.
    """
    rng = random.Random(seed)
    ended = 0
    for number in range(count):
        parts, settings = damaged(rng, *made(rng), keys)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                packing = read_packing(find, {f"a.b.{part}": value for part, value in parts.items()}, settings, LABEL)
                packing.settle({name: (name, "Linear") for name in packing.weights})
                for weight in packing.weights.values():
                    carried, entry = weight.carry(torch.float32), weight.entry()
                    decoded = weight.decode()
                    assert decoded.shape == weight.shape == entry.shape and decoded.dtype == weight.dtype
                    if not isinstance(carried, str):
                        assert carried.shape == weight.shape
                        carried.decode()
        except ContainerError as error:
            ended += 1
            assert LABEL in str(error) or "tensor 'a.b." in str(error), (number, error)
    assert ended > count // 8, ended
