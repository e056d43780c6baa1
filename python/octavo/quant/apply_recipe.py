"""quantize_model: a recipe, applied to a whole model and calibrated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import nn

from octavo.data.batches import Batches
from octavo.display.progress import Report, Stages
from octavo.errors import CalibrationError, DTypeError, FormatError, OctavoError
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import M, deep_copy, shared_copy
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.tied_weights import untie_heads
from octavo.quant.activation_scales import activation_scales, check_format
from octavo.quant.algorithms.solve_in_order import Beside, Store, overwrite, solve_weights
from octavo.quant.calibration import activation_quantizers, observe
from octavo.quant.coverage_report import tell_coverage
from octavo.quant.expert_ranges import share_ranges, warn_of_unreached
from octavo.quant.replace_layers import Plan, Replacement, plan_of
from octavo.quant.unused_layers import stop_watching, warn_of_shared, watch_first_pass
from octavo.quant.weight_scales import weight_scales
from octavo.quant.zeros import warn_of_silent, warn_of_vanished
from octavo.recipe import Recipe
from octavo.recipe.note import note_recipe
from octavo.storage.arguments import checks_arguments
from octavo.train.unpadded_samples import unpadded

_SOLVED = ("gptq", "hqq")


@checks_arguments
def quantize_model(
    model: M,
    recipe: Any,
    *,
    calibration: Iterable[Any] | None = None,
    samples: int | None = 512,
    tokenizer: Any = None,
    inplace: bool = False,
    untie: bool = False,
    progress: bool | Report = True,
) -> M:
    """Return ``model`` with the layers of a recipe replaced by simulated quantized ones, their scales calibrated.

    Parameters, ties, hooks, modes, dtypes and devices stay; so do state-dict names, to which scales are added. If
    anything fails the model is as it was.

    Calibration batches run in evaluation mode, without gradients: through the float model, and for ``gptq`` through the
    model quantized so far, up to every layer once. A mapping is passed as keyword arguments, a tuple or list as
    positional ones, anything else as the one argument; labels that the model does not take are left out
    (:func:`octavo.data.batches.arguments_of`). Positions that the ``attention_mask`` of a batch hides count nowhere.
    Samples are calibrated on without padding, those of one shape together: batching, padding and the number of threads
    change no bit, nor does the order of batches but for ``gptq``, whose Hessians are float sums.

    A model of transformers writes checkpoints of transformers with ``save_pretrained``, which :func:`octavo.load_model`
    reads with their quantizers.

    Source: FORMATS.md section 4; Frantar et al. 2022, GPTQ (``@gptq``); Badri and Shaji 2023, HQQ (``@hqq``); Esser et
    al. 2020, LSQ (``@lsq``).

    Args:
        model: a float model.
        recipe: a Recipe, its text or dictionary, or a plan: ``{module path: LayerPlan}``.
        calibration: batches in a list, a ``DataLoader`` or a generator, or texts with ``tokenizer``. Needed where the
            recipe calibrates an activation (``input=int8@mse``) or names ``gptq``.
        samples: most samples of ``calibration``; None for all.
        tokenizer: of a model of transformers.
        inplace: replace layers in ``model`` itself; else in a deep copy of it.
        untie: first give a head that has the table of the embedding a weight of its own, so that it may have a format
            of its own. It costs the bytes of that weight.
        progress: a bar on a terminal, and a line about the share that is quantized; or a function of stage, done and
            total.

    Returns:
        The quantized model.

    Raises:
        FormatError: for a recipe that does not fit the model, or a format that a layer cannot hold.
        DTypeError: for an object or dtype that is not accepted.
        ModelError: for tensors on the meta device; with ``untie`` where nothing is tied.
        CalibrationError: for data that is missing, did not reach a layer, or cannot be taken; names batch, argument and
            layer.
        NonFiniteError: for NaN or infinity on the way; names the layer.

    Warns:
        CoverageWarning: where the recipe leaves more than half of the parameters as they are
            (:func:`octavo.quant.coverage`).
        UnusedLayerWarning: in the first forward pass, for quantized layers that the model did not use.
        CalibrationWarning: for inputs that were nothing but zeros, and weights that their format makes 0 altogether.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
        >>> batches = [torch.randn(32, 64) for _ in range(4)]
        >>> x = torch.randn(1000, 64)
        >>> for recipe in ("int8:g32", "int4:g32", "int3:g32", "int3:g32@gptq"):
        ...     quantized = octavo.quantize_model(model, recipe, calibration=batches)
        ...     print(f"{recipe:14}{(quantized(x) - model(x)).norm() / model(x).norm():.0%}")  # relative error
        int8:g32      1%
        int4:g32      9%
        int3:g32      24%
        int3:g32@gptq 20%
    """
    if untie:
        return _untied(
            model, recipe, inplace, calibration=calibration, samples=samples, tokenizer=tokenizer, progress=progress
        )
    return _quantized(model, recipe, calibration, samples, tokenizer, inplace, Stages(progress), None, None)


def quantized_beside(
    model: M, recipe: Any, *, calibration: Iterable[Any], samples: int | None, store: Store | None = None
) -> M:
    """Return the model of :func:`quantize_model` over the memory of a float model's matrices, for a measurement.

    Its other parameters, such as biases, are its own, as are weights that a solver finds; these lie in mapped files
    beyond 256 MiB. Matrices must not be written in place. ``store``: solutions of an earlier run. Raises as
    :func:`quantize_model`.
    """
    return _quantized(model, recipe, calibration, samples, None, False, Stages(False), Beside(), store)


def _quantized(
    model: M,
    recipe: Any,
    calibration: Iterable[Any] | None,
    samples: int | None,
    tokenizer: Any,
    inplace: bool,
    show: Stages,
    beside: Beside | None,
    store: Store | None,
) -> M:
    plan = plan_of(model, recipe)
    refuse_meta(model, "quantize_model")
    rules = None if plan is recipe else str(Recipe.of(recipe))
    text = None if _is_quantized(model) else rules
    batches = None if calibration is None else Batches(calibration, samples, tokenizer=tokenizer)
    if beside is not None:
        model = shared_copy(model)
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.data = parameter.data.clone()
    elif not inplace:
        model = deep_copy(model)
    elif "" in plan:
        raise DTypeError(f"inplace=True cannot replace the {type(model).__name__} itself; take what is returned")
    replacement = Replacement(model, plan, rules)
    _check(replacement, batches)
    if batches is not None and _needs_data(replacement):
        batches = unpadded(model, batches)
    try:
        quantized = cast("M", replacement.apply())  # a lone layer alone becomes one of another class
        watch_first_pass(quantized)
        solvable, unreached = _calibrate(quantized, replacement, batches, show)
        unreached += solve_weights(
            quantized, solvable, batches, show, put=beside or overwrite, restore=inplace, store=store
        )
        warn_of_unreached(quantized, unreached)
    except BaseException:
        replacement.undo()
        stop_watching(model)
        raise
    note_recipe(quantized, text)
    if plan is not recipe:  # a plan names each layer, a recipe means the model
        tell_coverage(quantized, show)
    warn_of_shared(quantized)
    warn_of_vanished(
        quantized, [(path, layer) for path, layer in replacement.layers.items() if isinstance(layer, QuantLayer)]
    )
    return quantized


def _untied(model: M, recipe: Any, inplace: bool, **options: Any) -> M:
    """Quantize a model, or a copy of it, with heads untied; after an error it is as it was."""
    own = model if inplace else deep_copy(model)
    heads = untie_heads(own)
    try:
        return quantize_model(own, recipe, inplace=True, **options)
    except BaseException:
        heads.undo()
        raise


def _is_quantized(model: nn.Module) -> bool:
    """Whether another recipe has been here: both together are none that could be written down."""
    return any(isinstance(module, QuantLayer | Quantizer | PackedLayer) for module in model.modules())


@checks_arguments
def prepare_model(model: M, recipe: Any, *, inplace: bool = False) -> M:
    """Return ``model`` with quantized layers that have no scales yet, for ``load_state_dict`` of a quantized model.

    Calling the model before scales are loaded raises CalibrationError where the recipe names a calibration.

    Args:
        model: a float model.
        recipe: as for :func:`quantize_model`.
        inplace: replace layers in ``model`` itself; else in a deep copy of it.

    Returns:
        The model.

    Raises:
        FormatError: as :func:`quantize_model`.
        DTypeError: as :func:`quantize_model`.

    Example:
        >>> model, batches = nn.Sequential(nn.Linear(8, 8)), [torch.randn(4, 8)]
        >>> quantized = octavo.quantize_model(model, "int8 input=int8@mse", calibration=batches)
        >>> again = octavo.quant.prepare_model(model, "int8 input=int8@mse")
        >>> again.load_state_dict(quantized.state_dict())
        <All keys matched successfully>
    """
    plan = plan_of(model, recipe)
    return cast("M", Replacement(model if inplace else deep_copy(model), plan).apply())


def check_weights(model: nn.Module, plan: Plan, recipe: str | None = None) -> None:
    """Refuse what :func:`prepare_weights` refuses; the model stays as it is."""
    _check(Replacement(model, plan_of(model, plan), recipe), None)


def checked_layers(model: nn.Module, plan: Plan, recipe: str | None = None) -> dict[str, nn.Module]:
    """Return the quantized layers of ``plan`` by path, beside the model. Raises as :func:`prepare_weights`."""
    replacement = Replacement(model, plan, recipe)
    _check(replacement, None)
    return replacement.layers


def prepare_weights(model: nn.Module, plan: Plan, recipe: str | None = None) -> nn.Module:
    """Return ``model`` with the quantized layers of ``plan``, in place; :func:`solve_weight` then takes one by one.

    ``recipe``: the text that the plan is of. Raises as :func:`quantize_model` without calibration data.
    """
    replacement = Replacement(model, plan_of(model, plan), recipe)
    _check(replacement, None)
    return replacement.apply()


def solve_weight(model: nn.Module, layer: QuantLayer) -> None:
    """Fix the scales of one layer's weight, or the weight, as :func:`quantize_model` does without calibration data."""
    method = method_of(layer)
    if method in _SOLVED:
        solve_weights(model, [layer], None, Stages(False), restore=True)
    elif method is not None:
        calibrate_weight(layer)


