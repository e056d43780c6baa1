"""The bench of techniques: arms interleaved over seeds, one JSON line a run, resumable."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octavo.cuda.machine import computer
from octavo.errors import DataError, NonFiniteError, SettingError
from octavo.lab.language.bench_arms import Budget, arm, check_run
from octavo.lab.language.bench_speed import ArmSpeed, measure_speeds
from octavo.lab.language.gpt import GPT
from octavo.lab.language.language_config import LanguageConfig, Until
from octavo.lab.language.language_presets import BASE
from octavo.lab.language.language_run import (
    LanguageReport,
    source_hash,
    train_language,
    validation_facts,
)
from octavo.lab.language.language_scales import SCALES, Scale
from octavo.lab.language.language_task import NATS
from octavo.lab.language.token_data import TokenData, prepare
from octavo.storage import files, locks, process_memory
from octavo.storage.reading import RECORD_BYTES, parse_json, read_bytes, read_json
from octavo.train import read_metrics

RESULTS, SPEEDS, PLAN, RUNS = "results.jsonl", "speeds.json", "bench.json", "runs"
Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What a bench runs: ``arms`` on every one of ``budgets`` and ``seeds``. ``tokens``: of a whole budget.

    ``compile``: the losses of all arms go through torch.compile. ``until``: the loss that ends every run.
    ``sliding``: the stride of a validation with a sliding window at the end of every run, None for none.
    """

    scale: str
    arms: tuple[str, ...]
    seeds: int = 3
    budgets: tuple[str, ...] = ("tokens",)
    tokens: int | None = None
    validation_tokens: int | None = None
    device: str = "auto"
    compile: bool = False
    until: Until | None = None
    sliding: int | None = None

    def sizes(self) -> Scale:
        """Return the scale, with the plan's tokens. Raises SettingError for an unknown one."""
        if self.scale not in SCALES:
            raise SettingError(f"scale is {self.scale!r}; accepted are {', '.join(SCALES)}")
        scale = SCALES[self.scale]
        return replace(
            scale,
            tokens=self.tokens or scale.tokens,
            validation_tokens=self.validation_tokens or scale.validation_tokens,
        )

    def check(self) -> None:
        """Build every arm before any work. Raises SettingError, ConfigError or ModelError."""
        if self.seeds < 1:
            raise SettingError(f"seeds is {self.seeds}; accepted is 1 and more")
        for budget in self.budgets:
            Budget.parse(budget)
        for name in self.arms:
            check_run(self.config(name, replace(self.sizes(), end_of_text=0)), device=self.device, sliding=self.sliding)

    def config(self, name: str, scale: Scale) -> LanguageConfig:
        """Return the run of an arm. Raises SettingError, ConfigError or ModelError."""
        return replace(arm(name, scale), compile=self.compile, until=self.until)

    def runs(self) -> list[tuple[str, str, int]]:
        """Return arm, budget and seed of every run in order: all arms of a seed before the next."""
        return [
            (name, str(Budget.parse(budget)), seed)
            for seed in range(self.seeds)
            for budget in self.budgets
            for name in self.arms
        ]


def run_bench(plan: BenchPlan, data: Path, folder: Path, *, tell: Tell = lambda text: None) -> list[dict[str, Any]]:
    """Run what of a plan is not yet done in ``folder``, and return all lines, one a run.

    ``folder`` gets ``results.jsonl``, to which every run appends its line when it ends; tokens of ``data`` where it is
    text; the runs themselves while they last. The same call goes on where a stopped one was; a longer list of arms, of
    budgets or of seeds adds to what is there. Budgets of time need ``speeds.json``, which is measured first, arms
    interleaved, on what should be a quiet machine. Raises DataError for a folder of another scale, other data or
    tokens; errors of :meth:`BenchPlan.check`; LockedError; OSErrors.
    """
    plan.check()
    with locks.hold(folder):
        scale, tokens = _bound(plan, data, folder)
        configs = {name: plan.config(name, scale) for name in plan.arms}
        speeds = {}
        if any(Budget.parse(text).kind != "tokens" for text in plan.budgets):
            speeds = _speeds(folder, {BASE: plan.config(BASE, scale), **configs}, tokens, plan.device, tell)
        lines = read_lines(folder)
        told = {"data": data.name, "scale": plan.scale, "whole_tokens": scale.tokens}
        told |= {"validation_tokens": scale.validation_tokens, "compile": plan.compile}
        done = {(line["arm"], line["budget"], line["seed"]): line for line in lines}
        for key in plan.runs():
            name, text, seed = key
            config = _with_budget(configs[name], Budget.parse(text), scale, name, speeds)
            if key in done:
                if done[key].get("config_sha256") != _config_digest(config):
                    raise DataError(
                        f"{folder / RESULTS}: the arm {name!r} has another configuration now than in its line of "
                        f"{text}, seed {seed}; name another folder"
                    )
                continue
            tell(f"{name}, {text}, seed {seed}: {config.tokens:,} tokens")
            line = _run(folder, config, tokens, key, plan) | told
            with files.appended(folder / RESULTS, "w") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
            lines.append(line)
    return lines


