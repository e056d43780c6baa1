"""Mutations that know what they damage: JSON values, safetensors headers, checkpoints of torch, recipes."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import torch

SENTINEL = "EXECUTED"
# Words that readers look for; as keys and as values.
KEYS = [
    "auto_map", "quantization_config", "attn_implementation", "_attn_implementation_internal", "torch_dtype", "dtype",
    "model_type", "architectures", "num_labels", "id2label", "is_encoder_decoder", "tie_word_embeddings", "vocab_file",
    "tokenizer_file", "tokenizer_class", "init_inputs", "num_hidden_layers", "max_position_embeddings", "hidden_size",
    "use_pretrained_backbone", "backbone", "name_or_path", "layers", "ties", "version", "class", "disabled", "weight",
    "fast_tokenizer_files", "chat_template", "model_max_length", "added_tokens_decoder", "gguf_file", "rope_parameters",
]  # fmt: skip
EVIL = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 65536, 2**31, 2**31 - 1, 2**32, 2**63, -(2**63), 2**64, 10**9, 2 * 10**8,
    10**30, 10**400, 0.0, -0.0, 0.5, 1e-300, 1e308, "", "x", "0", "\ud800", "\0", "../x", "/proc/self/environ", "evil.Evil",
    "a" * 300, [], {}, [[]], [None], {"": {}}, [1, 2, 3], EVIL, "bert", "gpt2", "llama", "t5", "mamba", "distilbert",
    "float16", "int8", "mxint8", "nf4", "manual_seed", "int4:g32@lsq", "type:Linear", "regex:(a+)+$", float("inf"), float("nan"),
]  # fmt: skip


class Evil:
    """A pickle that leaves a mark where it is read."""

    def __reduce__(self) -> Any:
        return open, (SENTINEL, "w")


# --- values -------------------------------------------------------------------------------------------------------------


def paths(value: Any, at: tuple = ()) -> list[tuple]:
    found = [at]
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, (*at, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(list(value)[:40]):
            found += paths(item, (*at, number))
    return found


def other(rng: random.Random, value: Any) -> Any:
    """A value near ``value``, or none that belongs there."""
    if isinstance(value, torch.Tensor) and rng.random() < 0.8:
        return other_tensor(rng, value)
    if isinstance(value, bool) or rng.random() < 0.35:
        return copy.deepcopy(rng.choice(VALUES))
    if isinstance(value, int):
        return rng.choice(
            [
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 1000,
                value * 10**6,
                value << 40,
                float(value) if abs(value) < 2**1000 else 1e300,
                str(value),
            ]
        )
    if isinstance(value, float):
        return rng.choice(
            [-value, value * 1e30, float("nan"), float("inf"), int(value) if math.isfinite(value) else 0, str(value)]
        )
    if isinstance(value, str):
        cut = rng.randrange(len(value) + 1)
        return rng.choice(
            [
                value[:cut],
                value + rng.choice("ax0.;=@:*"),
                value[:cut] + chr(rng.choice([0, 10, 34, 92, 233, 0x1F600])) + value[cut:],
                value.upper(),
                [value],
                {"a": value},
            ]
        )
    if isinstance(value, list) and value:
        return rng.choice([value[:-1], value + value, [value], value[0], dict.fromkeys(map(str, value), 1)])
    if isinstance(value, dict) and value:
        return rng.choice(
            [{"x": value}, list(value), list(value.items()), {}, {**value, rng.choice(KEYS): rng.choice(VALUES)}]
        )
    return copy.deepcopy(rng.choice(VALUES))


def other_tensor(rng: random.Random, value: torch.Tensor) -> Any:
    kinds = [torch.bool, torch.int64, torch.uint8, torch.float64, torch.float16, torch.complex64, torch.bfloat16]
    made: list[Callable[[], Any]] = [
        lambda: value.to(rng.choice(kinds)),
        lambda: value.flatten()[: value.numel() // 2],
        lambda: value.unsqueeze(0),
        lambda: torch.zeros(()).expand(*(1 << 14,) * 3),
        lambda: torch.full_like(value, rng.choice([float("nan"), float("inf"), -1.0])) if value.is_floating_point() else value * 0 - 1,
        lambda: value.float().to_sparse() if value.ndim else value.tolist(),
        lambda: torch.empty(0),
        lambda: value.to("meta"),
    ]  # fmt: skip
    return rng.choice(made)()


def mutate_value(rng: random.Random, value: Any, times: int = 1) -> Any:
    value = copy.deepcopy(value)
    for _ in range(times):
        *where, last = rng.choice(paths(value)[1:] or [(None,)])
        if last is None:
            return other(rng, value)
        holder = value
        for step in where:
            holder = holder[step]
        if not isinstance(holder, dict | list):
            continue
        action = rng.random()
        if action < 0.6:
            holder[last] = other(rng, holder[last])
        elif action < 0.75:
            del holder[last]
        elif isinstance(holder, dict) and action < 0.9:
            holder[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
        elif isinstance(holder, dict):
            holder[str(other(rng, last)) if isinstance(last, str) and rng.random() < 0.2 else rng.choice(KEYS)] = (
                holder.pop(last)
            )
        else:
            holder.append(copy.deepcopy(rng.choice(VALUES)))
    return value


# --- bytes --------------------------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(6)
        if action == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif action == 1:
            del data[at : at + rng.choice([1, 4, 100])]
        elif action == 2:
            data[at:at] = rng.choice(
                [b"\0", b"\xff\xfe", b"[", b"{", b'"', b",", b"\n", b"9" * 50, b"\xef\xbb\xbf", b"[" * 5000]
            )
        elif action == 3:
            del data[at:]
        elif action == 4:
            data += data[: at or 1]
        elif data:
            data[min(at, len(data) - 1)] = rng.randrange(256)
    return bytes(data)


def dump(rng: random.Random, value: Any) -> bytes:
    """JSON, now and then with a key that appears twice."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = "{}"
    if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]
    return text.encode()


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return mutate_bytes(rng, data)
    try:
        value = json.loads(data)
    except ValueError:
        return mutate_bytes(rng, data)
    return dump(rng, mutate_value(rng, value, rng.choice([1, 1, 1, 2, 5])))


