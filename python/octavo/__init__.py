"""Octavo: number formats for PyTorch models - choose, train, pack to real bytes, and run, bit-exact everywhere.

What to call, by task; all of it is there after ``import octavo``:

=====================  =================================================================================================
one tensor             Format, formats, quantize, encode, decode, PackedTensor, linear, gemm, strict
files of tensors       save, load, inspect
a model                Recipe, Rule, quantize_model, pack_model, prune_model, save_model, load_model, explain
quantizing, further    quant (coverage, prepare_model, freeze_scales, FormatSchedule, smooth_model, gptq), nn, recipe
seeing a model whole   graph (capture, diff, sparsity, tensor_statistics, Pipeline)
pruning                prune (fold_model, compact_model, report, callback, Cubic, Iterative, groups)
adapters               lora (insert, fuse, commit, save_adapters, load_adapters)
training               train (train, TrainConfig, Task)
measuring, compressing evaluate, compress_model
running without torch  Engine, Encoder, Decoder, Sampling
GPUs                   cuda (info, warmup, prebuild)
=====================  =================================================================================================

Further rooms: data and models (tokenizers, networks), ops (the torch ops), report (reports of compressions), folder
(model folders), engine, search (journals), systems and studies (whole jobs, questions about formats), compat (rules of
other libraries). Every error is an OctavoError. ``octavo --help`` lists the commands, ARCHITECTURE.md says where
everything stands.

Importing this package loads neither torch nor numpy; they load when a tensor is first touched.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from octavo import _interpreter  # noqa: F401 - refuses subinterpreters before the core is loaded
from octavo import late_binding as _late_binding
from octavo import settings as _settings
from octavo._core import __version__
from octavo.errors import (
    BypassWarning,
    CalibrationError,
    CalibrationWarning,
    ContainerError,
    CoverageWarning,
    CudaError,
    CudaUnavailableError,
    DataError,
    DTypeError,
    FormatError,
    IdentityWarning,
    InternalError,
    Interrupted,
    KernelCompileError,
    KernelError,
    LockedError,
    ModelError,
    NonFiniteError,
    OctavoError,
    OctavoWarning,
    RangeError,
    SettingError,
    ShapeError,
)
from octavo.formats import Format, formats
from octavo.settings import strict

if _TYPE_CHECKING:
    from octavo import compat as compat
    from octavo import container as container
    from octavo import cuda as cuda
    from octavo import data as data
    from octavo import engine as engine
    from octavo import folder as folder
    from octavo import gemm as gemm
    from octavo import graph as graph
    from octavo import linear as linear
    from octavo import lora as lora
    from octavo import models as models
    from octavo import nn as nn
    from octavo import ops as ops
    from octavo import prune as prune
    from octavo import quant as quant
    from octavo import recipe as recipe
    from octavo import report as report
    from octavo import search as search
    from octavo import studies as studies
    from octavo import systems as systems
    from octavo import tensor as tensor
    from octavo import train as train
    from octavo.container import inspect, load, save
    from octavo.engine.native_decoder import Decoder, Sampling
    from octavo.engine.native_encoder import Encoder
    from octavo.engine.native_engine import Engine
    from octavo.folder.layer_costs import explain
    from octavo.folder.save_load import load_model, save_model
    from octavo.ops.codec import decode, encode, quantize
    from octavo.prune.prune_model import prune_model
    from octavo.quant.apply_recipe import quantize_model
    from octavo.quant.pack_layers import pack_model
    from octavo.recipe import Recipe, Rule
    from octavo.search.compress_model import compress_model
    from octavo.tensor import PackedTensor
    from octavo.train.evaluate_model import evaluate

_LAZY = {
    "Decoder": "octavo.engine.native_decoder",
    "Encoder": "octavo.engine.native_encoder",
    "Engine": "octavo.engine.native_engine",
    "PackedTensor": "octavo.tensor",
    "Recipe": "octavo.recipe",
    "Rule": "octavo.recipe",
    "Sampling": "octavo.engine.native_decoder",
    "compress_model": "octavo.search.compress_model",
    "decode": "octavo.ops.codec",
    "encode": "octavo.ops.codec",
    "evaluate": "octavo.train.evaluate_model",
    "explain": "octavo.folder.layer_costs",
    "inspect": "octavo.container",
    "load": "octavo.container",
    "load_model": "octavo.folder.save_load",
    "pack_model": "octavo.quant.pack_layers",
    "prune_model": "octavo.prune.prune_model",
    "quantize": "octavo.ops.codec",
    "quantize_model": "octavo.quant.apply_recipe",
    "save": "octavo.container",
    "save_model": "octavo.folder.save_load",
}

_MODULES = (
    "compat", "container", "cuda", "data", "engine", "folder", "gemm", "graph", "linear", "lora", "models", "nn", "ops",
    "prune", "quant", "recipe", "report", "search", "studies", "systems", "tensor", "train",
)  # fmt: skip

__all__ = [
    "BypassWarning",
    "CalibrationError",
    "CalibrationWarning",
    "ContainerError",
    "CoverageWarning",
    "CudaError",
    "CudaUnavailableError",
    "DTypeError",
    "DataError",
    "Decoder",
    "Encoder",
    "Engine",
    "Format",
    "FormatError",
    "IdentityWarning",
    "InternalError",
    "Interrupted",
    "KernelCompileError",
    "KernelError",
    "LockedError",
    "ModelError",
    "NonFiniteError",
    "OctavoError",
    "OctavoWarning",
    "PackedTensor",
    "RangeError",
    "Recipe",
    "Rule",
    "Sampling",
    "SettingError",
    "ShapeError",
    "__version__",
    "compress_model",
    "decode",
    "encode",
    "evaluate",
    "explain",
    "formats",
    "inspect",
    "load",
    "load_model",
    "pack_model",
    "prune_model",
    "quantize",
    "quantize_model",
    "save",
    "save_model",
    "strict",
]

_settings.start()
_late_binding.bind(
    {
        **_LAZY,
        "describe_checkpoint": "octavo.folder.described_checkpoint",
        "dumps": "octavo.container",
        "float_kinds": "octavo.nn.registry",
        "kind_of": "octavo.nn.registry",
        "load_cuda_engine": "octavo.engine.cuda_engine:load",
        "load_seq2seq": "octavo.systems.polynomials.export:load_model",
        "loads_one": "octavo.container",
        "pass_compact": "octavo.prune.prune_passes:COMPACT",
        "pass_fold_masks": "octavo.prune.prune_passes:FOLD_MASKS",
        "pass_fuse_lora": "octavo.lora.lora_passes:FUSE_LORA",
        "pass_lora": "octavo.lora.lora_passes:LORA",
        "pass_pack": "octavo.quant.quant_passes:PACK",
        "pass_prune": "octavo.prune.prune_passes:PRUNE",
        "pass_quantize": "octavo.quant.quant_passes:QUANTIZE",
        "refuse_packed_weights": "octavo.folder.described_checkpoint",
        "shipped_folder": "octavo.systems.polynomials.shipped",
        "use_our_methods": "octavo.quant.transformers_methods",
    }
)


def __getattr__(name: str) -> object:
    """Load what needs torch on first use."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return _import_module(f"octavo.{name}")
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "errors"})
