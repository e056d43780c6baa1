"""Classifiers of transformers from folders: any architecture that transformers has a classifier of sequences for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from octavo.compress.text_models import positions_of
from octavo.errors import DataError, ModelError, SettingError
from octavo.lab.classifiers.text_classifier import LONGEST, Ids, TextClassifier
from octavo.lab.classifiers.texts import PAD
from octavo.model_folder.hf_loading import CONFIG, fill, known, load_config, load_tokenizer
from octavo.model_folder.infer_structure import filled_compact
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build_class
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.prune.sizes import KEY as SIZES

_NUMBERED = re.compile(r"LABEL_\d+")  # what transformers calls a class without a name

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pretrained(
    kind: str, folder: Path, length: int | None, classes: int | None = None, names: Sequence[str] = ()
) -> tuple[TextClassifier, tuple[str, ...]]:
    """Return the classifier of a folder of transformers, float32, and the names of weights that were drawn afresh.

    ``length``: tokens of a text that it reads; None: 64, or as many as it has positions for. ``classes``: of its head;
    None: those of the folder. A head of another number of classes is left behind. ``names``
    of classes go into the configuration. Fresh weights come from torch's global generator. Weights may be packed.

    Raises DataError where transformers has no classifier for the architecture, ModelError and ContainerError for
    folders that cannot be read, SettingError for a ``length`` of more tokens than the model has positions for.
    """
    config, values = load_config(folder)
    before = config.num_labels
    if classes is not None and classes != before:
        config.num_labels = classes
    if names:
        config.id2label, config.label2id = dict(enumerate(names)), {name: place for place, name in enumerate(names)}
    tokenizer, tensors = load_tokenizer(folder, config), unpack(Checkpoint.open(folder))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    architecture = known(folder, _sequence_classifier(config), "classifier")
    if architecture is None:
        raise DataError(f"{folder}: transformers has no classifier for a {type(config).__name__}")
    build_class(folder, architecture, config, Extent.of_tensors(tensors, str(folder / CONFIG), values))
    fresh: list[str] = []
    if getattr(config, SIZES, None) is not None:
        model = filled_compact(architecture, config, tensors, folder)
    else:
        if config.num_labels != before:
            tensors = _without_head(architecture, config, tensors, before)
        model, fresh = fill(architecture, config, tensors, folder)
    positions = positions_of(model)
    length = int(min(LONGEST, positions)) if length is None else length
    if length > positions:
        raise SettingError(
            f"length is {length}; accepted for {folder} are 1 to {positions:.0f} tokens: it has no more positions"
        )

    def encode(texts: Sequence[str]) -> Ids:
        return tuple(map(tuple, tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]))

    def save(target: Path) -> None:
        cast("PreTrainedModel", model).config.save_pretrained(target)
        tokenizer.save_pretrained(target)

    pad = PAD if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    head = _head(model, config.num_labels, folder)
    return TextClassifier(kind, model, encode, length, save, head, pad), tuple(fresh)


def named_classes(folder: Path) -> dict[str, int] | None:
    """Return the classes of a folder's configuration by name; None where they have numbers alone."""
    names = {str(name): int(number) for name, number in (load_config(folder)[0].label2id or {}).items()}
    return None if all(_NUMBERED.fullmatch(name) for name in names) else names


def _head(model: nn.Module, classes: int, folder: Path) -> str:
    """Return the path of the last Linear layer that gives a score a class. Raises ModelError where there is none."""
    paths = [
        path for path, part in model.named_modules() if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    if not paths:
        raise ModelError(f"{folder}: the {type(model).__name__} has no Linear layer of {classes} outputs as its head")
    return paths[-1]


def _without_head(architecture: Any, config: Any, tensors: Mapping[str, Tensor], classes: int) -> dict[str, Tensor]:
    """Return tensors without those of a head of ``classes`` classes, which do not fit the model to be made."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in architecture(config).state_dict().items()}

    def fits(name: str, tensor: Tensor) -> bool:
        shape = shapes.get(name, tensor.shape)
        return shape == tensor.shape or tensor.shape[:1] != (classes,)

    return {name: tensor for name, tensor in tensors.items() if fits(name, tensor)}


def _sequence_classifier(config: Any) -> Callable[[Any], Any]:
    return lambda transformers: transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
