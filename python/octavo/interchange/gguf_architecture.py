"""What an architecture of GGUF files is: names of tensors, how their rows are ordered, and sizes, in both directions.

Source: llama.cpp, ``gguf-py/gguf/tensor_mapping.py`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_config import Config, Fields, Keys, head_size
from octavo.interchange.gguf_rotation import no_factors

HEADS, GROUPS = "attention.head_count", "attention.head_count_kv"
"""Keys of the numbers of heads of queries, and of keys and values."""


@dataclass(frozen=True)
class Halves:
    """Rows of a file that have the two halves of a head's rotation in turns; the model has one after the other.

    ``heads``: number of heads.
    """

    heads: int

    def fits(self, rows: int) -> bool:
        """Whether so many rows can be ordered."""
        return self.heads > 0 and rows % (2 * self.heads) == 0

    @property
    def accepted(self) -> str:
        """Numbers of rows that fit."""
        return f"multiples of twice its {self.heads} heads"

    def order(self, rows: int) -> Tensor:
        """Return which row of the file each row of the model is."""
        return torch.arange(rows).view(self.heads, -1, 2).transpose(1, 2).reshape(-1)


@dataclass(frozen=True)
class Grouped:
    """Rows of a file that are all queries, all keys and all values; the model has them group by group.

    ``heads``: of queries. ``groups``: of keys and values.
    """

    heads: int
    groups: int

    def fits(self, rows: int) -> bool:
        """Whether so many rows can be ordered."""
        is_even = self.groups > 0 and self.heads > 0 and self.heads % self.groups == 0
        return is_even and rows % (self.heads + 2 * self.groups) == 0

    @property
    def accepted(self) -> str:
        """Numbers of rows that fit."""
        return f"multiples of its {self.heads} heads and twice its {self.groups} groups"

    def order(self, rows: int) -> Tensor:
        """Return which row of the file each row of the model is."""
        size = rows // (self.heads + 2 * self.groups)
        queries, keys, values = torch.arange(rows).split([size * self.heads, size * self.groups, size * self.groups])
        parts = [part.view(self.groups, -1) for part in (queries, keys, values)]
        return torch.cat(parts, dim=1).reshape(-1)


RowOrder = Halves | Grouped


def halves_of(key: str) -> Callable[[Callable[[str], int]], RowOrder]:
    """Return what makes the order of rows of rotated heads, whose number ``key`` says."""
    return lambda count: Halves(count(key))


def grouped(count: Callable[[str], int]) -> RowOrder:
    """Return the order of rows of queries, keys and values in one matrix."""
    return Grouped(count(HEADS), count(GROUPS))


def of_one_kind(file: GgufFile) -> bool:
    """Whether a file has no experts."""
    name = file.metadata.get("general.architecture")
    return file.metadata.get(f"{name}.expert_count", 0) == 0


@dataclass(frozen=True)
class Architecture:
    """How the models of an architecture are named and described in transformers.

    ``name``: in files. ``model``: the class. ``whole``, ``block``: parts of names in the file to those of transformers.
    ``numbers``, ``reals``: keys of whole and real numbers to fields of the configuration. ``config``: makes the rest of
    the configuration. ``keys``: makes the rest of the keys, and refuses what a file cannot say. ``is_in``, ``is_of``:
    whether a file or a configuration is of this architecture, where several have one name or class. ``others``: classes
    of the same parameters, which are written. ``turned``: parts whose plain weight transformers stores ``[in, out]``.
    ``orders``: parts whose rows have another order in files. ``added``: how much more weights of norms are in files.
    ``stacked``: parts that are several tensors of the model, with ``{}`` for the number. ``experts``: path of the
    experts in a block, whose tensors a file stacks. ``head``, ``table``: tied where the file has no head.
    ``factor_names``: tensors of factors of rotations, which have no place in the model. ``factors``: makes them, of a
    configuration and the size of a head. ``pooler``: how names of
    tensors begin that files lack.
    """

    name: str
    model: str
    whole: Mapping[str, str]
    block: Mapping[str, str]
    layers: str
    numbers: Mapping[str, str]
    reals: Mapping[str, str]
    config: Callable[[Fields], dict[str, Any]]
    keys: Callable[[Config], Keys]
    is_in: Callable[[GgufFile], bool] = of_one_kind
    is_of: Callable[[Config], bool] = lambda config: True
    others: tuple[str, ...] = ()
    turned: frozenset[str] = frozenset()
    orders: Mapping[str, Callable[[Callable[[str], int]], RowOrder]] = field(default_factory=dict)
    added: float = 0.0
    stacked: Mapping[str, str] = field(default_factory=dict)
    experts: str | None = None
    head: str | None = None
    table: str | None = None
    factor_names: tuple[str, ...] = ()
    factors: Callable[[Config, int], dict[str, Tensor]] = no_factors
    pooler: str | None = None

    def is_moved(self, part: str) -> bool:
        """Whether weights of a part are more in files than in the model, by :attr:`added`."""
        return self.added != 0 and part.endswith("norm")

    def factors_of(self, config: Config) -> dict[str, Tensor]:
        """Return the tensors of factors of rotations by their names in a file. Raises ModelError for other kinds."""
        return self.factors(config, head_size(config)) if self.factor_names else {}
