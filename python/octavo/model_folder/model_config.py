"""Folders of networks that have no library of their own: ``config.json`` has kind, sizes, variants.

::

    {"octavo": 2, "kind": "seq2seq", "architecture": "hybrid", "vocabulary": 31, ...,
     "variants": {"integer": "integer.octavo.safetensors"}}

A kind is a :class:`octavo.model_folder.subject_registry.Subject` with the class of its sizes and its network, loaded
where a folder is of it. Folders of 0.1 have version 1 and fixed names of files, or, of a classifier, ``shape.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, SettingError
from octavo.model_folder.subject_registry import GROUP, kinds, subject, subject_of
from octavo.storage.reading import read_json, shown

if TYPE_CHECKING:
    from torch import nn

CONFIG = "config.json"
SIZES = "octavo_sizes"
"""What ``config.json`` calls the sizes of a compacted model: ``octavo.prune.sizes.KEY``, which loads torch."""
#: Version of ``config.json`` that is written; the former one is read.
VERSION, FORMER = 2, 1
VARIANTS = "variants"
SHAPE = "shape.json"
"""Where 0.1 wrote the sizes of a classifier."""
_SUFFIX = ".octavo.safetensors"


@dataclass(frozen=True)
class OwnModel:
    """What the configuration of a folder says.

    ``variants``: names of further files of weights, by what they are. ``sizes``: of a network that was compacted.
    """

    file: Path
    kind: str
    config: Any
    variants: Mapping[str, str] = field(default_factory=dict)
    sizes: Any = None

    @property
    def network(self) -> type[nn.Module]:
        """The class of the model."""
        return subject(self.kind).network(self.config)

    def make(self) -> nn.Module:
        """Return the model with fresh weights. Raises ContainerError for sizes that no such model has."""
        model = self.network(self.config)
        if self.sizes is not None:
            from octavo.prune.sizes import note_sizes, shrink

            note_sizes(shrink(model, self.sizes, str(self.file)), self.sizes)
        return model

    def variant(self, name: str) -> Path:
        """Return the file of a variant. Raises ContainerError where the configuration names none."""
        if name not in self.variants:
            among = f"it has {', '.join(map(repr, self.variants))}" if self.variants else "it has none"
            raise ContainerError(f"{self.file}: names no variant '{name}' of the model; {among}")
        return self.file.parent / self.variants[name]


def own_model(folder: Path, kind: str | None = None) -> OwnModel | None:
    """Return what a folder says of a network of ours; None where it is of another library, or says nothing.

    ``kind``: the one that is accepted; the folder must then be of it. Raises ContainerError naming the field for a
    version, kind or size that is not accepted; with a ``kind`` FileNotFoundError where there is no configuration.
    """
    file = folder / CONFIG
    if not file.exists() and kind in (None, "classifier"):
        if (folder / SHAPE).exists():
            return _former_classifier(folder / SHAPE)
        if kind is None:
            return None
    values = read_json(file, finite=False)
    if "model_type" in values or not ("octavo" in values or str(values.get("kind")) in kinds()):
        if kind is None:
            return None
        raise ContainerError(f"{file}: of a model of another library; accepted is a folder of kind '{kind}'")
    sizes = values.pop(SIZES, None)
    version, found = values.pop("octavo", None), values.pop("kind", None)
    if type(version) is not int or version not in (FORMER, VERSION):
        newer = "; update it" if type(version) is int and version > VERSION else ""
        raise ContainerError(f"{file}: version {shown(version)}; this Octavo reads {FORMER} and {VERSION}{newer}")
    accepted = kinds() if kind is None else [kind]
    if found not in accepted:
        listed = " or ".join(map(repr, accepted)) or f"none, since no installed package has entry points of {GROUP}"
        raise ContainerError(f"{file}: kind {shown(found)}; accepted is {listed}")
    if version == FORMER:
        return OwnModel(file, found, _config(found, values, file), subject(found).former_variants)
    variants = _variants(values.pop(VARIANTS, {}), file)
    return OwnModel(file, found, _config(found, values, file), variants, sizes)


def stated_sizes(folder: Path) -> Any:
    """Return the sizes of a compacted model as the configuration of a folder has them; None of any other folder."""
    try:
        return read_json(folder / CONFIG, finite=False).get(SIZES)
    except (OSError, ContainerError):
        return None


def refuse_compacted(folder: Path, engine: str) -> None:
    """Refuse the folder of a model with heads or neurons taken out, which ``engine`` does not run."""
    if stated_sizes(folder) is not None:
        raise ContainerError(
            f"{folder / CONFIG}: {SIZES}: heads or neurons were taken out of this model, which {engine} does not run; "
            "octavo.load_model runs it"
        )


def stated_kind(folder: Path) -> str:
    """Return whose model a folder holds, for messages: the kind that its configuration names, without torch."""
    try:
        values = read_json(folder / CONFIG, finite=False)
    except (OSError, ContainerError):
        return "no configuration"
    if isinstance(values.get("model_type"), str):
        return f"a model of transformers, {shown(values['model_type'])}"
    return f"a model of kind {shown(values.get('kind'))}"


def described(model: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Return kind and configuration of a network of ours, whose layers may be quantized; None for any other module."""
    found, config = subject_of(model), getattr(model, "config", None)
    if found is None or not isinstance(config, found.config()) or type(model) is not found.network(config):
        return None
    held = vars(model).get(SIZES)
    return found.kind, config.as_dict() | ({} if held is None else {SIZES: held})


def config_text(kind: str, values: Mapping[str, Any], variants: Mapping[str, str] | None = None) -> str:
    """Return the text of ``config.json``."""
    named = {VARIANTS: dict(variants)} if variants else {}
    return json.dumps({"octavo": VERSION, "kind": kind, **values, **named}, indent=2) + "\n"


def variant_name(variant: str) -> str:
    """Return the file name of a variant that is written."""
    return f"{variant}{_SUFFIX}"


def drop_variants(folder: Path) -> None:
    """Rewrite the configuration of a folder whose weights were converted without its variants; any other stays."""
    try:
        found = own_model(folder)
    except ContainerError:  # nothing that its readers would take
        return
    if found is not None and found.variants:
        sizes = {} if found.sizes is None else {SIZES: found.sizes}
        (folder / CONFIG).write_text(config_text(found.kind, found.config.as_dict() | sizes), encoding="utf-8")


# --- reading ----------------------------------------------------------------------------------------------------------


def _config(kind: str, values: dict[str, Any], file: Path) -> Any:
    try:
        return subject(kind).config().from_dict(values)
    except SettingError as error:
        raise ContainerError(f"{file}: {error}") from None


def _variants(values: Any, file: Path) -> dict[str, str]:
    """Return names of files in the folder, by variant."""
    if not isinstance(values, dict):
        raise ContainerError(f"{file}: {VARIANTS} is {shown(values)}; accepted is an object of names of files")
    for variant, name in values.items():
        is_name = isinstance(name, str) and Path(name).name == name and "\0" not in name
        if not is_name or not name.endswith(".safetensors") or name.startswith("model."):
            raise ContainerError(
                f"{file}: {VARIANTS}: {shown(variant)} is {shown(name)}; accepted is the name of another safetensors "
                "file in this folder"
            )
    return values


def _former_classifier(file: Path) -> OwnModel:
    return OwnModel(file, "classifier", _config("classifier", read_json(file), file))
