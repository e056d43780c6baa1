"""Text encoders such as MiniLM: run as octavo.load_model reads them, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import NonFiniteError
from octavo.model_folder.hf_loading import CONFIG, foreign, load_config, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_TOKENS = 256  # what all-MiniLM-L6-v2 was trained to read
BATCH = 16  # sentences encoded at once
TOP = 5  # neighbours compared


class Encoder:
    """A text encoder as octavo.load_model reads it, with its tokenizer: the mean over tokens, vectors of length 1."""

    def __init__(self, folder: Path, model: nn.Module | None = None) -> None:
        """Load the folder of a model of transformers, packed or not; arithmetic outside packed layers is float32.

        ``model``: one that was made of it, to be run with its tokenizer.

        Raises OctavoError where transformers is missing, the folder describes no text encoder, or a weight is missing.
        """
        from octavo.model_folder.save_load import load_model

        config, _ = load_config(folder)
        self.folder, self.tokenizer = folder, load_tokenizer(folder, config)
        self.model = (load_model(folder) if model is None else model).float()

    def embed(self, sentences: Sequence[str]) -> Tensor:
        """Return one vector of length 1 a sentence, float32, ``[sentences, width]``.

        Raises ContainerError where the model cannot read the sentences, NonFiniteError where it makes NaN of them.
        """
        import torch

        from octavo.train.model_outputs import mean_over_tokens

        body = getattr(self.model, "base_model", self.model)  # without the head, if it has one
        batches = []
        with torch.inference_mode(), foreign(self.folder, what="encoding sentences"):
            for start in range(0, len(sentences), BATCH):
                tokens = self.tokenizer(
                    list(sentences[start : start + BATCH]),
                    padding=True,
                    truncation=True,
                    max_length=MAX_TOKENS,
                    return_tensors="pt",
                )
                hidden_BTD = body(**tokens).last_hidden_state
                mean_BD = mean_over_tokens(hidden_BTD, tokens["attention_mask"])
                batches.append(torch.nn.functional.normalize(mean_BD, dim=-1))
        vectors = torch.cat(batches)
        if not bool(torch.isfinite(vectors).all()):
            raise NonFiniteError(f"{self.folder}: sentences become NaN or infinity; {CONFIG} or weights are not usable")
        return vectors


@dataclass(frozen=True)
class Agreement:
    """Similarity of the embeddings of two models, sentence by sentence."""

    sentences: int
    cosine_mean: float
    cosine_min: float
    top1: float  # share of sentences with the same nearest neighbour
    top5: float  # mean share of the five nearest neighbours that both have


def agreement(before: Tensor, after: Tensor) -> Agreement:
    """Compare embeddings ``[sentences, width]`` of length 1; a sentence is no neighbour of itself."""
    cosines = (before.double() * after.double()).sum(-1)
    near_before, near_after = _neighbours(before), _neighbours(after)
    shared = [
        len(set(a) & set(b)) / len(a) for a, b in zip(near_before.tolist(), near_after.tolist(), strict=True) if len(a)
    ]
    return Agreement(
        sentences=len(before),
        cosine_mean=cosines.mean().item(),
        cosine_min=cosines.min().item(),
        top1=(near_before[:, 0] == near_after[:, 0]).double().mean().item(),
        top5=sum(shared) / len(shared),
    )


def _neighbours(vectors: Tensor) -> Tensor:
    """Return the positions of the nearest other vectors, ``[sentences, TOP]``, nearest first."""
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-2.0)
    return similarity.topk(min(TOP, len(vectors) - 1), dim=-1).indices
