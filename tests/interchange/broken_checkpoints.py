"""A sound checkpoint and a broken one for each rule of the linter."""

import json
import struct

import numpy as np
import octavo
import torch
from helpers import checkpoints
from helpers.gguf_files import gguf
from octavo.interchange.check.run_check import check_path

LAYER = "model.layers.1.mlp.up_proj"


def edited(layout, change, shards=1):
    """A fixture: a sound folder, and one of whose tensors and configuration ``change`` changes something."""

    def make(folder):
        tensors, config = checkpoints.llama(layout)
        sound = checkpoints.write(folder / "sound", tensors, config, shards)
        tensors, config = checkpoints.llama(layout)
        change(tensors, config)
        return sound, checkpoints.write(folder / "broken", tensors, config, shards)

    return make


def rewritten(layout, change, shards=1, base=False):
    """A fixture: a sound folder, and a copy whose files ``change`` changes."""

    def make(folder):
        tensors, config = checkpoints.llama(layout)
        sound = checkpoints.write(folder / "sound", tensors, config, shards)
        broken = checkpoints.write(folder / "broken", tensors, config, shards)
        change(broken)
        return sound, broken

    return make


def part(suffix, change):
    """Change the bytes of a part of a layer, as unsigned integers of their size."""

    def apply(tensors, config):
        tensor = tensors[f"{LAYER}{suffix}"].clone()
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[tensor.itemsize]
        change(
            tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
            .numpy()
            .view(kind)
        )
        tensors[f"{LAYER}{suffix}"] = tensor

    return apply


def at(place, value):
    def change(data):
        data[place] = value

    return change


def replaced(suffix, make):
    """Replace a part of a layer by what ``make`` makes of it."""

    def apply(tensors, config):
        tensors[f"{LAYER}{suffix}"] = make(tensors[f"{LAYER}{suffix}"])

    return apply


def dropped(suffix):
    return lambda tensors, config: tensors.pop(f"{LAYER}{suffix}")


def quantised(**values):
    return lambda tensors, config: config["quantization_config"].update(values)


def stated(**values):
    return lambda tensors, config: config.update(values)


def group(**values):
    return lambda tensors, config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(values)


def factors(change):
    """Change the factors of all layers."""

    def apply(tensors, config):
        for name in tensors:
            if name.endswith("weight_global_scale"):
                tensors[name] = change(tensors[name])

    return apply


def saturated(tensors, config):
    """Blocks that the largest scale is too small for."""
    tensors[f"{LAYER}.weight_scale"].view(torch.uint8).view(-1)[:64] = 0x7E
    tensors[f"{LAYER}.weight_packed"].view(-1, 8)[:64] = 0x7F


def vanished(tensors, config):
    """A fifth of the scales rounded to 0 with their blocks."""
    scales = tensors[f"{LAYER}.weight_scale"].view(torch.uint8)
    scales.view(-1)[::5] = 0
    tensors[f"{LAYER}.weight_packed"].view(-1, 8)[::5] = 0


def low_exponents(tensors, config):
    """Every exponent two too low, by a version that did so."""
    config["quantization_config"]["version"] = "0.13.0"
    for name in tensors:
        if name.endswith("weight_scale"):
            tensors[name] -= 2


def old_version(tensors, config):
    config["quantization_config"]["version"] = "0.13.0"


def quantised_head(tensors, config):
    for suffix in ("packed", "scale", "shape"):
        tensors[f"lm_head.weight_{suffix}"] = tensors[f"model.layers.0.mlp.up_proj.weight_{suffix}"]
    del tensors["lm_head.weight"]
    config["quantization_config"]["ignore"] = []


def one_sided(tensors, config):
    """A group whose AWQ zero point 0 became 15."""
    zeros = tensors[f"{LAYER}.qzeros"].numpy().view(np.uint32)
    zeros[0, 0] |= 15


def wrapped(tensors, config):
    config["quantization_config"]["sym"] = False
    tensors[f"{LAYER}.qzeros"].numpy().view(np.uint32)[0, 0] |= 15


def experts(tensors, config):
    for suffix in ("packed", "scale", "shape"):
        tensors[f"model.layers.0.mlp.experts.gate_up_proj_{suffix}"] = tensors[f"{LAYER}.weight_{suffix}"]


