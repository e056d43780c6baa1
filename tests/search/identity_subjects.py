"""Models and functions with everything that may hang on them, and every part of them that can be changed.

``python identity_subjects.py SEEDS NAME...`` prints the digests of subjects as JSON: the same ones in every process.
"""

import functools
import json
import sys
import types
from dataclasses import dataclass, field

import numpy as np
import torch
from octavo.search.fingerprints import identity_of
from torch import nn
from torch.nn.utils import parametrizations

VALID = torch.arange(12.0).reshape(3, 4)
LIMITS = {"low": 0.5, "words": {"a", "b", "c"}, "deep": [[1, (2, "x")]]}
WEIGHTS = np.arange(6, dtype=np.float32)


@dataclass
class Options:
    """Attributes of all plain kinds."""

    scale: float = 2.0
    names: list = field(default_factory=lambda: ["a", "b"])
    table: dict = field(default_factory=lambda: {"x": 1, "y": None})
    seen: set = field(default_factory=lambda: {"p", "q", ("r", 1)})
    mask: torch.Tensor = field(default_factory=lambda: torch.tensor([True, False]))
    weights: np.ndarray = field(default_factory=lambda: np.arange(4))


class Slotted:
    """Attributes in slots, one of them private."""

    __slots__ = ("__hidden", "shown")

    def __init__(self):
        self.__hidden, self.shown = 3, [1.5]

    def total(self):
        return self.__hidden + sum(self.shown)


class Part(nn.Module):
    """What a digest of state_dict forgets: buffers that are not saved, private attributes, tensors among them."""

    rate = 0.25

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = nn.Linear(4, 4)
        with torch.no_grad():
            for parameter in self.linear.parameters():
                parameter.normal_(generator=generator)
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("turns", torch.linspace(0, 1, 4), persistent=False)
        self._gain, self.options, self.slotted = 1.5, Options(), Slotted()
        self.table = [torch.full((2,), 3.0), np.ones(2)]
        self.own = {"shift": torch.zeros(4), "words": frozenset({"one", "two"})}

    def forward(self, x):
        return self._gain * self.linear(x) * self.turns + self.own["shift"]


def mixed(seed=0):
    return Part(seed).eval()


def nested(seed=0):
    model = nn.Sequential(Part(seed), nn.ReLU(), nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.25)), Part(seed + 1))
    model[0].next = model[3]
    return model.eval()


def hooked(seed=0):
    model, scale = Part(seed), torch.full((1,), 2.0)
    model.linear.register_forward_hook(lambda module, given, made: made * scale)
    model.register_forward_pre_hook(functools.partial(lambda module, given, low: (given[0] + low,), low=0.5))
    return model.eval()


def parametrized(seed=0):
    torch.manual_seed(seed)
    return parametrizations.weight_norm(nn.Linear(4, 4)).eval()


def recurrent(seed=0):
    torch.manual_seed(seed)
    return nn.LSTM(4, 4, bidirectional=True).eval()


def convolved(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3)).eval()


def attending(seed=0):
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


def tied(seed=0):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    return model.eval()


def own_gpt(seed=0):
    from octavo.lab.language.gpt import GPT, nocap_baseline

    torch.manual_seed(seed)
    return GPT(nocap_baseline(vocabulary=32, width=64, layers=1, heads=1, end_of_text=0)).eval()


def of_transformers(kind, config, **more):
    def made(seed=0):
        transformers = __import__("transformers")
        torch.manual_seed(seed)
        sizes = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **more}
        return getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()

    return made


_SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TRANSFORMERS = {
    "llama": of_transformers("LlamaForCausalLM", "LlamaConfig", **_SMALL, num_key_value_heads=1),
    "bert": of_transformers("BertModel", "BertConfig", **_SMALL),
    "gpt2": of_transformers("GPT2LMHeadModel", "GPT2Config", n_embd=8, n_layer=1, n_head=2, n_positions=16),
    "t5": of_transformers("T5Model", "T5Config", d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2),
    "mixtral": of_transformers("MixtralForCausalLM", "MixtralConfig", **_SMALL, num_key_value_heads=1,
                               num_local_experts=2),
}  # fmt: skip


