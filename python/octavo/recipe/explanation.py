"""Explains a recipe on a model or a checkpoint: the rule and format of each tensor, tensors without one, and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from octavo.recipe.decide import Decision
from octavo.recipe.explanation_rows import Row, Totals, Unreached
from octavo.recipe.model_decisions import decide_model
from octavo.recipe.rule import Rule
from octavo.recipe.tensor_decisions import decide_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from octavo.tensors.packed_tensor import PackedTensor


@dataclass(frozen=True)
class Explanation:
    """The effect of a recipe on a model: ``rows`` in the order of the model, ``unreached`` parameters, and ``totals``.

    ``tied``: sentences about weights that layers share. ``without_model``: of a checkpoint, why its tensors alone are
    packed, where a model was expected; else None. It prints as a table, in a notebook as HTML; :meth:`to_rows` and
    :meth:`to_json` are for programs.
    """

    recipe: str
    rows: tuple[Row, ...]
    unreached: tuple[Unreached, ...]
    totals: Totals
    without_model: str | None = None
    tied: tuple[str, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, for a data frame."""
        return [asdict(row) for row in self.rows]

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        """Return the tables as plain text."""
        from octavo.recipe.explanation_tables import explanation_text

        return explanation_text(self)

    def _repr_html_(self) -> str:
        from octavo.recipe.explanation_tables import explanation_html

        return explanation_html(self)


def explain(rules: Sequence[Rule], model: nn.Module) -> Explanation:
    """Return what the rules of a recipe do to ``model``. Raises as :meth:`octavo.Recipe.plan`."""
    return _explained(rules, decide_model(rules, model))


def explain_tensors(
    rules: Sequence[Rule], tensors: Mapping[str, Tensor | PackedTensor], *, without_model: str | None = None
) -> Explanation:
    """Return what the rules of a recipe do to a checkpoint's tensors. Raises as :meth:`octavo.Recipe.assign`."""
    return _explained(rules, decide_tensors(rules, tensors), without_model)


def _explained(rules: Sequence[Rule], decisions: list[Decision], without_model: str | None = None) -> Explanation:
    rows = tuple(_row(decision) for decision in decisions if decision.rule and _tells(decision))
    unreached = tuple(
        Unreached(site.path, site.shape, str(site.dtype).removeprefix("torch."), str(decision.reason))
        for decision in decisions
        if (site := decision.site).shape is not None and not decision.rule
    )
    return Explanation("; ".join(map(str, rules)), rows, unreached, _totals(decisions), without_model, _tied(decisions))


def _tied(decisions: list[Decision]) -> tuple[str, ...]:
    """Return a sentence for each weight of several layers: one decision is made about it."""
    holders: dict[int, list[Decision]] = {}
    for decision in decisions:
        site = decision.site
        if site.of_model and site.role == "weight" and site.tensor is not None:
            holders.setdefault(id(site.tensor), []).append(decision)
    return tuple(
        f"{' and '.join(decision.site.path for decision in shared)} are one tensor, counted once; "
        f"format {shared[0].format or 'kept'}"
        for shared in holders.values()
        if len(shared) > 1
    )


def _tells(decision: Decision) -> bool:
    """Whether a decision is worth a row: an activation that is kept, as if no rule were there, is not."""
    return decision.site.name is not None or decision.format is not None or bool(decision.overridden)


def _row(decision: Decision) -> Row:
    site, fmt = decision.site, decision.format
    bits = None
    if fmt is not None:
        bits = fmt.bits if site.name is None else _bits(site.nbytes(fmt), site.elements)
    overrode = tuple(map(str, decision.overridden))
    tied = None if decision.tied_to is None else decision.tied_to.path
    text = None if fmt is None else str(fmt)
    # A checkpoint names tensors: beside A.weight and A.bias there may be others.
    of_layer = site.of_model or site.name == site.role
    name = site.module if of_layer else site.path
    return Row(
        name,
        site.role,
        site.shape,
        text,
        bits,
        _choice(decision),
        str(decision.rule),
        overrode,
        tied,
        _last_group(decision),
    )


def _last_group(decision: Decision) -> int | None:
    """Return the size of the shorter group that each row of a parameter ends with, None where there is none."""
    site, fmt = decision.site, decision.format
    if fmt is None or fmt.block is None or not site.shape:
        return None
    row = site.row
    return row % fmt.block or None if row > fmt.block else None


def _choice(decision: Decision) -> str | None:
    spec = decision.spec
    if spec is None or decision.format is None:
        return None
    if spec.calibration:
        return str(spec.calibration)
    if spec.format.is_block:
        return spec.scale
    return "dynamic" if decision.site.name is None else None


def _bits(nbytes: int, elements: int) -> float | None:
    return 8 * nbytes / elements if elements else None


def _totals(decisions: list[Decision]) -> Totals:
    of_tensors = [d for d in decisions if d.site.shape is not None]  # activations have none
    once = {id(d.site.tensor if d.site.of_model else d): d for d in reversed(of_tensors)}.values()
    quantized = [d for d in once if d.format is not None]
    sizes = {id(d): d.site.elements for d in once}
    before = sum(d.site.nbytes(None) for d in once)
    after = sum(d.site.nbytes(d.format) for d in once)
    elements = sum(sizes.values())
    quantized_elements = sum(sizes[id(d)] for d in quantized)
    activations = [d.site.role for d in decisions if d.site.name is None and d.format is not None]
    return Totals(
        parameters=elements,
        quantized=quantized_elements,
        bytes_before=before,
        bytes_after=after,
        bits_of_quantized=_bits(sum(d.site.nbytes(d.format) for d in quantized), quantized_elements),
        bits_of_all=_bits(after, elements),
        inputs=activations.count("input"),
        outputs=activations.count("output"),
    )
