"""The table of ``octavo lab bench polynomials``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from octavo.display.console import table
from octavo.storage import files

if TYPE_CHECKING:
    from octavo.lab.polynomials.speed import Speed

COUNTING = (
    "tokens: input and target tokens that are not padding, end tokens included; "
    "validation generates greedily and counts the tokens of the right answers"
)
_HEADER = (
    "configuration",
    ">processes",
    "KV caching",
    "DDP",
    ">train steps/s",
    ">val steps/s",
    ">overall steps/s",
    ">train tokens/s",
    ">val tokens/s",
    ">overall tokens/s",
    ">s per epoch",
    ">speed-up %",
)


class SpeedReport:
    """Speeds by the name of their configuration, the baseline first."""

    def __init__(self, speeds: Mapping[str, Speed]) -> None:
        """Keep the speeds."""
        self._speeds = dict(speeds)
        self._baseline = next(iter(self._speeds.values()))

    def table(self) -> Table:
        """One row a configuration."""
        rows = table(*_HEADER)
        for cells in self._rows():
            rows.add_row(*cells)
        return rows

    def notes(self) -> list[str]:
        """Return how the numbers are counted."""
        config = self._baseline.config
        return [
            COUNTING,
            f"step: {config.batch} lines over all processes, {config.precision}, architecture {config.architecture}; "
            f"measured: {config.steps} training and {config.val_steps} validation steps each",
            f"device: {self._baseline.machine['device']}",
            "weights are fresh, so that every generated answer has the full length",
            f"epoch: {config.epoch:,} training and {config.val_epoch:,} validation lines"
            + (", measured whole" if config.is_whole_epoch else " at the measured speeds"),
            "speed-up %: of an epoch, against the baseline; +100 is twice as fast",
        ]

    def _percent(self, speed: Speed) -> float:
        """Return by how many per cent more epochs fit into the same time than with the baseline."""
        return 100 * (self._baseline.epoch_s / speed.epoch_s - 1)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                name,
                str(speed.config.processes),
                "yes" if speed.config.cached else "no",
                "yes" if speed.config.processes > 1 else "no",
                f"{speed.train_steps_per_s:.3g}",
                f"{speed.val_steps_per_s:.3g}",
                f"{speed.steps_per_s:.3g}",
                f"{speed.train_tokens_per_s:,.0f}",
                f"{speed.val_tokens_per_s:,.0f}",
                f"{speed.tokens_per_s:,.0f}",
                f"{speed.epoch_s:,.0f}",
                f"{self._percent(speed):+.1f}",
            )
            for name, speed in self._speeds.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        import torch

        machine = self._baseline.machine
        name = machine["gpu"] or f"{machine['machine']}, {machine['threads']} threads"
        return {
            "machine": f"{name}, torch {torch.__version__}",
            "device": machine["device"],
            "counting": COUNTING,
            "config": asdict(self._baseline.config),
            "configurations": {
                name: {
                    **speed.as_dict(),
                    "speed_up": self._baseline.epoch_s / speed.epoch_s,
                    "speed_up_percent": self._percent(speed),
                }
                for name, speed in self._speeds.items()
            },
        }

    def markdown(self) -> str:
        """Return the table for people."""
        names = [name.removeprefix(">") for name in _HEADER]
        lines = [
            f"| {' | '.join(names)} |",
            f"| {' | '.join('---:' if name.startswith('>') else '---' for name in _HEADER)} |",
            *(f"| {' | '.join(cells)} |" for cells in self._rows()),
            "",
            *(f"- {note}" for note in self.notes()),
            "",
        ]
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write ``speed.json`` and ``speed.md`` into ``folder``, which is made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / "speed.json", json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")
        files.write(folder / "speed.md", self.markdown())
