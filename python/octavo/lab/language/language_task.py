"""The task of a language model for the training loop: batches by place in the tokens, stages, exact validation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo.data import TokenBatch, TokenLoader
from octavo.errors import ConfigError, DataError
from octavo.lab.language.gpt import GPT
from octavo.lab.language.gpt.adapted_model import AdaptedModel
from octavo.lab.language.gpt.chunk_store import ChunkStore
from octavo.lab.language.gpt.copied_text import without_copies
from octavo.lab.language.gpt.nearest_neighbours import NearestNeighbours
from octavo.lab.language.gpt.sliding_window import SlidingLoss, sliding_nll
from octavo.lab.language.gpt.word_placement import PlacementCosts
from octavo.lab.language.language_config import LanguageConfig, TestTime
from octavo.lab.language.token_data import TokenData
from octavo.train import Bound, TrainConfig, ValLoss, exact_nll, likelihood_bound
from octavo.train.stages import stage_at

NATS, BOUND = "validation_nats", "validation_bound"
"""Names of what a validation gives in the record of a run; a bound compares with no loss."""
# Calls that guard a validation on the way; the last one has all.
_GUARD = 8
# Sequences of training that a reallocation of words counts its costs on.
_COUNTED = 512


class LanguageTask:
    """Batches of windows from shards, and the loss of the next token.

    Every stage goes on where the one before ended, so that no token is skipped or read twice but for tails of shards.
    The place of a batch is a function of its number, so that a run goes on from any of them.
    """

    def __init__(self, data: TokenData, config: LanguageConfig, train: TrainConfig, facts: dict[str, Any]) -> None:
        """Check the shards. ``facts``: for the record of the run. Raises DataError for shards without one batch.

        Text for stores of states and of neighbours is read here, and refused: ModelError and DataError where none is
        left without the documents of validation.
        """
        self.facts, self.data_digest = facts, data.digest
        self._data, self._train = data, train
        self._validation = data.validation_ids(config.validation_tokens)
        self._context, self._test_time = config.context, config.test_time
        first = train.stages[0]
        loader = TokenLoader(
            data.train,
            batch=first.batch_size // first.accumulation,
            context=first.context,
            vocabulary=data.vocabulary,
            end=data.end,
            order=config.order,
            seed=train.seed,
            tokens=sum(stage.tokens for stage in train.stages) + 1 if config.order == "easy_first" else None,
        )
        self._starts: list[TokenLoader] = []
        for stage in train.stages:
            rows = stage.batch_size // stage.accumulation
            self._starts.append(loader.continued(batch=rows, context=stage.context))
            loader = self._starts[-1].continued(batch=rows, context=stage.context)
            loader.skip(stage.steps * stage.accumulation)
        self._loader, self._place = loader, (-1, 0)  # stage, and the windows of it that were read
        self._window: TokenBatch | None = None
        head = config.model.head
        self._remembered = self._text_to_remember(head.entries) if isinstance(head, NearestNeighbours) else None
        self._neighbours = None if config.test_time is None else self._text_to_train_on(config.test_time)

    def batch(self, step: int, micro: int, start: int, size: int) -> dict[str, Any]:
        """Return ids and targets, int64 ``[size, context]``, and the window of the stage."""
        number, before = stage_at(self._train.stages, step)
        stage = self._train.stages[number]
        rows = stage.batch_size // stage.accumulation
        window = self._read(number, (step - before) * stage.accumulation + micro)
        part = slice(start - micro * rows, start - micro * rows + size)
        ids, targets = (torch.from_numpy(some[part].copy()) for some in (window.inputs, window.targets))
        return {"ids": ids, "targets": targets, "window": stage.window}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int | Tensor, dict[str, int | Tensor]]:
        """Return the objective's sum, its tokens, and its other sums."""
        loss_sum, parts = model(batch["ids"], batch["targets"], window=batch["window"])
        return loss_sum, parts.pop("tokens"), parts

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the validation loss, or its bound, in nats a token, of the context that the run ends with."""
        found = self.validate(model)
        return {NATS if isinstance(found, ValLoss) else BOUND: found.nats}

    def validate(self, model: Any, *, last: bool = False) -> ValLoss | Bound:
        """Return the whole result of a validation: a bound where the objective has no exact loss.

        ``last``: of the run; it trains where the configuration says so, and is checked in full. Raises ContractError
        for a model whose store of text holds that of the validation.
        """
        self._fill_memory(model)
        if hasattr(model.objective, "bound"):
            rows = max(1, 4096 // self._context)
            return likelihood_bound(model, self._validation, context=self._context, batch_size=rows)
        scored = self._adapted(model) if last and self._test_time is not None else model
        return exact_nll(
            scored,
            self._validation,
            context=self._context,
            nbytes=self._data.nbytes(self._validation),
            batch_size=max(1, 4096 // self._context),
            guard_calls=None if last else _GUARD,
        )

    def sliding(self, model: Any, stride: int) -> SlidingLoss:
        """Return the loss of the validation read on by strides, as a model with a sliding window has it."""
        self._fill_memory(model)
        return sliding_nll(model, self._validation, context=self._context, stride=stride)

    def reported(self, model: Any) -> float | None:
        """Return what an objective makes of validation with its training targets, nats a token; None for the others."""
        objective = model.objective
        if not hasattr(objective, "reported"):
            return None
        device, sums, count = next(model.parameters()).device, 0.0, 0
        ids = torch.from_numpy(self._validation)
        length = (len(ids) - 1) // self._context * self._context
        inputs, targets = (ids[at : at + length].view(-1, self._context).split(32) for at in (0, 1))
        for some, wanted in zip(inputs, targets, strict=True):
            sums += float(objective.reported(model, some.to(device), wanted.to(device)))
            count += some.numel()
        return sums / max(count, 1)

    def _adapted(self, model: Any) -> AdaptedModel:
        """Return a model that trains while it is scored, on a store of training text without validation text."""
        assert self._test_time is not None and self._neighbours is not None
        store = self._neighbours.to(next(model.parameters()).device)
        return AdaptedModel(model, store, neighbours=self._test_time.neighbours, rate=self._test_time.rate)

    def _text_to_train_on(self, chosen: TestTime) -> ChunkStore:
        """Return a store of training text without documents that validation has, too."""
        held_out = torch.from_numpy(self._validation)
        store = ChunkStore(chosen.entries, chosen.chunk, min(8, chosen.chunk))
        store.fill(self._data.counted_ids(), self._data.end)
        store.leave_out(held_out)
        store.refuse_copies(held_out)
        return store

    def _text_to_remember(self, entries: int) -> Tensor:
        """Return training text without documents that validation has, too. Raises DataError where nothing is left."""
        ids, held_out = self._data.counted_ids(), torch.from_numpy(self._validation)
        most, kept = entries + self._context, ids[:0]
        while len(kept) <= entries and most < 2 * len(ids):  # a document that goes takes all of its tokens
            most *= 2
            kept, _ = without_copies(ids[:most], held_out, self._data.end)
        if entries and len(kept) <= self._context:
            raise DataError(
                f"store of states: without documents that validation has tokens of, {len(kept)} tokens of training "
                f"text are left; accepted are more than {self._context}: give a text of several documents"
            )
        return kept

    def _fill_memory(self, model: Any) -> None:
        """Let a head that remembers states store those of now, and refuse stores that hold validation text."""
        held_out = torch.from_numpy(self._validation)
        if hasattr(model.head, "remember"):
            model.head.remember(model, self._remembered, context=self._context)
            model.head.refuse_copies(held_out)
        for store in model.stores:
            store.refuse_copies(held_out)

    def _read(self, number: int, window: int) -> TokenBatch:
        if self._place == (number, window + 1) and self._window is not None:
            return self._window
        at_stage, done = self._place
        if at_stage != number or done > window:
            first = self._starts[number]
            self._loader, done = first.continued(batch=first.batch, context=first.context), 0
        self._loader.skip(window - done)
        self._window = next(self._loader)
        self._place = (number, window + 1)
        return self._window


class TimedTask(LanguageTask):
    """The task of a run that ends where its exact validation reaches the loss of :class:`Until`."""

    def __init__(self, data: TokenData, config: LanguageConfig, train: TrainConfig, facts: dict[str, Any]) -> None:
        """Check the shards, as the task of any run does."""
        super().__init__(data, config, train, facts)
        assert config.until is not None
        self._loss, self.reached_in_a_row = config.until.loss, config.until.in_a_row

    def reached(self, metrics: dict[str, float]) -> bool:
        """Return whether a validation is at most the loss."""
        return metrics[NATS] <= self._loss


def check_objective(config: LanguageConfig) -> None:
    """Refuse settings that need a part which the model lacks. Raises ConfigError."""
    from octavo.lab.language.gpt import GridSoftmax, MaskedDiffusion

    if config.until is not None and isinstance(config.model.objective, MaskedDiffusion):
        raise ConfigError(
            f"until is {config.until.loss:g} and the model is trained on a bound of its loss; accepted are presets "
            "with an exact loss"
        )

    if config.reallocations and not isinstance(config.model.head, GridSoftmax):
        raise ConfigError(f"reallocations is {config.reallocations}; accepted is 0 where the head is no grid of words")


class Progress:
    """A callback that tells the objective how much of the run is over, by tokens, and the model its stage's noise."""

    def __init__(self, config: TrainConfig) -> None:
        """Keep the configuration of the loop."""
        self._config = config

    def __call__(self, model: nn.Module, step: int) -> None:
        """Set the progress before update ``step``."""
        assert isinstance(model, GPT)
        objective: Any = model.objective
        objective.progress = self._config.position(step) / self._config.steps
        model.noise = self._config.stage(step).noise


