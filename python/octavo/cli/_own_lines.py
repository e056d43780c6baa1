"""Options of ``octavo lab train polynomials`` for training on lines from a file."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import SettingError

REPORT = "report"
"""The preset of ``--preset``: the training of the report on expanding polynomials."""


@dataclass(frozen=True)
class OwnLines:
    """``--data FILE``, ``--validation N|FILE``, ``--test N|FILE``, ``--epochs N`` and ``--preset NAME``, as given."""

    data: Path | None
    validation: str | None
    test: str | None
    epochs: float | None
    preset: str | None = None

    def check(self, steps: int | None, *, several: bool) -> None:
        """Refuse what cannot be meant. ``several``: processes, each of which reads the files.

        Raises SettingError naming the option.
        """
        if self.preset is not None and self.preset != REPORT:
            raise SettingError(f"--preset is {self.preset!r}; accepted is {REPORT}")
        if self.data is None:
            for name in ("validation", "test", "epochs"):
                if getattr(self, name) is not None and not (self.preset and name == "epochs"):
                    raise SettingError(f"--{name} is {getattr(self, name)}; it needs --data FILE, lines of your own")
            if self.preset is None:
                return
        if self.epochs is not None and steps is not None:
            raise SettingError(f"--epochs is {self.epochs:g} and --steps {steps}; give one of them")
        if self.epochs is not None and not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise SettingError(f"--epochs is {self.epochs}; accepted are numbers above 0")
        for name in ("data", "validation", "test") if several else ():
            file = _held(getattr(self, name))
            if file is not None and not isinstance(file, int) and file.exists() and not file.is_file():
                raise SettingError(f"--{name} is {file}, no regular file; several processes cannot share it")

    def read(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of ``train_polynomials``, and put the steps of ``--epochs`` into ``changes``.

        Raises DataError as :func:`octavo.lab.polynomials.data.own_lines`, OSErrors.
        """
        if self.data is None and self.preset is None:
            return {}
        from octavo.display.console import console
        from octavo.lab.polynomials.data import million_lines, own_lines
        from octavo.lab.polynomials.train_configs import REPORT_EPOCHS, REPORT_TRAIN, REPORT_VALIDATION, train_config

        validation, test, epochs = self.validation, self.test, self.epochs
        if self.preset is not None:
            validation, test = validation or str(REPORT_VALIDATION), test or "0"
            epochs = REPORT_EPOCHS if epochs is None and "steps" not in changes else epochs
        if self.data is None:
            lines = million_lines(train=REPORT_TRAIN, validation=REPORT_VALIDATION)
        else:
            lines = own_lines(self.data, validation=_held(validation), test=_held(test))
        if epochs is not None:
            batch = changes.get("batch_size", train_config().batch_size)
            changes["steps"] = max(1, math.ceil(epochs * len(lines.train) / max(1, batch)))
        if os.environ.get("RANK", "0") == "0":
            counts = (("train on", lines.train), ("watch", lines.validation), ("test with", lines.test))
            name = self.data or "distinct lines by the law"
            console(stderr=True).print(f"{name}: " + ", ".join(f"{len(part):,} to {to}" for to, part in counts))
        given = {"data": self.data, "validation": self.validation, "test": self.test, "preset": self.preset}
        words = [f" --{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
        part = "validation" if self.preset is not None and not lines.test else "test"
        return {"data": lines, "origin": "".join(words), "part": part}


def evaluated_lines(file: Path) -> list[str]:
    """Return the lines ``left=right`` of ``--evaluate FILE``. Raises DataError for a bad line or none, OSErrors."""
    from octavo.errors import DataError
    from octavo.lab.polynomials.data import read
    from octavo.lab.polynomials.data.passes import FITS

    lines = [f"{left}={right}" for _, left, right in read(file, max_length=max(FITS))]
    if not lines:
        raise DataError(f"{file}: no line to evaluate on")
    return lines


def _held(given: str | Path | None) -> int | Path | None:
    if given is None:
        return None
    return int(given) if isinstance(given, str) and given.isascii() and given.isdigit() else Path(given)
