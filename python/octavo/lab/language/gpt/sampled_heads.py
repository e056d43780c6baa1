"""Heads that train on a few sampled tokens: sampled softmax, noise-contrastive estimation, negative sampling.

Evaluation is exact for all of them: ``nll`` and ``log_probs`` look at the whole vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from octavo.lab.language.gpt.softmax_head import Softmax, SoftmaxHead
from octavo.lab.language.techniques import choice, register, whole


@dataclass(frozen=True, kw_only=True)
class _Sampled:
    samples: int = 1024
    tied: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        whole(self, "samples", least=1)
        choice(self, "tied", (True, False))


@dataclass(frozen=True, kw_only=True)
class SampledSoftmax(_Sampled):
    """Cross-entropy over the target and ``samples`` drawn tokens, shared by all rows of a batch.

    Scores are lowered by the logarithm of the expected count; a draw that is a row's target is left out of that row.
    With as many samples as tokens it is the softmax, exactly. Source: Jean et al. 2015.
    """


@dataclass(frozen=True, kw_only=True)
class NoiseContrastive(_Sampled):
    """Noise-contrastive estimation: ``sigmoid(s - log(k q))`` tells the target from ``k = samples`` draws of noise q.

    At its optimum the scores are log-probabilities, so they begin as such: ``s = h w - log V``, even over V tokens.
    Source: Gutmann and Hyvarinen 2010; Mnih and Teh 2012.
    """


@dataclass(frozen=True, kw_only=True)
class NegativeSampling(_Sampled):
    """``sigmoid(s)`` tells the target from ``k = samples`` draws of noise q, as in word2vec.

    At its optimum ``s = log(p / q) - log k``, so the distribution is ``softmax(s + log q)``: evaluation adds log q,
    and scores begin where the distribution is q: ``s = h w - log k``.
    Source: Mikolov et al. 2013; Levy and Goldberg 2014.
    """


class _SampledHead(SoftmaxHead):
    """A softmax with a distribution of noise, from which a surrogate draws; uniform until :meth:`count`.

    ``start``: added to the products with the rows of weights. A softmax does not see it. A loss of single scores does:
    without it the targets' draws at the start would be outweighed by those of the noise, whose gradient, common to all
    tokens, drives hidden states and rows apart long before they tell one token from another.
    """

    noise_V: Tensor
    start = 0.0

    def __init__(self, config: Any, vocabulary: int, width: int) -> None:
        """Make the weights and the sampler."""
        super().__init__(Softmax(tied=config.tied), vocabulary, width)
        self.samples = config.samples
        self.register_buffer("noise_V", torch.full((vocabulary,), 1 / vocabulary))
        self._sampler: AliasSampler | None = None

    def count(self, stream: Tensor) -> None:
        """Take the frequencies in a stream of training ids for the noise; each token counts one more than it occurs."""
        counts = torch.bincount(stream.flatten(), minlength=self.vocabulary).float() + 1
        self.noise_V.copy_(counts / counts.sum())
        self._sampler = None

    def drawn(self) -> Tensor:
        """Return ``samples`` draws of the noise, ``[S]``, from torch's global generator."""
        if self._sampler is None:
            self._sampler = AliasSampler(self.noise_V)
        return self._sampler.draw(self.samples)

    def some_scores(self, h_ND: Tensor, ids_S: Tensor) -> Tensor:
        """Return the scores of a few tokens for all rows, ``[N, S]`` float32."""
        table = self._shared[0].table.weight if self._shared else self.project.weight
        return functional.linear(h_ND, functional.embedding(ids_S, table)).float() + self.start

    def own_scores(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the score of each row's target, ``[N]`` float32."""
        table = self._shared[0].table.weight if self._shared else self.project.weight
        return (h_ND * functional.embedding(y_N, table)).sum(-1).float() + self.start

    def scores(self, h_ND: Tensor) -> Tensor:
        """Return the scores of all tokens, ``[N, V]`` float32."""
        return super().scores(h_ND) + self.start

    def log_partition(self, h_ND: Tensor) -> Tensor:
        """Return the logarithm of the sum of all exponentials, ``[N]``: 0 where scores are log-probabilities."""
        return self.scores(h_ND).logsumexp(-1)


@register("head", "sampled_softmax", SampledSoftmax, examples=(SampledSoftmax(samples=9),),
          off=((SampledSoftmax(samples=1 << 20), Softmax()),))  # fmt: skip
class SampledSoftmaxHead(_SampledHead):
    """:class:`SampledSoftmax` as a head."""

    def surrogate(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the sampled loss of each row, ``[N]`` float32."""
        if self.samples >= self.vocabulary:
            return self.nll(h_ND, y_N)
        ids_S = self.drawn().unique()
        # The chance that a token is among the draws: its expected count, once draws are made unique.
        expected_V = -torch.expm1(self.samples * torch.log1p(-self.noise_V.double()))
        lowered_V = expected_V.clamp_min(1e-300).log().float()
        others_NS = self.some_scores(h_ND, ids_S) - lowered_V[ids_S]
        others_NS = others_NS.masked_fill(ids_S == y_N[:, None], -torch.inf)
        # The target is there for certain: it would be drawn with its own chance, were it not put in.
        own_N = self.own_scores(h_ND, y_N) - lowered_V[y_N]
        return torch.cat([own_N[:, None], others_NS], 1).logsumexp(1) - own_N


@register("head", "noise_contrastive", NoiseContrastive, examples=(NoiseContrastive(samples=9),))
class NoiseContrastiveHead(_SampledHead):
    """:class:`NoiseContrastive` as a head."""

    def __init__(self, config: NoiseContrastive, vocabulary: int, width: int) -> None:
        """Make the weights and the sampler."""
        super().__init__(config, vocabulary, width)
        self.start = -math.log(vocabulary)

    def surrogate(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the sampled loss of each row, ``[N]`` float32."""
        ids_S, lowered_V = self.drawn(), (self.samples * self.noise_V).log()
        own_N = self.own_scores(h_ND, y_N) - lowered_V[y_N]
        others_NS = self.some_scores(h_ND, ids_S) - lowered_V[ids_S]
        return functional.softplus(-own_N) + functional.softplus(others_NS).sum(1)


@register("head", "negative_sampling", NegativeSampling, examples=(NegativeSampling(samples=9, tied=False),))
class NegativeSamplingHead(_SampledHead):
    """:class:`NegativeSampling` as a head."""

    def __init__(self, config: NegativeSampling, vocabulary: int, width: int) -> None:
        """Make the weights and the sampler."""
        super().__init__(config, vocabulary, width)
        self.start = -math.log(config.samples)

    def scores(self, h_ND: Tensor) -> Tensor:
        """Return the scores that a softmax turns into the model's distribution: with the noise put back."""
        return super().scores(h_ND) + self.noise_V.log()

    def surrogate(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the sampled loss of each row, ``[N]`` float32."""
        others_NS = self.some_scores(h_ND, self.drawn())
        return functional.softplus(-self.own_scores(h_ND, y_N)) + functional.softplus(others_NS).sum(1)


class AliasSampler:
    """A distribution over ``0 .. V - 1``, drawn from in constant time. Source: Walker 1977; Vose 1991.

    ``chances_V``: at least 0, not all 0; they are divided by their sum.
    """

    def __init__(self, chances_V: Tensor) -> None:
        """Build the two tables: of each column the chance to stay, and the value that it else gives."""
        scaled = (chances_V.double().cpu() * len(chances_V) / chances_V.double().cpu().sum()).tolist()
        alias = list(range(len(scaled)))
        small = [i for i, share in enumerate(scaled) if share < 1]
        large = [i for i, share in enumerate(scaled) if share >= 1]
        while small and large:
            poor, rich = small.pop(), large[-1]
            alias[poor] = rich
            scaled[rich] -= 1 - scaled[poor]
            if scaled[rich] < 1:
                small.append(large.pop())
        for left in (*small, *large):  # 1 but for rounding
            scaled[left] = 1.0
        self._stay_V = torch.tensor(scaled, device=chances_V.device)
        self._alias_V = torch.tensor(alias, device=chances_V.device)

    def draw(self, count: int) -> Tensor:
        """Return ``count`` independent draws, int64, from torch's global generator."""
        columns = torch.randint(len(self._alias_V), (count,), device=self._alias_V.device)
        stays = torch.rand(count, device=columns.device) < self._stay_V[columns]
        return torch.where(stays, columns, self._alias_V[columns])