# --- functions ------------------------------------------------------------------------------------------------------


def score(model, *, low=0.25, names=("a", "b")):
    """Reads globals: a tensor, an array, a table, a function and a class of this module."""
    return float((helper(VALID) * Options().scale).sum()) + low + len(names) + LIMITS["low"] + float(WEIGHTS.sum())


def helper(x):
    return x * 3 if "b" in LIMITS["words"] else x


def closing(seed=0):
    generator = torch.Generator().manual_seed(seed)
    batches = [{"x": torch.randn(2, 4, generator=generator), "labels": torch.tensor([0, 1])} for _ in range(2)]
    part, options, floor = Part(seed), Options(scale=1.0 + seed), np.float64(0.5)

    def evaluate(model):
        with torch.no_grad():
            return sum(float(part(batch["x"]).sum()) for batch in batches) * options.scale + float(floor)

    return evaluate


def bound(seed=0):
    class Judge:
        limit = 3

        def __init__(self):
            self.data = torch.full((3,), float(seed))
            self._weight = {"a": [0.5, seed]}

        def __call__(self, model):
            return float(self.data.sum()) * self.limit + self._weight["a"][0]

        def method(self, model):
            return self(model)

    return Judge()


def applied(seed=0):
    return functools.partial(score, low=0.5 + seed, names=["c"])


def cached(seed=0):
    closed = torch.full((2,), float(seed))
    return functools.lru_cache(lambda model: float(closed.sum()))


def globally(seed=0):
    made = types.FunctionType(score.__code__, {**globals(), "VALID": VALID + seed}, "score")
    made.__kwdefaults__ = dict(score.__kwdefaults__)
    return made


MODELS = {
    made.__name__: made
    for made in (mixed, nested, hooked, parametrized, recurrent, convolved, attending, tied, own_gpt)
}  # fmt: skip
FUNCTIONS = {made.__name__: made for made in (closing, bound, applied, cached, globally)}
FUNCTIONS["method"] = lambda seed=0: bound(seed).method
SUBJECTS = {**MODELS, **FUNCTIONS}
ALL = {**SUBJECTS, **TRANSFORMERS}


# --- changes --------------------------------------------------------------------------------------------------------

_INSIDE = (
    "_parameters", "_buffers", "_modules", "_is_full_backward_hook", "_compiled_call_impl", "_non_persistent_buffers_set",
)  # fmt: skip
# Notes of transformers, which change no output.
_NOTES = (
    "_name_or_path", "name_or_path", "transformers_version", "warnings_issued", "_commit_hash", "_is_hf_initialized",
    "_original_object_hash",
)  # fmt: skip


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if value == value and abs(value) != float("inf") else 0.5
    if isinstance(value, str | bytes):
        return value + value[:1] + ("~" if isinstance(value, str) else b"~")
    if isinstance(value, frozenset):
        return value | {"~"}
    if isinstance(value, tuple):
        return (*value, 1)
    return 0 if value is None else None


def changes(value, path="", seen=None):
    """Yield the path, a function that changes and one that restores it, of every part of a subject."""
    seen = seen if seen is not None else {}
    if id(value) in seen or isinstance(value, type | types.ModuleType | torch.dtype | torch.device):
        return
    if getattr(value, "__module__", "").startswith(("torch.", "transformers.")) and isinstance(
        value, types.FunctionType
    ):
        return  # a library's version stands for its functions
    seen[id(value)] = value
    if isinstance(value, torch.Tensor | np.ndarray):
        yield from _of_array(value.data if isinstance(value, torch.Tensor) else value, path)
    elif isinstance(value, dict | list):
        yield from _of_container(value, path, seen)
    elif isinstance(value, set):
        yield path, lambda: value.add("~"), lambda: value.discard("~")
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, path, seen)
    elif isinstance(value, functools.partial):
        yield from changes(value.keywords, f"{path}()", seen)
        yield from changes(value.func, f"{path}.func", seen)
    elif isinstance(value, types.MethodType):
        yield from changes(value.__self__, f"{path}.self", seen)
    elif hasattr(value, "__wrapped__"):
        yield from changes(value.__wrapped__, f"{path}.wrapped", seen)
    else:
        yield from _of_object(value, path, seen)


