"""Sensitivity: the loss and the bytes of each group of layers in each format, as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from octavo.display.notebook import InNotebooks
from octavo.errors import DataError
from octavo.recipe.rule import KEEP
from octavo.search.number_arrays import number_array
from octavo.search.rank_correlation import rank_correlation
from octavo.storage.arguments import check_fields, checks_arguments
from octavo.storage.reading import member, parse_json

if TYPE_CHECKING:
    from rich.table import Table

ROLES = ("weight", "input")
INPUT = " input"  # suffix of the name of a group of inputs, after the name of the group of weights of these layers


@dataclass(frozen=True)
class Group:
    """Layers that get one format together, in one role.

    ``role``: ``weight`` or ``input``. ``layers``: module paths, as recipes name them. ``tensors``: full names of the
    parameters, tied ones once; none for inputs. ``elements``: elements of the tensors. ``macs``: multiply-adds of the
    layers for one sample, 0 for lookups. ``is_default``: a rule without a selector selects all of the layers.
    """

    name: str
    role: str
    layers: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    elements: int = 0
    macs: int = 0
    is_default: bool = True


@dataclass(frozen=True, eq=False)
class Sensitivity(InNotebooks):
    """The loss and the bytes of every group in every format, with one group changed at a time.

    ``formats``: texts as recipes write them; the last is ``keep``, the float tensors. ``loss``: float64
    ``[groups, formats]``, NaN where a group cannot have the format. ``nbytes``: int64 of the same shape, bytes on disk.
    ``fixed_nbytes``: bytes of all tensors outside the groups. ``parameters``: number of parameters of the model, tied
    ones once. ``divergence``: the loss is ``kl``, ``cosine`` or ``mse``. ``method``: ``divergence`` (measured) or
    ``fisher`` (estimated). ``kept``: layers that were excluded. ``notes``: sentences about the measurement. Raises
    DataError for inconsistent fields.
    """

    groups: tuple[Group, ...]
    formats: tuple[str, ...]
    loss: NDArray[np.float64]
    nbytes: NDArray[np.int64]
    fixed_nbytes: int
    parameters: int
    divergence: str = "kl"
    method: str = "divergence"
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes, names and values."""
        loss = number_array(self.loss, "sensitivity: loss")
        nbytes = number_array(self.nbytes, "sensitivity: nbytes", whole=True)
        for name, values in (("loss", loss), ("nbytes", nbytes)):
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        check_fields(self)
        shape = (len(self.groups), len(self.formats))
        for name, values in (("loss", loss), ("nbytes", nbytes)):
            if values.shape != shape:
                raise DataError(f"sensitivity: {name} has shape {values.shape}; groups and formats are {shape}")
        if not self.formats or self.formats[-1] != KEEP or len(set(self.formats)) != len(self.formats):
            raise DataError(f"sensitivity: formats are {self.formats}; accepted are different ones, the last '{KEEP}'")
        if len({group.name for group in self.groups}) != len(self.groups):
            raise DataError("sensitivity: two groups have one name; give each a name of its own")
        if bad := next((group for group in self.groups if group.role not in ROLES), None):
            raise DataError(f"sensitivity: {bad.name} has the role {bad.role!r}; accepted are {' and '.join(ROLES)}")
        if np.isinf(loss).any() or (loss < 0).any() or np.isnan(loss[:, -1]).any():
            raise DataError("sensitivity: losses are finite and at least 0, NaN for what cannot be given; keep has one")
        if (nbytes < 0).any() or self.fixed_nbytes < 0 or self.parameters < 1:
            raise DataError("sensitivity: nbytes and fixed_nbytes are at least 0, and parameters at least 1")

    @checks_arguments
    def bits(self, nbytes: int) -> float:
        """Return a number of bytes as bits for each parameter of the model.

        Args:
            nbytes: bytes of all tensors.

        Returns:
            Bits.
        """
        return 8 * nbytes / self.parameters

    @checks_arguments
    def agreement(self, other: Sensitivity) -> float:
        """Return the rank correlation of the losses with those of another measurement, without ``keep``.

        Args:
            other: of groups and formats in common.

        Returns:
            Spearman's coefficient, -1 to 1.
        """
        rows = {group.name: row for row, group in enumerate(other.groups)}
        columns = {text: column for column, text in enumerate(other.formats)}
        pairs = [
            (self.loss[row, column], other.loss[rows[group.name], columns[text]])
            for row, group in enumerate(self.groups)
            for column, text in enumerate(self.formats)
            if text != KEEP and group.name in rows and text in columns
        ]
        return rank_correlation([one for one, _ in pairs], [two for _, two in pairs])

    # --- written forms ----------------------------------------------------------------------------------------------

    def heat_map(self) -> dict[str, Any]:
        """Return losses by group and format, as plain values.

        Returns:
            ``{"rows": [...], "columns": [...], "values": [[...]]}``, None for NaN.
        """
        return {
            "rows": [group.name for group in self.groups],
            "columns": list(self.formats[:-1]),
            "values": [[_plain(value) for value in row[:-1]] for row in self.loss],
        }

    def to_table(self) -> Table:
        """Return the losses, one row for each group, one column for each format.

        Returns:
            A table of rich.
        """
        from octavo.display.console import table

        rows = table("group", ">elements", *(f">{text}" for text in self.formats[:-1]))
        for group, losses in zip(self.groups, self.loss, strict=True):
            cells = ("-" if math.isnan(loss) else f"{loss:.2e}" for loss in losses[:-1])
            rows.add_row(group.name, f"{group.elements:,}" if group.elements else "-", *cells)
        return rows

    def __str__(self) -> str:
        """Return the table as plain text, and the notes."""
        from octavo.display.console import plain_text

        return "\n".join([plain_text(self.to_table()), *self.notes])

    def to_json(self) -> str:
        """Return everything as JSON, for :meth:`from_json`.

        Returns:
            A text.
        """
        arrays = {
            "groups": [asdict(group) for group in self.groups],
            "formats": list(self.formats),
            "loss": [[_plain(value) for value in row] for row in self.loss],
            "nbytes": self.nbytes.tolist(),
        }
        rest = ("fixed_nbytes", "parameters", "divergence", "method", "kept", "notes")
        return json.dumps(arrays | {name: getattr(self, name) for name in rest}, indent=1, ensure_ascii=False)

    @classmethod
    @checks_arguments
    def from_json(cls, text: str) -> Sensitivity:
        """Read the text that :meth:`to_json` returned.

        Args:
            text: JSON.

        Returns:
            The sensitivity.

        Raises:
            DataError: for anything else.
        """
        if not isinstance(text, str):
            raise DataError(f"sensitivity: JSON is a text, got {type(text).__name__}")
        table = parse_json(text, "sensitivity", error=DataError)
        lists = ("groups", "formats", "loss", "nbytes", "kept", "notes")
        got = {name: member(table, name, list, "sensitivity", error=DataError) for name in lists}
        whole = {
            name: member(table, name, int, "sensitivity", error=DataError) for name in ("fixed_nbytes", "parameters")
        }
        texts = {name: member(table, name, str, "sensitivity", error=DataError) for name in ("divergence", "method")}
        try:
            loss = [[math.nan if value is None else value for value in row] for row in got["loss"]]
            return cls(
                groups=tuple(map(_group, got["groups"])),
                formats=tuple(map(str, got["formats"])),
                loss=np.array(loss, dtype=np.float64).reshape(len(got["groups"]), len(got["formats"])),
                nbytes=np.array(got["nbytes"], dtype=np.int64).reshape(len(got["groups"]), len(got["formats"])),
                kept=tuple(map(str, got["kept"])),
                notes=tuple(map(str, got["notes"])),
                **whole,
                **texts,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"sensitivity: not what to_json writes: {error}") from None


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _group(table: object) -> Group:
    if not isinstance(table, Mapping):
        raise DataError(f"sensitivity: a group is a table, got {type(table).__name__}")
    label = "a group"
    return Group(
        name=member(table, "name", str, label, error=DataError),
        role=member(table, "role", str, label, error=DataError),
        layers=tuple(map(str, member(table, "layers", list, label, error=DataError))),
        tensors=tuple(map(str, member(table, "tensors", list, label, error=DataError))),
        elements=member(table, "elements", int, label, error=DataError),
        macs=member(table, "macs", int, label, error=DataError),
        is_default=member(table, "is_default", bool, label, error=DataError),
    )
