"""Batches and outputs of models: trees of tensors, walked by torch's pytree, and models called on them.

A batch is what a model is called with: a mapping of keyword arguments, a tuple or list of positional ones, or the one
argument. Data loaders give labels besides: :func:`call_on` leaves out labels that the model does not take.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from octavo.data.calibration_texts import is_text, rendered
from octavo.errors import CalibrationError, DataError, OctavoError

#: Names under which data sets give the answer that a model is trained to.
LABELS = ("labels", "label", "target", "targets", "y")
_ENDLESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Texts of one length that make a batch, and the tokens of a text at most.
_TEXTS, _TOKENS = 16, 256


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers in their order; of mappings that torch does not know, such as a
    ``BatchEncoding`` of transformers, too.
    """
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from tensors_in(dict(leaf))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree whose leaves are those of ``tree``, each through ``function``; other mappings become dicts."""

    def leaf(item: Any) -> Any:
        return map_leaves(function, dict(item)) if isinstance(item, Mapping) else function(item)

    return tree_map(leaf, tree)


def named_leaves(tree: Any, model: nn.Module | None = None) -> list[tuple[str, Any]]:
    """Return everything in nested mappings, tuples and lists, each with the key or the position that leads to it.

    ``model``: positions of the outermost tuple or list, and the one argument, are named as its ``forward`` names them.
    """
    names = [] if model is None else list(_parameters(model) or {})

    def walk(name: str, item: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(item, Mapping):
            for key, value in item.items():
                yield from walk(str(key), value)
        elif isinstance(item, tuple | list):
            for place, value in enumerate(item):
                yield from walk(f"{name}.{place}", value)
        else:
            yield name, item

    if isinstance(tree, tuple | list):
        named = [*names, *map(str, range(len(names), len(tree)))]
        return [leaf for name, value in zip(named, tree, strict=False) for leaf in walk(name, value)]
    return list(walk(names[0] if names else "", tree))


def replaced_leaves(tree: Any, leaves: Sequence[Any]) -> Any:
    """Return a tree with other leaves, in the order of :func:`named_leaves`; mappings become dicts."""
    left = iter(leaves)

    def walk(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: walk(value) for key, value in item.items()}
        if isinstance(item, tuple | list):
            items = [walk(value) for value in item]
            return type(item)(*items) if hasattr(item, "_fields") else type(item)(items)
        return next(left)

    return walk(tree)


# --- calls ----------------------------------------------------------------------------------------------------------


def call_on(model: nn.Module, batch: Any) -> Any:
    """Call a model on a batch: keywords of a mapping, positions of a tuple or list, else the one argument.

    Labels that the model does not take are left out: see :func:`arguments_of`.

    Args:
        model: the model.
        batch: one batch.

    Returns:
        The model's output.
    """
    positional, named = arguments_of(model, batch)
    return model(*positional, **named)


def arguments_of(model: nn.Module, batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and the named arguments that a model gets of a batch.

    Of a mapping, members named as labels (:data:`LABELS`) are left out unless ``forward`` names them. Of a tuple,
    members behind those that ``forward`` takes are; and the last one, if ``forward`` can do without it and it holds one
    whole number a sample, as the class of a data loader's ``(x, y)`` does. Of a pair of a mapping and anything, the
    mapping is taken where ``forward`` has its names.

    Args:
        model: the model.
        batch: one batch.

    Returns:
        Positional arguments, and named ones.
    """
    if isinstance(batch, Mapping):
        return (), _named(model, batch)
    if not isinstance(batch, tuple | list):
        return (batch,), {}
    if len(batch) < 2:
        return batch, {}
    taken = _positions(model)
    if taken is None:
        return batch, {}
    required, most, names = taken
    first = batch[0]
    if len(batch) == 2 and isinstance(first, Mapping) and all(name in (*names, *LABELS) for name in first):
        return (), _named(model, first)
    positional = list(batch if most is None else batch[:most])
    if len(positional) == len(batch) > max(required, 1) and _is_label(positional[-1], positional[0]):
        positional.pop()
    return positional, {}


