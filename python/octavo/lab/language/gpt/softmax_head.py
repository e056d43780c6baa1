"""Heads: from a hidden state to a distribution over the vocabulary. Their interface, and the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt import gpu_code
from octavo.lab.language.techniques import choice, number, register, whole
from octavo.nn.embedding import multiply_rows

# Scores of a row that a GPU likes to write: 128 bytes of 16-bit numbers.
_ALIGNED = 64


class Head(nn.Module):
    """The interface of heads; N rows of hidden states ``h_ND`` at a time.

    A head that trains on a sampled loss has ``surrogate(h_ND, y_N) -> [N]``, too, which no evaluation calls.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        """Keep the sizes."""
        super().__init__()
        self.vocabulary, self.width = vocabulary, width
        self.rules: dict[str, str] = {}

    def tie(self, embedding: Any) -> None:
        """Take what the head shares with the embedding; the model calls it once when it is built."""

    def log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, ``[N, V]`` float32; every row's probabilities add up to 1."""
        raise NotImplementedError

    def nll(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the exact loss of each target, ``[N]`` float32: ``-log_probs(h)[y]``."""
        return -self.log_probs(h_ND).gather(1, y_N[:, None])[:, 0]


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """A softmax over the products with a row of weights for every token.

    ``tied``: the rows are those of the embedding. ``cap``: the scores are kept below it, 0 for none, by
    ``cap z / sqrt(z ** 2 + cap ** 2)`` (``rational``) or ``cap tanh(z / cap)`` (``tanh``); a part of the model, hence
    of evaluation. ``padded``: rows of the table, 0 for the vocabulary; the rest gets no probability. ``bias``: a number
    for every token; not where the rows are tied.
    """

    tied: bool = True
    cap: float = 0.0
    cap_kind: str = "rational"
    padded: int = 0
    bias: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        choice(self, "tied", (True, False))
        number(self, "cap", least=0, most=1e6)
        choice(self, "cap_kind", ("rational", "tanh"))
        whole(self, "padded", least=0)
        choice(self, "bias", (True, False))
        if self.bias and self.tied:
            raise SettingError("bias is True and tied is True; accepted is a bias of an untied head")


@register(
    "head",
    "softmax",
    Softmax,
    examples=(Softmax(), Softmax(tied=False, cap=15.0, padded=64, bias=True), Softmax(cap=30.0, cap_kind="tanh")),
    off=((Softmax(padded=64), Softmax()),),
)
class SoftmaxHead(Head):
    """:class:`Softmax` as a head."""

    def __init__(self, config: Softmax, vocabulary: int, width: int) -> None:
        """Make the weights of an untied head. Raises SettingError for a padded table below the vocabulary."""
        super().__init__(vocabulary, width)
        self.config = config
        self.rows = rows(config, vocabulary)
        self._shared: tuple[Any, ...] = ()
        self._plain = type(self).scores is SoftmaxHead.scores
        if not config.tied:
            self.project = nn.Linear(width, self.rows, bias=config.bias)
            self.rules = {"project.weight": "head", "project.bias": "zero"}

    def tie(self, embedding: Any) -> None:
        """Share the table of the embedding. Raises ModelError for an embedding without one."""
        if not self.config.tied:
            return
        table = getattr(embedding, "table", None)
        if not isinstance(table, nn.Embedding):
            raise ModelError(f"{type(embedding).__name__} has no table of rows to share; give Softmax(tied=False)")
        # A tuple, not a member: the table stays the embedding's alone in names and in checkpoints. The embedding, not
        # its table, whose place a quantized one may take.
        self._shared = (embedding,)
        embedding.rules["table.weight"] = "tied"

    def untie(self) -> None:
        """Give a tied head a table of its own, a copy of the one it shared. Raises ModelError where it has one."""
        if not self._shared:
            raise ModelError("the head has a table of its own already; untie is for one that shares the embedding's")
        shared = self._shared[0].table.weight
        self.project = nn.Linear(self.width, self.rows, bias=False, device=shared.device, dtype=shared.dtype)
        with torch.no_grad():
            self.project.weight.copy_(shared)
        self._shared = ()
        self.rules = {"project.weight": "head"}

    @property
    def shared_table(self) -> Any:
        """The embedding's table, whose rows this head multiplies; None where it has one of its own."""
        return self._shared[0].table if self._shared else None

    def scores(self, h_ND: Tensor) -> Tensor:
        """Return the scores before they are normalized, ``[N, V]`` float32."""
        return self._capped(self._product(h_ND)[:, : self.vocabulary])

    def _product(self, h_ND: Tensor) -> Tensor:
        """Return the products with the rows of the table and of what pads it, ``[N, V or more]``."""
        if (table := self.shared_table) is not None:
            return multiply_rows(table, h_ND) if not _misaligned(table, h_ND) else _aligned_product(table, h_ND)
        product: Tensor = self.project(h_ND)
        return product

    def _capped(self, scores: Tensor) -> Tensor:
        scores = scores.float()
        if not self.config.cap:
            return scores
        cap = self.config.cap
        if self.config.cap_kind == "tanh":
            return cap * torch.tanh(scores / cap)
        return cap * scores * (scores.square() + cap * cap).rsqrt()

    def log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, ``[N, V]`` float32."""
        return self.scores(h_ND).log_softmax(-1)

    def nll(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the loss of each target, ``[N]`` float32."""
        if self._plain and gpu_code.compiled(h_ND):
            return padded_nll(self._capped(self._product(h_ND)), y_N, self.vocabulary)
        return functional.cross_entropy(self.scores(h_ND), y_N, reduction="none")


def padded_nll(scores_NW: Tensor, y_N: Tensor, vocabulary: int) -> Tensor:
    """Return the loss of each target, ``[N]`` float32, of scores whose columns from ``vocabulary`` on stand for none.

    Targets are below ``vocabulary``; nothing tells of others. The gradient is a function of each score and of numbers
    of its row. Compiled, it is written once, in the dtype of the products, where that of ``cross_entropy`` would be in
    float32 first, and then padded.
    """
    columns_W = torch.arange(scores_NW.shape[1], device=scores_NW.device, dtype=torch.int32)
    if scores_NW.shape[1] > vocabulary:
        scores_NW = torch.where(columns_W < vocabulary, scores_NW, -torch.inf)
    most_N1 = scores_NW.detach().amax(-1, keepdim=True)
    wanted_N = torch.where(columns_W == y_N.int()[:, None], scores_NW, 0.0).sum(-1)
    # The sum keeps its axis: as torch.compile knows a softmax, which it reads once.
    return (scores_NW - most_N1).exp().sum(-1, keepdim=True).log()[:, 0] - (wanted_N - most_N1[:, 0])


def _misaligned(table: Any, h_ND: Tensor) -> bool:
    """Whether a GPU would multiply with kernels for rows of any length, at a third of the speed of the others."""
    return type(table) is nn.Embedding and h_ND.device.type == "cuda" and table.num_embeddings % _ALIGNED != 0


def _aligned_product(table: nn.Embedding, h_ND: Tensor) -> Tensor:
    """Return products with the rows of a table and with rows of zeros behind them, up to a multiple."""
    padded_VD = functional.pad(table.weight, (0, 0, 0, -table.num_embeddings % _ALIGNED))
    return functional.linear(h_ND, padded_VD)


def rows(config: Any, vocabulary: int) -> int:
    """Return the rows of the table that a head of ``config`` may share. Raises SettingError for too few."""
    padded = getattr(config, "padded", 0)
    if padded and padded < vocabulary:
        raise SettingError(f"padded is {padded}; accepted are 0, and {vocabulary}, the vocabulary, and more")
    return padded or vocabulary
