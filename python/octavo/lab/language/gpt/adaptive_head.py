"""Adaptive softmax: frequent tokens have full rows, rare ones share a cluster and narrower vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt.softmax_head import Head
from octavo.lab.language.techniques import number, register


@dataclass(frozen=True, kw_only=True)
class AdaptiveSoftmax:
    """Clusters of tokens by frequency: the first ``cutoffs[0]`` tokens in the head, the rest in a cluster per cutoff.

    ``cutoffs``: rising, below the vocabulary. ``divisor``: cluster i has vectors of ``width / divisor ** i`` values.
    Source: Grave et al. 2017.
    """

    cutoffs: tuple[int, ...] = (2000, 10000)
    divisor: float = 4.0

    def __post_init__(self) -> None:
        """Check every field."""
        rising = all(a < b for a, b in zip(self.cutoffs, self.cutoffs[1:], strict=False))
        if not self.cutoffs or not rising or not all(type(cut) is int and cut > 0 for cut in self.cutoffs):
            raise SettingError(f"cutoffs is {self.cutoffs!r}; accepted are rising whole numbers above 0")
        number(self, "divisor", least=1, most=1024)


@register("head", "adaptive_softmax", AdaptiveSoftmax, examples=(AdaptiveSoftmax(cutoffs=(10, 30), divisor=2.0),))
class AdaptiveHead(Head):
    """:class:`AdaptiveSoftmax` as a head, on torch's own module; its table is not the embedding's.

    ``rank_V``: the place of every id in the order of frequency, set by :meth:`count`; ids of GPT-2 are not in it.
    """

    rank_V: Tensor

    def __init__(self, config: AdaptiveSoftmax, vocabulary: int, width: int) -> None:
        """Make the clusters. Raises SettingError for a cutoff beyond the vocabulary."""
        super().__init__(vocabulary, width)
        if config.cutoffs[-1] >= vocabulary:
            raise SettingError(f"cutoffs is {config.cutoffs}; accepted are numbers below the vocabulary, {vocabulary}")
        self.clusters = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, list(config.cutoffs), div_value=config.divisor)
        self.register_buffer("rank_V", torch.arange(vocabulary))
        self.rules = {"clusters.head.weight": "head"}
        for place in range(len(config.cutoffs)):
            self.rules |= {f"clusters.tail.{place}.0.weight": "matrix", f"clusters.tail.{place}.1.weight": "head"}

    def count(self, stream: Tensor) -> None:
        """Order the ids by their frequency in a stream of training ids, ties by id."""
        order = torch.bincount(stream.flatten(), minlength=self.vocabulary).argsort(descending=True, stable=True)
        self.arrange(order)

    def arrange(self, order_V: Tensor) -> None:
        """Put ``order_V[i]`` at rank i. Raises ModelError unless every id is there once."""
        places = torch.arange(self.vocabulary)
        if order_V.shape != places.shape or not torch.equal(order_V.cpu().sort().values, places):
            raise ModelError(f"an order of tokens has each of {self.vocabulary} ids once")
        self.rank_V[order_V.to(self.rank_V.device)] = places.to(self.rank_V.device)

    def log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, ``[N, V]`` float32."""
        with torch.autocast("cpu", enabled=False):  # its sums are copied to where only the input's dtype fits
            return self.clusters.log_prob(h_ND.float()).float()[:, self.rank_V]

    def nll(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the loss of each target, ``[N]`` float32; of a rare one from its own cluster alone."""
        with torch.autocast("cpu", enabled=False):
            return -self.clusters(h_ND.float(), self.rank_V[y_N]).output.float()
