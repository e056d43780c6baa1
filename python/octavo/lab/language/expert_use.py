"""Which experts read which text: the load of every mixture in a model, by the source of the documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from octavo.data import BytePairTokenizer
from octavo.data.document_files import files_below, pieces
from octavo.errors import DataError, ModelError
from octavo.lab.language.gpt import GPT
from octavo.lab.language.gpt.mixed_mixers import MixedMixer
from octavo.lab.language.gpt.routed_experts import RoutedExperts, choices
from octavo.train.model_outputs import evaluating
from octavo.train.token_windows import batches_of, windows_of


@dataclass(frozen=True)
class ExpertUse:
    """The experts of one mixture on one source's ``tokens``.

    ``shares``: of choices, or of weight where all experts run; they add up to 1. ``part``: the module's path.
    """

    source: str
    part: str
    tokens: int
    shares: tuple[float, ...]

    @property
    def evenness(self) -> float:
        """Entropy of the shares over its largest value: 1 where experts are used alike, 0 where one does all."""
        return _bits(self.shares) / math.log2(len(self.shares)) if len(self.shares) > 1 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "shares": list(self.shares), "evenness": self.evenness}


def expert_use(model: GPT, sources: Mapping[str, Tensor], *, context: int, batch_size: int = 8) -> list[ExpertUse]:
    """Return the use of every mixture's experts on every source.

    ``sources``: ids, int64, one dimension, by name; read in windows of ``context`` as evaluation does. Raises
    ModelError for a model without mixtures, DataError for a source of fewer than two ids.
    """
    if not _mixtures(model):
        raise ModelError("the model has no mixture; octavo lab train gpt --preset moe_8 trains one that has")
    found = []
    for source, ids in sources.items():
        if ids.ndim != 1 or len(ids) < 2:
            raise DataError(f"source {source!r}: ids have shape {tuple(ids.shape)}; accepted is [2 and more]")
        with evaluating(model) as (seen,), _counting(_mixtures(seen)) as loads:
            for part in batches_of(list(windows_of(len(ids), context, context)), batch_size):
                cast("GPT", seen).hidden(torch.stack([ids[first:end] for first, end, _ in part]))
        for name, load_E in loads.items():
            shares = tuple((load_E / load_E.sum()).tolist())
            found.append(ExpertUse(source, name, len(ids) - 1, shares))
    return found


def _mixtures(model: nn.Module) -> dict[str, RoutedExperts | MixedMixer]:
    return {name: part for name, part in model.named_modules() if isinstance(part, RoutedExperts | MixedMixer)}


def information(uses: Sequence[ExpertUse]) -> dict[str, float]:
    """Return, for each mixture, the bits that an expert tells of the source where all sources are equally likely.

    0: experts do not tell sources apart; the logarithm of the sources' number: each has experts of its own.
    """
    found = {}
    for part in dict.fromkeys(use.part for use in uses):
        own = [use.shares for use in uses if use.part == part]
        mean = [math.fsum(column) / len(own) for column in zip(*own, strict=True)]
        found[part] = max(0.0, _bits(mean) - math.fsum(map(_bits, own)) / len(own))
    return found


def read_source(path: Path, tokenizer: BytePairTokenizer, *, end: int | None, most: int) -> Tensor:
    """Return the first ``most`` ids of the documents below a path, int64, each with ``end`` before it.

    Raises DataError for damaged files and a path without documents, OSErrors.
    """
    begin = [] if end is None else [torch.tensor([end])]
    parts, held = [*begin], 0
    stream = tokenizer.stream(special="split", dtype=np.int64)
    for piece in (piece for file in files_below([path]) for piece in pieces(file)):
        parts.append(torch.from_numpy(stream.feed(piece.text)))
        if piece.is_last:
            parts.append(torch.from_numpy(stream.finish()))
            parts += begin
        held = sum(map(len, parts))
        if held >= most:
            break
    if held <= len(begin):
        raise DataError(f"{path}: no document of text")
    return torch.cat(parts)[:most]


@contextmanager
def _counting(parts: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Add up the loads of experts while the model runs, float64."""
    loads: dict[str, Tensor] = {}

    def counter(name: str, part: Any) -> Any:
        def count(module: Any, args: Any, scores_BTE: Tensor) -> None:
            shares_NE = scores_BTE.flatten(0, 1).softmax(-1)
            experts = shares_NE.shape[1]
            mixture = isinstance(part, RoutedExperts)
            load_E = choices(part.choose(shares_NE), experts) if mixture else shares_NE.sum(0)
            loads[name] = loads.get(name, torch.zeros(experts, dtype=torch.float64)) + load_E.double().cpu()

        return count

    with ExitStack() as stack:
        for name, part in parts.items():
            stack.callback(part.gate.register_forward_hook(counter(name, part)).remove)
        yield loads


def _bits(shares: Sequence[float]) -> float:
    return -math.fsum(share * math.log2(share) for share in shares if share > 0)
