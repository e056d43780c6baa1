"""bounded_front: the assignments of least loss for budgets of bytes, all of them within further bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import ConfigError
from octavo.search.allocation import allocate
from octavo.search.pareto_front import Front

BUDGETS = 24


def bounded_front(front: Front, bounds: Mapping[str, Any], *, nbytes: float | None = None) -> Front:
    """Return the points of least loss that keep ``bounds``, at 24 budgets of bytes spread over ``front``.

    ``bounds``: as :func:`octavo.search.allocate` takes them, bytes excepted. ``nbytes``: one more budget. Each budget
    is solved by itself: several bounds together give one optimum and no front. Raises ConfigError where none keeps
    them.
    """
    held = front.sensitivity
    budgets = {float(point.nbytes) for point in front.spread(BUDGETS)} | {float(front.nbytes.max())}
    if nbytes is not None and front.nbytes.min() <= nbytes < front.nbytes.max():
        budgets.add(float(nbytes))
    found: list[Front] = []
    refused = None
    for budget in sorted(budgets):
        try:
            one = allocate(held, bounds={**bounds, "bytes": budget})
        except ConfigError as error:
            refused = error
            continue
        if not found or one.loss[0] < found[-1].loss[0]:
            found.append(one)
    if not found:
        assert refused is not None  # there was a budget
        raise refused
    return Front(
        held,
        np.concatenate([one.cost for one in found]),
        np.concatenate([one.loss for one in found]),
        np.concatenate([one.picks for one in found]),
    )
