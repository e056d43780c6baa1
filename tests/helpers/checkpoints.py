"""Small quantised checkpoints in the layouts of other packages, written from the layouts alone; any part can be broken.

A checkpoint is a dictionary of tensors and a configuration. ``llama(layout)`` makes a sound one of two blocks with
Gaussian weights; ``write`` makes a folder of it.
"""

import json

import numpy as np
import octavo
import torch

WIDTH, INNER, VOCABULARY, BLOCKS = 128, 256, 256, 2
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH), "self_attn.v_proj": (WIDTH, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32,
)  # fmt: skip
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)


def base(seed=0):
    """The float model: (tensors, configuration)."""
    torch.manual_seed(seed)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, WIDTH) * 0.05,
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": torch.randn(VOCABULARY, WIDTH) * 0.05,
    }
    for block in range(BLOCKS):
        for name, shape in SHAPES.items():
            tensors[f"model.layers.{block}.{name}.weight"] = torch.randn(shape) * 0.05
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{block}.{name}.weight"] = torch.ones(WIDTH)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return tensors, config


def llama(layout, seed=0):
    """The quantised model: (tensors, configuration) of a layout of ``LAYOUTS``."""
    tensors, config = base(seed)
    parts, settings = LAYOUTS[layout]
    for name in [name for name in tensors if "proj" in name]:
        path = name.removesuffix(".weight")
        made = parts(tensors.pop(name).numpy())
        tensors |= {f"{path}{suffix}": torch.as_tensor(value) for suffix, value in made.items()}
    if settings:
        config["quantization_config"] = json.loads(json.dumps(settings))
    return tensors, config


def write(folder, tensors, config, shards=1):
    """Write a folder of transformers, in one file or in several with their index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        octavo.save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(tensors)
    table, size = {}, 0
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[number::shards]}
        octavo.save(mine, folder / file, metadata={"format": "pt"})
        table |= dict.fromkeys(mine, file)
        size += sum(tensor.nbytes for tensor in mine.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": table})
    )
    return folder


# --- bits ---------------------------------------------------------------------------------------------------------------


def dense_words(codes, bits):
    """Rows of codes as little-endian streams in 32-bit words."""
    stream = np.unpackbits(codes.astype(np.uint8)[:, :, None], axis=2, bitorder="little")[:, :, :bits].reshape(
        len(codes), -1
    )
    padded = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")


def sparse_words(codes, bits):
    """Rows of codes in 32-bit words of whole codes alone."""
    each = 32 // bits
    padded = np.pad(codes.astype(np.uint32), ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    return (padded << (np.arange(each, dtype=np.uint32) * bits)).sum(2, dtype=np.uint32).view("<i4")


def e2m1(values):
    """Codes of the nearest E2M1 values."""
    nearest = np.abs(np.abs(values)[..., None] - E2M1).argmin(-1)
    return (nearest | np.where(values < 0, 8, 0) * (nearest > 0)).astype(np.uint8)


def nibbles(codes):
    """Pairs of codes in bytes, the first low."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def grouped(weight, group):
    return weight.reshape(len(weight), -1, group)


# --- layouts ------------------------------------------------------------------------------------------------------------


def ct_words(bits, group=32, symmetric=True, pack=dense_words):
    def parts(weight):
        rows, columns = weight.shape
        blocks = grouped(weight, group)
        top, middle = (1 << bits) - 1, 1 << bits - 1
        if symmetric:
            scale = np.abs(blocks).max(2) * 2 / top
            codes = np.clip(np.rint(blocks / scale[..., None]) + middle, 0, top)
            made = {}
        else:
            low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
            scale = (high - low) / top
            zeros = np.clip(np.rint(-low / scale), 0, top)
            codes = np.clip(np.rint(blocks / scale[..., None]) + zeros[..., None], 0, top)
            made = {".weight_zero_point": np.ascontiguousarray(dense_words(zeros.T, bits).T)}
        packed = pack(codes.reshape(rows, columns), bits)
        return made | {
            ".weight_packed": packed, ".weight_scale": torch.from_numpy(scale.astype(np.float32)).bfloat16(),
            ".weight_shape": np.array([rows, columns]),
        }  # fmt: skip

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}
    return parts, ct_config("pack-quantized", weights)


