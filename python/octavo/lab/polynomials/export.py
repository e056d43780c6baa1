"""A trained model as a folder: what it is, its tokenizer and its weights, written whole and checked when read.

``config.json`` (kind, :class:`Seq2SeqConfig` and variants: :mod:`octavo.model_folder.model_config`),
``tokenizer.json``,
``model.octavo.safetensors`` (weights under the names of ``state_dict``, with the description that
:func:`octavo.load_model` reads), and where they were given ``integer.octavo.safetensors`` (the variant for integer
arithmetic, :mod:`octavo.lab.polynomials.static`), ``accuracy.json`` and ``README.md``. Folders of 0.1, with
``model.safetensors`` and ``integer.safetensors``, are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.data import CharTokenizer
from octavo.errors import ContainerError, DataError, DTypeError, NonFiniteError, ShapeError
from octavo.lab.polynomials import static
from octavo.lab.polynomials.seq2seq import Seq2Seq
from octavo.model_folder.companion_files import ACCURACY, README
from octavo.model_folder.float_network import float_network
from octavo.model_folder.model_config import CONFIG, OwnModel, config_text, described, own_model, variant_name
from octavo.model_folder.pack_checkpoint import pack_tensors
from octavo.model_folder.structure import describe_packed
from octavo.model_folder.weight_files import PACKED_NAME, RECIPE, STRUCTURE
from octavo.recipe import Recipe
from octavo.storage import files, folders
from octavo.tensors import container
from octavo.tensors.packed_tensor import PackedTensor

KIND = "seq2seq"
TOKENIZER, WEIGHTS = "tokenizer.json", PACKED_NAME
INTEGER = "integer"
"""Name of the variant for integer arithmetic."""
FORMER_FILES = ("model.safetensors", "integer.safetensors")
FILES = frozenset({CONFIG, TOKENIZER, WEIGHTS, variant_name(INTEGER), ACCURACY, README, *FORMER_FILES})


def export_model(
    model: Seq2Seq,
    tokenizer: CharTokenizer,
    folder: str | os.PathLike[str],
    *,
    format: str | None = "mxint8",
    integer: static.StaticInt8Seq2Seq | None = None,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model folder, which appears complete or not at all, and return its path.

    ``format``: of all 2-D weights, along their rows, or a recipe (:class:`octavo.Recipe`); None keeps them float32,
    as vectors are. ``integer``: the same model in static INT8. ``metadata``: values for JSON, such as those of
    ``Accuracy.as_dict()``; written to ``accuracy.json`` and listed in ``README.md``. ``overwrite``: replace the model
    of a folder that is there, in one step; files of other names are kept. Else only an empty folder is taken.

    Raises FileExistsError, FormatError for a format that is none, NonFiniteError for weights that are not finite,
    DTypeError for other objects, ShapeError for a tokenizer or an integer model that is not the model's, DataError for
    metadata that is no JSON; all before anything is written. OSErrors.
    """
    target = Path(os.path.abspath(folder))
    parts = _prepare(model, tokenizer, format, integer, metadata)
    if target.exists() and not (overwrite or (target.is_dir() and not any(target.iterdir()))):
        raise FileExistsError(17, "File exists; give overwrite=True to replace it", str(target))
    with folders.whole(target, owned=FILES, overwrite=overwrite) as stage:
        parts.write(stage)
    return target


def packed_parts(model: Seq2Seq, tokenizer: CharTokenizer, weights: Mapping[str, Tensor | PackedTensor]) -> _Parts:
    """Return a folder's content with weights that are packed already, by their names in ``model``; ``write`` writes it.

    Raises as :func:`export_model`.
    """
    parts = _prepare(model, tokenizer, None, None, None)
    about = {"format": "pt", STRUCTURE: json.dumps(describe_packed(model, weights))}
    return replace(parts, weights=weights, about=about)


def load_model(folder: str | os.PathLike[str]) -> tuple[Seq2Seq, CharTokenizer]:
    """Return the model of a folder that :func:`export_model` wrote, in eval mode, weights decoded, and its tokenizer.

    Raises FileNotFoundError for a file that is missing, ContainerError for one that is none or of another version, for
    a configuration that is not accepted, and where tokenizer or weights are not those of the configuration,
    NonFiniteError for weights. Nothing is allocated for the model before its weights are known to fit.
    """
    path = Path(folder)
    tokenizer = _read_parts(path)[1]
    model, _ = float_network(path, KIND)
    assert isinstance(model, Seq2Seq)  # it is what the kind says
    return model, tokenizer


def load_integer(folder: str | os.PathLike[str]) -> tuple[static.StaticInt8Seq2Seq, CharTokenizer]:
    """Return the static INT8 model of a folder and its tokenizer. Raises as :func:`load_model`."""
    path = Path(folder)
    own, tokenizer = _read_parts(path)
    return static.load(own.variant(INTEGER), own.config), tokenizer


