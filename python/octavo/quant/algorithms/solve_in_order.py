"""GPTQ and HQQ over the layers of a model."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.data.file_tensors import MOST_HELD, in_file
from octavo.display.progress import Stages
from octavo.errors import CalibrationError, OctavoError
from octavo.nn.linear import QuantLinear
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.ops.codec import encode
from octavo.quant.algorithms.gptq import Factors, solved
from octavo.quant.algorithms.solution import Solution
from octavo.quant.algorithms.walk import Stage, Walk
from octavo.quant.calibration import Products, hooked, undisturbed
from octavo.quant.zeros import warn_of_silent
from octavo.tensors.fixed_order import every_thread
from octavo.tensors.formats import Format
from octavo.train.concurrent_batches import in_turn

# Bytes of the sums of products of experts that are gathered in one run; further experts cost a run more.
_MOST_BYTES = 1 << 30


class Put(Protocol):
    """What gives a layer its solved weight ``[N, K]``."""

    def __call__(self, layer: QuantLayer, matrix: Tensor) -> None:
        """Give a layer a weight."""


def overwrite(layer: QuantLayer, matrix: Tensor) -> None:
    """Write a weight over the one that a layer has."""
    layer.set_weight_matrix(matrix)


class Beside:
    """Puts weights into memory of their own, beside those they replace; beyond a bound into mapped files."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._nbytes = 0

    def __call__(self, layer: QuantLayer, matrix: Tensor) -> None:
        """Give a layer a weight."""
        layer.put_weight_matrix(matrix, self._memory)

    def _memory(self, tensor: Tensor) -> Tensor:
        self._nbytes += tensor.nbytes
        return torch.empty_like(tensor) if self._nbytes <= MOST_HELD or not tensor.is_cpu else in_file(tensor)


class Store(Protocol):
    """Solutions that were found before, by the name of the layer."""

    def has(self, name: str) -> bool:
        """Whether there is a solution, which may turn out to be broken."""

    def find(self, name: str) -> tuple[Solution, str] | None:
        """Return a solution, and a word about its inputs; None where there is none."""

    def add(self, name: str, solution: Solution, format: Format, note: str) -> None:
        """Keep a solution."""


def solve_weights(
    model: nn.Module,
    layers: list[QuantLayer],
    batches: Batches | None,
    show: Stages,
    *,
    put: Put = overwrite,
    restore: bool = False,
    store: Store | None = None,
) -> list[str]:
    """Give layers the weights and scales that their specs' ``gptq`` or ``hqq`` find.

    Returns the layers of experts that no batch reached, which gptq rounds to nearest.

    GPTQ goes in the order the layers run, each from its inputs in the model with everything before it quantized. For
    every layer, or layers with the same input, the calibration data runs up to it once more, from the last block that
    is solved whole (:class:`~octavo.quant.algorithms.walk.Walk`); through the whole model for layers that do not run
    just once in every batch. One matrix of all experts of a mixture is solved together. Columns go in descending order
    of the Hessian's diagonal, scales are fitted.

    ``put``: gives a layer its weight. ``restore``: overwrite weights with what they were if anything fails. ``store``:
    solutions of an earlier run of the same model, recipe and data, which gets new ones.
    """
    before = {layer: layer.weight_matrix().detach().clone() for layer in layers} if restore else {}
    by_gptq = [layer for layer in layers if _is_gptq(layer)]
    uses = Counter(layer._own("weight") for layer in layers)
    tied: dict[Tensor, Solution] = {}  # of layers with one weight, which have one format: solved once
    work = _Work(put, store)
    try:
        with show.stage("solving for weights", len(layers)) as advance:
            for layer in layers:
                if layer not in by_gptq:
                    weight = layer._own("weight")
                    if weight in tied:
                        work.put(layer, tied[weight])
                    elif not work.take(layer):
                        solution = work.solve(layer)
                        if uses[weight] > 1:
                            tied[weight] = solution
                    advance()
            if by_gptq:
                assert batches is not None  # checked before any work
                _solve_in_order(model, by_gptq, batches, advance, work)
    except BaseException:
        for layer, matrix in before.items():
            layer.set_weight_matrix(matrix)
        raise
    return work.unreached


_SILENT, _UNREACHED = "inputs were nothing but zeros", "no batch reached it"


class _Work:
    """Solves layers, or takes what was found before.

    ``silent``: layers whose inputs were zeros. ``unreached``: experts that were rounded to nearest.
    """

    def __init__(self, put: Put, store: Store | None) -> None:
        self._put, self._store = put, store
        self.silent: list[str] = []
        self.unreached: list[str] = []

    def has(self, layers: Iterable[QuantLayer]) -> bool:
        """Whether there may be an earlier solution of each of some layers."""
        return self._store is not None and all(self._store.has(_name(layer)) for layer in layers)

    def find(self, layer: QuantLayer) -> tuple[Solution, str] | None:
        """Return an earlier solution of a layer; None where there is none that can be read."""
        return None if self._store is None else self._store.find(_name(layer))

    def take(self, layer: QuantLayer) -> bool:
        """Give a layer its earlier solution; False where there is none that can be read."""
        if (earlier := self.find(layer)) is None:
            return False
        self.put(layer, *earlier)
        return True

    def solve(self, layer: QuantLayer, factors: Factors | None = None, note: str = "") -> Solution:
        """Solve a layer, by GPTQ with factors; ``note``: a word on its inputs."""
        solution = _solution(layer, factors, note)
        if self._store is not None:
            self._store.add(_name(layer), solution, _weight_quantizer(layer).format, note)
        self.put(layer, solution, note)
        return solution

    def put(self, layer: QuantLayer, solution: Solution, note: str = "") -> None:
        """Give a layer a solution."""
        matrix, scales, zeros, levels = solution
        self._put(layer, matrix)
        if scales is not None:  # of formats that have some
            _weight_quantizer(layer).set_scales(scales, zeros, levels)
        if note == _SILENT:
            self.silent.append(_what(layer))
        if note == _UNREACHED:
            self.unreached.append(_name(layer))