def _check(replacement: Replacement, batches: Batches | None) -> None:
    """Refuse calibrations that cannot be made before any data is run."""
    tops = list(replacement.layers.values())
    for top in tops:
        for quantizer in activation_quantizers(top):
            if not quantizer.wants_scales:
                continue
            check_format(quantizer.spec, quantizer.what)
            if batches is None:
                raise CalibrationError(
                    f"{quantizer.what}: '{quantizer.spec}' is calibrated from data; give quantize_model "
                    f"calibration=batches, or write '{quantizer.format}' to choose scales at run time"
                )
    for path, layer in replacement.layers.items():
        if not isinstance(layer, QuantLayer):
            continue
        if layer.weight_quantizer is not None and method_of(layer) == "gptq" and batches is None:
            raise CalibrationError(
                f"{path}: '{layer.weight_quantizer.spec}' needs inputs of the layer; give quantize_model "
                f"calibration=batches, or take @hqq or @mse, which need none"
            )
        if layer.weight_quantizer is not None and method_of(layer) == "gptq" and not layer.has_input_rows:
            raise FormatError(
                f"{path}: '{layer.weight_quantizer.spec}': no one matrix multiplies the input of a "
                f"{type(layer).__name__} such as this; take @mse or @hqq"
            )
        if method_of(layer) in _SOLVED and (shared := _shared(replacement, layer, path)):
            raise DTypeError(
                f"{path} and {shared} share a weight, which {method_of(layer)} would change for both; "
                f"take @mse, which leaves it"
            )


