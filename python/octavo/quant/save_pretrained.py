"""``save_pretrained`` of quantized and folded models of transformers writes the folder that load_model reads."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from operator import setitem
from typing import Any, Self

from torch import nn

from octavo.errors import ModelError
from octavo.late_binding import late
from octavo.nn.folded_norm import FoldedNorm
from octavo.nn.format_layer import FormatLayer

_NAME = "save_pretrained"
_OURS = FormatLayer | FoldedNorm
"""Layers that transformers' own loading does not know."""

# Of transformers' function; they change nothing in the one file that is written.
_NO_MATTER = {"max_shard_size", "token", "save_peft_format", "save_original_format", "safe_serialization"}


def write_our_folders(model: nn.Module, put: Callable[[dict[str, Any], str, Any], None] = setitem) -> None:
    """Let ``save_pretrained`` of every model of transformers inside ``model`` that has quantized or folded layers do as
    :func:`octavo.save_model` does: transformers' own would write codes that its ``from_pretrained`` passes over, and
    start from random weights. ``push_to_hub`` calls it. ``put``: sets an attribute in the dictionary of a module.
    """
    loaded = sys.modules.get("transformers.modeling_utils")
    if loaded is None:  # so no module is of its class
        return
    for module in model.modules():
        # Its own models alone: those of peft, around them, write adapters.
        if isinstance(module, loaded.PreTrainedModel) and any(isinstance(m, _OURS) for m in module.modules()):
            put(vars(module), _NAME, _Saver(module))


class _Saver:
    """The replacement of ``model.save_pretrained``. It holds the model weakly; in a copied model it holds the copy."""

    def __init__(self, model: nn.Module) -> None:
        """Write ``model``."""
        self._model = weakref.ref(model)

    def __call__(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """Write the folder that :func:`octavo.load_model` reads, on the main process.

        Raises ModelError for ``state_dict``, ``push_to_hub`` (the method of that name works) and other options that
        would change the file; else as :func:`octavo.save_model`.
        """
        model = self._model()
        given = {"state_dict": state_dict is not None, "push_to_hub": push_to_hub}
        refused = [name for name, on in given.items() if on]
        refused += [name for name, value in options.items() if name not in _NO_MATTER and value]
        if refused:
            raise ModelError(
                f"{type(model).__name__}.save_pretrained: this model is written by octavo.save_model, without "
                f"{', '.join(refused)}; leave that out, and load the folder with octavo.load_model"
            )
        if is_main_process:
            late("save_model")(model, save_directory)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Belong to the copy of the model, which is being made."""
        model = self._model()
        assert model is not None  # it is being copied
        return type(self)(memo.get(id(model), model))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the model, which is being pickled."""
        return _Saver.__new__, (_Saver,), {"model": self._model()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the unpickled model."""
        self._model = weakref.ref(state["model"])