def run_speeds(
    plan: BenchPlan, data: Path, folder: Path, *, tell: Tell = lambda text: None
) -> dict[str, tuple[ArmSpeed, int]]:
    """Measure how fast the baseline and the arms of a plan train: speed and FLOPs a token of each; nothing is trained.

    The measured speeds take the place of those in ``folder``'s ``speeds.json``, by which budgets of time go. Raises as
    :func:`run_bench`.
    """
    plan.check()
    with locks.hold(folder):
        scale, tokens = _bound(plan, data, folder)
        configs = {name: plan.config(name, scale) for name in dict.fromkeys((BASE, *plan.arms))}
        tell(f"measuring the speed of {len(configs)} arms")
        found = measure_speeds(configs, tokens, plan.device)
        written = json.dumps({name: speed.tokens_per_s for name, speed in found.items()}, indent=1)
        files.write(folder / SPEEDS, written + "\n")
    return {name: (speed, flops_per_token(configs[name])) for name, speed in found.items()}


def _bound(plan: BenchPlan, data: Path, folder: Path) -> tuple[Scale, TokenData]:
    """Return the sizes of a plan and the tokens of its data, and bind the folder to them."""
    scale = plan.sizes()
    tokens = prepare(data, folder / "data", vocabulary=scale.vocabulary, validation_tokens=scale.validation_tokens)
    scale = replace(scale, vocabulary=tokens.vocabulary, end_of_text=tokens.end)
    _bind(folder, plan, scale, tokens)
    return scale, tokens


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a bench's ``results.jsonl``, without a last one that a killed process left half written."""
    path = folder / RESULTS
    if not path.exists():
        return []
    text = _text(path)
    if not text.endswith("\n"):
        files.write(path, text[: text.rfind("\n") + 1])
    return lines_of(path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of a bench. Raises DataError for one that is no record."""
    text = _text(path)
    text = text[: text.rfind("\n") + 1]
    return [parse_json(line, f"{path}: line {number}") for number, line in enumerate(text.splitlines(), 1)]


def _text(path: Path) -> str:
    return read_bytes(path, RECORD_BYTES, error=DataError).decode(errors="replace")


def _bind(folder: Path, plan: BenchPlan, scale: Scale, tokens: TokenData) -> None:
    """Write what all lines of a folder share, or refuse another plan's folder."""
    told = {"scale": plan.scale, "tokens": scale.tokens, "data_sha256": tokens.digest}
    told |= {"validation_tokens": scale.validation_tokens, "compile": plan.compile}
    if plan.until is not None:
        told["until"] = asdict(plan.until)
    path = folder / PLAN
    if path.exists() and (found := {"compile": False, **read_json(path, error=DataError)}) != told:
        other = [name for name in {**told, **found} if found.get(name) != told.get(name)]
        raise DataError(f"{folder}: is a bench with another {' and '.join(other)}; name another folder")
    files.write(path, json.dumps(told, indent=1) + "\n")


def _speeds(
    folder: Path, configs: dict[str, LanguageConfig], tokens: TokenData, device: str, tell: Tell
) -> dict[str, float]:
    path = folder / SPEEDS
    known: dict[str, float] = read_json(path, error=DataError) if path.exists() else {}
    missing = {name: config for name, config in configs.items() if name not in known}
    if missing:
        tell(f"measuring the speed of {len(missing)} arms")
        # Beside the baseline of the same moment, so that a slower machine later changes no ratio.
        found = measure_speeds({BASE: configs[BASE], **missing}, tokens, device)
        measured = {name: speed.tokens_per_s for name, speed in found.items()}
        factor = known.get(BASE, measured[BASE]) / measured[BASE]
        known |= {name: speed * factor for name, speed in measured.items() if name in missing}
        files.write(path, json.dumps(known, indent=1) + "\n")
    return known


def _stream_digest(tokens: TokenData, config: LanguageConfig) -> str:
    """Return the SHA-256 of the ids of a validation, whatever the windows that they are read in."""
    ids = tokens.validation_ids(config.validation_tokens)
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()


def _config_digest(config: LanguageConfig) -> str:
    return hashlib.sha256(json.dumps(config.as_dict(), sort_keys=True).encode()).hexdigest()


def _with_budget(
    config: LanguageConfig, budget: Budget, scale: Scale, name: str, speeds: dict[str, float]
) -> LanguageConfig:
    if budget.kind == "tokens":
        return config.with_tokens(budget.share * scale.tokens)
    if budget.kind == "hours":
        return config.with_tokens(3600 * budget.share * speeds[name])
    return config.with_tokens(budget.share * scale.tokens * speeds[name] / speeds[BASE])


def _run(
    folder: Path, config: LanguageConfig, tokens: TokenData, key: tuple[str, str, int], plan: BenchPlan
) -> dict[str, Any]:
    """Train one arm and return its line; a run whose loss is no number has one, too."""
    name, budget, seed = key
    slug = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    place = folder / RUNS / slug
    begin = time.time()
    line: dict[str, Any] = {"arm": name, "budget": budget, "seed": seed, "source_sha256": source_hash()}
    line |= {"config_sha256": _config_digest(config), "began": begin}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        report = train_language(
            config, tokens, place, seed=seed, device=plan.device, progress=sys.stderr.isatty(), sliding=plan.sliding
        )
    except NonFiniteError as error:
        line |= {"failed": str(error)}
    else:
        assert report is not None  # one process
        line |= _measured(report, config, place, plan.device)
        line["stream_sha256"] = _stream_digest(tokens, config)
    shutil.rmtree(place, ignore_errors=True)
    return line


def _measured(report: LanguageReport, config: LanguageConfig, place: Path, device: str) -> dict[str, Any]:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(best if device == "auto" else device)
    curve = [
        [line["step"], line["metrics"][NATS]]
        for line in read_metrics(place)
        if line["kind"] == "evaluation" and NATS in line["metrics"]
    ]
    peak = (torch.cuda.max_memory_allocated() if chosen.type == "cuda" else process_memory.peak()) / 2**20
    tokens_a_step = report.result.tokens / max(1, report.result.step)
    return {
        "parameters": report.parameters,
        "tokens": report.result.tokens,
        "steps": report.result.step,
        "seconds": report.result.seconds,
        "tokens_per_s": round(report.tokens_per_s, 1),
        "flops_per_token": flops_per_token(config),
        "peak_mib": round(peak, 1),
        "curve": [[round(step * tokens_a_step), nats] for step, nats in curve],
        **validation_facts(report),
        **({} if report.time_to_loss is None else {"time_to_loss": report.time_to_loss.as_dict()}),
        "machine": computer(chosen),
        "torch": torch.__version__,
    }


def flops_per_token(config: LanguageConfig) -> int:
    """Return the floating point operations of a training step a token: ``6 P + 12 L D T``, as if all attended.

    ``P``: parameters that are multiplied; tables whose rows are looked up alone are not.
    """
    with torch.device("meta"):
        model = GPT(config.model)
    shared = getattr(model.head, "shared_table", None)
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding) and part is not shared]
    multiplied = sum(one.numel() for one in model.parameters()) - sum(one.weight.numel() for one in tables)
    return 6 * multiplied + 12 * config.model.layers * config.model.width * config.context