def _needs_data(replacement: Replacement) -> bool:
    tops = list(replacement.layers.values())
    return any(method_of(top) == "gptq" for top in tops) or any(
        quantizer.wants_scales for top in tops for quantizer in activation_quantizers(top)
    )


def _shared(replacement: Replacement, layer: QuantLayer, path: str) -> str | None:
    """Return the name of a weight of another module that is this layer's and would be changed under it.

    Not where hqq gives both the same scales: it finds the same weight for both.
    """
    own = replacement.replaced[path]
    for other, module in replacement.reached.items():
        for name, parameter in module._parameters.items():
            if parameter is not layer._own("weight") or module is own:
                continue
            twin = getattr(replacement.layers.get(other), "weight_quantizer", None)
            own_quantizer = layer.weight_quantizer
            if method_of(layer) != "hqq" or twin is None or own_quantizer is None or twin.spec != own_quantizer.spec:
                return f"{other}.{name}" if other else name
    return None


def method_of(layer: nn.Module) -> str | None:
    """Return the calibration of a layer's weight by name; None where its scales are chosen at each call."""
    quantizer = getattr(layer, "weight_quantizer", None)
    if quantizer is None or quantizer.spec.calibration is None:
        return None
    return quantizer.spec.calibration.method


def _calibrate(
    model: nn.Module, replacement: Replacement, batches: Batches | None, show: Stages
) -> tuple[list[QuantLayer], list[str]]:
    """Fix the scales of everything that was replaced.

    Returns the layers whose weights gptq and hqq are asked for, and the inputs of experts that no batch reached.
    """
    layers = list(replacement.layers.values())
    wanted = [quantizer for top in layers for quantizer in activation_quantizers(top) if quantizer.wants_scales]
    unreached: list[str] = []
    if wanted:
        assert batches is not None  # checked before any work
        statistics = observe(model, wanted, batches, show)
        unreached += share_ranges([(quantizer.what, seen) for quantizer, seen in statistics.items()])
        for quantizer, seen in statistics.items():
            quantizer.set_scales(*activation_scales(quantizer.spec, seen, quantizer.what))
            _learn(quantizer)
        warn_of_silent([quantizer.what for quantizer, seen in statistics.items() if seen.count and seen.largest == 0])
    weighing = [layer for layer in layers if isinstance(layer, QuantLayer)]
    weighted = [layer for layer in weighing if method_of(layer) is not None and method_of(layer) not in _SOLVED]
    with show.stage("choosing weight scales", len(weighted)) as advance:
        for layer in weighted:
            calibrate_weight(layer)
            advance()
    return [layer for layer in weighing if method_of(layer) in _SOLVED], unreached