def float_layer(tensors, config):
    """A layer that stayed float, in a scheme that does not say so."""
    for suffix in ("packed", "scale", "shape"):
        del tensors[f"{LAYER}.weight_{suffix}"]
    tensors[f"{LAYER}.weight"] = torch.randn(checkpoints.SHAPES["mlp.up_proj"]) * 0.05


def float_gptq_layer(tensors, config):
    for suffix in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{LAYER}.{suffix}"]
    tensors[f"{LAYER}.weight"] = torch.randn(checkpoints.SHAPES["mlp.up_proj"]) * 0.05


def float_experts(tensors, config):
    """Experts in one tensor, which stayed float."""
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = torch.randn(2, 64, 128) * 0.05


def without(name):
    return lambda tensors, config: tensors.pop(name)


def sparse(folder):
    """Words of whole codes of three bits; the sound ones are dense."""
    layout, settings = checkpoints.ct_words(3, pack=checkpoints.sparse_words)
    checkpoints.LAYOUTS["sparse"] = layout, settings
    try:
        broken = checkpoints.write(folder / "broken", *checkpoints.llama("sparse"))
    finally:
        del checkpoints.LAYOUTS["sparse"]
    return checkpoints.write(folder / "sound", *checkpoints.llama("ct-int3")), broken


def ragged(tensors, config):
    """Groups of 32 of 112 columns: the last is short."""
    rows = checkpoints.INNER
    codes = np.random.default_rng(0).integers(0, 16, (rows, 112))
    tensors[f"{LAYER}.weight_packed"] = torch.from_numpy(checkpoints.dense_words(codes, 4))
    tensors[f"{LAYER}.weight_scale"] = torch.ones(rows, 4)
    tensors[f"{LAYER}.weight_shape"] = torch.tensor([rows, 112])


def named(name):
    """A fixture whose folder has a name that promises something."""

    def make(folder):
        sound = checkpoints.write(folder / "llama-4.63-bits", *checkpoints.llama("ct-uint4"))
        return sound, checkpoints.write(folder / name, *checkpoints.llama("ct-uint4"))

    return make


def index_edit(change):
    def apply(folder):
        place = folder / "model.safetensors.index.json"
        table = json.loads(place.read_text())
        change(table)
        place.write_text(json.dumps(table))

    return apply


def lose(table):
    del table["weight_map"]["lm_head.weight"]


def twice(folder):
    files = sorted(folder.glob("model-*.safetensors"))
    first, second = octavo.load(files[0]), octavo.load(files[1])
    octavo.save(second | {min(first): first[min(first)]}, files[1])


def many_blocks(change):
    """A fixture of five blocks of plain tensors."""

    def tensors_of():
        tensors, config = checkpoints.base()
        for block in range(2, 5):
            for name in [name for name in tensors if name.startswith("model.layers.0.")]:
                tensors[name.replace(".0.", f".{block}.")] = tensors[name] + 0
        return tensors, config | {"num_hidden_layers": 5}

    def make(folder):
        sound = checkpoints.write(folder / "sound", *tensors_of())
        tensors, config = tensors_of()
        change(tensors, config)
        return sound, checkpoints.write(folder / "broken", tensors, config)

    return make


# --- octavo and GGUF ----------------------------------------------------------------------------------------------------


def own(change):
    """A fixture: a container of ours, and one whose bytes are changed."""

    def make(folder):
        torch.manual_seed(0)
        tensors = {"a.weight": octavo.encode(torch.randn(64, 64), "mxfp4"), "b": torch.randn(64)}
        for name in ("sound", "broken"):
            metadata = {"digests": json.dumps(octavo.tensors.container.digests(tensors))}
            octavo.save(tensors, folder / f"{name}.safetensors", metadata=metadata)
        place = folder / "broken.safetensors"
        data = bytearray(place.read_bytes())
        change(data)
        place.write_bytes(data)
        return folder / "sound.safetensors", place

    return make


def damage(data):
    data[-1] ^= 1


KEYS = [("general.architecture", "str", "llama"), ("llama.block_count", "u32", 1), ("general.file_type", "u32", 2)]


def blocks(count, nbytes, scale=b"\x00\x20", seed=0):
    """Blocks of random codes behind a float16 scale."""
    rng = np.random.default_rng(seed)
    data = rng.integers(1, 255, (count, nbytes), dtype=np.uint8)
    data[:, : len(scale)] = np.frombuffer(scale, np.uint8)
    return data