class Reallocation:
    """A callback that arranges the grid of words anew, ``times`` times at even distances in the first half of a run.

    Costs are counted on the sequences of the update that comes; the optimizer's moments of rows and columns stay.
    """

    def __init__(self, task: LanguageTask, config: TrainConfig, times: int) -> None:
        """Choose the updates."""
        self._task, self._config = task, config
        self._steps = {round(config.steps * (at + 1) / (2 * times + 2)) for at in range(times)}

    def __call__(self, model: nn.Module, step: int) -> None:
        """Move the words, where it is the time."""
        if step not in self._steps:
            return
        assert isinstance(model, GPT)
        head: Any = model.head
        costs = PlacementCosts(model.config.vocabulary, head.grid.side)
        rows = self._config.stage(step).batch_size
        device = head.grid.cell_V.device
        was = model.training
        model.eval()
        for later in range(max(1, _COUNTED // rows)):
            at = min(step + later, self._config.steps - 1)
            batch = self._task.batch(at, 0, 0, rows // self._config.stage(at).accumulation)
            ids, targets = batch["ids"].to(device), batch["targets"].to(device)
            with torch.no_grad():
                costs.add(head, model.hidden(ids).flatten(0, 1), targets.flatten())
        model.train(was)
        head.grid.place(costs.best(head.grid.cell_V).to(device))