def ct_ordered():
    """Columns in groups by activation: ``weight_g_idx``."""
    plain, config = ct_words(4)

    def parts(weight):
        columns = weight.shape[1]
        order = np.random.default_rng(1).permutation(columns)
        made = plain(np.ascontiguousarray(weight[:, order]))
        codes = np.empty_like(weight, np.uint8)
        sorted_codes = np.unpackbits(made[".weight_packed"].view(np.uint8), axis=1, bitorder="little")
        codes[:, order] = (sorted_codes.reshape(len(weight), columns, 4) << np.arange(4, dtype=np.uint8)).sum(2)
        index = np.empty(columns, np.int32)
        index[order] = np.arange(columns) // 32
        return made | {".weight_packed": dense_words(codes, 4), ".weight_g_idx": index}

    return parts, config


def ct_config(form, weights):
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
        "version": "0.20.1",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }  # fmt: skip


def ct_int8():
    def parts(weight):
        scale = np.abs(weight).max(1, keepdims=True) / 127
        return {".weight": np.rint(weight / scale).astype(np.int8), ".weight_scale": scale.astype(np.float32)}

    return parts, ct_config("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"})


def fp8(config):
    def parts(weight):
        scale = torch.from_numpy(np.abs(weight).max(1, keepdims=True) / 448)
        return {".weight": (torch.from_numpy(weight) / scale).to(torch.float8_e4m3fn), ".weight_scale": scale}

    return parts, config