def gguf_file(
    change, *, kind=2, nbytes=18, a_row=2, keys=KEYS, name="blk.0.attn_q.weight", elements=32, scale=b"\x00\x20"
):
    """A fixture: a GGUF file with a tensor of blocks, and one of which ``change`` changes keys, tensors and bytes."""

    def make(folder):
        paths = []
        for title in ("sound", "broken"):
            tensors = {name: [kind, (64, a_row * elements), blocks(64 * a_row, nbytes, scale)]}
            mine = {key: (form, value) for key, form, value in keys}
            after = change(tensors, mine) if title == "broken" else None
            listed = [(name, kind, shape, data.tobytes()) for name, (kind, shape, data) in tensors.items()]
            written = gguf([(key, *value) for key, value in mine.items()], listed)
            place = folder / f"{title}.gguf"
            place.write_bytes(after(written) if after else written)
            paths.append(place)
        return paths

    return make


def block_bytes(place, column, value):
    def change(tensors, keys):
        tensors["blk.0.attn_q.weight"][2][place, column] = value

    return change


def gap(tensors, keys):
    """A second tensor whose offset leaves a gap."""
    tensors["blk.0.attn_k.weight"] = [2, (64, 64), blocks(128, 18)]

    def after(data):
        # The offset of the second tensor, the last number of its entry, is moved on by an alignment.
        place = data.index(b"blk.0.attn_k.weight") + len("blk.0.attn_k.weight") + 4 + 16 + 4
        offset = struct.unpack_from("<Q", data, place)[0]
        return data[:place] + struct.pack("<Q", offset + 32) + data[place + 8 :] + bytes(32)

    return after


def other_type(tensors, keys):
    keys["general.file_type"] = ("u32", 3)


def more_blocks(tensors, keys):
    keys["llama.block_count"] = ("u32", 3)


def nvfp4_scales(tensors, keys):
    tensors["blk.0.attn_q.weight"][2][:, :4] = 0x7E


# --- the original -------------------------------------------------------------------------------------------------------


def with_base(layout, change):
    """A fixture that is checked beside the float original."""
    make = edited(layout, change)

    def made(folder):
        sound, broken = make(folder)
        checkpoints.write(folder / "base", *checkpoints.base())
        return sound, broken

    return made


def noise(tensors, config):
    codes = tensors[f"{LAYER}.weight_packed"].numpy()
    codes[:] = np.random.default_rng(0).integers(-(2**31), 2**31, codes.shape)


def swapped(tensors, config):
    for suffix in ("packed", "scale", "shape"):
        one, other = f"model.layers.0.mlp.up_proj.weight_{suffix}", f"{LAYER}.weight_{suffix}"
        tensors[one], tensors[other] = tensors[other], tensors[one]


def stale(tensors, config):
    """The layer as it was before the last steps of training."""
    torch.manual_seed(9)
    weight = checkpoints.base()[0][f"{LAYER}.weight"]
    made = checkpoints.LAYOUTS["ct-int4"][0]((weight + 0.01 * torch.randn(weight.shape)).numpy())
    for suffix in (".weight_packed", ".weight_scale"):
        tensors[f"{LAYER}{suffix}"] = torch.as_tensor(made[suffix])


def halved(tensors, config):
    tensors[f"{LAYER}.weight_scale"] = tensors[f"{LAYER}.weight_scale"] / 2


def smoothed(tensors, config):
    """Columns divided by what the norm before them was multiplied by, as SmoothQuant does."""
    weight = checkpoints.base()[0][f"{LAYER}.weight"] * torch.exp2(torch.linspace(-3, 3, checkpoints.WIDTH))
    made = checkpoints.LAYOUTS["ct-int8-channel"][0](weight.numpy())
    tensors |= {f"{LAYER}{suffix}": torch.as_tensor(value) for suffix, value in made.items()}


def other_shape(tensors, config):
    made = checkpoints.LAYOUTS["ct-int4"][0](np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32))
    for suffix, value in made.items():
        tensors[f"{LAYER}{suffix}"] = torch.as_tensor(value)


