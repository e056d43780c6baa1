"""Methods of models of transformers with quantized, packed or folded layers: saving, tying, counting, resizing."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import nn

from octavo.errors import ModelError
from octavo.late_binding import late
from octavo.nn.folded_norm import FoldedNorm
from octavo.nn.format_layer import FormatLayer
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.resized_tables import resize_rows, rows_of


def use_our_methods(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Give every model of transformers inside ``model`` that has layers of ours the methods of :class:`OurMethods`.

    Its class becomes a subclass of the same name, for methods must hold the model that they are called on, as
    ``pack_model(m).save_pretrained(folder)`` does. Returns the modules whose class was changed, with their former one.
    """
    loaded = sys.modules.get("transformers.modeling_utils")
    if loaded is None:  # so no module is of its class
        return []
    changed = []
    for module in model.modules():
        # Its own models alone: those of peft, around them, write adapters.
        if isinstance(module, loaded.PreTrainedModel) and not isinstance(module, OurMethods) and _has_ours(module):
            changed.append((module, type(module)))
            module.__class__ = _with_our_methods(type(module))
    return changed


class OurMethods:
    """Methods that stand before those of a model of transformers; without layers of ours it does as its class does."""

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """Write a folder that :func:`octavo.load_model` reads, on the main process.

        A simulated model is written as transformers writes it, so that ``from_pretrained`` reads its float weights and
        ``Trainer`` its checkpoints; the file says how its layers round. Of packed or folded layers, whose names
        transformers would pass over to start from random weights, the folder is that of :func:`octavo.save_model` with
        a model card; ``max_shard_size`` bounds its files.

        Raises ModelError for ``push_to_hub`` (the method of that name works), of packed models also for ``state_dict``
        and options that would change the file; ContainerError where the folder holds another model's weights; else as
        :func:`octavo.save_model`.
        """
        assert isinstance(self, nn.Module)
        above: Any = super()
        if not _has_ours(self):
            above.save_pretrained(save_directory, is_main_process, state_dict, push_to_hub, **options)
            return
        options = {"state_dict": state_dict, "push_to_hub": push_to_hub, **options}
        late("save_pretrained")(self, save_directory, is_main_process, above.save_pretrained, options)

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Tie as transformers does; weights that are packed share their codes where they were tied, and stay so."""
        assert isinstance(self, nn.Module)
        if not any(isinstance(module, PackedLayer) for module in self.modules()):
            above: Any = super()
            above.tie_weights(*args, **kwargs)

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Upload what :meth:`save_pretrained` writes, the model card of a packed model with it.

        ``options``: those of transformers' method. Returns the address of the commit.
        """
        assert isinstance(self, nn.Module)
        above: Any = super()
        if not any(isinstance(module, PackedLayer) for module in self.modules()):
            return above.push_to_hub(repo_id, **options)
        return late("push_to_hub")(self, repo_id, **options)

    def dequantize(self, dtype: Any = None) -> nn.Module:
        """Make the model a float one, whose weights are those that its layers multiply; return it.

        ``dtype``: of its tensors; None for the one that each has. Raises ModelError for a model with tensors that a
        float one has no place for.
        """
        assert isinstance(self, nn.Module)
        model: Any = self
        fresh = late("float_model")(model, dtype)
        model.__class__, model.__dict__ = type(fresh), vars(fresh)
        result: nn.Module = model
        return result

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of parameters as transformers counts them, elements of packed weights included."""
        assert isinstance(self, nn.Module)
        above: Any = super()
        counted: int = above.num_parameters(only_trainable, exclude_embeddings)
        if only_trainable:
            return counted
        layers = [layer for layer in self.modules() if isinstance(layer, PackedLayer)]
        packed = {id(layer.weight_codes): layer.packed_weight.numel() for layer in layers}
        for layer in layers if exclude_embeddings else ():
            if layer.replaces is nn.Embedding:  # a head that is tied to the table goes with it, as in a float model
                packed[id(layer.weight_codes)] = 0
        return counted + sum(packed.values())

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Return the table of tokens with another number of rows, and give the head as many.

        Rows that stay keep every bit; new ones are encoded in the format of the table: the mean of the others, or with
        ``mean_resizing=False`` draws of the configuration's ``initializer_range``. A head that shares the codes of the
        table still does. Raises ModelError for simulated layers with fixed scales, and for models whose class resizes
        in a way of its own.
        """
        assert isinstance(self, nn.Module)
        above: Any = super()
        tables = [
            embedding
            for embedding in (above.get_input_embeddings(), above.get_output_embeddings())
            if embedding is not None
        ]
        ours = next((table for table in tables if isinstance(table, FormatLayer)), None)
        if ours is None:
            resized: nn.Module = above.resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            return resized
        before = rows_of(ours)
        rows = before if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of is not None:
            rows = -(-rows // pad_to_multiple_of) * pad_to_multiple_of
        table: nn.Module = tables[0]
        if rows == before and pad_to_multiple_of is None:
            return table
        fits = all(isinstance(table, PackedLayer | QuantLayer) and rows_of(table) == before for table in tables)
        if not fits or _resizes_otherwise(type(self)):
            raise ModelError(
                f"{type(self).__name__}.resize_token_embeddings: its table and head have not both a format and "
                f"{before} rows, or its class resizes more than these; call resize_token_embeddings on the float "
                "model, then octavo.quantize_model and octavo.pack_model"
            )
        config: Any = self.config
        spread = None if mean_resizing else float(getattr(config, "initializer_range", 0.02))
        _resize(self, tables, rows, spread)
        if len(tables) > 1:
            above.set_output_embeddings(tables[1])  # some classes hold its bias at another place, too
        config.get_text_config().vocab_size = rows
        if hasattr(self, "vocab_size"):
            self.vocab_size = rows
        self.tie_weights()
        return table

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle by the class of transformers, which other processes know."""
        parts = super().__reduce_ex__(protocol)
        assert isinstance(parts, tuple)  # a module is no global name
        return _made, (_theirs(type(self)),), *parts[2:]


def _resizes_otherwise(cls: type) -> bool:
    """Whether a class of transformers has a way of its own to resize tables."""
    theirs: Any = sys.modules["transformers.modeling_utils"]
    own: Any = _theirs(cls)
    return own.resize_token_embeddings is not theirs.PreTrainedModel.resize_token_embeddings


def _resize(model: nn.Module, tables: list[nn.Module], rows: int, spread: float | None) -> None:
    """Resize tables and all layers that share their weights, which share them afterwards, too."""
    owners: dict[int, list[PackedLayer | QuantLayer]] = {_weight_id(table): [] for table in tables}
    for layer in model.modules():
        if isinstance(layer, PackedLayer | QuantLayer) and _weight_id(layer) in owners:
            owners[_weight_id(layer)].append(layer)
    for first, *others in owners.values():
        resize_rows(first, rows, spread)
        for layer in others:
            resize_rows(layer, rows, spread)
            if isinstance(layer, PackedLayer) and isinstance(first, PackedLayer):
                layer._hold(first.packed_weight)
            else:
                layer._parameters["weight"] = first._parameters["weight"]


def _weight_id(layer: nn.Module) -> int:
    return id(layer.weight_codes if isinstance(layer, PackedLayer) else layer._parameters.get("weight"))


def _has_ours(model: nn.Module) -> bool:
    return any(isinstance(module, FormatLayer | FoldedNorm) for module in model.modules())


_classes: dict[type, type[nn.Module]] = {}


def _with_our_methods(cls: type[nn.Module]) -> type[nn.Module]:
    if cls not in _classes:
        named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        _classes[cls] = type(cls.__name__, (OurMethods, cls), named)
    return _classes[cls]


def _theirs(cls: type) -> type:
    """Return the class of a model before it was given our methods."""
    return next((theirs for theirs, ours in _classes.items() if ours is cls), cls)


def _made(cls: type[nn.Module]) -> nn.Module:
    """Return a model without content, to be unpickled or copied."""
    ours = _with_our_methods(cls)
    return ours.__new__(ours)
