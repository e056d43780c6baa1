"""The quantizer that transformers asks: which weights it packs while a model is read, and how a packed folder opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer

from octavo.errors import CalibrationError, ModelError, OctavoError
from octavo.model_folder.quantization_entry import METHOD
from octavo.model_folder.stored_tensors import main_dtype
from octavo.nn.packed_layer import PackedLayer
from octavo.quant.apply_recipe import quantize_model
from octavo.quant.pack_weight_by_weight import WeightByWeight
from octavo.recipe import Recipe
from octavo.transformers.octavo_config import OctavoConfig
from octavo.transformers.open_folder import OpenedFolder


class OctavoQuantizer(HfQuantizer):
    """What transformers calls while it reads a model: made by ``from_pretrained``, not by users."""

    requires_calibration = False
    quantization_config: OctavoConfig

    def __init__(self, quantization_config: OctavoConfig, **kwargs: Any) -> None:
        """Take the configuration; ``pre_quantized``: whether that of the model's folder has it."""
        super().__init__(quantization_config, **kwargs)
        self._packing: WeightByWeight | None = None
        self._folder: OpenedFolder | None = None
        self._bits: dict[str, float] = {}
        self._left: set[str] = set()
        self._problem: OctavoError | None = None
        self._device_map: Any = None
        self._dtype: torch.dtype | None = None
        self._stand_in: torch.dtype | None = None  # the dtype of a configuration that has none

    # --- before the weights -------------------------------------------------------------------------------------------

    def update_attn_implementation(self, config: Any) -> Any:
        """Tell transformers the name of the file of weights, which it asks the configuration for.

        Args:
            config: of the model; it is in memory alone, and no file gets that key.

        Returns:
            ``config``.
        """
        asked = self.quantization_config
        if self.pre_quantized or (asked.recipe is None and not asked.simulate):
            config.transformers_weights = asked.weights
        self.pre_quantized = self.pre_quantized or asked.recipe is None
        if self.pre_quantized and getattr(config, "dtype", None) is None:
            # transformers would look for one in the file, some of whose dtypes it does not know.
            config.dtype = self._stand_in = torch.get_default_dtype()
        return config

    def update_dtype(self, dtype: Any) -> Any:
        """Learn the dtype that the model is read in.

        Args:
            dtype: of ``from_pretrained``, or of the configuration.

        Returns:
            ``dtype``.
        """
        self._dtype = dtype
        return dtype

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Refuse what a packed model cannot do, before anything is read.

        Args:
            args: none is looked at.
            device_map: as ``from_pretrained`` has it.
            kwargs: none is looked at.

        Raises:
            ModelError: for modules that are to stay on the disk.
        """
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ModelError(
                "device_map puts modules on 'disk', and packed weights are on a CPU or a GPU: give device_map=\"cpu\", "
                "or more max_memory"
            )
        self._device_map = device_map

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        """Make the layers, or read what a packed file says; see :meth:`_finish`."""
        with _plain_context():
            _tie(model)
            if self.pre_quantized and kwargs.get("checkpoint_files") is None:
                raise ModelError(
                    "an OctavoConfig without a recipe opens a folder, and a state_dict is none; give the recipe to "
                    'pack it by, as in OctavoConfig("int4:g32")'
                )
            if self.pre_quantized:
                self._folder = OpenedFolder(model, kwargs["checkpoint_files"])
                self._bits = self._folder.bits()
                _hide(model, self._folder.missing)
            elif self.quantization_config.simulate:
                self._prepare(model)  # refuses what it must before the weights are read
            else:
                self._packing = self._prepare(model)
                self._bits = {name: self._packing.bits(name) for name in self._packing.names}
                self._left = {name for name in self._packing.names if not _is_of(model, name, self._dtype)}
        # transformers ends the reading with eval(), before it spreads the model over devices.
        model.eval = lambda: self._finish(model)
        return model

    def _prepare(self, model: Any) -> WeightByWeight:
        recipe = self.quantization_config.recipe
        try:
            return WeightByWeight(model, Recipe.parse(recipe or ""))
        except CalibrationError as error:
            raise CalibrationError(
                f"{str(error).partition(';')[0]}; from_pretrained has no data: read the float model without "
                f'quantization_config, then octavo.quantize_model(model, "{recipe}", calibration=batches) and '
                "octavo.pack_model"
            ) from None

    # --- the weights --------------------------------------------------------------------------------------------------

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Tell whether a tensor that was read is to be packed.

        Args:
            model: the model.
            param_name: of the tensor in it.
            kwargs: none is looked at.

        Returns:
            True or False.
        """
        wanted = self._packing is not None and param_name in self._packing.names
        return wanted and param_name not in self._left

    def get_quantize_ops(self) -> Any:
        """Return the operation that packs a tensor.

        Returns:
            A ``ConversionOps``.
        """
        return _Pack(self)

    def take(self, model: Any, name: str, value: Tensor, missing: set[str] | None) -> dict[str, Tensor]:
        """Pack one tensor.

        Args:
            model: the model.
            name: of the tensor in it.
            value: the tensor.
            missing: names without a value yet, from which it goes, with those that are tied to it.

        Returns:
            What transformers is to put in place: nothing, or a tensor of another shape than the model has.
        """
        packing = self._packing
        assert packing is not None  # a tensor is wanted
        state = model.state_dict(keep_vars=True)
        place = state[name]
        if value.shape != place.shape:  # transformers tells it, or makes the weight anew
            self._left.add(name)
            return {name: value}
        if self._problem is None:
            try:
                packing.take(model, name, value)
            except OctavoError as error:  # transformers would tell of it as a failed conversion
                self._problem = error
        place._is_hf_initialized = True
        for other, tensor in state.items():
            if tensor is place and missing is not None:
                missing.discard(other)
        return {}

    def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
        """Return no dtype: scales of a packed file keep theirs.

        Args:
            converter: of the tensor.
            param: the tensor.
            dtype: of the model.

        Returns:
            None.
        """
        return None

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        """Return the bytes of an element, which ``device_map="auto"`` counts.

        Args:
            model: the model.
            param_name: of the tensor.
            param: the tensor.

        Returns:
            Bytes, those of scales included.
        """
        return self._bits[param_name] / 8 if param_name in self._bits else param.element_size()

    # --- after the weights --------------------------------------------------------------------------------------------

    def _finish(self, model: Any) -> Any:
        """Put the layers in place, once."""
        vars(model).pop("eval", None)
        for name in ("state_dict", "_keys_to_ignore_on_load_unexpected"):
            vars(model).pop(name, None)
        packing, folder, self._packing, self._folder = self._packing, self._folder, None, None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        config = self.quantization_config
        if packing is not None:
            packing.finish(model, sparse=config.sparse)
        elif folder is not None:
            folder.fill(model, None if self._dtype == self._stand_in else self._dtype)
            model.config.dtype = main_dtype(model)
        else:
            quantize_model(model, config.recipe, inplace=True, progress=False)
        if (device := _one_device(self._device_map)) is not None:
            model.to(device)
        vars(model.config).pop("transformers_weights", None)
        return model.eval()

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        """Finish a model of a transformers that does not end with ``eval()``; leave a simulated one a float model."""
        if "eval" in vars(model):
            self._finish(model)
        if not any(isinstance(module, PackedLayer) for module in model.modules()):
            forget: Any = self.remove_quantization_config
            forget(model)
            for module in model.modules():
                vars(getattr(module, "config", self)).pop("_is_quantized", None)
        return model

    @property
    def is_trainable(self) -> bool:
        """Whether adapters on packed layers train: gradients reach their inputs."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """Whether the model's own weights train."""
        return bool(self.quantization_config.simulate)

    @property
    def is_compileable(self) -> bool:
        """Whether ``torch.compile`` takes the layers."""
        return True

    def is_serializable(self) -> bool:
        """Tell whether ``save_pretrained`` writes the model.

        Returns:
            True.
        """
        return True


