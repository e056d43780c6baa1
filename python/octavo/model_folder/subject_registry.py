"""Subjects: kinds of networks that a package brings to the library, found by entry points of ``octavo.subjects``.

An entry point is called as ``config.json`` calls the kind, and names a :class:`Subject`::

    [project.entry-points."octavo.subjects"]
    gpt = "octavo.lab.subjects:LANGUAGE"

Nothing of a package is imported before a folder, a model or a command asks for its kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from octavo.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

GROUP = "octavo.subjects"


class Subject(ABC):
    """A kind of network: how its folders are read, and what commands do with it. Subclasses override what they have."""

    kind: str
    """What ``config.json`` calls it; its networks have it as the attribute ``octavo_kind``.

    A method ``example_inputs()`` of a network gives ``octavo graph`` and the structured pruning inputs by their names.
    """
    name: str | None = None
    """What commands call the model that comes with the package."""
    former_variants: ClassVar[Mapping[str, str]] = {}
    """Names of further files of weights in folders of version 1, by what they are."""

    @abstractmethod
    def config(self) -> type[Any]:
        """Return the class of its sizes, which has ``from_dict`` and ``as_dict``."""

    @abstractmethod
    def network(self, config: Any) -> type[nn.Module]:
        """Return the class of the model with these sizes."""

    def folder(self) -> Path:
        """Return the folder of the model that comes along. Raises ModelError where it has no :attr:`name`."""
        raise ModelError(f"no model of kind '{self.kind}' comes with its package; give the path of a folder")

    def text_model(self, label: str, folder: Path, model: nn.Module) -> Any:
        """Return an :class:`octavo.compress.text_models.TextModel`, which commands that read texts take.

        ``label``: what the user calls it. Raises ModelError where the network reads no texts.
        """
        raise ModelError(f"{label}: a {type(model).__name__} reads no texts")

    def job(self, label: str, folder: Path, data: Path | None, test: Path | None, *, lines: int) -> Any:
        """Return the :class:`octavo.compress.compression_job.Job` of a folder; None where it is that of its texts.

        ``label``: what the user calls it. ``data``, ``test``: files of texts; ``lines``: test lines of a kind that
        makes its own. Raises SettingError for files that the kind does not take.
        """
        return None

    def batches(self, folder: Path, model: nn.Module, texts: Sequence[str]) -> list[Any] | None:
        """Return texts as batches of the model's inputs; None where they are those of :meth:`text_model`."""
        return None


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, dict[str, EntryPoint]]:
    """Return by kind the entry points that claim it, by what they name: a package may be found twice on the path."""
    claims: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        claims.setdefault(entry.name, {})[entry.value] = entry
    return claims


def kinds() -> list[str]:
    """Return the kinds of networks that installed packages bring; nothing is imported."""
    return sorted(_entry_points())


def subject(kind: str) -> Subject:
    """Return the subject of a kind.

    Raises KeyError for a kind that no installed package brings; ModelError naming the package where it cannot be
    imported or brings something else, and the packages where several bring the kind.
    """
    claims = list(_entry_points()[kind].values())
    if len(claims) > 1:
        packages = " and ".join(f"{_package(entry)} ({entry.value})" for entry in claims)
        raise ModelError(f"kind '{kind}' is brought by {packages}; uninstall all but one")
    entry = claims[0]
    try:
        loaded = entry.load()
    except Exception as error:
        raise ModelError(
            f"kind '{kind}': {entry.value} of the package {_package(entry)} cannot be imported: "
            f"{type(error).__name__}: {error}; install the package anew, or uninstall it"
        ) from error
    if not isinstance(loaded, Subject):
        raise ModelError(
            f"kind '{kind}': {entry.value} of the package {_package(entry)} is a {type(loaded).__name__}; accepted is "
            f"an object of a subclass of {__name__}.Subject"
        )
    return loaded


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def subject_of(model: nn.Module) -> Subject | None:
    """Return the subject of a model; None for a network that no installed package brings. Raises as :func:`subject`."""
    kind = getattr(type(model), "octavo_kind", None)
    return subject(kind) if isinstance(kind, str) and kind in _entry_points() else None


def named(name: str) -> Subject | None:
    """Return the subject whose model commands call ``name``.

    A package that cannot be imported hides its own model alone: ModelError is raised where no other has the name.
    """
    problem: ModelError | None = None
    for kind in kinds():
        try:
            guest = subject(kind)
        except ModelError as error:
            problem = error
        else:
            if guest.name == name:
                return guest
    if problem is not None:
        raise problem
    return None


def names() -> list[str]:
    """Return the names of models that come with installed packages. Raises as :func:`subject`."""
    return [guest.name for guest in map(subject, kinds()) if guest.name is not None]
