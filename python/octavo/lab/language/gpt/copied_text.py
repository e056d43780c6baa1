"""Text that is in two places: runs of tokens found by their hashes, and documents left out that share one."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import ContractError

COPIED = 13
"""Tokens in a row that two texts share only if one is copied from the other, as a rule."""


def run_hashes(ids_BT: Tensor, count: int) -> Tensor:
    """Return a hash of every ``count`` ids in a row, int64 ``[B, T - count + 1]``; none where there are fewer ids."""
    if ids_BT.shape[1] < count:
        return ids_BT.new_zeros(len(ids_BT), 0)
    # Odd factors of 64 bits: sums that wrap around differ for different runs but for one chance in 2 ** 63.
    factors = torch.randint(-(1 << 62), 1 << 62, (count,), generator=torch.Generator().manual_seed(count)) * 2 + 1
    windows = (ids_BT + 1).unfold(1, count, 1)
    return (windows * factors.to(ids_BT.device)).sum(-1)


def documents_of(stream: Tensor, end_of_text: int | None) -> Tensor:
    """Return the number of the document of every token of a stream; one without an end is one document."""
    if end_of_text is None:
        return torch.zeros_like(stream)
    return (stream == end_of_text).cumsum(0)


def without_copies(
    stream: Tensor, held_out: Tensor, end_of_text: int | None, count: int = COPIED
) -> tuple[Tensor, int]:
    """Return a stream without documents that share ``count`` tokens in a row with ``held_out``, and their number."""
    shared = torch.isin(run_hashes(stream[None], count)[0], run_hashes(held_out[None], count)[0])
    documents = documents_of(stream, end_of_text)
    # A run that goes over a border belongs to both documents.
    taken = torch.cat([documents[: len(shared)][shared], documents[count - 1 :][shared]]).unique()
    if end_of_text is not None and len(stream) and int(stream[0]) != end_of_text:
        taken = torch.cat([taken, documents[:1]]).unique()  # the rest of a document, whose beginning may be held out
    return stream[~torch.isin(documents, taken)], len(taken)


def refuse_copies(stored: Tensor, held_out: Tensor, what: str, count: int = COPIED) -> None:
    """Refuse stored texts ``[N, T]`` that hold ``count`` tokens in a row of ``held_out``; ids below 0 are no tokens.

    Raises ContractError naming the store, the text in it, and the position in ``held_out``.
    """
    own = run_hashes(stored, count)
    real = (stored >= 0).unfold(1, count, 1).all(-1) if own.shape[1] else own.bool()
    there = run_hashes(held_out[None].to(stored.device), count)[0]
    shared = torch.isin(own, there) & real
    if bool(shared.any()):
        row, at = (int(one) for one in shared.nonzero()[0])
        position = int((there == own[row, at]).nonzero()[0])
        raise ContractError(
            f"{what}: text {row} holds {count} tokens in a row of the held-out text, from position {position}; leave "
            "out the documents that are copied"
        )
