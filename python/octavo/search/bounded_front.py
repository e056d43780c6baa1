"""bounded_front: assignments of least loss for several budgets of bytes, subject to further bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import ConfigError
from octavo.search.allocation import allocate
from octavo.search.pareto_front import Front

BUDGETS = 24


def bounded_front(front: Front, bounds: Mapping[str, Any], *, nbytes: float | None = None) -> Front:
    """Return the points of least loss within ``bounds``, at 24 budgets of bytes spread over ``front``.

    ``bounds``: as for :func:`octavo.search.allocate`, without bytes. ``nbytes``: one more budget. Each budget is solved
    separately, because several bounds together have one optimum and no front. Raises ConfigError where no assignment
    satisfies the bounds.
    """
    sensitivity = front.sensitivity
    budgets = {float(point.nbytes) for point in front.spread(BUDGETS)} | {float(front.nbytes.max())}
    if nbytes is not None and front.nbytes.min() <= nbytes < front.nbytes.max():
        budgets.add(float(nbytes))
    optima: list[Front] = []
    refused = None
    for budget in sorted(budgets):
        try:
            one = allocate(sensitivity, bounds={**bounds, "bytes": budget})
        except ConfigError as error:
            refused = error
            continue
        if not optima or one.loss[0] < optima[-1].loss[0]:
            optima.append(one)
    if not optima:
        assert refused is not None  # there was a budget
        raise refused
    return Front(
        sensitivity,
        np.concatenate([one.cost for one in optima]),
        np.concatenate([one.loss for one in optima]),
        np.concatenate([one.picks for one in optima]),
    )
