"""Checks that run while a causal model is scored: its losses must not need what they predict.

Every check recomputes losses that were scored, or will be, from less: a window is shown with other ids from a cut on,
at other places and beside other windows, before and after it is scored. Up to the cut its losses must stay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from octavo.errors import ContractError, ModelError
from octavo.train.token_losses import gives_losses, movement, normalized_losses, step_of, token_losses
from octavo.train.token_windows import Window, batch_of, device_of

#: Tolerance, in nats, of a loss when tokens change that it must not see: sums in wider products have another order.
LEAK = 1e-3
# The tolerance in steps of the model's floats, if that is more: 0.5 nats in bfloat16, 0.06 in float16.
_STEPS = 64
# A tie between experts that float noise decides may move one window in a hundred, by at most so many nats.
_TIE, _TIES = 0.1, 0.01
# Calls of the model, or a share of the scoring calls, whichever is more; and the number of cuts that is enough: if one
# position in a hundred looks ahead, 320 cuts miss all of them once in 25 times.
_CALLS, _SHARE, _CUTS = 40, 0.05, 320
# Other endings of a window that are tried to explain why its losses moved.
_FUTURES = 4

_Kind = Literal["losses", "log_probs", "alone"]


@dataclass(frozen=True)
class Checked:
    """The extent of the checks of an evaluation.

    ``windows``: different windows. ``cuts``: windows with other ids from some position on, or beside other windows.
    ``positions``: losses that were computed again and compared. ``batches``: calls of the model for the checks.
    """

    windows: int
    cuts: int
    positions: int
    batches: int


@dataclass(frozen=True)
class _Check:
    """One call: ``rows`` of (window, cut), with other ids from the cut on. ``drawn``: also check random targets."""

    rows: tuple[tuple[int, int], ...]
    kind: _Kind = "losses"
    drawn: bool = False
    copied: bool = False


class LossGuard:
    """Checks one evaluation. Call :meth:`before` and :meth:`after` around every batch, and :meth:`finish` at the end.

    ``parts``: the scored batches. ``refuse``: raise for losses that move; otherwise only :attr:`moved` reports them.
    ``seed``: seed of cuts, companions and ids, so that an evaluation is reproducible. ``calls``: limit of the model
    calls; for None 40, or a twentieth of the batches if that is more. ``fresh``: a copy of the model that scores
    nothing and is used in every second check.
    """

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        parts: Sequence[list[Window]],
        *,
        refuse: bool,
        seed: int,
        calls: int | None = None,
        fresh: Any = None,
    ) -> None:
        """Plan the checks."""
        self._model, self._ids, self._refuse, self._fresh = model, ids, refuse, fresh
        self._windows = [window for part in parts for window in part]
        self._parts = parts
        self._part_of = [number for number, part in enumerate(parts) for _ in part]
        self._generator = torch.Generator().manual_seed(seed)
        self._known, self._place = torch.unique(ids, return_inverse=True)
        if len(self._known) == 1:
            only = int(self._known)
            self._known = torch.tensor([only, only - 1 if only else 1])
        self._largest = int(ids.max())
        self._step = step_of(model)
        self._allowed = max(LEAK, _STEPS * self._step)
        self._most = max(_CALLS, int(_SHARE * len(parts))) if calls is None else calls
        self._state = StreamState.of(model)
        self._plan = self._planned()
        rows = [row for checks in self._plan.values() for check in checks for row in check.rows]
        self._wanted = {window for window, _ in rows}
        self._ties = int(_TIES * len(rows))
        self._scored: dict[int, Tensor] = {}
        self._blind: dict[int, list[tuple[int, _Kind, Tensor]]] = defaultdict(list)
        self._next, self._tied, self._compared, self._calls = 0, 0, 0, 0
        self._cuts: list[tuple[int, int]] = []
        self._gains: list[float] = []
        self._alone: list[Tensor] = []
        self.moved: float | None = None
        """The largest change of a loss in nats; None if nothing could be changed."""

    @property
    def checked(self) -> Checked:
        """The extent of the checks so far."""
        return Checked(len({window for window, _ in self._cuts}), len(self._cuts), self._compared, self._calls)

    def before(self, number: int) -> None:
        """Run the checks planned before batch ``number``. Raises ModelError, ContractError."""
        for check in self._plan.pop(number, ()):
            self._run(check)

    def after(self, losses_BT: Tensor) -> None:
        """Compare the losses of the next batch with those of earlier checks. Raises ModelError, ContractError."""
        for losses_T in losses_BT:
            if self._next in self._wanted:
                self._scored[self._next] = losses_T
                for cut, kind, blind_T in self._blind.pop(self._next, ()):
                    self._compare(self._next, cut, kind, blind_T)
            self._next += 1

    def finish(self) -> None:
        """Run the last checks, and evaluate all of them together. Raises ModelError, ContractError."""
        self.before(len(self._parts))
        if not self._refuse:
            return
        if self._alone and not (mean := float(torch.cat(self._alone).mean())) <= max(LEAK, 8 * self._step):
            self._raise_company(mean, "in a batch and alone")
        # For the last loss before a random cut all future tokens are changed. The mean of its increase is the gain, per
        # token, of a model that looks ahead.
        if len(self._gains) > 30:
            gains = torch.tensor(self._gains, dtype=torch.float64)
            error = float(gains.std()) / math.sqrt(len(gains))
            if not (worth := float(gains.mean())) <= LEAK + 5 * error:
                self._raise_future(worth)

    # --- the plan -----------------------------------------------------------------------------------------------------

    def _planned(self) -> dict[int, list[_Check]]:
        """Return the checks before each batch, and after the last."""
        if self._state is not None:
            return self._planned_in_order()
        own, count = gives_losses(self._model), len(self._windows)
        ends = sorted({0, count // 2, count - 1})
        few = min(3, self._most // 8)
        alone = [
            _Check(((window, self._length(window)),), "alone")
            for window in ends[:few]
            if len(self._parts[self._part_of[window]]) > 1
        ]
        calls = self._most - len(alone) - few * own
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for window in range(count):
            groups[len(self._parts[self._part_of[window]]), self._length(window)].append(window)
        cuts: list[_Check] = []
        for (size, _), windows in sorted(groups.items(), key=lambda item: len(item[1])):
            share = max(2, round(calls * len(windows) / count)) if len(windows) < count else calls
            share = max(0, min(share, calls - len(cuts), -(-_CUTS // size)))
            rows = self._rows(windows, ends, size * share)
            cuts += [_Check(tuple(rows[at : at + size])) for at in range(0, len(rows), size)]
        cuts = [cuts[place] for place in self._permuted(len(cuts))]
        if own:
            drawn = [0, (len(cuts) - 1) // 3 * 3, len(cuts) // 6 * 3][:few]
            cuts = [_Check(one.rows, "losses" if at % 3 else "log_probs", at in drawn) for at, one in enumerate(cuts)]
        if self._fresh is not None:
            cuts = [_Check(one.rows, one.kind, one.drawn, at % 2 == 1) for at, one in enumerate(cuts)]
        plan: dict[int, list[_Check]] = defaultdict(list)
        for checks in (cuts, alone):
            for at, check in enumerate(checks):
                plan[round(at * len(self._parts) / max(1, len(checks) - 1))].append(check)
        return plan

    def _planned_in_order(self) -> dict[int, list[_Check]]:
        """Return the checks of a model that carries state: each window is checked with its initial state."""
        count = len(self._windows)
        ends = sorted({0, count // 2, count - 1})
        rows = self._rows(list(range(count)), ends, min(_CUTS, self._most))
        own = gives_losses(self._model)
        plan: dict[int, list[_Check]] = defaultdict(list)
        for at, row in enumerate(rows):
            plan[row[0]].append(_Check((row,), "log_probs" if own and at % 3 == 0 else "losses"))
        return plan

    def _rows(self, windows: list[int], ends: list[int], count: int) -> list[tuple[int, int]]:
        """Return ``count`` pairs of a window and a cut, or all such pairs if there are fewer.

        At least one scored position is before a cut; a cut at the length of a window changes no id in it. The first,
        middle and last window have cuts at fixed places; the other cuts are spread over windows and positions.
        """
        pairs = [(window, cut) for window in windows for cut in self._cuts_of(window)] if self._few(windows) else []
        if pairs and len(pairs) <= count:
            return [pairs[place] for place in self._permuted(len(pairs))]
        rows = []
        for window in (one for one in ends if one in set(windows)):
            length = self._length(window)
            chosen = {1, 2, length // 3, length // 2, length // 2 + 1, length - 1, length}
            rows += [(window, cut) for cut in sorted(chosen & set(self._cuts_of(window)))]
        rows = rows[:count]
        longest = max(len(self._cuts_of(window)) for window in windows)
        spread = min(max(1, count - len(rows)), longest)
        order, places = self._cycled(len(windows)), self._cycled(spread)
        while len(rows) < count:
            window = windows[next(order)]
            cuts = self._cuts_of(window)
            rows.append((window, cuts[int((next(places) + self._random()) / spread * len(cuts))]))
        return [rows[place] for place in self._permuted(len(rows))]

    def _few(self, windows: list[int]) -> bool:
        return sum(len(self._cuts_of(window)) for window in windows[: 2 * _CUTS]) <= 2 * _CUTS

    def _length(self, window: int) -> int:
        first, end, _ = self._windows[window]
        return end - first

    def _cuts_of(self, window: int) -> range:
        first, end, scored = self._windows[window]
        return range(end - first - scored + 1, end - first + 1)

    def _permuted(self, count: int) -> list[int]:
        return torch.randperm(count, generator=self._generator).tolist()

    def _cycled(self, count: int) -> Iterator[int]:
        while True:
            yield from self._permuted(count)

    def _random(self) -> float:
        return float(torch.rand((), generator=self._generator))

    # --- one check ----------------------------------------------------------------------------------------------------

    def _run(self, check: _Check) -> None:
        """Compute the losses of changed windows, and compare those of windows that are scored already."""
        model = self._fresh if check.copied else self._model
        inputs_BT, targets_BT = self._changed(check.rows)
        state = None if self._state is None else self._state.read()
        if check.kind == "log_probs":
            log_probs_BTV = model.log_probs(inputs_BT.to(device_of(model)))
            found_BT = normalized_losses(model, log_probs_BTV, targets_BT, self._step, largest=self._largest)
            if check.drawn:
                self._check_drawn(model, inputs_BT, log_probs_BTV)
        else:
            found_BT = token_losses(model, inputs_BT, targets_BT, largest=self._largest)
        if self._state is not None:
            self._state.write(state)
        self._calls += 1
        for (window, cut), losses_T in zip(check.rows, found_BT, strict=True):
            if window in self._scored:
                self._compare(window, cut, check.kind, losses_T)
            else:
                self._blind[window].append((cut, check.kind, losses_T))

    def _changed(self, rows: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of windows in which every id from the cut on is replaced by a different one."""
        inputs_BT, targets_BT = batch_of(self._ids, [self._windows[window] for window, _ in rows])
        for row, (window, cut) in enumerate(rows):
            first, end, _ = self._windows[window]
            if cut == end - first:
                continue
            place = self._place[first + cut : end + 1]
            by = torch.randint(1, len(self._known), place.shape, generator=self._generator)
            other = self._known[(place + by) % len(self._known)]
            inputs_BT[row, cut:], targets_BT[row, cut:] = other[:-1], other[1:]
        return inputs_BT, targets_BT

    def _check_drawn(self, model: Any, inputs_BT: Tensor, log_probs_BTV: Tensor) -> None:
        """Compare a model's own losses of random targets with those of its probabilities."""
        targets_BT = torch.randint(log_probs_BTV.shape[-1], inputs_BT.shape, generator=self._generator)
        wanted_BT = normalized_losses(model, log_probs_BTV, targets_BT, self._step)
        self._calls += 1
        self._check_one_loss(token_losses(model, inputs_BT, targets_BT), wanted_BT)

    def _check_one_loss(self, own_BT: Tensor, wanted_BT: Tensor) -> None:
        off = float(movement(own_BT, wanted_BT).max())
        if not off <= self._allowed:
            raise ContractError(
                f"one loss: nll of {type(self._model).__name__} differs by {off:.3g} nats from its own log_probs; "
                "smoothing, an auxiliary or a sampled loss has got into evaluation"
            )

    def _compare(self, window: int, cut: int, kind: _Kind, blind_T: Tensor) -> None:
        """Compare the losses before a cut with the scored ones."""
        first, end, scored = self._windows[window]
        part = slice(end - first - scored, cut)
        moved_T = movement(blind_T[part], self._scored[window][part])
        self._compared += len(moved_T)
        if kind == "alone":
            self._alone.append(moved_T)
            return
        self._cuts.append((window, cut))
        moved = float(moved_T.max())
        if cut < end - first:
            self._gains.append(float(blind_T[cut - 1] - self._scored[window][cut - 1]))
        if kind == "losses" and (cut < end - first or len(self._parts[self._part_of[window]]) > 1):
            self.moved = max(moved, self.moved or 0.0)
        if moved <= self._allowed:
            return
        self._tied += 1
        is_tie = moved <= max(_TIE, self._allowed) and self._tied <= self._ties
        if kind == "log_probs" and (not is_tie or not self._refuse):
            self._check_one_loss(*self._both(window))
        if self._refuse and not is_tie:
            self._explain(window, cut, moved)

    # --- why losses moved ---------------------------------------------------------------------------------------------

    def _both(self, window: int) -> tuple[Tensor, Tensor]:
        """Return the own losses of the batch of a window, and the losses from the model's probabilities."""
        inputs_BT, targets_BT = batch_of(self._ids, self._parts[self._part_of[window]])
        own_BT = token_losses(self._model, inputs_BT, targets_BT)
        log_probs_BTV = self._model.log_probs(inputs_BT.to(device_of(self._model)))
        return own_BT, normalized_losses(self._model, log_probs_BTV, targets_BT, self._step)

    def _explain(self, window: int, cut: int, moved: float) -> NoReturn:
        """Raise the error that explains why the losses of a window moved."""
        if self._state is not None:
            self._raise_future(moved)
        if gives_losses(self._model):
            self._check_one_loss(*self._both(window))
        part = self._parts[self._part_of[window]]
        row = window - self._part_of.index(self._part_of[window])
        inputs_BT, targets_BT = batch_of(self._ids, part)
        again_T = token_losses(self._model, inputs_BT, targets_BT)[row]
        if not float(movement(again_T, self._scored[window]).max()) <= self._allowed:
            raise ModelError(
                f"{type(self._model).__name__}: the same windows have other losses in a later call: it keeps state "
                "between windows, or draws random numbers. A model that reads on says so by methods "
                "stream_state() and restore_stream_state(state)"
            )
        for _ in range(_FUTURES if cut < inputs_BT.shape[1] else 0):
            changed_BT, others_BT = self._changed([(window, cut)])
            inputs_BT[row], targets_BT[row] = changed_BT[0], others_BT[0]
            blind_T = token_losses(self._model, inputs_BT, targets_BT)[row]
            if not float(movement(blind_T[:cut], again_T[:cut]).max()) <= self._allowed:
                self._raise_future(moved)
        self._raise_company(moved, "when other windows of the batch, or calls before it, change")

    def _raise_future(self, moved: float) -> NoReturn:
        raise ModelError(
            f"{type(self._model).__name__}: losses move by {moved:.2g} nats when later tokens change: it sees the "
            "future. Where only formats of inputs do, whose scales span whole tensors, give leaks='report'"
        )

    def _raise_company(self, moved: float, when: str) -> NoReturn:
        raise ModelError(
            f"{type(self._model).__name__}: losses of a window move by {moved:.2g} nats {when}: it reads other "
            "windows, or keeps what it read. Where only formats of inputs do, whose scales span whole tensors, or "
            "experts that take a part of a batch, give leaks='report'"
        )


class StreamState:
    """The state of a model that carries state from window to window and declares it.

    The model has two methods: ``stream_state()`` returns the state in any form, and ``restore_stream_state(state)``
    restores it; None is the state before the first token. Windows are then scored one at a time, in order.
    """

    def __init__(self, model: Any) -> None:
        """Keep the model."""
        self._model = model

    @classmethod
    def of(cls, model: Any) -> StreamState | None:
        """Return the state of a model, None for a model without state."""
        methods = (getattr(model, name, None) for name in ("stream_state", "restore_stream_state"))
        return cls(model) if all(map(callable, methods)) else None

    def read(self) -> Any:
        """Return a copy of the state."""
        return deepcopy(self._model.stream_state())

    def write(self, state: Any) -> None:
        """Restore a state of the model; None is the state before the first token."""
        self._model.restore_stream_state(deepcopy(state))
