"""The content of a compression's report: plain values, as :mod:`octavo.report.compression_report` checks them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from octavo import __version__
from octavo.compress.compression_job import Job
from octavo.compress.compression_options import Goal
from octavo.compress.compression_trials import Evidence, PeerTrial, Search, Trial
from octavo.cuda.machine import computer, cpu
from octavo.model_folder.tied_tensors import tied_sentences, untied_sentences
from octavo.recipe.rule import KEEP
from octavo.report.value_texts import difference_text, value_text
from octavo.search.measured_costs import cost_row, forward_costs
from octavo.search.rank_correlation import rank_correlation
from octavo.search.verification import ENOUGH
from octavo.train.measurement import Measurement

_UNITS = {"accuracy": "share", "exact match": "share", "KL": "nats"}
# What a measured loss is, and its unit, by the metric: of a share what is missing to 1.
_MEASURED = {
    "accuracy": ("errors (1 - accuracy)", "share"), "exact match": ("errors (1 - exact match)", "share"),
    "cosine": ("1 - cosine", ""), "perplexity": ("log perplexity", "nats"), "KL": ("KL", "nats"),
}  # fmt: skip
_LOSSES = {"kl": ("KL of scores", "nats"), "cosine": ("1 - cosine", ""), "mse": ("squared error", "")}
_WORST = 6


def report_of(
    job: Job,
    goal: Goal,
    evidence: Evidence,
    packed: nn.Module,
    *,
    file_bytes: int,
    tested: tuple[Measurement, Measurement] | None,
    changed: dict[str, Any] | None,
    command: str | None,
) -> dict[str, Any]:
    """Return the report of a finished compression.

    ``tested``: the float model and ``packed``, on test data. ``changed``: test examples whose answer changed.
    """
    chosen, search = evidence.chosen, evidence.search
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    missing: dict[str, str] = {}
    report: dict[str, Any] = {
        "schema": "octavo.report",
        "version": 1,
        "kind": "compression",
        "model": {"name": job.name, "class": type(job.model).__name__, "parameters": parameters},
        "verdict": _verdict(job, goal, evidence, parameters),
        "metrics": _metrics(evidence, tested),
        "costs": _costs(job, goal, evidence, packed, file_bytes),
        "changed": changed,
        "rejected": _rejected(goal, evidence, parameters),
        "versions": _versions(),
        "machine": _machine(),
        "seeds": {"sampling": "none: nothing is drawn at random"}
        | ({} if evidence.training is None else {"training": evidence.training.config.seed}),
        "commands": [command] if command else ["octavo.compress_model(...)"],
        "data": [
            {key: value for key, value in vars(facts).items() if value is not None} | {"reads": 1}
            if facts.split == "test"
            else {key: value for key, value in vars(facts).items() if value is not None}
            for facts in job.data
        ],
        "effort": [
            *({"what": what, "value": seconds, "unit": "s"} for what, seconds in evidence.seconds.items()),
            {"what": "evaluations of packed models", "value": len(evidence.trials), "unit": ""},
        ],
        "notes": [*_notes(job, evidence), *tied_sentences(packed), *untied_sentences(packed, job.untied)],
        "missing": missing,
    }
    if job.task:
        report["model"]["task"] = job.task
    if search is not None:
        report |= {
            "front": _front(evidence, search),
            "prediction": _prediction(job, evidence, search, missing),
            "sensitivity": _sensitivity(job, search, chosen),
        }
    else:
        missing |= dict.fromkeys(("front", "prediction", "sensitivity"), "a recipe was given: nothing was searched")
    report |= _layers(job, evidence, packed)
    return {key: value for key, value in report.items() if value is not None}


def _notes(job: Job, evidence: Evidence) -> list[str]:
    """Return what the job and the sensitivities tell, and whether their sum could not predict what was measured."""
    notes = [*job.notes, *(evidence.search.sensitivity.notes if evidence.search else ())]
    correlation = None if evidence.search is None else evidence.search.correlation
    if correlation is not None and correlation < ENOUGH:
        notes.append(
            f"the sum over layers orders the measured points with a rank correlation of {correlation:.2f}: it "
            "cannot predict here, the choice is among measured models alone"
        )
    chosen = evidence.chosen
    if chosen.corrected or chosen.start is not None:
        how = "biases were corrected" if chosen.start is None else "weights were trained"
        notes.append(f"{how}: recipe.toml alone gives the formats, not these values")
    if evidence.training is not None:
        steps, loss = evidence.training.config.steps, evidence.training.told
        notes.append(f"trained through its formats for {steps:,} updates; loss: {loss}")
    same = "calibration and solvers give the same bytes on any number of threads"
    if evidence.training is not None:
        same += " (a training, which runs on all threads of torch, does not)"
    notes.append(
        f"{same}; on another processor the float model's own products may differ in their last bits, and a tensor or a "
        "choice with them"
    )
    return notes


def value_of(measured: Measurement) -> dict[str, Any]:
    """Return a measurement as the VALUE of a report."""
    value: dict[str, Any] = {"value": measured.value, "count": measured.count}
    if measured.low is not None and measured.high is not None:
        value |= {"low": measured.low, "high": measured.high}
    return value


def _verdict(job: Job, goal: Goal, evidence: Evidence, parameters: int) -> dict[str, Any]:
    chosen = evidence.chosen
    if goal.latency is not None and chosen.seconds is not None:
        met = chosen.seconds <= goal.latency
        if not met or goal.unit == "s":
            named = {"goal": f"latency, batch {goal.samples}", "limit": goal.latency, "unit": "s"}
            return {**named, "reached": chosen.seconds, "met": met, "measures": job.measures}
    if goal.unbounded:
        return {"reached": 8 * chosen.nbytes / parameters, "unit": "bits", "measures": job.measures}
    if goal.max_loss is not None:
        reached = chosen.quality.loss - evidence.before.loss
    else:
        reached = chosen.nbytes if goal.nbytes is not None else 8 * chosen.nbytes / parameters
    return {
        "goal": goal.name,
        "limit": goal.limit,
        "unit": goal.unit,
        "reached": reached,
        "met": reached <= goal.limit + 1e-9,
        "measures": job.measures,
    }


def _metrics(evidence: Evidence, tested: tuple[Measurement, Measurement] | None) -> list[dict[str, Any]]:
    rows = [] if tested is None else [_metric(*tested, "test")]
    return [*rows, _metric(evidence.before, evidence.chosen.quality, "validation", _others(evidence))]


def _metric(
    before: Measurement, after: Measurement, split: str, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": before.metric.replace(" ", "_") + ("" if split == "test" else f"_{split}"),
        "label": before.metric,
        "unit": _UNITS.get(before.metric, ""),
        "better": "higher" if before.goal == "max" else "lower",
        "before": value_of(before),
        "after": value_of(after),
        "split": split,
    }
    if before.examples == after.examples and before.metric == after.metric:
        if before.metric != "perplexity":
            difference = after.difference(before)
            row["difference"] = {"value": difference.mean, "count": difference.count} | (
                {} if difference.low is None else {"low": difference.low, "high": difference.high}
            )
        row["examples"] = {"id": before.examples, "before": list(before.values), "after": list(after.values)}
    if others:
        row["others"] = dict(others)
    details = ", ".join(f"{name} {value:.5g}" for name, value in after.details.items())
    if details:
        row["told"] = f"after: {details}"
    return row


def _others(evidence: Evidence) -> dict[str, Any]:
    start = evidence.chosen.start
    others = {} if start is None else {"before training": value_of(start.quality)}
    return others | {label: value_of(trial.quality) for label, trial in _beside(evidence).items()}


def _beside(evidence: Evidence) -> dict[str, Trial | PeerTrial]:
    """Return what stands beside the chosen model, by label: the best uniform format, and those of other libraries."""
    uniform = [trial for trial in evidence.trials if trial.series == "uniform" and trial is not evidence.chosen]
    best = sorted(uniform, key=lambda trial: (trial.quality.loss, trial.nbytes))[:1]
    return {f"best uniform: {trial.label}": trial for trial in best} | {trial.label: trial for trial in evidence.peers}


def _costs(job: Job, goal: Goal, evidence: Evidence, packed: nn.Module, file_bytes: int) -> list[dict[str, Any]]:
    chosen = evidence.chosen
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    before_bytes = sum(parameter.nbytes for parameter in job.model.parameters())
    bits = 8 * chosen.nbytes / parameters
    rows = [
        cost_row("file_bytes", "file of weights", "B", job.file_bytes or before_bytes, file_bytes),
        cost_row("bits_all", "average bits, all parameters", "bits", 8 * before_bytes / parameters, bits),
    ]
    if beside := _beside(evidence):
        rows[1]["others"] = {label: {"value": 8 * trial.nbytes / parameters} for label, trial in beside.items()}
    if goal.latency is not None:
        latencies = None if evidence.search is None else evidence.search.latencies
        before = None if latencies is None else latencies.whole
        told = (
            f"bound {value_text(goal.latency, 's')}; {_predicted(evidence.search, chosen) or 'nothing was predicted'}"
        )
        missing = {} if before else {"missing": "the float model was not timed: a recipe was given"}
        label = f"latency, batch {goal.samples}, which is bounded"
        rows.append(cost_row("latency_bound", label, "s", before, chosen.seconds, told=told, **missing))
    measure = job.costs or (lambda before, after: forward_costs(before, after, next(iter(job.batches))))
    return rows + measure(job.model, packed)


def _predicted(search: Search | None, trial: Trial) -> str:
    """Return what a latency table predicted, beside what was measured; empty where it did not."""
    if search is None or search.latencies is None or trial.point is None or trial.seconds is None:
        return ""
    predicted = search.latencies.predict(trial.point.choice, search.sensitivity)
    return f"latency: predicted {value_text(predicted, 's')}, measured {value_text(trial.seconds, 's')}"


def _front(evidence: Evidence, search: Search) -> dict[str, Any]:
    parameters = search.sensitivity.parameters
    points: list[dict[str, Any]] = []
    known = {trial.point.nbytes for trial in evidence.trials if trial.series == "front" and trial.point is not None}
    for point in search.front.spread(24):
        if point.nbytes not in known:
            points.append(
                {"series": "front", "label": f"{point.bits:.2f} bits", "bytes": point.nbytes, "bits": point.bits,
                 "predicted": point.loss}
            )  # fmt: skip
    for trial in evidence.trials:
        points.append(
            {
                "series": trial.series,
                "label": trial.label,
                "bytes": trial.nbytes,
                "bits": 8 * trial.nbytes / parameters,
                "measured": value_of(trial.quality),
                "chosen": trial is evidence.chosen,
                "trained": trial.start is not None,
            }
            | ({} if trial.point is None or trial.series != "front" else {"predicted": trial.point.loss})
            | ({"told": told} if (told := _predicted(search, trial)) else {})
        )
    points += [
        {
            "series": "peer", "label": trial.label, "bytes": trial.nbytes, "bits": 8 * trial.nbytes / parameters,
            "measured": value_of(trial.quality),
        }
        for trial in evidence.peers
    ]  # fmt: skip
    label, unit = _LOSSES.get(search.sensitivity.divergence, (search.sensitivity.divergence, ""))
    before = evidence.before
    return {
        "metric": {
            "label": before.metric,
            "unit": _UNITS.get(before.metric, ""),
            "better": "higher" if before.goal == "max" else "lower",
            "before": before.value,
        },
        "loss": {"label": label, "unit": unit},
        "points": points,
    }


def _prediction(job: Job, evidence: Evidence, search: Search, missing: dict[str, str]) -> dict[str, Any] | None:
    pairs = [pair for trial in evidence.trials if trial.series == "front" and (pair := _pair(evidence, trial))]
    if not pairs:
        missing["prediction"] = "no point of the front was evaluated"
        return None
    label, unit = _loss_of(job, search)
    metric = evidence.before.metric
    measured_label, measured_unit = _MEASURED.get(metric, (f"loss of {metric}", ""))
    alike = metric.lower() == search.sensitivity.divergence
    correlation = rank_correlation([pair["predicted"] for pair in pairs], [pair["measured"] for pair in pairs])
    chosen = _pair(evidence, evidence.chosen)
    one_unit = alike or job.unseen is not None
    return (
        {
            "unit": unit,
            "label": label,
            "pairs": pairs,
            "method": "additive",
        }
        | ({} if one_unit else {"measured": {"label": measured_label, "unit": measured_unit}})
        | ({} if math.isnan(correlation) else {"rank_correlation": correlation})
        | ({} if chosen is None or not one_unit else {"chosen": chosen})
        | ({} if job.unseen is None else {"told": f"measured on {job.unseen_source}"})
        | (
            {}
            if alike or search.correlation is None
            else {"quality": {"label": measured_label, "rank_correlation": search.correlation}}
        )
    )


def _pair(evidence: Evidence, trial: Trial) -> dict[str, Any] | None:
    """Return the predicted loss of a trial beside the measured one; None for one that is no point of the front."""
    if trial.point is None:
        return None
    measured = trial.quality.loss - min(evidence.before.loss, 0) if trial.divergence is None else trial.divergence
    return {"label": trial.label, "predicted": trial.point.loss, "measured": measured}


def _loss_of(job: Job, search: Search) -> tuple[str, str]:
    """Return what the loss of a sensitivity is, and its unit."""
    label, unit = _LOSSES.get(search.sensitivity.divergence, (search.sensitivity.divergence, ""))
    return (f"{label} a token" if job.task == "language model" and unit else label), unit


def _sensitivity(job: Job, search: Search, chosen: Trial) -> dict[str, Any]:
    sensitivity = search.sensitivity
    label, unit = _LOSSES.get(sensitivity.divergence, (sensitivity.divergence, ""))
    heat = sensitivity.heat_map()
    choice = chosen.point.choice if chosen.point is not None else {}
    return {
        "measure": label if sensitivity.method != "fisher" else f"{label}, estimated by one backward pass (Fisher)",
        "unit": unit,
        "samples": job.samples,
        "formats": heat["columns"],
        "groups": [
            {"name": group.name, "paths": list(group.layers), "parameters": group.elements}
            for group in sensitivity.groups
        ],
        "loss": heat["values"],
        "chosen": [
            None if choice.get(group.name, KEEP) == KEEP else choice[group.name] for group in sensitivity.groups
        ],
    }  # fmt: skip


def _rejected(goal: Goal, evidence: Evidence, parameters: int) -> list[dict[str, Any]]:
    rows = []
    for trial in evidence.trials:
        if trial is evidence.chosen:
            continue
        rows.append(
            {
                "what": trial.label if trial.series != "uniform" else f"{trial.label} for all layers",
                "why": _why_not(goal, evidence, trial, parameters),
                "bytes": trial.nbytes,
                "bits": 8 * trial.nbytes / parameters,
                "measured": value_of(trial.quality),
            }
        )
    for tuned in () if evidence.search is None else evidence.search.tuned:
        for step in tuned["steps"]:
            if not step["kept"]:
                told = f" on {', '.join(step['formats'])}" if step["formats"] else ""
                why = f"a divergence of {step['loss']:.3e} on calibration data held out, without it no more"
                rows.append({"what": f"{step['method']}{told}", "why": why})
        # Journals of earlier versions do not tell.
        rows += [{"what": what, "why": f"left out: {why}"} for what, why in tuned.get("left_out", ())]
    return rows + [{"what": refusal.label, "why": refusal.why} for refusal in evidence.refusals]


def _why_not(goal: Goal, evidence: Evidence, trial: Trial, parameters: int) -> str:
    """Return why a trial was not chosen: the bound that it does not keep, or what the chosen one has before it."""
    chosen = evidence.chosen
    most = goal.most_bytes(parameters)
    if trial.nbytes > most:
        over = (
            f"{8 * (trial.nbytes - most) / parameters:.2g} bits"
            if goal.unit == "bits"
            else f"{trial.nbytes - most:,.0f} bytes"
        )
        return f"over the budget by {over}"
    if goal.latency is not None and trial.seconds is not None and trial.seconds > goal.latency:
        return f"over the bound of the latency: {value_text(trial.seconds, 's')}"
    if goal.max_loss is not None and trial.quality.loss - evidence.before.loss > goal.max_loss:
        return "loses more than the bound allows"
    if goal.max_loss is not None and trial.nbytes > chosen.nbytes:
        return f"{trial.nbytes - chosen.nbytes:,} bytes more than the chosen one"
    if trial.quality.loss > chosen.quality.loss:
        unit = _UNITS.get(chosen.quality.metric, "")
        change = {"value": trial.quality.value - chosen.quality.value}
        return f"{trial.quality.metric} is worse than that of the chosen one: {difference_text(change, unit)}"
    return (
        f"as good as the chosen one, {trial.nbytes - chosen.nbytes:,} bytes more"
        if trial.nbytes > chosen.nbytes
        else "as good as the chosen one, whose recipe comes first in order"
    )


def _machine() -> dict[str, Any]:
    """Return what the models ran on: other processors and numbers of threads sum in another order."""
    facts = cpu()
    return {
        "cpu": facts["name"],
        "simd": facts["simd_level"],
        "torch": computer(torch.device("cpu"))["cpu"],
        "threads": torch.get_num_threads(),
        "kernel threads": facts["threads"],
        "system": sys.platform,
    }


def _layers(job: Job, evidence: Evidence, packed: nn.Module) -> dict[str, Any]:
    from octavo.search.report_parts import histogram_rows, layer_rows

    groups: dict[str, str] = {}
    losses: dict[str, float] = {}
    chosen = evidence.chosen
    if evidence.search is not None and chosen.point is not None:
        sensitivity = evidence.search.sensitivity
        columns = {text: place for place, text in enumerate(sensitivity.formats)}
        for row, group in enumerate(sensitivity.groups):
            loss = float(sensitivity.loss[row, columns[chosen.point.choice[group.name]]])
            for layer in group.layers:
                groups[layer] = group.name
                if not math.isnan(loss):
                    losses[layer] = loss
    return {
        "layers": layer_rows(job.model, packed, recipe=chosen.recipe, groups=groups, sensitivity=losses),
        "histograms": histogram_rows(job.model, packed, most=_WORST),
    }


def _versions() -> dict[str, str]:
    versions = {"octavo": __version__, "python": sys.version.split()[0], "torch": torch.__version__}
    with suppress(PackageNotFoundError):
        versions["transformers"] = version("transformers")
    return versions