BREAKS = {
    "part-missing": edited("ct-int4", dropped(".weight_scale")),
    "part-orphan": edited("nvfp4", dropped(".weight_packed")),
    "part-shape": edited("nvfp4", replaced(".weight_scale", lambda scale: scale[:, : scale.shape[1] // 2].contiguous())),
    "group-ragged": edited("ct-int4", ragged),
    "words-sparse": sparse,
    "config-bits": edited("ct-int4", group(num_bits=8)),
    "scale-nan": edited("nvfp4", part(".weight_scale", at((3, 2), 0x7F))),
    "scale-zero": edited("nvfp4", part(".weight_scale", at((3, 2), 0))),
    "scale-range": edited("modelopt-nvfp4", replaced(".weight_scale", lambda scale: scale.float() * 1.5)),
    "scale-negative": edited("nvfp4", part(".weight_scale", at((3, 2), 0xC0))),
    "scale-spread": edited("gptq-4", replaced(".scales", lambda scale: torch.exp2(torch.linspace(-60, 60, scale.numel())).view(scale.shape))),
    "blocks-saturated": edited("nvfp4", saturated),
    "blocks-vanished": edited("nvfp4", vanished),
    "factor-invalid": edited("nvfp4", replaced(".weight_global_scale", lambda factor: factor * 0)),
    "factor-inverted": edited("nvfp4", factors(lambda factor: 1 / factor)),
    "factor-fused": edited("nvfp4", replaced(".weight_global_scale", lambda factor: factor * 1.5)),
    "exponent-low": edited("mxfp4", low_exponents),
    "nvfp4-factor-missing": gguf_file(nvfp4_scales, keys=KEYS[:2], kind=40, nbytes=36, a_row=1, elements=64, scale=b"\x30\x30\x30\x30"),
    "code-nan": edited("ct-fp8", part(".weight", at((5, 7), 0xFF))),
    "value-nan": edited("ct-int4", lambda tensors, config: tensors["lm_head.weight"].view(-1)[77:78].fill_(float("nan"))),
    "tensor-unfilled": edited("ct-int4", replaced(".weight_packed", torch.zeros_like)),
    "tensor-garbage": edited("plain", replaced(".weight", lambda weight: weight * 1e9)),
    "gptq-zero-version": edited("gptq-v2", quantised(checkpoint_format="gptq")),
    "gptq-zero-wrapped": edited("gptq-4", wrapped),
    "awq-zero-wrapped": edited("awq", one_sided),
    "g-idx-range": edited("gptq-act", part(".g_idx", at(5, 99))),
    "g-idx-ignored": edited("gptq-act", quantised(desc_act=False)),
    "bnb-table": edited("bnb-nf4", replaced(".weight.quant_map", lambda table: table * 1.5)),
    "config-missing": edited("ct-int4", lambda tensors, config: config.pop("quantization_config")),
    "config-method": edited("ct-int4", quantised(quant_method="gptq")),
    "layer-not-ignored": edited("ct-int4", float_layer),
    "coverage-uneven": edited("gptq-4", float_gptq_layer),
    "experts-unmapped": edited("ct-int4", experts),
    "head-quantised": edited("ct-int4", quantised_head),
    "tie-flag": edited("ct-int4", stated(tie_word_embeddings=True)),
    "head-missing": edited("ct-int4", without("lm_head.weight")),
    "config-sizes": edited("ct-int4", stated(num_hidden_layers=3)),
    "tensor-missing": many_blocks(without("model.layers.3.self_attn.k_proj.weight")),
    "ignore-pattern": edited("ct-int4", quantised(ignore=["lm_head", "re:(a+)+$"])),
    "bits-promised": named("llama-4.25-bits"),
    "index-disagrees": rewritten("ct-int4", index_edit(lose), shards=2),
    "index-size": rewritten("ct-int4", index_edit(lambda table: table["metadata"].update(total_size=5)), shards=2),
    "tensor-twice": rewritten("ct-int4", twice, shards=2),
    "digest": own(damage),
    "gguf-layout": gguf_file(gap),
    "gguf-metadata": gguf_file(more_blocks),
    "gguf-type": gguf_file(other_type),
    "layer-far": with_base("ct-int4", noise),
    "layer-swapped": with_base("ct-int4", swapped),
    "layer-stale": with_base("ct-int4", stale),
    "layer-scaled": with_base("ct-int4", halved),
    "columns-scaled": with_base("ct-int8-channel", smoothed),
    "base-shape": with_base("ct-int4", other_shape),
}  # fmt: skip
"""A fixture for each rule: a sound checkpoint and one that breaks the rule."""

MORE = {
    "a part of another size is named": ("part-shape", edited("gptq-4", replaced(".g_idx", lambda index: index[:-1].contiguous()))),
    "scales are floats": ("part-shape", edited("ct-int4", replaced(".weight_scale", lambda scale: scale.int()))),
    "AWQ zero points have the size of the codes": ("part-shape", edited("awq", replaced(".qzeros", lambda zeros: zeros[:-1].contiguous()))),
    "blocks of gpt-oss have a scale each": ("part-shape", edited("gpt-oss", replaced("_scales", lambda scales: scales[:, :-1].contiguous()))),
    "E8M0 255 is NaN": ("scale-nan", edited("mxfp4", part(".weight_scale", at((3, 1), 255)))),
    "E8M0 255 of gpt-oss is NaN": ("scale-nan", edited("gpt-oss", part("_scales", at((0, 3, 1), 255)))),
    "bfloat16 scales may be infinite": ("scale-nan", edited("ct-int4", part(".weight_scale", at((3, 1), 0x7F80)))),
    "float16 scales may be NaN": ("scale-nan", edited("awq", part(".scales", at((1, 3), 0x7E00)))),
    "maxima of bitsandbytes may be NaN": ("scale-nan", edited("bnb-nf4", part(".weight.absmax", at(9, 0x7FC00000)))),
    "a scale of int4 is zero": ("scale-zero", edited("ct-int4", part(".weight_scale", at((3, 1), 0)))),
    "a scale of GPTQ is zero": ("scale-zero", edited("gptq-asym", part(".scales", at((1, 3), 0)))),
    "a scale of AWQ is zero": ("scale-zero", edited("awq", part(".scales", at((1, 3), 0)))),
    "a scale of float8 is zero": ("scale-zero", edited("ct-fp8", part(".weight_scale", at((3, 0), 0)))),
    "float16 scales of Q4_0 may be infinite": ("scale-nan", gguf_file(block_bytes(9, 1, 0x7C))),
    "a scale of Q4_0 is zero": ("scale-zero", gguf_file(block_bytes(9, slice(0, 2), 0))),
    "ggml overflows at E8M0 253": ("scale-range", gguf_file(block_bytes(9, 0, 253), kind=39, nbytes=17, keys=KEYS[:2])),
    "NVFP4 of a GGUF file has no NaN": ("scale-nan", gguf_file(block_bytes(9, 2, 0x7F), kind=40, nbytes=36, a_row=1, elements=64, keys=KEYS[:2], scale=b"\x30\x30\x30\x30")),
    "NVFP4 of a GGUF file has no sign": ("scale-negative", gguf_file(block_bytes(9, 2, 0xB0), kind=40, nbytes=36, a_row=1, elements=64, keys=KEYS[:2], scale=b"\x30\x30\x30\x30")),
    "a multiplier that divides": ("factor-inverted", edited("modelopt-nvfp4", lambda tensors, config: [tensors.update({name: 1 / tensors[name]}) for name in list(tensors) if name.endswith("weight_scale_2")])),
    "the other GPTQ version": ("gptq-zero-version", edited("gptq-4", quantised(checkpoint_format="gptq_v2"))),
    "GPTQ bits of the configuration": ("config-bits", edited("gptq-4", quantised(bits=8))),
    "GPTQ groups of the configuration": ("config-bits", edited("gptq-4", quantised(group_size=64))),
    "a method and no quantised tensor": ("config-missing", edited("plain", stated(quantization_config={"quant_method": "awq", "bits": 4}))),
    "experts that stayed float": ("layer-not-ignored", edited("ct-int4", float_experts)),
    "another vocabulary": ("config-sizes", edited("plain", stated(vocab_size=300))),
    "an index names a file that is not there": ("index-disagrees", rewritten("ct-int4", lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), shards=2)),
    "an index names a tensor that is not there": ("index-disagrees", rewritten("ct-int4", index_edit(lambda table: table["weight_map"].update(more="model-00001-of-00002.safetensors")), shards=2)),
    "half of a matrix was never filled": ("tensor-unfilled", edited("plain", lambda tensors, config: tensors[f"{LAYER}.weight"][128:].zero_())),
    "scales of our containers may be NaN": ("scale-nan", own(lambda data: data.__setitem__(slice(-64 * 2 - 256, None), b"\xff" * (64 * 2 + 256)))),
}  # fmt: skip
"""Further ways to break a rule: the rule, and the fixture."""


def ids(path, base=None):
    return {finding.rule.id for finding in check_path(path, base=base).findings}


def finding(path, rule, base=None):
    return next(one for one in check_path(path, base=base).findings if one.rule.id == rule)