def _named(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    answers = [name for name in batch if name in LABELS]
    taken = _parameters(model) if answers else None
    if taken is None or all(parameter.kind in _ENDLESS for parameter in taken.values()):  # a wrapper, which hands on
        return batch
    return {name: value for name, value in batch.items() if name not in answers or name in taken}


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of ``forward`` by name, None where they cannot be told."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return None


def _positions(model: nn.Module) -> tuple[int, int | None, list[str]] | None:
    """Return how many arguments ``forward`` needs, how many it takes (None: any number), and their names."""
    parameters = _parameters(model)
    if parameters is None:
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter for parameter in parameters.values() if parameter.kind in kinds]
    required = sum(parameter.default is inspect.Parameter.empty for parameter in named)
    endless = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values())
    return (len(named) if endless else required), (None if endless else len(named)), [p.name for p in named]


def _is_label(value: Any, first: Any) -> bool:
    """Whether a tensor holds one whole number for each row of another one, which has more dimensions."""
    if not isinstance(value, Tensor) or not isinstance(first, Tensor) or value.is_floating_point():
        return False
    return value.ndim == 1 and first.ndim > 1 and len(value) == len(first)


def call_numbered(model: nn.Module, batch: Any, number: int, label: str = "calibration batch") -> Any:
    """Return what ``model`` gives for batch ``number`` of some data.

    What the model cannot take is a CalibrationError with the batch's number, the argument or the layer that refused it,
    and what the batch holds. Errors of Octavo, such as NaN in a layer, pass with a note of the number.
    """
    positional, named = arguments_of(model, batch)
    try:
        return model(*positional, **named)
    except OctavoError as error:
        error.add_note(f"while the model ran {label} {number}, counted from 0")
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError) as error:
        place = _refused(model, error)
        wrong = _argument(model, positional, named) if place is None else f"layer {place}"
        message = " ".join(str(error).split())
        raise CalibrationError(
            f"{label} {number}, counted from 0: {wrong} cannot take it: {type(error).__name__}: "
            f"{message if len(message) <= 300 else message[:297] + '...'}; it holds {_described(positional, named)}"
        ) from error


def _refused(model: nn.Module, error: BaseException) -> str | None:
    """Return the path and class of the innermost layer of ``model`` that was running, None before any was."""
    names = {id(module): name for name, module in model.named_modules()}
    layer: nn.Module | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = frame.f_locals.get("self")
        own = frame.f_code.co_filename.endswith("torch/nn/modules/module.py")
        if isinstance(module, nn.Module) and id(module) in names and not own:
            layer = module
        trace = trace.tb_next
    if layer is None:
        return None
    return f"'{names[id(layer)]}' ({type(layer).__name__})" if names[id(layer)] else f"{type(layer).__name__} itself"


