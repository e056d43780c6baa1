"""The job of ``octavo lab train gpt``: tokens, model, training, the exact loss, the model folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import octavo
from octavo.errors import CheckpointError, ConfigError, OctavoError
from octavo.lab.language.attention_backend import attention_backend, check_attention
from octavo.lab.language.gpt import GPT, GPTConfig
from octavo.lab.language.gpt.sliding_window import SlidingLoss
from octavo.lab.language.language_config import LanguageConfig, differing
from octavo.lab.language.language_task import (
    NATS,
    LanguageTask,
    Progress,
    Reallocation,
    TimedTask,
    check_objective,
)
from octavo.lab.language.model_folder import save_language_model
from octavo.lab.language.time_to_loss import TimeToLoss, time_to_loss
from octavo.lab.language.token_data import TokenData
from octavo.model_folder.save_load import save_model
from octavo.storage import files, locks
from octavo.storage.reading import read_json
from octavo.tensors import container
from octavo.train import Bound, TrainResult, ValLoss, checkpoint, grouped, read_metrics, seed_all, train
from octavo.train.reptile import with_reptile

CONFIG, REPORT, MODEL = "language.json", "report.json", "model"
REPORTED = "with the training targets in validation: no likelihood, shown beside the true loss"


@dataclass(frozen=True)
class LanguageReport:
    """A finished run: how it ended, and the exact loss of its last weights, or a bound on it.

    ``reported``: nats a token that a run with this objective reports if it validates with its training targets.
    ``sliding``: the loss of a sliding window, which is none of windows computed anew; None where it was not asked for.
    ``time_to_loss``: where the run reached the loss that it was to end at; None for a run without one.
    """

    result: TrainResult
    validation: ValLoss | Bound
    parameters: int
    folder: Path
    reported: float | None = None
    time_to_loss: TimeToLoss | None = None
    sliding: SlidingLoss | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "steps": self.result.step,
            "tokens": self.result.tokens,
            "parameters": self.parameters,
            "seconds": self.result.seconds,
            "tokens_per_s": self.tokens_per_s,
            **validation_facts(self),
            **({} if self.time_to_loss is None else {"time_to_loss": self.time_to_loss.as_dict()}),
            "model": str(self.folder / MODEL),
        }

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on a second of the train clock."""
        return self.result.tokens / max(self.result.seconds["train_s"], 1e-9)

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for the terminal."""
        loss, seconds = self.validation, self.result.seconds
        trained = f"{self.parameters:,} parameters, {self.result.step:,} updates, {self.result.tokens:,} tokens"
        clocks = f"{seconds['train_s']:.1f} s training ({self.tokens_per_s:,.0f} tokens/s), "
        return [
            ("trained", trained),
            ("clocks", f"{clocks}{seconds['compile_s']:.1f} s compiling, {seconds['evaluate_s']:.1f} s validating"),
            ("validation", _validated(loss)),
            *([] if self.sliding is None else [("sliding window", _slid(self.sliding, loss))]),
            *([] if self.reported is None else [("as reported", f"{self.reported:.4f} nats a token, {REPORTED}")]),
            ("written", str(self.folder / MODEL)),
        ]


def validation_record(loss: ValLoss) -> dict[str, Any]:
    """Return what a record says of a validation; only :func:`octavo.train.exact_nll` makes one."""
    if not isinstance(loss, ValLoss):
        raise TypeError(f"a validation is a ValLoss, got {type(loss).__name__}")
    names = ("nats", "bits_per_byte", "tokens", "context", "stride", "guard", "source_hash")
    return {name: getattr(loss, name) for name in names} | {"checked": asdict(loss.checked)}


def validation_facts(report: LanguageReport) -> dict[str, Any]:
    """Return what a line of a bench, or a report, says of the end of a run: ``validation``, or ``bound``."""
    found = report.validation
    if isinstance(found, ValLoss):
        facts: dict[str, Any] = {"validation": validation_record(found)}
        if report.sliding is not None:
            facts["sliding_window"] = asdict(report.sliding) | {"difference": report.sliding.nats - found.nats}
        return facts if report.reported is None else facts | {"reported": {"nats": report.reported, "told": REPORTED}}
    names = ("nats", "error", "tokens", "context", "draws", "guard", "source_hash")
    return {"bound": {name: getattr(found, name) for name in names}}


def _validated(loss: ValLoss | Bound) -> str:
    where = f"on {loss.tokens:,} tokens at context {loss.context}"
    if isinstance(loss, Bound):
        return f"at most {loss.nats:.4f} ± {loss.error:.4f} nats a token, {where}: a bound, which compares with no loss"
    bits = "" if loss.bits_per_byte is None else f", {loss.bits_per_byte:.4f} bits a byte"
    return f"{loss.nats:.4f} nats a token{bits}, {where}"


def _slid(sliding: SlidingLoss, loss: ValLoss | Bound) -> str:
    apart = sliding.nats - loss.nats
    side = "below" if apart < 0 else "above"
    return (
        f"{sliding.nats:.4f} nats a token at stride {sliding.stride}, {abs(apart):.4f} {side} the loss above: of keys "
        "and values that are kept, which carry what has left the window; it is no claim"
    )


def train_language(
    config: LanguageConfig,
    data: TokenData,
    folder: Path,
    *,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
    callbacks: tuple[Callable[[nn.Module, int], None], ...] = (),
    sliding: int | None = None,
    **changes: Any,
) -> LanguageReport | None:
    """Train a model in ``folder``, going on with the run that is there, measure it, and write its model folder.

    ``seed``: of first weights, order of documents and sampled losses. ``sliding``: the stride of a validation at the
    end that is read on with a sliding window, beside the exact one; None for none. ``changes``: fields of
    :class:`octavo.train.TrainConfig` that differ. ``folder`` gets ``run.json``, whose record holds the configuration
    and hashes of source and data, ``metrics.jsonl``, checkpoints, ``report.json`` and ``model/``.
    Returns None in every process but the first. Raises InterruptedRun if a signal ended the training, CheckpointError
    for a folder of another run, naming the fields, LockedError if another process trains there.
    """
    check_objective(config)
    if config.model.in_training.layer_drop and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("layer_drop leaves other blocks out in every process; accepted is 0 in several processes")
    loop = config.train_config(seed=seed, device=device, **changes)
    check_attention(config, device)
    is_first = os.environ.get("RANK", "0") == "0"
    with locks.hold(folder) if is_first else nullcontext():
        if is_first:
            _keep_config(folder, config)
        facts = {"language": config.as_dict(), "data": data.facts(), "source_sha256": source_hash()}
        task = (LanguageTask if config.until is None else TimedTask)(data, config, loop, facts)
        model = build(config, data, seed)
        given: list[Callable[[nn.Module, int], None]] = [Progress(loop)]
        if config.reallocations:
            given.append(Reallocation(task, loop, config.reallocations))
        make = grouped(config.optimizer.groups(model, loop.steps))
        if config.reptile is not None:
            make = with_reptile(make, every=config.reptile.every, rate=config.reptile.rate)
        with attention_backend(config):
            result = train(model, task, loop, folder, progress=progress, optimizer=make, callbacks=[*given, *callbacks])
        if result.reason == "interrupted":
            raise result.interruption(told=True)
        return _finish(model, task, config, data, result, folder, sliding) if is_first else None


def build(config: LanguageConfig, data: TokenData, seed: int) -> GPT:
    """Return the model with first weights of ``seed``, and with what its parts count in the training tokens."""
    seed_all(seed)
    model = GPT(config.model)
    if model.counts:
        model.count(data.counted_ids())
    if model.stores:
        held_out = torch.from_numpy(data.validation_ids(config.validation_tokens))
        for store in model.stores:
            store.leave_out(held_out)
    return model


def source_hash() -> str:
    """Return the SHA-256 over the package's files of Python, by name and content."""
    state = hashlib.sha256()
    root = Path(octavo.__file__).parent
    for file in sorted(root.rglob("*.py")):
        state.update(f"{file.relative_to(root)}\0".encode())
        state.update(hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()


def _keep_config(folder: Path, config: LanguageConfig) -> None:
    """Write the configuration, or refuse that of another run."""
    path, now = folder / CONFIG, config.as_dict()
    if path.exists() and checkpoint.available(folder) and (told := differing(_completed(read_json(path)), now)):
        raise CheckpointError(f"{path}: of a run with another configuration: {'; '.join(told[:4])}")
    files.write(path, json.dumps(now, indent=2) + "\n")


def _completed(record: Any) -> Any:
    """Return the configuration of a run with the fields that its model has got since, at their defaults."""
    try:
        return {**record, "model": GPTConfig.from_dict(record["model"]).as_dict()}
    except (OctavoError, KeyError, TypeError):
        return record


def _finish(
    model: GPT,
    task: LanguageTask,
    config: LanguageConfig,
    data: TokenData,
    result: TrainResult,
    folder: Path,
    sliding: int | None,
) -> LanguageReport:
    model.load_state_dict(container.load(folder / "last.safetensors"))
    model.eval()
    parameters = sum(one.numel() for one in model.parameters())
    last = task.validate(model, last=True)
    timed = None
    if config.until is not None:
        timed = time_to_loss(config, config.stages(), read_metrics(folder), NATS, last.nats)
    slid = None if sliding is None else task.sliding(model, sliding)
    report = LanguageReport(result, last, parameters, folder, task.reported(model), timed, slid)
    if data.tokenizer is None:
        save_model(model, folder / MODEL)
    else:
        save_language_model(folder / MODEL, model, data.tokenizer)
    files.write(folder / REPORT, json.dumps(report.as_dict(), indent=2) + "\n")
    return report
