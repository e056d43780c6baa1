"""Forward passes with a prefix cache: modules that end before a changed layer return their cached outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_numbered, tensors_in
from octavo.data.kept_trees import KeptTrees, can_keep
from octavo.errors import NonFiniteError
from octavo.quant.calibration import counting, replaced_forward
from octavo.search.output_divergence import Output, Reader, not_finite, reader_of

_MOST_BYTES = 2 << 30  # of cached outputs
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class SharedPasses:
    """A float model on calibration batches: its outputs, and their divergence when layers are changed.

    The cache has the outputs of modules that have children and run once in every batch. If these do not fit into 2 GiB,
    only the outputs of elements of stacks (``encoder.layer.3``) are cached. ``notes`` say where caching was impossible.
    The caller opens :func:`octavo.quant.calibration.undisturbed` around all passes.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        layers: Iterable[nn.Module],
        *,
        output: Output | None = None,
        divergence: str | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Run every batch once.

        Raises CalibrationError for a batch that the model cannot take, ModelError for outputs that cannot be compared,
        NonFiniteError for outputs that are not finite.
        """
        self.model, self.batches = model, batches
        self.notes: list[str] = []
        self.reader = Reader("kl")
        self._references = KeptTrees()
        self._count = 0
        self._cached: dict[nn.Module, KeptTrees] = {}
        self._starts: dict[nn.Module, int] = {}
        self._ends: dict[nn.Module, int] = {}
        cached = self._order(list(layers))
        for number, batch in enumerate(batches):
            with self._caching(cached), counting(self.model, batch):
                result = call_numbered(model, batch, number)
            if not number:
                self.reader = reader_of(result, batch, output, divergence)
            rows = self.reader.rows(result, batch)
            if not bool(torch.isfinite(rows).all()):
                raise NonFiniteError(not_finite(number, model))
            self._references.append(self.reader.reference(rows, narrow=self._references.is_full(rows.nbytes)))
            self._count += len(rows)
            advance()
        self._check()

    @property
    def positions(self) -> int:
        """Rows of outputs that are compared."""
        return self._count

    def divergence(self, changed: Iterable[nn.Module]) -> float:
        """Return the mean divergence of the model in its present state, in which only ``changed`` layers differ.

        NaN where an output is not finite.
        """
        total = 0.0
        for number, rows in enumerate(self.rows(changed)):
            total += self.reader.sum(self._references[number], rows)
        return total / max(self._count, 1) if torch.isfinite(torch.tensor(total)) else float("nan")

    def rows(self, changed: Iterable[nn.Module]) -> Iterator[Tensor]:
        """Yield the rows of outputs, batch by batch, of the model in its present state."""
        stubs = self._before(changed)
        for number, batch in enumerate(self.batches):
            with _stubs({module: self._cached[module] for module in stubs}, number), counting(self.model, batch):
                result = call_numbered(self.model, batch, number)
            yield self.reader.rows(result, batch)

    # --- what can be shared -------------------------------------------------------------------------------------------

    def _before(self, changed: Iterable[nn.Module]) -> list[nn.Module]:
        """Return the modules that end before any of ``changed`` starts; none if a layer was never called."""
        start = min((self._starts.get(module, -1) for module in changed), default=-1)
        return [module for module in self._cached if self._ends[module] < start]

    def _order(self, layers: list[nn.Module]) -> list[nn.Module]:
        """Run the first batch, note when modules start and end, and return the modules to cache."""
        inner = [module for module in self.model.modules() if next(module.children(), None) is not None]
        watched = {*inner, *layers} - {self.model}
        calls: Counter[nn.Module] = Counter()
        sizes: dict[nn.Module, int] = {}
        time = 0

        def start(module: nn.Module, *_: Any) -> None:
            nonlocal time
            time, calls[module] = time + 1, calls[module] + 1
            self._starts.setdefault(module, time)

        def end(module: nn.Module, _: Any, output: Any) -> None:
            nonlocal time
            time += 1
            self._ends[module] = time
            sizes[module] = sum(tensor.nbytes for tensor in tensors_in(output))

        handles = [module.register_forward_pre_hook(start) for module in watched]
        handles += [module.register_forward_hook(end) for module in watched]
        try:
            call_numbered(self.model, self.batches[0], 0)
        finally:
            for handle in handles:
                handle.remove()
        once = [module for module in inner if calls[module] == 1 and sizes.get(module)]
        for chosen in (once, [module for module in once if module in _elements(self.model)]):
            if sum(sizes[module] for module in chosen) * len(self.batches) <= _MOST_BYTES:
                return chosen
        self.notes.append("outputs of blocks do not fit into 2 GiB: whole forward passes; give fewer samples")
        return []

    @contextmanager
    def _caching(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        def keep(module: nn.Module, _: Any, output: Any) -> None:
            if can_keep(output):
                self._cached.setdefault(module, KeptTrees(len(modules))).append(output)

        handles = [module.register_forward_hook(keep) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _check(self) -> None:
        """Drop the cache if passes that use it differ from whole passes, with a note."""
        complete = [module for module, outputs in self._cached.items() if len(outputs) == len(self.batches)]
        self._cached = {module: self._cached[module] for module in complete}
        if not self._cached:
            self.notes.append("no module runs once in every batch: whole forward passes")
            return
        layers = sorted((module for module in self._starts if module not in self._cached), key=self._starts.__getitem__)
        whole = self.reader.rows(call_numbered(self.model, self.batches[0], 0), self.batches[0])
        for layer in {layers[0], layers[len(layers) // 2], layers[-1]} if layers else ():
            try:
                same = torch.equal(next(self.rows([layer])), whole)
            except Exception:  # a model may raise anything when an inner module is not run
                same = False
            if not same:
                self._cached = {}
                self.notes.append("the model keeps state between its modules: whole forward passes")
                return


def _elements(model: nn.Module) -> set[nn.Module]:
    return {child for module in model.modules() if isinstance(module, _CONTAINERS) for child in module.children()}


@contextmanager
def _stubs(outputs: Mapping[nn.Module, KeptTrees], number: int) -> Iterator[None]:
    """Make modules return what they gave for a batch inside."""
    with ExitStack() as stack:
        for module, trees in outputs.items():
            stack.enter_context(replaced_forward(module, lambda *_, trees=trees, **__: trees[number]))
        yield
