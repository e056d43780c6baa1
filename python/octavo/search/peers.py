"""Peers: formats of other libraries, one for all layers, whose bytes are nearest to those of the chosen model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.model_folder.stored_tensors import stored_state
from octavo.nn.model_copies import deep_copy
from octavo.recipe.sites import Site, model_sites
from octavo.search.layer_sensitivity import Sensitivity

Shape = tuple[int, int]


@dataclass(frozen=True)
class Peer:
    """A format ``name`` of a ``library``.

    ``nbytes``: the bytes of a matrix ``[rows, columns]``, None where it cannot have the format. ``rounded``: the values
    of a float matrix in the format, float32; blocks run along the columns.
    """

    library: str
    name: str
    nbytes: Callable[[Shape], int | None]
    rounded: Callable[[Tensor], Tensor]

    @property
    def label(self) -> str:
        """The library and the name."""
        return f"{self.library} {self.name}"


def peer_bytes(model: nn.Module, peer: Peer, tensors: Sequence[str]) -> int:
    """Return the bytes of a model with these tensors in a peer's format; tensors that cannot have it are float16."""
    sites = {site.path: site for site in model_sites(model) if site.tensor is not None}
    values, _ = stored_state(model)
    total = sum(value.nbytes for value in values.values())
    for site in _unique(sites, tensors):
        assert site.tensor is not None  # the sites are of tensors
        own = peer.nbytes(_shape(site))
        total += (2 * site.tensor.numel() if own is None else own) - site.tensor.nbytes
    return int(total)


def peer_model(model: nn.Module, peer: Peer, tensors: Sequence[str]) -> nn.Module:
    """Return a copy of a float model whose tensors have their values in a peer's format."""
    rounded = deep_copy(model)
    sites = {site.path: site for site in model_sites(rounded) if site.tensor is not None}
    with torch.no_grad():
        for site in _unique(sites, tensors):
            tensor = site.tensor
            assert tensor is not None  # the sites are of tensors
            matrix = _matrix(tensor, site)
            if peer.nbytes(_shape(site)) is None:
                tensor.copy_(tensor.half())
                continue
            values = peer.rounded(matrix.float())
            tensor.copy_((values.t() if site.axis == 0 else values).reshape(tensor.shape))
    return rounded


def nearest(model: nn.Module, peers: Sequence[Peer], nbytes: int, tensors: Sequence[str]) -> list[tuple[Peer, int]]:
    """Return the two formats of each library nearest to ``nbytes``: the largest up to it, the smallest above it."""
    neighbors: list[tuple[Peer, int]] = []
    for library in dict.fromkeys(peer.library for peer in peers):
        own = [(peer, peer_bytes(model, peer, tensors)) for peer in peers if peer.library == library]
        below = [item for item in own if item[1] <= nbytes]
        above = [item for item in own if item[1] > nbytes]
        neighbors += sorted(below, key=lambda item: -item[1])[:1] + sorted(above, key=lambda item: item[1])[:1]
    return neighbors


def weights_of(model: nn.Module, sensitivity: Sensitivity | None) -> list[str]:
    """Return the tensors that a compression quantizes: those of the groups, else of every default site."""
    if sensitivity is not None:
        return [name for group in sensitivity.groups if group.role == "weight" for name in group.tensors]
    sites = (site for site in model_sites(model) if site.role == "weight" and site.is_default)
    return [site.path for site in sites if site.tensor is not None and site.problem is None]


def _unique(sites: dict[str, Site], tensors: Sequence[str]) -> list[Site]:
    return list({id(sites[name].tensor): sites[name] for name in tensors}.values())


def _matrix(tensor: Tensor, site: Site) -> Tensor:
    return tensor.t() if site.axis == 0 else tensor.flatten(1)


def _shape(site: Site) -> Shape:
    assert site.tensor is not None  # asked for tensors alone
    rows, columns = _matrix(site.tensor, site).shape
    return int(rows), int(columns)