def fp8_blocks():
    def parts(weight):
        rows, columns = weight.shape
        blocks = np.abs(weight).reshape(rows // 128, 128, columns // 128, 128).max((1, 3)) / 448
        scale = np.repeat(np.repeat(blocks, 128, 0), 128, 1)
        return {
            ".weight": torch.from_numpy(weight / scale).to(torch.float8_e4m3fn),
            ".weight_scale_inv": blocks.astype(np.float32),
        }

    return parts, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def exponents(blocks, least=2):
    return np.floor(np.log2(np.abs(blocks).max(2))).astype(np.int64) - least


def mxfp8():
    def parts(weight):
        blocks = grouped(weight, 32)
        exponent = exponents(blocks, 8)
        codes = torch.from_numpy((blocks / 2.0 ** exponent[..., None]).reshape(weight.shape).clip(-448, 448)).to(
            torch.float8_e4m3fn
        )
        return {".weight": codes, ".weight_scale": (exponent + 127).astype(np.uint8)}

    return parts, ct_config(
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    )


def mxfp4():
    def parts(weight):
        blocks = grouped(weight, 32)
        exponent = exponents(blocks)
        codes = e2m1((blocks / 2.0 ** exponent[..., None]).reshape(weight.shape))
        return {".weight_packed": nibbles(codes), ".weight_scale": (exponent + 127).astype(np.uint8)}

    return parts, ct_config(
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    )


def nvfp4(packed, factor_name, inverted):
    """One factor for all layers, as kernels that join layers need it."""
    factor = np.float32(0.25 / (6 * 448))

    def parts(weight):
        blocks = grouped(weight, 16)
        scale = torch.from_numpy(np.abs(blocks).max(2) / 6 / factor).to(torch.float8_e4m3fn)
        codes = e2m1((blocks / (scale.float().numpy() * factor)[..., None]).reshape(weight.shape))
        stored = np.array([1 / factor if inverted else factor], np.float32)
        return {packed: nibbles(codes), ".weight_scale": scale, factor_name: stored}

    return parts


NVFP4_CONFIG = ct_config(
    "nvfp4-pack-quantized",
    {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": "torch.float8_e4m3fn",
    },
)


def gptq(bits, group=32, symmetric=True, v2=False, act_order=False):
    def parts(weight):
        columns = weight.shape[1]
        order = np.random.default_rng(1).permutation(columns) if act_order else np.arange(columns)
        index = np.empty(columns, np.int32)
        index[order] = np.arange(columns) // group
        blocks = grouped(weight[:, order], group)
        top, middle = (1 << bits) - 1, 1 << bits - 1
        if symmetric:
            scale = np.abs(blocks).max(2) / (middle - 1 or 1)
            zeros = np.full(scale.shape, middle)
        else:
            low, high = blocks.min(2), blocks.max(2)
            scale = (high - low) / top
            zeros = np.clip(np.rint(-low / scale), 1, top)
        scale = scale.astype(np.float16)
        all_scales, all_zeros = scale.astype(np.float32)[:, index], zeros[:, index]
        codes = np.clip(np.rint(weight / all_scales) + all_zeros, 0, top)
        return {
            ".qweight": np.ascontiguousarray(dense_words(codes, bits).T),
            ".qzeros": dense_words(zeros.T - (0 if v2 else 1), bits), ".scales": np.ascontiguousarray(scale.T), ".g_idx": index,
        }  # fmt: skip

    return parts, {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }  # fmt: skip


def awq(group=64):
    def words(codes):
        eight = codes.astype(np.uint32).reshape(len(codes), -1, 8)
        return (
            sum(eight[:, :, place] << np.uint32(4 * i) for i, place in enumerate(AWQ_PLACES))
            .astype(np.uint32)
            .view("<i4")
        )

    def parts(weight):
        blocks = grouped(weight, group)
        low, high = blocks.min(2), blocks.max(2)
        scale = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.rint(-low / scale), 0, 15)
        codes = np.clip(np.rint(blocks / scale.astype(np.float32)[..., None]) + zeros[..., None], 0, 15).reshape(
            weight.shape
        )
        return {".qweight": words(codes.T), ".qzeros": words(zeros.T), ".scales": np.ascontiguousarray(scale.T)}

    return parts, {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


def bnb4():
    def parts(weight):
        blocks = weight.reshape(-1, 64)
        absmax = np.abs(blocks).max(1)
        codes = np.abs((blocks / absmax[:, None])[..., None] - NF4).argmin(-1).astype(np.uint8).reshape(-1)
        state = json.dumps(
            {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        ).encode()
        return {
            ".weight": (codes[0::2] << 4 | codes[1::2])[:, None], ".weight.absmax": absmax.astype(np.float32),
            ".weight.quant_map": NF4, ".weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8).copy(),
        }  # fmt: skip

    return parts, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def bnb8():
    def parts(weight):
        maxima = np.abs(weight).max(1)
        return {".weight": np.rint(weight * 127 / maxima[:, None]).astype(np.int8), ".SCB": maxima.astype(np.float32)}

    return parts, {"quant_method": "bitsandbytes", "load_in_8bit": True}


def gpt_oss():
    def parts(weight):
        blocks = grouped(weight, 32)
        exponent = exponents(blocks)
        codes = nibbles(e2m1(blocks / 2.0 ** exponent[..., None]))
        return {"_blocks": codes[None], "_scales": (exponent + 127).astype(np.uint8)[None]}

    return parts, {"quant_method": "mxfp4"}


FP8_CONFIG = ct_config("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"})
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
LAYOUTS = {
    "plain": (lambda weight: {".weight": weight}, None),
    **{f"ct-int{bits}": ct_words(bits) for bits in range(2, 9)},
    "ct-uint4": ct_words(4, symmetric=False), "ct-uint3": ct_words(3, symmetric=False), "ct-int4-g128": ct_words(4, 128),
    "ct-int4-act": ct_ordered(),
    "ct-int8-channel": ct_int8(), "ct-fp8": fp8(FP8_CONFIG), "mxfp8": mxfp8(), "mxfp4": mxfp4(),
    "nvfp4": (nvfp4(".weight_packed", ".weight_global_scale", True), NVFP4_CONFIG),
    "modelopt-nvfp4": (nvfp4(".weight", ".weight_scale_2", False), MODELOPT),
    "modelopt-fp8": fp8({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    "fp8-blocks": fp8_blocks(),
    **{f"gptq-{bits}": gptq(bits) for bits in (2, 3, 4, 8)},
    "gptq-asym": gptq(4, symmetric=False), "gptq-v2": gptq(4, v2=True), "gptq-act": gptq(4, act_order=True),
    "awq": awq(), "bnb-nf4": bnb4(), "bnb-int8": bnb8(), "gpt-oss": gpt_oss(),
}  # fmt: skip
"""Sound layouts: the function that makes the parts of a weight, by suffix, and ``quantization_config``."""
