"""Folders that compressed-tensors could have written: random codes and scales, packed by hand, and their values."""

import json

import pytest
import torch
from octavo.interchange.compressed_tensors_folder import CompressedTensors
from safetensors.torch import save_file

from helpers.models import transformer

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M3 = torch.tensor([m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)])
MX = {"mxfp4": (4, "mxfp4-pack-quantized"), "mxfp6": (6, "mxfp6-pack-quantized"), "mxfp8": (8, "mxfp8-quantized")}


def words(codes, bits, sparse=False):
    """Rows of unsigned codes in words of 32 bits: without gaps, or as releases before 0.18 packed them."""
    each, size = 32 // bits, codes.shape[1]
    count = -(-size // each) if sparse else -(-size * bits // 32)
    out = []
    for row in codes.tolist():
        line = [0] * count
        for number, code in enumerate(row):
            word, bit = divmod(number * bits, 32) if not sparse else (number // each, number % each * bits)
            line[word] |= code << bit & 0xFFFFFFFF
            if bit + bits > 32:
                line[word + 1] |= code >> 32 - bit
        out.append([word - (1 << 32) if word >> 31 else word for word in line])
    return torch.tensor(out, dtype=torch.int64).reshape(len(codes), count).to(torch.int32)


def weights(bits=4, kind="int", strategy="group", group=32, symmetric=True, block=None):
    """The arguments of a scheme for weights."""
    found = {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, "dynamic": False}
    if strategy in ("group", "tensor_group"):
        found["group_size"] = group
    if block:
        found["block_structure"] = list(block)
    return found


def _along(values, strategy, group, block, shape):
    if strategy == "block":
        values = values.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)
    elif strategy in ("group", "tensor_group"):
        values = values.repeat_interleave(group, 1)
    return values[:, : shape[1]] if values.ndim == 2 else values


def layer(shape, rng, args, form, dtype=torch.float32, sparse=False, scales=None):
    """Tensors of a weight by their parts, and its values as the format defines them, in the dtype of its scales."""
    rows, columns = shape
    bits, strategy, group = args["num_bits"], args["strategy"], args.get("group_size")
    block, symmetric = args.get("block_structure"), args["symmetric"]
    if form in MX:
        bits, _ = MX[form]
        codes = torch.randint(0, 1 << bits, shape, generator=rng)
        exponents = torch.randint(110, 140, (rows, -(-columns // 32)), generator=rng).to(torch.uint8)
        if form == "mxfp8":
            codes[codes & 127 == 127] = 0  # NaN
            values = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
            parts = {"weight": codes.to(torch.uint8).view(torch.float8_e4m3fn)}
        else:
            table = E2M1 if form == "mxfp4" else E2M3
            values = torch.cat([table, -table])[codes]
            stream = words(codes, bits).view(torch.uint8)[:, : columns * bits // 8]
            parts = {"weight_packed": stream.contiguous()}
        step = (2.0 ** (exponents.float() - 127)).repeat_interleave(32, 1)[:, :columns]
        return {**parts, "weight_scale": exponents}, (values * step).to(torch.bfloat16)
    if form == "nvfp4":
        codes = torch.randint(0, 16, shape, generator=rng)
        small = torch.randint(0, 127, (rows, columns // 16), generator=rng).to(torch.uint8).view(torch.float8_e4m3fn)
        divisor = torch.rand(1, generator=rng) * 3000 + 0.1
        step = (small.float() / divisor).repeat_interleave(16, 1)
        values = (torch.cat([E2M1, -E2M1])[codes] * step).to(torch.bfloat16)
        stream = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
        return {"weight_packed": stream, "weight_scale": small, "weight_global_scale": divisor}, values
    sizes = {
        "tensor": (1,), "channel": (rows, 1), "group": (rows, -(-columns // (group or 1))),
        "block": (-(-rows // (block or [1])[0]), -(-columns // (block or [1, 1])[1])),
    }  # fmt: skip
    step = (torch.rand(sizes[strategy], generator=rng) + 0.01) / 64 if scales is None else scales(sizes[strategy])
    step = step.half().to(dtype) if strategy in ("group", "block") and scales is None else step.to(dtype)
    along = _along(step, strategy, group, block, shape)
    if form == "float":
        codes = torch.randint(0, 256, shape, generator=rng)
        codes[codes & 127 == 127] = 0
        stored = codes.to(torch.uint8).view(torch.float8_e4m3fn)
        return {"weight": stored, "weight_scale": step}, stored.to(dtype) * along
    low = -(1 << bits - 1)
    numbers = torch.randint(low, -low, shape, generator=rng)
    zeros = torch.zeros(sizes[strategy], dtype=torch.int64)
    if not symmetric:
        zeros = torch.randint(low, -low, sizes[strategy], generator=rng)
    values = (numbers.to(dtype) - _along(zeros, strategy, group, block, shape).to(dtype)) * along
    if form == "bytes":
        parts = {"weight": numbers.to(torch.int8), "weight_scale": step}
        return parts | ({} if symmetric else {"weight_zero_point": zeros.to(torch.int8)}), values
    parts = {
        "weight_packed": words(numbers - low, bits, sparse), "weight_scale": step,
        "weight_shape": torch.tensor(shape),
    }  # fmt: skip
    if not symmetric and strategy in ("group", "channel"):
        parts["weight_zero_point"] = words((zeros - low).t(), bits, sparse).t().contiguous()
    elif not symmetric:
        parts["weight_zero_point"] = zeros.to(torch.int8)
    return parts, values


FORMS = {
    "words": "pack-quantized", "bytes": "int-quantized", "float": "float-quantized", "nvfp4": "nvfp4-pack-quantized",
    **{form: stored for form, (_, stored) in MX.items()},
}  # fmt: skip
ARGS = {
    "mxfp4": weights(4, "float"), "mxfp6": weights(6, "float"), "mxfp8": weights(8, "float"),
    "nvfp4": weights(4, "float", "tensor_group", 16),
}  # fmt: skip


def config(args, form, **more):
    """A ``quantization_config`` of one group."""
    group = {"targets": ["Linear"], "weights": args, "format": FORMS[form]}
    return {"config_groups": {"group_0": group}, "format": FORMS[form], **more}


def weight_of(parts, args, form, **more):
    """The weight that tensors make."""
    tensors = {f"a.b.{part}": value for part, value in parts.items()}
    packing = CompressedTensors.read(tensors, config(args, form, **more), "x/config.json")
    packing.settle({})
    return packing.weights["a.b.weight"]


def peer_values(parts, args, form):
    """What the package decodes tensors to."""
    peer = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor

    kinds = {"mxfp4": "torch.uint8", "mxfp6": "torch.uint8", "mxfp8": "torch.uint8", "nvfp4": "torch.float8_e4m3fn"}
    scale_dtype = {"scale_dtype": kinds[form], "zp_dtype": kinds[form]} if form in kinds else {}
    scheme = peer.quantization.QuantizationScheme(
        targets=["Linear"], weights=peer.quantization.QuantizationArgs(**args, **scale_dtype)
    )
    compressor = BaseCompressor.get_value_from_registry(FORMS[form])
    return compressor.decompress(dict(parts), scheme)["weight"]


def folder_of(model, path, choose, seed=0, dtype=torch.float32, files=1, tie=False, **config):
    """Write the folder of a model whose layers are packed, and return the values of their weights by name.

    ``choose``: the form of a layer and its arguments by name, None where it stays float. ``config``: further fields of
    ``quantization_config``.
    """
    rng = torch.Generator().manual_seed(seed)
    model = model.to(dtype)
    tensors, values, groups, ignore = {}, {}, {}, []
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, tensor in model.state_dict().items():
        base = name.removesuffix(".weight")
        if name == "lm_head.weight" and tie:
            continue
        picked = choose(base) if base in linear and name.endswith(".weight") else None
        if picked is None:
            tensors[name] = tensor.clone()
            ignore += [base] if base in linear and name.endswith(".weight") else []
            continue
        form, args, *more = picked
        parts, values[name] = layer(tuple(tensor.shape), rng, args, form, dtype, *more)
        tensors |= {f"{base}.{part}": value for part, value in parts.items()}
        key = json.dumps([FORMS[form], args])
        groups.setdefault(key, []).append(base)
    many = len(groups) > 1
    config_groups = {
        f"group_{number}": {
            "targets": names if many else ["Linear"], "weights": json.loads(key)[1], "input_activations": None,
            "output_activations": None, "format": json.loads(key)[0],
        }
        for number, (key, names) in enumerate(groups.items())
    }  # fmt: skip
    stated = "mixed-precision" if many else next(iter(config_groups.values()))["format"]
    entry = {
        "quant_method": "compressed-tensors", "format": stated, "quantization_status": "compressed", "ignore": ignore,
        "kv_cache_scheme": None, "config_groups": config_groups, **config,
    }  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**fields, "quantization_config": entry}))
    names = sorted(tensors)
    if files == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return values
    places = {}
    for number in range(files):
        part, file = names[number::files], f"model-{number + 1:05}-of-{files:05}.safetensors"
        save_file({name: tensors[name] for name in part}, path / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return values


def mixture(path, pick):
    """A mixture of experts, whose matrices lie in the folder one by one; returns their values."""
    form, args = pick
    entry = {"quant_method": "compressed-tensors", **config(args, form)}
    return mixture_of(path, lambda shape, rng: layer(shape, rng, args, form), entry)


def mixture_of(path, make, entry):
    """A mixture of experts, each matrix of which ``make(shape, rng)`` gives as parts and values."""
    model = transformer(
        "MixtralForCausalLM", width=32, heads=2, inner=64, layers=1, num_local_experts=3, num_key_value_heads=2
    )
    model.config.save_pretrained(path)
    rng, tensors, values = torch.Generator().manual_seed(0), {}, {}
    for name, value in model.state_dict().items():
        if ".experts." not in name:
            tensors[name.replace(".mlp.", ".block_sparse_moe.")] = value
    for expert in range(3):
        for part, shape in (("w1", (64, 32)), ("w2", (32, 64)), ("w3", (64, 32))):
            parts, values[part, expert] = make(shape, rng)
            prefix = f"model.layers.0.block_sparse_moe.experts.{expert}.{part}"
            tensors |= {f"{prefix}.{one}": value for one, value in parts.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    fields = json.loads((path / "config.json").read_text())
    fields |= {"architectures": ["MixtralForCausalLM"], "quantization_config": entry}
    (path / "config.json").write_text(json.dumps(fields))
    state = model.state_dict()
    for expert in range(3):
        experts = "model.layers.0.mlp.experts"
        state[f"{experts}.gate_up_proj"][expert] = torch.cat([values["w1", expert], values["w3", expert]])
        state[f"{experts}.down_proj"][expert] = values["w2", expert]
    return model
