"""Small plots of block characters for the terminal."""

from __future__ import annotations

import math

BLOCKS = " ▁▂▃▄▅▆▇█"


def histogram(positions: list[float], width: int) -> str:
    """One line of ``width`` block characters: how many of the positions, each in 0..1, fall into each column.

    A column that holds any value shows at least the lowest block, so that single values stay visible.
    """
    counts: list[float] = [0] * width
    for position in positions:
        counts[min(int(position * width), width - 1)] += 1
    if min(counts) > 1:  # dense: neighbours are averaged, or columns of 3 and 4 values would beat against each other
        padded = [counts[0], *counts, counts[-1]]
        counts = [sum(padded[i : i + 3]) / 3 for i in range(width)]
    most = max(counts)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[math.ceil(top * math.sqrt(count / most) - 0.25) if count else 0] for count in counts)


def axis(marks: list[tuple[float, str]], width: int) -> tuple[str, str]:
    """Return the lines under a plot: ticks at positions 0..1, and their labels, without those that would touch."""
    ticks, labels = ["─"] * width, [" "] * width
    taken = -1
    for position, label in sorted(marks):
        column = min(int(position * width), width - 1)
        start = max(0, min(column - len(label) // 2, width - len(label)))
        if start <= taken:
            continue
        ticks[column] = "┴"
        labels[start : start + len(label)] = label
        taken = start + len(label)
    return "".join(ticks), "".join(labels).rstrip()


def linear_grid(values: list[float], width: int) -> list[str]:
    """Plot where values lie on a linear axis from the least to the greatest: three lines."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    marks = [(0.0, f"{low:.6g}"), (1.0, f"{high:.6g}")]
    if low < 0 < high:
        marks.append((-low / span, "0"))
    return [histogram([(value - low) / span for value in values], width), *axis(marks, width)]


def log_grid(values: list[float], width: int) -> list[str]:
    """Plot where the positive values lie on a base-2 logarithmic axis, ticks at powers of two: three lines."""
    powers = [math.log2(value) for value in values if value > 0]
    low, high = math.floor(min(powers)), math.floor(max(powers)) + 1
    span = high - low
    every = max(1, math.ceil(span * 9 / width))
    marks = [((power - low) / span, f"2^{power}") for power in range(low, high + 1, every)]
    return [histogram([(power - low) / span for power in powers], width), *axis(marks, width)]