def mutate_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = mutate_json(rng, lines[at])
    return b"\n".join(lines)


# --- safetensors --------------------------------------------------------------------------------------------------------

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4}  # fmt: skip


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    action = rng.random()
    if action < 0.3 and names:  # another dtype of as many bytes
        info = header[rng.choice(names)]
        size = info["data_offsets"][1] - info["data_offsets"][0]
        dtype = rng.choice(list(BITS))
        count = size * 8 // BITS[dtype]
        if count * BITS[dtype] == size * 8:
            info["shape"] = info["shape"] if math.prod(info["shape"]) == count else [count]
            info["dtype"] = dtype
    elif action < 0.45 and names:  # another shape, whose bytes follow
        return rebuild(rng, header, body, rng.choice(names))
    elif action < 0.75 and header.get("__metadata__"):  # what the metadata describe
        key = rng.choice(list(header["__metadata__"]))
        header["__metadata__"][key] = mutate_json(rng, header["__metadata__"][key].encode()).decode(errors="replace")
    elif action < 0.85 and len(names) > 1:  # names that change places
        one, two = rng.sample(names, 2)
        header[one], header[two] = header[two], header[one]
    elif action < 0.93:
        header = mutate_value(rng, header)
    elif body:
        body = mutate_bytes(rng, body)
    text = dump(rng, header)
    return struct.pack("<Q", len(text)) + text + body


def rebuild(rng: random.Random, header: dict, body: bytes, changed: str) -> bytes:
    """The file with another tensor in the place of one, all offsets right."""
    shape = other(rng, header[changed]["shape"])
    if not isinstance(shape, list) or not all(isinstance(size, int) and 0 <= size < 1000 for size in shape):
        shape = rng.choice([[], [0], [1], [7], [2, 3], [1, 1, 1, 1]])
    made, new = {}, b""
    for name, info in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0]):
        if name == "__metadata__":
            made[name] = info
            continue
        piece = body[slice(*info["data_offsets"])]
        if name == changed:
            info = {**info, "shape": shape}
            piece = bytes(math.prod(shape) * BITS[info["dtype"]] // 8)
        made[name] = {**info, "data_offsets": [len(new), len(new) + len(piece)]}
        new += piece
    text = json.dumps(made).encode()
    return struct.pack("<Q", len(text)) + text + new


# --- checkpoints --------------------------------------------------------------------------------------------------------


def mutate_checkpoint(rng: random.Random, data: bytes) -> bytes:
    """Bytes, or values under the right digest; now and then a pickle that runs."""
    action = rng.random()
    if action < 0.3:
        return mutate_bytes(rng, data)
    from octavo.train.checkpoint import digest

    content = torch.load(io.BytesIO(data), weights_only=True)
    content.pop("digest", None)
    content = mutate_value(rng, content, rng.choice([1, 1, 2, 4]))
    if action < 0.35:
        content = {"x": Evil(), "content": content}
    elif isinstance(content, dict):
        try:
            content["digest"] = digest(content)
        except Exception:
            content["digest"] = "0"
    written = io.BytesIO()
    try:
        torch.save(content, written, _use_new_zipfile_serialization=rng.random() > 0.05)
    except Exception:
        return pickle.dumps(Evil())
    return written.getvalue()


# --- texts --------------------------------------------------------------------------------------------------------------


def mutate_text(rng: random.Random, data: bytes) -> bytes:
    words = ["mxint8", "int4:g32", "keep", "type:Linear", "first:", "last:glob:", "regex:.*", "input=", "bias=int32", ";", "=", '"', "@mse", "@quantile:", "0.999", "**", "[[rules]]", "\n", "weight", "é", "\0", "{", "]", "name:", ":channel"]  # fmt: skip
    text = data.decode(errors="replace")
    for _ in range(rng.choice([1, 2, 4])):
        at = rng.randrange(len(text) + 1)
        text = rng.choice(
            [
                text[:at] + rng.choice(words) + text[at:],
                text[:at],
                text[at:],
                text[:at] + text[at + rng.randrange(9) :],
                text * 2,
            ]
        )
    encoded = text.encode(errors="replace")
    return mutate_bytes(rng, encoded) if rng.random() < 0.2 else encoded