def _of_array(value, path):
    if not (len(value.reshape(-1)) if isinstance(value, np.ndarray) else value.numel()):
        return
    place = (0,) * value.ndim
    before = value[place].item() if isinstance(value, np.ndarray) else value[place].clone()

    def change():
        value[place] = changed(before if isinstance(value, np.ndarray) else before.item())

    def restore():
        value[place] = before

    yield path, change, restore


def _of_container(value, path, seen):
    places = list(value) if isinstance(value, dict) else range(len(value))
    for place in places:
        yield from _of_member(value[place], f"{path}[{place!r}]", functools.partial(value.__setitem__, place), seen)
    if isinstance(value, list):
        yield f"{path}+", lambda: value.append("~"), value.pop
    elif all(isinstance(place, str) for place in places):
        yield f"{path}+", lambda: value.update({"~": 1}), lambda: value.pop("~")


def _of_member(value, path, put, seen):
    """Changes of a member: another plain value in its place, or those inside it."""
    if isinstance(value, int | float | str | bytes | tuple | frozenset | None):
        yield path, lambda: put(changed(value)), lambda: put(value)
    else:
        yield from changes(value, path, seen)


def _of_function(function, path, seen):
    code = function.__code__
    numbers = [place for place, one in enumerate(code.co_consts) if type(one) in (int, float)]
    for place in numbers[:3]:
        other = tuple(changed(one) if at == place else one for at, one in enumerate(code.co_consts))
        yield (
            f"{path}.code[{place}]",
            lambda other=other: setattr(function, "__code__", code.replace(co_consts=other)),
            lambda: setattr(function, "__code__", code),
        )
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        put = functools.partial(setattr, cell, "cell_contents")
        yield from _of_member(cell.cell_contents, f"{path}<{name}>", put, seen)
    for name in sorted({"VALID", "LIMITS", "WEIGHTS"} & set(code.co_names)):
        yield from changes(function.__globals__[name], f"{path}:{name}", seen)
    if function.__kwdefaults__:
        yield from _of_container(function.__kwdefaults__, f"{path}.defaults", seen)


def _of_object(value, path, seen):
    held = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        for name, tensor in (*value._parameters.items(), *value._buffers.items()):
            if tensor is not None:
                yield from changes(tensor, f"{path}.{name}", seen)
        for name, module in value._modules.items():
            yield from changes(module, f"{path}.{name}", seen)
        yield f"{path} hook", lambda: value.register_forward_hook(len), lambda: value._forward_hooks.popitem()
    for name in [*held, *(n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ()))]:
        mangled = f"_{type(value).__name__}{name}" if name.startswith("__") and not name.endswith("__") else name
        if name in (*_INSIDE, *_NOTES) or "_hooks" in name or not hasattr(value, mangled):
            continue
        put = functools.partial(object.__setattr__, value, mangled)
        yield from _of_member(getattr(value, mangled), f"{path}.{name}", put, seen)


def digest(subject):
    """The digest of a subject, of which everything is known."""
    known = identity_of(subject=subject)
    assert not known.unknown, known.unknown
    return known.digests["subject"]


if __name__ == "__main__":
    nn.Linear(1, 1).register_forward_hook(print).remove()  # numbers of hooks depend on what came before
    names, seeds = sys.argv[2:], range(int(sys.argv[1]))
    told = {f"{name} {seed}": digest(ALL[name](seed)) for name in names for seed in seeds}
    print(json.dumps(told))
