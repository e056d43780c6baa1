"""A trained model as a folder: what it is, its tokenizer and its weights, written whole and checked when read.

``config.json`` (what kind of model and its :class:`Seq2SeqConfig`), ``tokenizer.json``, ``model.safetensors`` (weights
under the names of ``state_dict``), and where they were given ``integer.safetensors`` (the model for integer arithmetic,
:mod:`octavo.systems.polynomials.static`), ``accuracy.json`` and ``README.md``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo import container, files, folders
from octavo._reading import read_json
from octavo.data import CharTokenizer
from octavo.errors import ContainerError, DataError, DTypeError, NonFiniteError, SettingError, ShapeError
from octavo.folder.pack_checkpoint import pack_tensors, unpack_tensors
from octavo.models.seq2seq import Seq2Seq, Seq2SeqConfig, build
from octavo.recipe import Recipe
from octavo.systems.polynomials import static
from octavo.tensor import FLOATS

CONFIG, TOKENIZER, WEIGHTS, INTEGER = "config.json", "tokenizer.json", "model.safetensors", "integer.safetensors"
ACCURACY, README = "accuracy.json", "README.md"
FILES = frozenset({CONFIG, TOKENIZER, WEIGHTS, INTEGER, ACCURACY, README})

#: Version and kind that ``config.json`` names beside the fields of the configuration.
VERSION, KIND = 1, "seq2seq"
# Bytes of a config.json that is read: real ones have 300.
_MOST = 1 << 16


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
    texts, packed = _prepare(model, tokenizer, format, integer, metadata)
    if target.exists() and not (overwrite or (target.is_dir() and not any(target.iterdir()))):
        raise FileExistsError(17, "File exists; give overwrite=True to replace it", str(target))
    with folders.whole(target, owned=FILES, overwrite=overwrite) as stage:
        _write(stage, texts, packed, tokenizer, integer)
    return target


def fill_folder(model: Seq2Seq, tokenizer: CharTokenizer, folder: Path, *, format: str | None) -> None:
    """Write a model into a folder that is there and empty. Raises as :func:`export_model`."""
    texts, packed = _prepare(model, tokenizer, format, None, None)
    _write(folder, texts, packed, tokenizer, None)


def load_model(folder: str | os.PathLike[str]) -> tuple[Seq2Seq, CharTokenizer]:
    """Return the model of a folder that :func:`export_model` wrote, in eval mode, weights decoded, and its tokenizer.

    Raises FileNotFoundError for a file that is missing, ContainerError for one that is none or of another version, for
    a configuration that is not accepted, and where tokenizer or weights are not those of the configuration,
    NonFiniteError for weights. Nothing is allocated for the model before its weights are known to fit.
    """
    path = Path(folder)
    config, tokenizer = _read_parts(path)
    with torch.device("meta"):
        model = build(config)  # draws nothing from torch's generator, and takes no memory
    file = path / WEIGHTS
    _check_entries(file, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
    tensors = {name: tensor.float() for name, tensor in unpack_tensors(container.load(file)).items()}
    _check_finite(tensors, f"{file}: ")
    model.load_state_dict(tensors, assign=True)
    return model.eval(), tokenizer


def load_integer(folder: str | os.PathLike[str]) -> tuple[static.StaticInt8Seq2Seq, CharTokenizer]:
    """Return the static INT8 model of a folder and its tokenizer. Raises as :func:`load_model`."""
    path = Path(folder)
    config, tokenizer = _read_parts(path)
    return static.load(path / INTEGER, config), tokenizer


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
) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return the texts of a folder by name, and its weights; what cannot be written is refused."""
    _check(model, tokenizer, integer)
    tensors = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    _check_finite(tensors, "")
    packed = tensors if format is None else pack_tensors(tensors, Recipe.parse(format)).tensors
    texts = {CONFIG: _json({"octavo": VERSION, "kind": KIND, **model.config.as_dict()})}
    if metadata is not None:
        texts |= {ACCURACY: _json(metadata), README: _readme(model, format, metadata)}
    return texts, packed


def _write(
    folder: Path,
    texts: Mapping[str, str],
    packed: Mapping[str, Any],
    tokenizer: CharTokenizer,
    integer: static.StaticInt8Seq2Seq | None,
) -> None:
    for name, text in texts.items():
        files.write(folder / name, text)
    tokenizer.save(folder / TOKENIZER)
    container.save(packed, folder / WEIGHTS)
    if integer is not None:
        static.save(integer, folder / INTEGER)


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
        "from octavo.systems.polynomials.export import load_model",
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


def _read_parts(path: Path) -> tuple[Seq2SeqConfig, CharTokenizer]:
    """Return configuration and tokenizer of a folder. Raises ContainerError, OSErrors."""
    config = _read_config(path / CONFIG)
    try:
        tokenizer = CharTokenizer.load(path / TOKENIZER)
    except DataError as error:
        raise ContainerError(str(error)) from None
    if tokenizer.size != config.vocabulary:
        wanted = f"the vocabulary of {CONFIG} has {config.vocabulary}"
        raise ContainerError(f"{path / TOKENIZER}: {tokenizer.size} ids; {wanted}")
    return config, tokenizer


def _read_config(file: Path) -> Seq2SeqConfig:
    values = read_json(file, _MOST)
    version, kind = values.pop("octavo", None), values.pop("kind", None)
    if type(version) is not int or version != VERSION:
        newer = "; update it" if type(version) is int and version > VERSION else ""
        raise ContainerError(f"{file}: version {version!r}; this Octavo reads {VERSION}{newer}")
    if kind != KIND:
        raise ContainerError(f"{file}: kind {kind!r}; accepted is '{KIND}'")
    try:
        return Seq2SeqConfig.from_dict(values)
    except SettingError as error:
        raise ContainerError(f"{file}: {error}") from None


def _check_entries(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the table of contents of a file with the tensors a model has."""
    entries = {entry.name: entry for entry in container.inspect(file)}
    differing = sorted(entries.keys() ^ shapes.keys())
    if differing:
        problem = "is no weight of the model" if differing[0] in entries else "is missing"
        raise ContainerError(f"{file}: {differing[0]} {problem} ({len(differing)} such names)")
    accepted = {str(dtype).removeprefix("torch.") for dtype in FLOATS}
    for name, entry in entries.items():
        if entry.shape != shapes[name]:
            raise ContainerError(f"{file}: {name} has shape {entry.shape}; the model's is {shapes[name]}")
        if entry.dtype not in accepted:
            raise ContainerError(f"{file}: {name} has dtype {entry.dtype}; accepted are {', '.join(sorted(accepted))}")
