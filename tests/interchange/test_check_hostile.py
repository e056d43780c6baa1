"""Damaged and hostile checkpoints: a typed error or findings, in bounded memory and time."""

import copy
import json
import random
import time
import tracemalloc

import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers.gguf_files import gguf
from helpers.quick import spread
from interchange.broken_checkpoints import KEYS, LAYER, blocks
from octavo import ContainerError, OctavoError
from octavo.interchange.check.run_check import check_path

PEAK = 20 << 20  # bytes: 16 MiB are room for a configuration, the rest are chunks
MUTATIONS = 20  # of each layout; 1,000 in the slow run


def mutated(data, rng):
    """Bytes with up to four changed, or cut off, or with a part repeated."""
    data = bytearray(data)
    kind = rng.randrange(8)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        place = rng.randrange(len(data))
        return data[:place] + data[place : place + 64] + data[place:]
    for _ in range(rng.randint(1, 4)):
        # Headers stand at the beginning, and most of the rules look at what they say.
        place = rng.randrange(min(len(data), 1 << 14)) if rng.random() < 0.7 else rng.randrange(len(data))
        data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), data[place] ^ 1 << rng.randrange(8)])
    return data


VALUES = [
    None,
    True,
    -1,
    0,
    1,
    3,
    1e300,
    float("nan"),
    2**70,
    "",
    "x",
    "re:(a|a)*$",
    "re:(",
    [],
    [[]],
    {},
    {"weights": 3},
    ["re:.*"],
]


def changed(table, rng):
    """A configuration of which some values are others."""
    for _ in range(rng.randint(1, 3)):
        place = table
        while True:
            key = rng.choice(list(place))
            if isinstance(place[key], dict) and place[key] and rng.random() < 0.8:
                place = place[key]
                continue
            place[key] = copy.deepcopy(rng.choice(VALUES))
            break
    return table


def survives(path, base=None):
    """Check a path: findings, or an error of ours."""
    try:
        check_path(path, base=base).as_dict()
    except (OctavoError, OSError):
        return False
    return True


@pytest.mark.parametrize("layout", checkpoints.LAYOUTS)
@pytest.mark.parametrize("count", [MUTATIONS, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_folders_are_checked_or_refused(layout, count, tmp_path):
    folder = checkpoints.write(tmp_path / "x", *checkpoints.llama(layout))
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole, table = weights.read_bytes(), config.read_text()
    rng = random.Random(f"{layout} {count}")
    outcomes = set()
    for number in range(count):
        weights.write_bytes(mutated(whole, rng) if number % 2 else whole)
        config.write_text(table if number % 2 else json.dumps(changed(json.loads(table), rng)))
        outcomes.add(survives(folder))
    assert outcomes == {True, False}


@pytest.mark.parametrize("count", [MUTATIONS, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_gguf_files_are_checked_or_refused(count, tmp_path):
    tensors = [
        ("token_embd.weight", 0, (8, 64), np.ones((8, 64), np.float32).tobytes()),
        ("blk.0.attn_q.weight", 2, (64, 64), blocks(128, 18).tobytes()),
        ("blk.0.attn_k.weight", 40, (64, 64), blocks(64, 36, b"0000").tobytes()),
        ("blk.0.attn_v.weight", 39, (64, 64), blocks(128, 17, b"w").tobytes()),
        ("blk.0.ffn_up.weight", 12, (4, 256), blocks(4, 144).tobytes()),
        ("blk.0.ffn_up.scale", 0, (1,), np.ones(1, np.float32).tobytes()),
    ]
    whole = gguf([*KEYS, ("tokenizer.ggml.tokens", "str", ["a"] * 8)], tensors)
    rng = random.Random(count)
    path = tmp_path / "x.gguf"
    for _ in range(count):
        path.write_bytes(mutated(whole, rng))
        survives(path)


def test_memory_is_bounded_by_chunks(tmp_path):
    """A tensor of 33 MB is not copied."""
    rng = np.random.default_rng(0)
    tensors, config = checkpoints.base()
    tensors["model.embed_tokens.weight"] = torch.from_numpy(rng.standard_normal((1 << 16, 128), np.float32))
    config["vocab_size"] = 1 << 16
    folder = checkpoints.write(tmp_path / "x", tensors, config)
    check_path(folder)
    tracemalloc.start()
    try:
        check_path(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK


@pytest.mark.parametrize(
    "pattern",
    [
        "re:(a+)+$",
        "re:(.*)*x",
        "re:" + ".*" * 60 + "x",
        "re:(",
        "re:" + "a?" * 200 + "a" * 200,
        "*" * 500,
        "re:.*a.*a.*a.*b$",
    ],
)
def test_patterns_take_no_exponential_time(pattern, tmp_path):
    tensors, config = checkpoints.llama("ct-int4")
    config["quantization_config"]["ignore"] = [pattern]
    tensors["a" * 200 + ".weight"] = tensors["lm_head.weight"] + 0
    folder = checkpoints.write(tmp_path / "x", tensors, config)
    started = time.perf_counter()
    survives(folder)
    assert time.perf_counter() - started < 10


def test_an_index_that_leaves_the_folder_is_refused(tmp_path):
    folder = checkpoints.write(tmp_path / "x", *checkpoints.base(), shards=2)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["lm_head.weight"] = "../secret.safetensors"
    index.write_text(json.dumps(table))
    with pytest.raises(ContainerError, match="names of files here"):
        check_path(folder)


PARTS = {
    "no rows": lambda part: part[:0],
    "no elements": lambda part: part.new_empty(0),
    "a number": lambda part: part.reshape(-1)[0],
    "one row": lambda part: part.reshape(-1)[:3],
    "turned": lambda part: part.T.contiguous() if part.ndim == 2 else part,
    "three dimensions": lambda part: part.unsqueeze(-1),
    "int64": lambda part: part.view(torch.uint8).reshape(-1).long(),
    "float64": lambda part: part.view(torch.uint8).reshape(-1).double(),
    "bytes": lambda part: part.reshape(-1).view(torch.uint8),
    "booleans": lambda part: part.reshape(-1).view(torch.uint8) > 3,
    "another float8": lambda part: part.reshape(-1).view(torch.uint8).view(torch.float8_e5m2).reshape(1, -1),
}
"""Ways to make a part another tensor."""


@pytest.mark.parametrize("layout", spread([layout for layout in checkpoints.LAYOUTS if layout != "plain"]))
def test_parts_of_any_shape_and_dtype_are_findings(layout, tmp_path):
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    suffixes = [name.removeprefix(LAYER) for name in checkpoints.llama(layout)[0] if name.startswith(LAYER)]
    for suffix in suffixes:
        for way, change in PARTS.items():
            tensors, config = checkpoints.llama(layout)
            tensors[f"{LAYER}{suffix}"] = change(tensors[f"{LAYER}{suffix}"].contiguous())
            folder = checkpoints.write(tmp_path / "x", tensors, config)
            assert survives(folder) and survives(folder, base), f"{suffix}: {way}"
