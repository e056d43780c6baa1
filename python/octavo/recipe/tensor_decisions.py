"""Decides formats for the tensors of a checkpoint, by name alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from octavo.errors import FormatError
from octavo.recipe.decide import Decision, decide
from octavo.recipe.rule import Rule
from octavo.recipe.sites import tensor_sites
from octavo.recipe.spec import INT32, Spec
from octavo.tensors.packed_tensor import PackedTensor


def decide_tensors(rules: Sequence[Rule], tensors: Mapping[str, Tensor | PackedTensor]) -> list[Decision]:
    """Return the decision about each tensor, in the order of ``tensors``.

    Raises FormatError for a rule that matches nothing, and for what needs a model.
    """
    for rule in rules:
        if reason := _needs_model(rule):
            raise FormatError(f"rule '{rule}': {reason}")
    return decide(rules, tensor_sites(tensors), kind="tensor")


def assigned(rules: Sequence[Rule], tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Spec | None]:
    """Return what each tensor gets, in the order of ``tensors``; None where it is kept. Raises as decide_tensors."""
    decisions = decide_tensors(rules, tensors)
    return {name: decision.spec for name, decision in zip(tensors, decisions, strict=True)}


def select(tensors: Mapping[str, Tensor | PackedTensor], glob: str | None = None) -> list[str]:
    """Names of the float tensors that ``glob`` matches, or of the default selection.

    That is 2-D weights, embeddings included, and batched experts.

    Vectors count only where ``glob`` names them in full. Raises FormatError where nothing is left, and where some of
    the default selection is packed already.
    """
    for name, tensor in tensors.items():
        if glob is None and isinstance(tensor, PackedTensor) and tensor.ndim == 2:
            raise FormatError(
                f"{name}: already packed as '{tensor.format}', and without a name all 2-D weights are selected "
                "(octavo unpack comes first, or name others)"
            )
    is_bias = glob is not None and (glob == "bias" or glob.endswith(".bias"))
    rule = Rule(glob=glob, bias="fp32") if is_bias else Rule(glob=glob, weight="fp32")
    try:
        decided = assigned([rule], tensors)
    except FormatError as error:  # says so of a rule that nobody wrote
        selection = "the selection of 2-D weights" if glob is None else f"'{glob}'"
        message = (
            str(error).replace(f"rule '{rule}': the default selection", selection).replace(f"rule '{rule}'", selection)
        )
        raise FormatError(message.replace(f"'encoder.** {rule}'", "'encoder.**'")) from None
    return [name for name, spec in decided.items() if spec]


def _needs_model(rule: Rule) -> str | None:
    """Return why a rule says nothing about a checkpoint, None where it does."""
    if rule.selector.kind == "type":
        return "a checkpoint holds names, not types: select with a glob, or give the recipe to a model"
    if rule.selector.pick:
        return f"a checkpoint does not hold its layers in order: name the layer instead of '{rule.selector}'"
    if rule.keeps_all:
        return None
    for role, spec in rule.gives:
        if role in ("input", "output"):
            return f"a checkpoint holds no {role}s: leave {role}= out, or give the recipe to a model"
        if spec and (spec.calibration or spec.format == INT32):
            return f"'{spec}' needs a model: quantize it first, or give a format alone (of block scales @ceil, @mse)"
    return None
