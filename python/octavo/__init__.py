"""Octavo: number formats for PyTorch models - choose, train, pack to real bytes, and run, bit-exact everywhere.

What to call, by task; all of it is there after ``import octavo``:

======================  ================================================================================================
one tensor              Format, formats, quantize, encode, decode, PackedTensor, linear, gemm, strict
files of tensors        save, load, inspect
a model                 Recipe, Rule, quantize_model, pack_model, prune_model, save_model, load_model, explain
quantizing, further     quant (coverage, prepare_model, freeze_scales, FormatSchedule, smooth_model, gptq), nn, recipe
seeing a model whole    graph (capture, diff, sparsity, tensor_statistics, Pipeline)
pruning                 prune (fold_model, compact_model, report, callback, Cubic, Iterative, groups)
adapters                lora (insert, fuse, commit, save_adapters, load_adapters)
adapters of PEFT        peft (prepare, target_modules, merge)
training                train (train, TrainConfig, Task)
measuring, compressing  evaluate, compress_model
running without torch   TextEncoder, TextGenerator, Sampling
GPUs                    cuda (info, warmup, prebuild)
======================  ================================================================================================

Further rooms: data (readers, tokenizers), ops (the torch ops), tensors (formats, packed tensors, files of tensors),
report (reports of compressions), model_folder, engine, search (sensitivities, allocation), compress (the main job),
interchange (files of other packages), storage. The laboratory is ``octavo.lab``: our own models and questions about
formats. Every error is an OctavoError, in ``octavo.errors``. ``octavo --help`` lists the commands, ARCHITECTURE.md says
where everything stands.

Importing this package loads neither torch nor numpy; they load when a tensor is first touched.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from warnings import warn as _warn

from octavo import _interpreter  # noqa: F401 - refuses subinterpreters before the core is loaded
from octavo import late_binding as _late_binding
from octavo import settings as _settings
from octavo._core import __version__
from octavo.errors import (
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
    InterruptedRun,
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
    UnusedLayerWarning,
)
from octavo.settings import strict
from octavo.tensors.formats import Format, formats

if _TYPE_CHECKING:
    from octavo import compress as compress
    from octavo import cuda as cuda
    from octavo import data as data
    from octavo import engine as engine
    from octavo import gemm as gemm
    from octavo import graph as graph
    from octavo import interchange as interchange
    from octavo import lab as lab
    from octavo import linear as linear
    from octavo import lora as lora
    from octavo import model_folder as model_folder
    from octavo import nn as nn
    from octavo import ops as ops
    from octavo import peft as peft
    from octavo import prune as prune
    from octavo import quant as quant
    from octavo import recipe as recipe
    from octavo import report as report
    from octavo import search as search
    from octavo import storage as storage
    from octavo import tensors as tensors
    from octavo import train as train
    from octavo.compress.compress_model import compress_model
    from octavo.engine.text_encoder import TextEncoder
    from octavo.engine.text_generator import Sampling, TextGenerator
    from octavo.model_folder.layer_costs import explain
    from octavo.model_folder.save_load import load_model, save_model
    from octavo.ops.codec import decode, encode, quantize
    from octavo.prune.prune_model import prune_model
    from octavo.quant.apply_recipe import quantize_model
    from octavo.quant.pack_layers import pack_model
    from octavo.recipe import Recipe, Rule
    from octavo.tensors.container import inspect, load, save
    from octavo.tensors.packed_tensor import PackedTensor
    from octavo.train.evaluate_model import evaluate

_LAZY = {
    "PackedTensor": "octavo.tensors.packed_tensor",
    "Recipe": "octavo.recipe",
    "Rule": "octavo.recipe",
    "Sampling": "octavo.engine.text_generator",
    "TextEncoder": "octavo.engine.text_encoder",
    "TextGenerator": "octavo.engine.text_generator",
    "compress_model": "octavo.compress.compress_model",
    "decode": "octavo.ops.codec",
    "encode": "octavo.ops.codec",
    "evaluate": "octavo.train.evaluate_model",
    "explain": "octavo.model_folder.layer_costs",
    "inspect": "octavo.tensors.container",
    "load": "octavo.tensors.container",
    "load_model": "octavo.model_folder.save_load",
    "pack_model": "octavo.quant.pack_layers",
    "prune_model": "octavo.prune.prune_model",
    "quantize": "octavo.ops.codec",
    "quantize_model": "octavo.quant.apply_recipe",
    "save": "octavo.tensors.container",
    "save_model": "octavo.model_folder.save_load",
}

_MODULES = (
    "compress", "cuda", "data", "engine", "gemm", "graph", "interchange", "lab", "linear", "lora", "model_folder",
    "nn", "ops", "peft", "prune", "quant", "recipe", "report", "search", "storage", "tensors", "train",
)  # fmt: skip
# Names of 0.1 and what they are now, which warn; they go with the release after this one.
_FORMER = {
    "BypassWarning": "octavo.errors.UnusedLayerWarning",
    "Decoder": "octavo.TextGenerator",
    "Encoder": "octavo.TextEncoder",
    "Engine": "octavo.lab.polynomials.Engine",
    "Interrupted": "octavo.errors.InterruptedRun",
    "container": "octavo.tensors.container",
    "folder": "octavo.model_folder",
    "studies": "octavo.lab.studies",
    "tensor": "octavo.tensors.packed_tensor",
}

__all__ = [
    "CalibrationError",
    "CalibrationWarning",
    "ContainerError",
    "CoverageWarning",
    "CudaError",
    "CudaUnavailableError",
    "DTypeError",
    "DataError",
    "Format",
    "FormatError",
    "IdentityWarning",
    "InternalError",
    "InterruptedRun",
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
    "TextEncoder",
    "TextGenerator",
    "UnusedLayerWarning",
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
        "dumps": "octavo.tensors.container",
        "float_model": "octavo.model_folder.float_model",
        "float_kinds": "octavo.nn.registry",
        "foreign_folder": "octavo.interchange.conversion:as_folder",
        "foreign_reader": "octavo.interchange.foreign_readers:reader_of",
        "kind_of": "octavo.nn.registry",
        "layers_in_reach": "octavo.nn.rewriting",
        "loads_one": "octavo.tensors.container",
        "made_from": "octavo.nn.rewriting",
        "packing_methods": "octavo.interchange.foreign_readers",
        "pass_compact": "octavo.prune.prune_passes:COMPACT",
        "pass_fold_masks": "octavo.prune.prune_passes:FOLD_MASKS",
        "pass_fuse_lora": "octavo.lora.lora_passes:FUSE_LORA",
        "pass_lora": "octavo.lora.lora_passes:LORA",
        "pass_pack": "octavo.quant.quant_passes:PACK",
        "pass_prune": "octavo.prune.prune_passes:PRUNE",
        "pass_quantize": "octavo.quant.quant_passes:QUANTIZE",
        "push_to_hub": "octavo.model_folder.publish_model",
        "save_pretrained": "octavo.model_folder.save_pretrained",
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
    if name in _FORMER:
        now = _FORMER[name]
        _warn(f"octavo.{name} is {now} now; the old name goes with the next release", FutureWarning, 2)
        place, _, last = now.rpartition(".")
        return getattr(_import_module(place), last, None) or _import_module(now)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names to begin with: of the errors, which stand in ``octavo.errors``, the one that all are."""
    errors = _import_module("octavo.errors")
    names = {name for name in __all__ if name == "OctavoError" or not hasattr(errors, name)}
    return sorted({*names, *_MODULES, "errors"})
