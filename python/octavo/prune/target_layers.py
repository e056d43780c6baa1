"""Targets: the layers to prune, the sparsity of each, and their weights as matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from octavo.errors import DTypeError, FormatError, ModelError
from octavo.nn.masks import masked_layers
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.registry import kind_of
from octavo.recipe.decide import decide
from octavo.recipe.rule import KEEP, Rule
from octavo.recipe.sites import Site, join, model_sites
from octavo.recipe.spec import LayerPlan
from octavo.recipe.text import parse_selector
from octavo.storage.reading import shown

Targets = str | Sequence[str] | None
Sparsity = float | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Target:
    """A layer whose weight is pruned.

    ``layer``: the module. ``view``: the module, or a simulated layer over the same Parameter without quantizers, which
    gives the weight as a matrix. ``sparsity``: the share of its units to prune.
    """

    path: str
    layer: nn.Module
    view: QuantLayer
    sparsity: float

    @property
    def name(self) -> str:
        """The full name of the weight."""
        return join(self.path, "weight")

    @property
    def kind(self) -> str:
        """The class of the layer."""
        return type(self.layer).__name__

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the weight as a matrix."""
        rows, columns = self.view.weight_matrix().shape
        return rows, columns

    def matrix(self, values: Tensor) -> Tensor:
        """Reshape values of the weight's shape to the matrix ``[N, K]``."""
        return values.t() if self._is_transposed else values.flatten(1)

    def weight_of(self, matrix: Tensor) -> Tensor:
        """Reshape a matrix ``[N, K]`` to the shape of the weight."""
        return (matrix.t() if self._is_transposed else matrix.reshape(self.view._own("weight").shape)).contiguous()

    @property
    def _is_transposed(self) -> bool:
        kind = kind_of(self.layer)
        return kind is not None and kind.weight_axis == 0


def check_sparsity(value: object, label: str = "sparsity") -> float:
    """Return a share from 0 to below 1. Raises ModelError, naming ``label``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ModelError(f"{label} is {shown(value)}; accepted are shares from 0 to below 1")
    return float(value)


def selected_layers(model: nn.Module, targets: Targets, sparsity: Sparsity) -> dict[str, float]:
    """Return the sparsity of each target layer by path, in the order of ``named_modules()``.

    ``targets``: selectors of a recipe; None: every linear and convolutional layer, without embeddings, whose rows are
    looked up. ``sparsity``: one for all, or selector -> sparsity, where the last selector that matches decides; layers
    without a match, or with 0, are not pruned.

    Raises DTypeError for an argument that is no module, ModelError for selectors that select no layer, with the nearest
    names, for packed layers and for invalid sparsities.
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(f"a torch.nn.Module is pruned, got a {type(model).__name__}")
    sites = [site for site in model_sites(model, rewritten=False) if site.role == "weight" and site.name == "weight"]
    chosen = _chosen(model, sites, targets)
    masked = {
        id(layer._parameters["weight"]): path for path, layer, own in masked_layers(model) if "weight" in own.names()
    }
    holder = {path: masked.get(id(model.get_submodule(path)._parameters.get("weight")), path) for path in chosen}
    if not isinstance(sparsity, Mapping):
        share = check_sparsity(sparsity)
        return {holder[path]: share for path in chosen} if share else {}
    if not sparsity:
        raise ModelError("sparsity is an empty mapping; give selector -> share, such as {'encoder.**': 0.5}")
    shares: dict[str, float] = {}
    for text, value in sparsity.items():
        share = check_sparsity(value, f"sparsity of {text!r}")
        shares |= dict.fromkeys(_matching(sites, text), share)
    return {holder[path]: shares[path] for path in chosen if shares.get(path)}


def _chosen(model: nn.Module, sites: list[Site], targets: Targets) -> list[str]:
    if targets is not None:
        texts = (targets,) if isinstance(targets, str) else tuple(targets)
        if not texts:
            raise ModelError("targets is empty; name layers, such as 'type:Linear'")
        paths = {path for text in texts for path in _matching(sites, text)}
    else:
        paths = {site.module for site in sites if site.is_default and not site.is_lookup}
    chosen: dict[int, str] = {}  # a weight that layers share is pruned once
    for site in sites:
        if site.module in paths and kind_of(model.get_submodule(site.module)) is not None:
            chosen.setdefault(id(site.tensor), site.module)
    if chosen:
        return list(chosen.values())
    packed = next((path for path, layer in model.named_modules() if isinstance(layer, PackedLayer)), None)
    if packed is not None:
        raise ModelError(f"{packed}: is packed, and codes are not pruned; prune and fold before octavo.pack_model")
    raise ModelError(f"{type(model).__name__} has no layer to prune among {targets or 'its linear and conv layers'}")


def _matching(sites: list[Site], text: str) -> list[str]:
    """Return the layers that a selector matches. Raises ModelError with the nearest names if there are none."""
    selector = parse_selector(text)
    options = {selector.kind: selector.pattern, "pick": selector.pick} if selector.kind else {}
    rule = Rule(**options, weight=KEEP)  # type: ignore[arg-type] # keys are those of a rule
    try:
        decisions = decide([rule], sites, kind="layer")
    except FormatError as error:
        raise ModelError(f"targets: {str(error).replace(f'rule {str(rule)!r}', repr(text))}") from None
    return [decision.site.module for decision in decisions if decision.rule is not None]


def target_of(model: nn.Module, path: str, sparsity: float) -> Target:
    """Return a layer as a target. Raises DTypeError or ModelError for a weight that is computed or has no values."""
    layer = model.get_submodule(path)
    kind = kind_of(layer)
    assert kind is not None  # it was selected
    view = layer if isinstance(layer, QuantLayer) else kind.simulated.from_layer(layer, LayerPlan(), path)
    if view._own("weight").is_meta:
        raise ModelError(f"{join(path, 'weight')}: on the meta device, without values to prune")
    return Target(path, layer, view, sparsity)