# --- writing --------------------------------------------------------------------------------------------------------


def _check(model: Seq2Seq, tokenizer: CharTokenizer, integer: static.StaticInt8Seq2Seq | None) -> None:
    for name, value, accepted in (("model", model, Seq2Seq), ("tokenizer", tokenizer, CharTokenizer)):
        if not isinstance(value, accepted):
            raise DTypeError(f"{name} is a {type(value).__name__}; accepted is a {accepted.__name__}")
    if isinstance(model, static.StaticInt8Seq2Seq):
        raise DTypeError("model is a StaticInt8Seq2Seq; give the model it was made of, and this one as integer=")
    if integer is not None and not isinstance(integer, static.StaticInt8Seq2Seq):
        raise DTypeError(f"integer is a {type(integer).__name__}; accepted is a StaticInt8Seq2Seq")
    if integer is not None and integer.config != model.config:
        raise ShapeError(f"integer has the configuration {integer.config}, the model {model.config}")
    if tokenizer.size != model.config.vocabulary:
        raise ShapeError(f"the tokenizer has {tokenizer.size} ids, the model {model.config.vocabulary}")


def _check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise NonFiniteError(f"{where}{name} holds NaN or infinity; accepted are finite weights")


def _prepare(
    model: Seq2Seq,
    tokenizer: CharTokenizer,
    format: str | None,
    integer: static.StaticInt8Seq2Seq | None,
    metadata: Mapping[str, Any] | None,
) -> _Parts:
    """Return what a folder gets, written nowhere yet; what cannot be written is refused."""
    _check(model, tokenizer, integer)
    tensors = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    _check_finite(tensors, "")
    weights: Mapping[str, Tensor | PackedTensor] = tensors
    recipe = None if format is None else Recipe.parse(format)
    if recipe is not None:
        weights = pack_tensors(tensors, recipe).tensors
    about = {"format": "pt", STRUCTURE: json.dumps(describe_packed(model, weights))}
    about |= {} if recipe is None else {RECIPE: str(recipe)}
    variants = {} if integer is None else {INTEGER: variant_name(INTEGER)}
    known = described(model)
    values = model.config.as_dict() if known is None else known[1]
    texts = {CONFIG: config_text(KIND, values, variants)}
    if metadata is not None:
        texts |= {ACCURACY: _json(metadata), README: _readme(model, format, metadata)}
    return _Parts(texts, weights, about, tokenizer, integer)


@dataclass(frozen=True)
class _Parts:
    """Texts by the name of their file, weights with the metadata of theirs, tokenizer and integer variant."""

    texts: Mapping[str, str]
    weights: Mapping[str, Tensor | PackedTensor]
    about: Mapping[str, str]
    tokenizer: CharTokenizer
    integer: static.StaticInt8Seq2Seq | None

    def write(self, folder: Path) -> None:
        """Write all into a folder that is there."""
        for name, text in self.texts.items():
            files.write(folder / name, text)
        self.tokenizer.save(folder / TOKENIZER)
        container.save(self.weights, folder / WEIGHTS, metadata=self.about)
        if self.integer is not None:
            static.save(self.integer, folder / variant_name(INTEGER))


def _json(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"metadata is no JSON: {error}") from None


def _readme(model: Seq2Seq, format: str | None, metadata: Mapping[str, Any]) -> str:
    """Return a page that says what the model is, how to load it, and the plain values of ``metadata``."""
    config = model.config
    lines = [
        f"# Polynomial model: {config.architecture}",
        "",
        f"Expands left sides such as `(7-3*z)*(2*z+5)`. {model.parameter_count:,} parameters, weights as "
        f"`{format or 'float32'}`, written by Octavo.",
        "",
        "```python",
        "from octavo.lab.polynomials.export import load_model",
        "",
        'model, tokenizer = load_model("this folder")',
        "```",
        "",
    ]
    plain = {name: value for name, value in metadata.items() if isinstance(value, str | int | float)}
    if plain:
        lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in plain.items()), ""]
    return "\n".join(lines)


# --- reading --------------------------------------------------------------------------------------------------------


def _read_parts(path: Path) -> tuple[OwnModel, CharTokenizer]:
    """Return what the configuration of a folder says, and its tokenizer. Raises ContainerError, OSErrors."""
    own = own_model(path, KIND)
    assert own is not None  # a kind was asked for
    try:
        tokenizer = CharTokenizer.load(path / TOKENIZER)
    except DataError as error:
        raise ContainerError(str(error)) from None
    if tokenizer.size != own.config.vocabulary:
        wanted = f"the vocabulary of {CONFIG} has {own.config.vocabulary}"
        raise ContainerError(f"{path / TOKENIZER}: {tokenizer.size} ids; {wanted}")
    return own, tokenizer
