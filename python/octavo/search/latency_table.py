"""LatencyTable: seconds of each group of layers in each format, and of the rest of the model. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError, DataError
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.number_arrays import number_array
from octavo.storage.arguments import check_fields, checks_arguments
from octavo.storage.reading import shown


@dataclass(frozen=True, eq=False)
class LatencyTable:
    """Seconds of one call, by group and format, as :func:`octavo.search.measure_latency` measured them.

    ``seconds``: float64 ``[groups, formats]`` of the sensitivity, NaN where a group cannot have the format. ``rest``:
    seconds of the float model outside the groups. ``whole``: seconds of the float model. ``samples``: samples of the
    call. Raises DataError for negative, infinite or misshaped values.
    """

    seconds: NDArray[np.float64]
    rest: float
    whole: float
    samples: int

    def __post_init__(self) -> None:
        """Check the values."""
        seconds = number_array(self.seconds, "a latency table: seconds")
        object.__setattr__(self, "seconds", seconds)
        check_fields(self)
        for name, value in (("rest", self.rest), ("whole", self.whole)):
            if value < 0:
                raise DataError(f"a latency table: {name} is {value}; accepted are seconds of at least 0")
        if seconds.ndim != 2 or np.isinf(seconds).any() or (seconds < 0).any():
            raise DataError("a latency table holds seconds of at least 0, [groups, formats], NaN for what cannot be")
        seconds.flags.writeable = False

    @checks_arguments
    def predict(self, choice: Mapping[str, str], sensitivity: Sensitivity) -> float:
        """Return the seconds of an assignment: the sum over its groups, and the rest.

        Args:
            choice: format text of each group by its name.
            sensitivity: of the same model.

        Returns:
            Seconds of one call.
        """
        for group in sensitivity.groups:
            if choice.get(group.name) not in sensitivity.formats:
                problem = f"choice gives {group.name!r} the format {shown(choice.get(group.name))}"
                raise ConfigError(f"{problem}; accepted are {', '.join(sensitivity.formats)}")
        columns = {text: column for column, text in enumerate(sensitivity.formats)}
        picks = [self.seconds[row, columns[choice[group.name]]] for row, group in enumerate(sensitivity.groups)]
        return float(np.sum(picks)) + self.rest