def _solution(layer: QuantLayer, factors: Factors | None, note: str) -> Solution:
    from octavo import quant

    weight, fmt = layer.weight_matrix().detach().to(torch.float32), _weight_quantizer(layer).format
    with _naming(layer):
        if note == _UNREACHED:
            return Solution.of(encode(weight, fmt))
        return quant.hqq(weight, fmt) if factors is None else solved(weight, factors, fmt, scale="mse")


def _solve_in_order(model: nn.Module, layers: list[QuantLayer], batches: Batches, advance: Any, work: _Work) -> None:
    with undisturbed(model):
        if work.has(layers) and all(map(work.take, layers)):
            for _ in layers:
                advance()
            warn_of_silent(work.silent)
            return
        work.silent.clear()
        work.unreached.clear()
        for layer in layers:
            _enable(layer, False)
        walk = Walk(model, layers, batches, inputs_alone=True)
        for stage in _parts(walk.stages):
            staged = cast("list[QuantLayer]", stage.layers)
            earlier = {layer: work.find(layer) for layer in staged}
            products: dict[nn.Module, Products] = {}
            if None in earlier.values():  # with the others as they were then: a layer may run again after them
                alike = all(_shares_input(layer, stage) for layer in staged)
                products = walk.run_to(stage, functools.partial(_products, stage), first_alone=alike)
            factors: dict[Products, Factors] = {}
            for layer in staged:
                if (solution := earlier[layer]) is not None:
                    work.put(layer, *solution)
                elif not products[layer].n and stage.mixture is not None:
                    work.solve(layer, note=_UNREACHED)
                else:
                    sums = products[layer]
                    note = _SILENT if sums.n and not sums.sums.any() else ""
                    with every_thread():  # what is summed is summed in the core
                        if sums not in factors:
                            with _naming(layer):
                                hessian = sums.hessian()
                                factors[sums] = Factors(hessian, len(hessian), order="descending")
                        work.solve(layer, factors[sums], note)
                _enable(layer, True)
                if layer.input_quantizer is None and layer._own("weight").dtype == torch.float32:
                    # The weight is rounded: rounding it in each pass changes nothing.
                    _weight_quantizer(layer).enabled = False
                walk.done(layer)
                advance()
        warn_of_silent(work.silent)


def _parts(stages: list[Stage]) -> Iterator[Stage]:
    """Yield stages, those of many experts in parts whose sums of products fit in a bound of memory."""
    for stage in stages:
        if stage.mixture is None:
            yield stage
            continue
        layers = cast("list[QuantLayer]", stage.layers)
        columns = max(layer.weight_matrix().shape[1] for layer in layers)
        count = max(1, _MOST_BYTES // (8 * columns * columns))
        for start in range(0, len(layers), count):
            yield stage._replace(layers=stage.layers[start : start + count])


@contextmanager
def _products(stage: Stage) -> Iterator[dict[nn.Module, Products]]:
    """Yield the sums of products of the inputs that layers get inside: one for all that read the same numbers."""
    layers = cast("list[QuantLayer]", stage.layers)
    kinds: dict[Any, Products] = {}
    products: dict[nn.Module, Products] = {}
    for layer in layers:
        key = None if _shares_input(layer, stage) else id(layer)
        products[layer] = kinds.setdefault(key, Products(layer))
    first = {id(products[layer]): layer for layer in reversed(layers)}

    def see(layer: QuantLayer, arguments: tuple[Tensor, ...]) -> None:
        if first[id(products[layer])] is layer:
            x = arguments[0]
            x = x if layer.input_quantizer is None else layer.input_quantizer(x)
            with in_turn(products[layer]):
                products[layer].add(x)

    with hooked(layers, see):
        yield products


def _shares_input(layer: QuantLayer, stage: Stage) -> bool:
    """Whether a layer multiplies the same numbers as others of its stage of which that is so."""
    return layer.input_quantizer is None and stage.alike and isinstance(layer, QuantLinear)


def _name(layer: QuantLayer) -> str:
    return _weight_quantizer(layer).what.partition(":")[0]


def _what(layer: QuantLayer) -> str:
    return f"{_name(layer)}: input"


def _weight_quantizer(layer: QuantLayer) -> Quantizer:
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    return quantizer


def _is_gptq(layer: QuantLayer) -> bool:
    quantizer = layer.weight_quantizer
    calibration = None if quantizer is None else quantizer.spec.calibration
    return calibration is not None and calibration.method == "gptq"


def _enable(layer: QuantLayer, enabled: bool) -> None:
    for quantizer in (layer.weight_quantizer, layer.bias_quantizer):
        if quantizer is not None:
            quantizer.enabled = enabled


@contextmanager
def _naming(layer: QuantLayer) -> Iterator[None]:
    """Have errors name the layer's weight."""
    try:
        yield
    except CalibrationError:  # names it
        raise
    except OctavoError as error:
        raise type(error)(f"{_weight_quantizer(layer).what}: {error}") from None
