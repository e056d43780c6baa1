"""A model packed while its weights come in, one after another: the float model is never there as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from octavo.display.progress import Stages
from octavo.errors import OctavoError
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.replace_modules import replace_modules
from octavo.nn.rewriting import Origin, layers_in_reach, made_from
from octavo.quant.algorithms.solve_in_order import solve_weights
from octavo.quant.apply_recipe import calibrate_weight, checked_layers, method_of, prepare_weights, solve_weight
from octavo.quant.coverage_report import tell_coverage
from octavo.quant.pack_layers import leave_out_zeros, pack_layer, share_codes
from octavo.quant.replace_layers import plan_of
from octavo.recipe import Recipe
from octavo.recipe.note import note_recipe
from octavo.recipe.sites import join
from octavo.tensors.packed_tensor import PackedTensor


@dataclass(frozen=True)
class Wanted:
    """A parameter that is packed: paths of the layers that it is the weight of.

    ``origin``: of a parameter that is split into weights of layers, in the order of their paths; None for others.
    """

    paths: tuple[str, ...]
    origin: Origin | None = None

    def pieces(self, value: Tensor) -> list[Tensor]:
        """Return the weight of each layer."""
        return [value] * len(self.paths) if self.origin is None else list(self.origin.split(value).values())


class WeightByWeight:
    """The packing of a model on the meta device whose parameters are given to :meth:`take`, in any order.

    ``names``: the parameters that it wants; whoever reads the others puts them into the model as they are. A parameter
    of batched experts is one of them where every matrix in it has a format.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        """Make the layers. Raises as :func:`octavo.quantize_model` without calibration data; the model stays."""
        self._text, self._plan = str(recipe), plan_of(model, recipe)
        layers = checked_layers(model, self._plan, self._text)
        self._layers = {
            path: layer
            for path, layer in layers.items()
            if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None
        }
        self._codes: dict[str, PackedTensor] = {}
        self.names = _wanted(model, self._layers)

    def bits(self, name: str) -> float:
        """Return the bits of an element of a parameter that is wanted, scales included."""
        layer = self._layers[self.names[name].paths[0]]
        assert layer.weight_quantizer is not None  # it is wanted
        weight = layer.weight_matrix()
        return 8 * layer.weight_quantizer.format.nbytes(tuple(weight.shape)) / max(weight.numel(), 1)

    def take(self, model: nn.Module, name: str, value: Tensor) -> None:
        """Pack a parameter that is wanted. Raises NonFiniteError, and what encoding raises, with the layer's name."""
        wanted = self.names[name]
        for path, piece in zip(wanted.paths, wanted.pieces(value), strict=True):
            layer = self._layers[path]
            place = layer._parameters["weight"]
            # hqq writes the weight, which may be another layer's too.
            own = piece.clone() if method_of(layer) == "hqq" else piece
            layer._parameters["weight"] = nn.Parameter(own, requires_grad=False)
            try:
                solve_weight(model, layer)
                self._codes[path] = layer.encoded_weight()
            except OctavoError as error:
                raise error if str(error).startswith(path) else type(error)(f"{path}: {error}") from None
            finally:
                layer._parameters["weight"] = place

    def finish(self, model: nn.Module, *, sparse: bool = False) -> nn.Module:
        """Return the packed model, whose other tensors have values now; ``sparse``: as for pack_model."""
        quantized = prepare_weights(model, self._plan, self._text)
        layers: dict[int, tuple[str, QuantLayer]] = {}
        for path, layer in quantized.named_modules(remove_duplicate=False):
            if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None:
                layers.setdefault(id(layer), (path, layer))
                if path in self._codes:
                    layer.hold_codes(self._codes.pop(path))
        _share_codes_of_ties(layers)
        late = [layer for _, layer in layers.values() if not layer.has_codes]
        for layer in late:
            if method_of(layer) not in (None, "hqq"):
                calibrate_weight(layer)
        solve_weights(quantized, [layer for layer in late if method_of(layer) == "hqq"], None, Stages(False))
        packed: dict[int, nn.Module] = {}
        shared: dict[int, list[PackedLayer]] = {}
        for key, (path, layer) in layers.items():
            packed_layer = pack_layer(path, layer)
            share_codes(packed_layer, shared.setdefault(id(layer._own("weight")), []))
            packed[key] = packed_layer
        for twins in shared.values() if sparse else ():
            leave_out_zeros(twins)
        result = replace_modules(quantized, packed)
        note_recipe(result, self._text)
        tell_coverage(result, Stages(False))
        return result


def _share_codes_of_ties(layers: dict[int, tuple[str, QuantLayer]]) -> None:
    """Give layers whose weight did not come itself, since it is another layer's, the codes of that one."""
    of_weight: dict[int, PackedTensor] = {}
    for _, layer in layers.values():
        if layer.has_codes:
            of_weight.setdefault(id(layer._own("weight")), layer.encoded_weight())
    for _, layer in layers.values():
        weight = layer._own("weight")
        if not layer.has_codes and weight.is_meta and id(weight) in of_weight:
            layer.hold_codes(of_weight[id(weight)])


def _wanted(model: nn.Module, layers: Mapping[str, QuantLayer]) -> dict[str, Wanted]:
    """Return the parameters that are weights of ``layers``, or made of them alone, by their names in the model."""
    reached, stand_ins = layers_in_reach(model)
    of_module: dict[int, str] = {id(reached[path]): path for path in layers}
    state = model.state_dict(keep_vars=True)
    wanted: dict[str, Wanted] = {}
    for path, module in reached.items():
        name = join(path, "weight")
        if name in state and module._parameters.get("weight") is state[name] and id(module) in of_module:
            wanted[name] = Wanted((of_module[id(module)],))
    for path, module in stand_ins.items():
        record = made_from(module)
        for name, origin in () if record is None else record.origins.items():
            parts = [join(path, part).rpartition(".") for part in origin.parts]
            paths = tuple(owner for owner, _, leaf in parts if leaf == "weight" and owner in layers)
            is_parametrised = "parametrizations" in name.split(".")  # whoever reads the module's weight computes it
            if is_parametrised or join(path, name) not in state or join(path, name) in wanted:
                continue
            if len(paths) == len(parts):
                wanted[join(path, name)] = Wanted(paths, origin)
    return wanted
