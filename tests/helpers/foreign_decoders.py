"""Language models of transformers whose linear layers another package has packed, and their decoded twins."""

import json
import re

import numpy as np
import octavo
import torch

from helpers.checkpoints import LAYOUTS, exponents, grouped, nibbles
from helpers.checkpoints import e2m1 as nearest_e2m1

VOCABULARY, WIDTH = 97, 128
_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
_EXPERTS = {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
ARCHITECTURES = {
    "llama": ("Llama", {**_SMALL, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**_SMALL, "head_dim": 32}),
    "mixtral": ("Mixtral", {**_SMALL, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", {**_SMALL, **_EXPERTS, "norm_topk_prob": True}),
}
_OSS = ("GptOss", {**_SMALL, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40})
_PACKED = re.compile(r"(_proj|\.w[123])\.weight$")
FOLDERS = [*(name for name in LAYOUTS if name not in ("plain", "gpt-oss")), "torchao-mxfp4", "torchao-nvfp4"]
"""Layouts of weights: those of ``checkpoints``, and of torchao, whose files say in their metadata what a tensor is."""


def float_model(architecture):
    """A model with random weights."""
    import transformers

    stem, sizes = _OSS if architecture == "gpt_oss" else ARCHITECTURES[architecture]
    kind = getattr(transformers, f"{stem}ForCausalLM")
    model = kind(kind.config_class(**sizes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            center = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(center + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def write_folder(path, architecture, layout, **fields):
    """Write the checkpoint of a model, as transformers names its tensors, with packed linear layers.

    ``fields``: further ones of ``quantization_config``.
    """
    float_model(architecture).save_pretrained(path)
    file = path / "model.safetensors"
    tensors = octavo.load(file)
    config, metadata = json.loads((path / "config.json").read_text()), {"format": "pt"}
    is_torchao = layout.startswith("torchao")
    parts, settings = (None, {"quant_method": "torchao"}) if is_torchao else LAYOUTS[layout]
    for name in [name for name in tensors if architecture == "gpt_oss" and tensors[name].ndim == 3]:
        made = [parts(expert.t().contiguous().numpy()) for expert in tensors.pop(name)]
        tensors |= {f"{name}{part}": torch.from_numpy(np.concatenate([one[part] for one in made])) for part in made[0]}
    for name in [name for name in tensors if architecture != "gpt_oss" and _PACKED.search(name)]:
        base, weight = name.removesuffix(".weight"), tensors.pop(name).numpy()
        if is_torchao:
            made, metadata[name] = _torchao(weight, layout.removeprefix("torchao-"))
            tensors |= {f"{base}._weight_{part}": value for part, value in made.items()}
        else:
            tensors |= {f"{base}{part}": torch.as_tensor(value).contiguous() for part, value in parts(weight).items()}
    config["quantization_config"] = {**json.loads(json.dumps(settings)), **fields}
    (path / "config.json").write_text(json.dumps(config))
    octavo.save(tensors, file, metadata=metadata)
    return path


def _torchao(weight, kind):
    """The tensors of MXTensor or NVFP4Tensor, and what the metadata say of them."""
    is_nv = kind == "nvfp4"
    blocks = grouped(weight, 16 if is_nv else 32)
    attributes = {
        "orig_dtype": {"_type": "torch.dtype", "_data": "float32"}, "is_swizzled_scales": False,
        "act_quant_kwargs": None, "block_size": 16 if is_nv else 32,
    }  # fmt: skip
    if is_nv:
        factor = np.float32(0.25 / (6 * 448))  # one for all layers, as kernels that join layers need it
        scale = torch.from_numpy(np.abs(blocks).max(2) / 6 / factor).to(torch.float8_e4m3fn)
        codes = nearest_e2m1((blocks / (scale.float().numpy() * factor)[..., None]).reshape(weight.shape))
        made = {"qdata": nibbles(codes), "scale": scale, "per_tensor_scale": torch.tensor(factor)}
    else:
        exponent = exponents(blocks)
        codes = nearest_e2m1((blocks / 2.0 ** exponent[..., None]).reshape(weight.shape))
        stored = torch.from_numpy((exponent + 127).astype(np.uint8)).view(torch.float8_e8m0fnu)
        made = {"qdata": nibbles(codes), "scale": stored}
        attributes |= {"elem_dtype": {"_type": "torch.dtype", "_data": "float4_e2m1fn_x2"}, "kernel_preference": None}
    record = {"_type": "NVFP4Tensor" if is_nv else "MXTensor", "_data": attributes, "_tensor_data_names": list(made)}
    return {part: torch.as_tensor(value) for part, value in made.items()}, json.dumps(record)


def decoded_model(path, out):
    """The model of a folder with the values that Octavo has, as transformers loads it, in float64."""
    import transformers
    from octavo.interchange.conversion import as_folder
    from octavo.interchange.foreign_readers import reader_of
    from octavo.model_folder.unpack_weights import unpacked
    from octavo.model_folder.weight_files import PLAIN_NAME, Checkpoint, write

    with as_folder(reader_of(path).open(path), packed=True) as (folder, _):
        source = Checkpoint.open(folder)
        write(source, out, PLAIN_NAME, unpacked(source, torch.float32), force=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    model.set_experts_implementation("eager")  # grouped products of PyTorch take no float64
    return model.double()
