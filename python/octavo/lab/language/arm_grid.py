"""Techniques combined: every subset of a list of presets is an arm; arms are searched as models are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.errors import NonFiniteError, SettingError
from octavo.lab.architectures.samplers import Sampler
from octavo.lab.architectures.search_loop import Build, Search, run_search
from octavo.lab.architectures.space import Axis, Constraint, Point, Space
from octavo.lab.language.bench_arms import Budget, arm
from octavo.lab.language.gpt import MaskedDiffusion
from octavo.lab.language.language_bench import PLAN, BenchPlan, run_bench
from octavo.lab.language.language_presets import BASE
from octavo.lab.language.language_scales import Scale
from octavo.storage.reading import read_json

_OBJECTIVE = "nats min"


def grid_of(techniques: Sequence[str], scale: Scale) -> Space:
    """Return the space of all subsets of presets, one axis each; subsets that change the same field are left out.

    Raises SettingError for a preset that is unknown or there twice, for the baseline, and for one that has a bound in
    place of a loss.
    """
    if len(set(techniques)) != len(techniques) or not techniques or BASE in techniques:
        raise SettingError(f"grid is {','.join(techniques)!r}; accepted are presets other than {BASE}, each once")
    for name in techniques:
        if isinstance(arm(name, scale).model.objective, MaskedDiffusion):
            raise SettingError(f"grid has {name!r}, which has a bound in place of a loss; a search compares losses")

    def fits(point: Mapping[str, Any]) -> bool:
        try:
            arm(_arm_of(point), scale).train_config()
        except SettingError:
            return False
        return True

    return Space(
        axes=tuple(Axis(name, (False, True)) for name in techniques),
        realise=lambda point: {"arm": _arm_of(point)},
        constraints=(Constraint("no two techniques change the same field", fits),),
        name="the grid of arms",
    )


def search_arms(
    plan: BenchPlan,
    techniques: Sequence[str],
    data: Path,
    folder: Path,
    *,
    sampler: str = "grid",
    trials: int | None = None,
    storage: str | Path | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Search:
    """Search the subsets of ``techniques`` for the lowest mean loss over the plan's seeds, at its budget of tokens.

    Runs append their lines to the bench in ``folder``, which may hold some of them already; trials are kept in
    ``storage``, as those of :func:`octavo.lab.architectures.run_search`: a file, ``postgresql://...``, None for
    ``folder``. Several workers have a folder each and one storage. Raises SettingError for a budget of time.
    """
    if len(plan.budgets) != 1 or Budget.parse(plan.budgets[0]).kind != "tokens":
        raise SettingError(f"budgets are {','.join(plan.budgets)}; a grid has one, of tokens")
    budget = str(Budget.parse(plan.budgets[0]))
    space = grid_of(techniques, replace(plan.sizes(), end_of_text=0))
    # The baseline first: every line of the bench is beside it, and it binds the folder to the data.
    run_bench(replace(plan, arms=(BASE,)), data, folder, tell=tell)

    def evaluate(build: Build) -> dict[str, Any]:
        name = str(build.spec["arm"])
        lines = run_bench(replace(plan, arms=(name,)), data, folder, tell=tell)
        own = [line for line in lines if line["arm"] == name and line["budget"] == budget]
        own = [line for line in own if line["seed"] < plan.seeds]
        if failed := [line["failed"] for line in own if "failed" in line]:
            raise NonFiniteError(failed[0])
        losses = [line["validation"]["nats"] for line in own]
        return {"nats": math.fsum(losses) / len(losses), "losses": losses, "arm": name}

    def said(text: str, share: float | None = None) -> None:
        tell(text)

    return run_search(
        space,
        evaluate,
        storage=storage or folder,
        name=f"arms: {','.join(techniques)}",
        objectives=_OBJECTIVE,
        sampler=Sampler(sampler),
        trials=trials,
        context={"budget": budget, "seeds": plan.seeds, **_bound(folder)},
        tell=said,
    )


def _bound(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / PLAN))


def _arm_of(point: Mapping[str, Any] | Point) -> str:
    return "+".join(name for name, chosen in point.items() if chosen) or BASE