class _Pack(ConversionOps):
    """Packs the tensors that come out of transformers' renaming and merging."""

    def __init__(self, quantizer: OctavoQuantizer) -> None:
        self._quantizer = quantizer

    def convert(self, input_dict: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the tensors that stay as they are, by name; the others are packed.

        Args:
            input_dict: tensors by name, or lists of one.
            args: none is looked at.
            kwargs: ``model`` and ``missing_keys``.

        Returns:
            Tensors by name.
        """
        model, missing = kwargs["model"], kwargs.get("missing_keys")
        plain: dict[str, Any] = {}
        for name in list(input_dict):
            value = input_dict.pop(name)
            if self._quantizer.param_needs_quantization(model, name):
                tensor = value[0] if isinstance(value, list) else value
                plain |= self._quantizer.take(model, name, tensor, missing)
            else:
                plain[name] = value
        return plain


def register() -> None:
    """Tell transformers of the quantizer and its configuration, once a process."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

    for mapping, own in ((AUTO_QUANTIZATION_CONFIG_MAPPING, OctavoConfig), (AUTO_QUANTIZER_MAPPING, OctavoQuantizer)):
        other = mapping.get(METHOD)
        if other is not None and (other.__module__, other.__name__) == (own.__module__, own.__name__):
            del mapping[METHOD]  # this package, imported once more
    register_quantization_config(METHOD)(OctavoConfig)
    register_quantizer(METHOD)(OctavoQuantizer)


# --- parts ------------------------------------------------------------------------------------------------------------


@contextmanager
def _plain_context() -> Iterator[None]:
    """Make tensors on the CPU and in float32, where transformers builds a model on the meta device in its own dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def _tie(model: Any) -> None:
    """Tie parameters as transformers does after it has read them: a recipe decides about tied ones once."""
    for name, source in getattr(model, "all_tied_weights_keys", {}).items():
        path, _, last = name.rpartition(".")
        owner, parameter = model.get_submodule(path), model.get_parameter(source)
        if owner._parameters.get(last) is not None:
            owner._parameters[last] = parameter


def _is_of(model: Any, name: str, dtype: Any) -> bool:
    """Whether transformers reads a parameter in the model's dtype, or in the one that its class holds it in."""
    place = model.get_parameter(name)
    if place.dtype == dtype:
        return True
    from transformers.core_model_loading import build_glob_alternation

    plan = list(model._get_dtype_plan(dtype))
    return bool(plan and build_glob_alternation(plan)[0].search(name))


def _hide(model: Any, missing: set[str]) -> None:
    """Show transformers, which would look for its names in our file, the tensors that the file has not."""
    for parameter in [*model.parameters(), *model.buffers()]:
        parameter._is_hf_initialized = True
    state = model.state_dict(keep_vars=True)
    for name in missing:
        state[name]._is_hf_initialized = False
    shown = {name: state[name] for name in missing}
    model.state_dict = lambda *args, **kwargs: dict(shown)
    model._keys_to_ignore_on_load_unexpected = {""}


def _one_device(device_map: Any) -> Any:
    """Return the device of a map that has one; None where accelerate spreads the model, or nothing is to be moved."""
    if not isinstance(device_map, dict) or len(set(device_map.values())) != 1:
        return None
    (device,) = set(device_map.values())
    return None if device in ("cpu", torch.device("cpu")) else device