def _argument(model: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Name what does not fit ``forward``: an argument without a parameter, or a parameter without an argument."""
    taken = _parameters(model) or {}
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        for name in named:
            if name not in taken:
                return f"{type(model).__name__}, which has no argument {name!r} (it has {', '.join(taken)}),"
    needed = [
        name for place, (name, parameter) in enumerate(taken.items())
        if parameter.default is inspect.Parameter.empty and name not in named and place >= len(positional)
        and parameter.kind not in _ENDLESS
    ]  # fmt: skip
    if needed:
        return f"{type(model).__name__}, which needs the argument {needed[0]!r},"
    return type(model).__name__


def _described(positional: Sequence[Any], named: Mapping[str, Any]) -> str:
    parts = [(f"argument {place}", value) for place, value in enumerate(positional)] + list(named.items())
    return ", ".join(f"{name} {_shape(value)}" for name, value in parts) or "nothing"


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"of type {type(value).__name__}"


# --- data -----------------------------------------------------------------------------------------------------------


class Batches:
    """Batches of data, as many as hold ``samples`` samples (None: all), that can be gone through again.

    ``given``: any iterable of batches: a list, a ``torch.utils.data.DataLoader`` (of ``(x, y)`` or of mappings, labels
    included), a generator; or a list of texts, which ``tokenizer`` (of transformers) turns into ids: strings, or
    objects with ``text`` or chat ``messages``. What an iterator
    or a data loader gives is read once and kept: a loader that shuffles gives every pass the same batches. Samples are
    counted along the first dimension of a batch's first tensor.

    Raises CalibrationError for what is no iterable, and for texts without a tokenizer.
    """

    def __init__(self, given: Any, samples: int | None = None, *, tokenizer: Any = None) -> None:
        """Take the data; nothing is read yet."""
        if isinstance(given, str | bytes | Mapping) or hasattr(given, "__array__") or not hasattr(given, "__iter__"):
            raise CalibrationError(
                f"calibration is a {type(given).__name__}; accepted is an iterable of batches: "
                "mappings of arguments, tuples of them, or single tensors; or a list of texts with a tokenizer"
            )
        if samples is not None and (not isinstance(samples, int) or samples < 1):
            raise CalibrationError(f"samples is {samples!r}; accepted are None and whole numbers of at least 1")
        if isinstance(given, list | tuple) and given and all(map(is_text, given)):
            if tokenizer is None:
                raise CalibrationError("calibration is a list of texts; give the tokenizer that makes ids of them, too")
            texts = [rendered(item, tokenizer, f"calibration text {place}") for place, item in enumerate(given)]
            given = tokenized(texts, tokenizer, samples)
        self._given, self.samples = given, samples
        once = iter(given) is given
        self._source: Any = given if once else None
        self._kept: list[Any] | None = [] if once or _is_loader(given) else None
        self._read = False

    def __iter__(self) -> Iterator[Any]:
        """Go through the batches."""
        seen = 0
        for batch in self._given if self._kept is None else self._replayed(self._kept):
            yield batch
            seen += samples_of(batch)
            if self.samples is not None and seen >= self.samples:
                break
        self._read = True
        if not seen:
            raise CalibrationError("calibration holds no samples; give at least one batch")

    def _replayed(self, batches: list[Any]) -> Iterator[Any]:
        """Go through what was read, then on with the source: a pass may have ended early."""
        if self._source is None:
            self._source = iter(self._given)
        place = 0
        while True:
            if place == len(batches):
                try:
                    batches.append(next(self._source))
                except StopIteration:
                    return
            yield batches[place]
            place += 1

    def __len__(self) -> int:
        """Return how many batches there are at most; 0 where that is not known."""
        if self._read and self._kept is not None:
            return len(self._kept)
        return len(self._given) if hasattr(self._given, "__len__") else 0


def samples_of(batch: Any) -> int:
    """Return the samples of a batch: the length of its first tensor, 1 where there is none.

    Args:
        batch: one batch.

    Returns:
        The number.
    """
    first = next(tensors_in(batch), None)
    return 1 if first is None or not first.ndim else len(first)


def _is_loader(data: Any) -> bool:
    return hasattr(data, "batch_sampler") and hasattr(data, "dataset")


def tokenized(texts: Sequence[str], tokenizer: Any, samples: int | None = None) -> list[dict[str, Any]]:
    """Return the ids of texts by a tokenizer of transformers, at most 256 tokens each, without padding.

    Up to 16 texts of one length make a batch; lengths come in the order in which they occur first.

    Args:
        texts: the texts.
        tokenizer: of transformers.
        samples: most texts.

    Returns:
        Batches.

    Raises:
        DataError: for a tokenizer that cannot be called so.
    """
    longest = min(getattr(tokenizer, "model_max_length", _TOKENS), _TOKENS)
    alike: dict[Any, list[dict[str, Any]]] = {}
    for number, text in enumerate(islice(texts, samples)):
        try:
            ids = dict(tokenizer([text], padding=False, truncation=True, max_length=longest, return_tensors="pt"))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the tokenizer, a {type(tokenizer).__name__}, refuses text {number}: {error}; "
                "accepted is a tokenizer of transformers"
            ) from None
        alike.setdefault(tuple((name, value.shape) for name, value in ids.items()), []).append(ids)
    return [
        {name: torch.cat([ids[name] for ids in group[start : start + _TEXTS]]) for name in group[0]}
        for group in alike.values()
        for start in range(0, len(group), _TEXTS)
    ]
