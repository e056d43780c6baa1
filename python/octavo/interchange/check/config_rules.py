"""Rules of configurations: what they state of layers, sizes and ties beside what the tensors are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.interchange.check.findings import Findings, JsonEdit, rule
from octavo.interchange.check.scan import CHUNK
from octavo.interchange.check.source import Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import GGML, OCTAVO, Layer, Model, float_experts, linear_weights

CONFIG_MISSING = rule(
    "config-missing", "error",
    "tensors are quantised and no configuration says so, or a method is stated and no tensor is quantised",
    "readers load codes as weights, or wait for tensors that never come and fill them with random numbers",
    "write `quantization_config` into config.json, or remove it",
)  # fmt: skip
CONFIG_METHOD = rule(
    "config-method", "error",
    "the configuration states another method than the tensors have",
    "readers look for tensors of other names, and stop or leave the layers unfilled",
    "state the method of the tensors in `quant_method`",
)  # fmt: skip
NOT_IGNORED = rule(
    "layer-not-ignored", "error",
    "a float matrix is a target of the scheme and not in its list of ignored layers",
    "vLLM waits for packed tensors: it stops at load, or serves scales that were never filled",
    "add the layer to `ignore` (`exclude_modules` of ModelOpt), or quantise it",
)  # fmt: skip
UNEVEN = rule(
    "coverage-uneven", "warning",
    "the layer is quantised in some blocks and float in others, and the configuration does not say so",
    "readers that take one scheme for all blocks stop at load",
    "quantise it in all blocks, or list the float ones",
)  # fmt: skip
EXPERTS = rule(
    "experts-unmapped", "error",
    "experts are quantised as one tensor under names that no reader maps",
    "vLLM and transformers start the experts from random numbers, in silence (MMLU 82 becomes 25)",
    "export with llm-compressor newer than 0.12, which writes a layer for each expert",
)  # fmt: skip
HEAD = rule(
    "head-quantised", "warning",
    "the output head or the embedding is quantised",
    "many models of vLLM read the embedding as float and stop; readers with tied weights ignore the head",
    "leave both float in this kind of file",
)  # fmt: skip
TIE = rule(
    "tie-flag", "error",
    "tie_word_embeddings is true, and the file has a head that is not the embedding",
    "transformers, vLLM and SGLang drop the head and use the embedding",
    "state `tie_word_embeddings` false; --fix does it",
)  # fmt: skip
HEAD_MISSING = rule(
    "head-missing", "error",
    "tie_word_embeddings is false, and the file has no head",
    "transformers starts the head from random numbers with a warning",
    "copy the head from the original, or state `tie_word_embeddings` true where the model is tied",
)  # fmt: skip
SIZES = rule(
    "config-sizes", "error",
    "the configuration states other sizes or another number of layers than the tensors have",
    "readers stop at load, or leave layers out",
    "correct the configuration, or export the missing layers",
)  # fmt: skip
TENSOR_MISSING = rule(
    "tensor-missing", "error",
    "one block lacks a tensor that all others have",
    "readers fill it with random numbers or stop",
    "export the block again",
)  # fmt: skip
PATTERN = rule(
    "ignore-pattern", "warning",
    "a pattern of `ignore` or `targets` is no regular expression, or may take exponential time",
    "readers stop, or hang; it was not tried here",
    "write a simpler pattern",
)  # fmt: skip
PROMISED = rule(
    "bits-promised", "warning",
    "the quantised layers take more bits a parameter than the name or the configuration promises",
    "memory and speed are those of the larger number",
    "state the number with scales and zero points, or choose a smaller format",
)  # fmt: skip

_METHODS = {
    "compressed-tensors": ("words", "int8", "fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8-blocks"),
    "modelopt": ("modelopt-nvfp4", "fp8", "mxfp8", "mxfp4", "fp8-blocks", "words"),
    "gptq": ("gptq",), "awq": ("awq", "gptq"), "bitsandbytes": ("bnb-4bit", "bnb-int8"), "mxfp4": ("gpt-oss",),
    "fp8": ("fp8-blocks", "fp8"), "fbgemm_fp8": ("fp8",), "octavo": ("octavo",),
    "auto-round": ("gptq", "awq", "words", "mxfp4", "nvfp4", "fp8"),
    "intel/auto-round": ("gptq", "awq"), "torchao": ("int8", "fp8"),
    "quark": ("fp8", "int8", "mxfp4", "nvfp4"),
}  # fmt: skip
_EMBEDDINGS = re.compile(r"(?:.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings)$")
_HEADS = re.compile(r"(?:.*\.)?(lm_head|output_layer|embed_out)$")
_STACK = re.compile(r"^((?:\w+\.)*?(?:layers|h|layer|blocks))\.(\d{1,6})\.(.+)$")
_FUSED_EXPERTS = re.compile(
    r"experts\.(?:gate_up_proj|down_proj|up_proj|gate_proj|gate_up)_(?:packed|scale|shape|zero_point|global_scale)$"
)
_PROMISE = re.compile(r"(?<![\d.])(\d(?:\.\d+)?)[ _-]?(?:bpw|bits?\b)", re.IGNORECASE)
_MORE = 1.03  # of the promised bits; scales of a published "4 bits" are told apart below
_LINEAR_ONLY = ("compressed-tensors", "modelopt")


def check_config(model: Model, settings: Settings, findings: Findings) -> None:
    """Check the configurations of a folder. Single files without one are what they are."""
    source = model.source
    layouts = {layer.layout for layer in model.layers}
    if source.gguf is None and source.configs:
        _check_method(model, settings, layouts, findings)
    _check_coverage(model, settings, findings)
    _check_head(model, settings, findings)
    if source.config:
        _check_sizes(model, findings)
    for pattern in [*settings.ignored, *(target for group in settings.groups for target in group.targets)]:
        settings.matches(pattern, "model.layers.0.mlp.down_proj")
    for pattern in settings.unreadable:
        findings.add(PATTERN, pattern[:80], f"{settings.file} has it", file=settings.file)
    _check_promise(model, settings, findings)


def _check_method(model: Model, settings: Settings, layouts: set[str], findings: Findings) -> None:
    file = settings.file or "config.json"
    quantised = layouts - {OCTAVO}
    if quantised and not settings.method:
        listed = ", ".join(f"{count} {kind}" for kind, count in model.kinds.items() if kind in quantised)
        findings.add(CONFIG_MISSING, file, f"no method is stated; the tensors are {listed}", file=file)
    elif settings.method in _METHODS and not layouts:
        status = settings.table.get("quantization_status")
        if settings.method == "compressed-tensors" and (status in ("frozen", "initialized") or not settings.groups):
            return  # a model that was not compressed
        findings.add(CONFIG_MISSING, file, f"it states {settings.method}; no tensor is quantised", file=file)
    elif settings.method in _METHODS and quantised and not quantised & set(_METHODS[settings.method]):
        findings.add(
            CONFIG_METHOD,
            file,
            f"it states {settings.method}; the tensors are {', '.join(sorted(quantised))}",
            file=file,
        )


def _check_coverage(model: Model, settings: Settings, findings: Findings) -> None:
    fused = [name for name in model.source.tensors if _FUSED_EXPERTS.search(name)]
    if fused:
        findings.add(
            EXPERTS,
            fused[0],
            f"{len(fused)} tensors of experts have such names",
            file=model.source.tensors[fused[0]].file.name,
            count=len(fused),
        )
    if not model.layers or model.source.gguf is not None:
        return
    floats = dict(linear_weights(model))
    stated = settings.method in _LINEAR_ONLY and not (
        settings.method == "modelopt" and settings.table.get("quantized_layers")
    )
    if stated:
        floats |= dict(float_experts(model))
        left = [layer for layer in floats if _is_target(settings, layer) and not settings.ignores(layer)]
        key = next((one for one in ("ignore", "exclude_modules") if one in settings.table), "ignore")
        edit = JsonEdit(model.source.folder / settings.file, (*settings.keys, key), [*settings.ignored, *left])
        exact = settings.file == "config.json" and settings.keys
        for layer in left[:16]:
            raw, text = floats[layer], f"{floats[layer].dtype} {list(floats[layer].shape)}; {len(left)} such layers"
            findings.add(NOT_IGNORED, layer, text, file=raw.file.name, edits=(edit,) if exact else ())
        return
    if settings.table.get("dynamic") or settings.method in ("bitsandbytes", "octavo") or OCTAVO in model.kinds:
        return
    numbers: dict[str, set[str]] = {}
    for one in model.layers:
        if match := _STACK.match(one.module):
            numbers.setdefault(re.sub(r"\d+", "#", match[3]), set()).add(match[2])
    uneven: dict[str, list[str]] = {}
    for path in floats:
        match = _STACK.match(path)
        if match and (key := re.sub(r"\d+", "#", match[3])) in numbers and not settings.ignores(path):
            uneven.setdefault(key, []).append(path)
    for key, layers in uneven.items():
        findings.add(
            UNEVEN,
            layers[0],
            f"float in {len(layers)} layers, quantised in {len(numbers[key])} blocks",
            count=len(layers),
            file=floats[layers[0]].file.name,
        )


def _is_target(settings: Settings, layer: str) -> bool:
    if settings.method == "modelopt":
        return True
    return settings.group_of(layer) is not None


def _check_head(model: Model, settings: Settings, findings: Findings) -> None:
    if model.source.gguf is not None:
        return
    stored_head: Raw | Layer | None = None
    embedding: Raw | Layer | None = None
    for layer in model.layers:
        name = layer.module
        if _HEADS.match(name):
            stored_head = layer
        elif _EMBEDDINGS.match(name):
            embedding = layer
        else:
            continue
        if layer.layout not in (OCTAVO, GGML) and settings.table.get("lm_head") is not True:
            findings.add(
                HEAD, layer.name, f"{layer.layout}, {layer.rows} x {layer.columns}", file=layer.codes.file.name
            )
    for name, raw in model.plain.items():
        path = name.removesuffix(".weight")
        if name.endswith(".weight") and len(raw.shape) == 2:
            stored_head = raw if _HEADS.match(path) else stored_head
            embedding = raw if _EMBEDDINGS.match(path) else embedding
    keys, tied = _tie(model.source.config)
    if keys is None or embedding is None:
        return
    file = model.source.folder / "config.json"
    if tied and stored_head is not None and not _same(stored_head, embedding):
        findings.add(
            TIE,
            stored_head.name,
            f"it is not {embedding.name}",
            file="config.json",
            edits=(JsonEdit(file, keys, False),),
        )
    architectures = model.source.config.get("architectures")
    is_generator = isinstance(architectures, list) and any(
        isinstance(one, str) and one.endswith("ForCausalLM") for one in architectures
    )
    complete = model.source.path.is_dir() and not model.source.missing
    if tied is False and stored_head is None and is_generator and complete and keys == ("tie_word_embeddings",):
        findings.add(
            HEAD_MISSING, "lm_head", f"{model.source.config.get('architectures')} needs one", file="config.json"
        )


def _tie(config: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, bool | None]:
    for keys in (("text_config", "tie_word_embeddings"), ("tie_word_embeddings",)):
        table: Any = config
        for key in keys[:-1]:
            table = table.get(key) if isinstance(table, Mapping) else None
        if isinstance(table, Mapping) and isinstance(table.get(keys[-1]), bool):
            return keys, table[keys[-1]]
    return None, None


def _same(one: Raw | Layer, other: Raw | Layer) -> bool:
    """Whether two weights have the same bytes."""
    if isinstance(one, Layer) or isinstance(other, Layer):
        if not (isinstance(one, Layer) and isinstance(other, Layer)) or one.parts.keys() != other.parts.keys():
            return False
        return all(_same(one.parts[role], other.parts[role]) for role in one.parts)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    left, right = one.data(), other.data()
    return all(np.array_equal(left[at : at + CHUNK], right[at : at + CHUNK]) for at in range(0, len(left), CHUNK))


def _check_sizes(model: Model, findings: Findings) -> None:
    config = model.source.config
    texts = config.get("text_config")
    table = texts if isinstance(texts, dict) else config

    def whole(*keys: str) -> int | None:
        value = next((table[key] for key in keys if key in table), None)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    for name, raw in model.plain.items():
        if not name.endswith(".weight") or not _EMBEDDINGS.match(name.removesuffix(".weight")) or len(raw.shape) != 2:
            continue
        if "embedding_size" in table or "word_embed_proj_dim" in table or "vocab_size_per_layer_input" in table:
            continue
        for key, stated, size in (
            ("vocab_size", whole("vocab_size"), raw.shape[0]),
            ("hidden_size", whole("hidden_size", "n_embd", "d_model", "dim"), raw.shape[1]),
        ):
            if stated is not None and stated != size:
                findings.add(
                    SIZES, name, f"it is {list(raw.shape)}; config.json states {key} {stated}", file="config.json"
                )
    stacks: dict[str, dict[int, set[str]]] = {}
    for name in model.source.tensors:
        if match := _STACK.match(name):
            stacks.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    stated = whole("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    main = [path for path in stacks if not re.search(r"vision|visual|audio|decoder|encoder\.block|mtp|block", path)]
    if stated is None or len(main) != 1 or model.source.missing:
        return
    blocks = stacks[main[0]]
    more = whole("num_nextn_predict_layers", "mtp_num_hidden_layers") or 0
    highest = max(blocks)
    if model.source.path.is_dir() and not stated <= highest + 1 <= stated + more:
        findings.add(SIZES, main[0], f"blocks 0 to {highest}; config.json states {stated} layers", file="config.json")
    elif model.source.path.is_dir() and len(blocks) <= highest:
        lost = next(one for one in range(highest + 1) if one not in blocks)
        findings.add(TENSOR_MISSING, f"{main[0]}.{lost}", f"the block has no tensors; there are blocks up to {highest}")
    if len(blocks) >= 4:
        suffixes: dict[str, list[int]] = {}
        for number, names in blocks.items():
            for suffix in names:
                suffixes.setdefault(suffix, []).append(number)
        for suffix, numbers in sorted(suffixes.items()):
            if (
                len(numbers) == len(blocks) - 1
                and ("attn" in suffix or "attention" in suffix or "norm" in suffix)
                and "layer_types" not in table
            ):
                lost = next(one for one in blocks if one not in numbers)
                findings.add(TENSOR_MISSING, f"{main[0]}.{lost}.{suffix}", f"the other {len(numbers)} blocks have it")


def delivered_bits(model: Model) -> float:
    """Return the bits a parameter of all quantised layers, their scales and zero points included; 0 without any."""
    layers = [layer for layer in model.layers if layer.elements]
    elements = sum(layer.elements for layer in layers)
    return 8 * sum(layer.nbytes for layer in layers) / elements if elements else 0.0


def _check_promise(model: Model, settings: Settings, findings: Findings) -> None:
    bits = delivered_bits(model)
    if not bits:
        return
    promised, where = None, ""
    for key in ("avg_bits", "target_bits", "bpw"):
        value = settings.table.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 32:
            promised, where = float(value), f"{settings.file} states {key} {value:g}"
    if promised is None and (match := _PROMISE.search(model.source.path.name)) and "." in match[1]:
        promised, where = float(match[1]), f"the name promises {match[1]}"
    if promised is not None and bits > _MORE * promised:
        findings.add(PROMISED, model.source.path.name, f"{where}, layers have {bits:.3f} bits a parameter")