def calibrate_weight(layer: QuantLayer) -> None:
    """Fix the scales of a layer's weight as its spec says, from the weight as it is. Raises FormatError."""
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for scales
    try:
        quantizer.set_scales(*weight_scales(quantizer.spec, layer.weight_matrix().detach(), quantizer.what))
    except OctavoError as error:
        prefix = "" if str(error).startswith(quantizer.what) else f"{quantizer.what}: "
        raise type(error)(f"{prefix}{error}") from None
    _learn(quantizer)


def _learn(quantizer: Quantizer) -> None:
    if quantizer.spec.calibration is not None and quantizer.spec.calibration.method == "lsq":
        quantizer.learn()


@checks_arguments
def freeze_scales(model: M) -> M:
    """Fix every weight's scales as they are now, and end the learning of learned ones.

    For the last tenth of quantization-aware training: weights then settle on a grid that stands still. Scales of
    activations that are chosen at run time stay so. Under DistributedDataParallel, wrap the model again afterwards: it
    expects a gradient of everything that had one. After an error the model is as it was.

    Args:
        model: simulated; it is changed in place.

    Returns:
        ``model``.

    Raises:
        NonFiniteError: for a weight with NaN or infinity.
    """
    chosen = []
    for module in model.modules():
        if isinstance(module, QuantLayer) and module.weight_quantizer is not None:
            quantizer = module.weight_quantizer
            if not quantizer.is_static and quantizer.format.scale_type is not None:
                chosen.append((quantizer, quantizer.encode(module.weight_matrix().detach())))
    for quantizer, packed in chosen:
        quantizer.set_scales(packed.scales, packed.zeros, packed.levels)
    for module in model.modules():
        if isinstance(module, Quantizer) and isinstance(module.scales, nn.Parameter):
            module.scales.requires_grad_(False)
    return model
