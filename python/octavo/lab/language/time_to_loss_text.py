"""Time to a loss for people: the table of the benchmark, and sentences on where the loss was reached."""

from __future__ import annotations

from octavo.lab.language.time_to_loss import (
    CLAIM,
    PUBLISHED,
    PUBLISHED_S,
    PUBLISHED_UPDATE,
    TimeToLoss,
    Validated,
    published_loss,
)

_HEADER: tuple[str, ...] = (">update", ">tokens", ">training", ">by the clock", ">loss")
_BESIDE = (">baseline's loss", ">baseline's time")


def table_of(timed: TimeToLoss) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows: a validation each, beside the benchmark's baseline where losses compare."""
    beside = timed.compares and any(published_loss(point.tokens) is not None for point in timed.validations)
    rows: list[tuple[str, ...]] = []
    for point in timed.validations:
        cells: tuple[str, ...] = (
            f"{point.step:,}", f"{point.tokens:,}", duration(point.training_s), duration(point.clock_s),
            f"{point.nats:.4f}",
        )  # fmt: skip
        rows.append(cells + _published_cells(point) if beside else cells)
    return (_HEADER + _BESIDE if beside else _HEADER), rows


def sentences(timed: TimeToLoss) -> list[tuple[str, str]]:
    """Return labels and texts: where the loss was reached, or what is lacking, and the benchmark's baseline."""
    update, nats = PUBLISHED[-1]
    baseline = f"{nats:.4f} after {update:,} updates, {update * PUBLISHED_UPDATE:,} tokens, {duration(PUBLISHED_S)} "
    other = "" if timed.compares else "; its text and its ids are others, so losses do not compare"
    label = f"loss {timed.loss:.4f}"
    texts = [(label, _reached(timed, timed.reached) if timed.reached is not None else _lacking(timed))]
    return [*texts, ("the benchmark", f"{baseline}on one RTX 4090{other}")]


def duration(seconds: float) -> str:
    """Return seconds as ``12.3 s``, ``4.5 min`` or ``5.40 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def _reached(timed: TimeToLoss, point: Validated) -> str:
    where = f"reached after {point.step:,} updates and {point.tokens:,} tokens, in {duration(point.training_s)} of "
    where += f"training, {duration(point.clock_s)} by the clock"
    if timed.claim:
        return f"{where}; {timed.in_a_row} validations in a row: a claim"
    return f"{where}; {timed.in_a_row} in a row: no claim, which needs {CLAIM} (--in-a-row {CLAIM})"


def _lacking(timed: TimeToLoss) -> str:
    if not timed.validations:
        return "not reached: the run had no validation"
    last, estimate = timed.validations[-1], timed.estimate
    where = f"not reached: {last.nats:.4f} after {last.tokens:,} tokens and {duration(last.training_s)} of training"
    if estimate is None:
        return f"{where}; no estimate, for {timed.silent}"
    return (
        f"{where}; a run stretched to {estimate.tokens:,} tokens, {duration(estimate.training_s)} of training, or more "
        f"may reach it: the loss fell by {estimate.slope:.3f} each time that tokens grew e-fold, from "
        f"{estimate.begin:,} to {estimate.end:,}, and later tokens give less"
    )


def _published_cells(point: Validated) -> tuple[str, str]:
    nats = published_loss(point.tokens)
    if nats is None:
        return "", ""
    return f"{nats:.3f}", duration(PUBLISHED_S * point.tokens / (PUBLISHED[-1][0] * PUBLISHED_UPDATE))
