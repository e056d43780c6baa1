"""The classifier: token and position embeddings, post-norm encoder layers, a pooler over the first token, a head.

Shapes in names: B texts, T tokens, D width, H heads, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ShapeError
from octavo.lab.classifiers.classifier_config import ClassifierConfig

_SPREAD = 0.02  # BERT's initialization


class Classifier(nn.Module):
    """Texts as ids to one score a class.

    Modules are named as people know them from BERT (``encoder.0.attention.query``, ``encoder.0.feed_forward.up``), so
    that recipes written for one read well for the other.
    """

    octavo_kind = "classifier"

    def __init__(self, config: ClassifierConfig) -> None:
        """Make the layers; weights are drawn from torch's global generator."""
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.width, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_SPREAD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for path in config.identity_layers:  # after all draws: the other layers begin as they would without
            parent, _, name = path.rpartition(".")
            setattr(self.get_submodule(parent), name, nn.Identity())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return scores [B, C] of ids [B, T]; ``attention_mask`` [B, T] is 0 at padding (None: none is padded).

        Raises ShapeError for texts longer than ``config.positions``.
        """
        if input_ids.ndim != 2 or input_ids.shape[1] > self.config.positions:
            raise ShapeError(
                f"input_ids of shape {tuple(input_ids.shape)}; accepted is [B, T], T up to {self.config.positions}"
            )
        mask_B11T = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        x_BTD = self.embeddings(input_ids)
        for layer in self.encoder:
            x_BTD = layer(x_BTD, mask_B11T)
        pooled_BD = torch.tanh(self.pooler(x_BTD[:, 0]))
        return self.classifier(self.dropout(pooled_BD))


class _Embeddings(nn.Module):
    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.positions, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids_BT: Tensor) -> Tensor:
        positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        return self.dropout(self.norm(self.word(ids_BT) + self.position(positions_T)))


class _Attention(nn.Module):
    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.heads, self.drop = config.heads, config.dropout
        self.query, self.key, self.value, self.output = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x_BTD: Tensor, mask_B11T: Tensor | None) -> Tensor:
        query, key, value = (
            layer(x_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        drop = self.drop if self.training else 0.0
        mixed_BHTd = functional.scaled_dot_product_attention(query, key, value, mask_B11T, drop)
        return self.output(mixed_BHTd.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x_BTD)))


class _Layer(nn.Module):
    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(config), _FeedForward(config)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, mask_B11T: Tensor | None) -> Tensor:
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(x_BTD, mask_B11T)))
        return self.feed_forward_norm(x_BTD + self.dropout(self.feed_forward(x_BTD)))
