"""Layers, specs and small networks of transformers; what models hold."""

import octavo
import pytest
import torch
from octavo.recipe.spec import Calibration, LayerPlan, Spec
from torch import nn

_SIZES = {
    "GPT2": {"width": "n_embd", "layers": "n_layer", "heads": "n_head", "inner": "n_inner"},
    "T5": {"width": "d_model", "layers": "num_layers", "heads": "num_heads", "inner": "d_ff"},
}
_SIZES_OF_OTHERS = {
    "width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads", "inner": "intermediate_size",
}  # fmt: skip
_ALWAYS = {
    "GPT2": {"vocab_size": 50, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2},
    "T5": {"vocab_size": 50, "decoder_start_token_id": 0},
    "ViT": {"image_size": 16, "patch_size": 8},
}


def transformer(kind, *, seed=0, width=32, layers=2, heads=2, inner=64, **config):
    """A small model of transformers in evaluation: ``transformer("BertForMaskedLM", layers=1)``; skips without transformers.

    Sizes have one name for all families; ``config`` takes what else a family's configuration has. ``seed`` is set for
    all of torch before the weights are drawn.
    """
    transformers = pytest.importorskip("transformers")
    network = getattr(transformers, kind)
    family = network.config_class.__name__.removesuffix("Config")
    named = _SIZES.get(family, _SIZES_OF_OTHERS)
    sizes = {
        named[name]: size for name, size in (("width", width), ("layers", layers), ("heads", heads), ("inner", inner))
    }
    if family == "T5":
        sizes["d_kv"] = width // heads
    torch.manual_seed(seed)
    return network(network.config_class(**sizes | _ALWAYS.get(family, {"vocab_size": 50}) | config)).eval()


def spec(text, method=None, argument=None):
    """A format, with a calibration where a method is named."""
    return Spec(octavo.Format(text), Calibration(method, argument) if method else None)


def plan(**roles):
    """What each role of a layer gets: a text, a :class:`Spec`, or None to keep it."""
    return LayerPlan(**{role: spec(given) if isinstance(given, str) else given for role, given in roles.items()})


def linear(k=96, n=40, bias=True):
    """A linear layer of ``k`` inputs and ``n`` outputs, always with the same weights."""
    torch.manual_seed(0)
    return nn.Linear(k, n, bias=bias)


def packed(model, recipe, **options):
    """A packed copy of a float model; a recipe of None leaves it as it is."""
    return (
        model if recipe is None else octavo.pack_model(octavo.quantize_model(model, recipe, progress=False, **options))
    )


def copied_state(model):
    """The state of a model, which later changes do not reach."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_tensors(a, b):
    """Whether two dictionaries have the same tensors under the same names, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def tensor_bytes(model):
    """Bytes of parameters and buffers in memory, shared ones once."""
    return sum(t.nbytes for t in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values())
