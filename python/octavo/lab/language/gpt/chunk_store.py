"""A store of chunks of training text, in which the neighbours of a chunk are searched; frozen but for queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError
from octavo.lab.language.gpt.copied_text import COPIED, documents_of, refuse_copies, run_hashes

_ROWS, SIZE = 1 << 12, 64
_NONE = {dtype: torch.iinfo(dtype).max for dtype in (torch.uint16, torch.int32)}


class ChunkStore(nn.Module):
    """Chunks of whole documents with what follows each, and their frozen vectors.

    A vector is the sum of random ones of the tokens, weighed by how rare they are, of length 1. Documents are taken
    evenly over the stream until ``entries`` chunks are full, each as a whole, so that a document is known by any
    ``overlap`` tokens in a row of it: it gives no neighbours to a text that holds them, which is its own.
    """

    held_SC: Tensor
    document_S: Tensor
    keys_SE: Tensor
    rarity_R: Tensor

    def __init__(self, entries: int, chunk: int, overlap: int) -> None:
        """Make an empty store."""
        super().__init__()
        self.entries, self.chunk, self.overlap = entries, chunk, overlap
        # Ids in the fewest bytes, once the vocabulary is known; the largest value of the type is none.
        self.register_buffer("held_SC", torch.full((entries, 2 * chunk), _NONE[torch.int32], dtype=torch.int32))
        self.register_buffer("document_S", torch.full((entries,), -1, dtype=torch.int32))
        self.register_buffer("keys_SE", torch.zeros(entries, SIZE))
        self.register_buffer("rarity_R", torch.ones(_ROWS))
        self._table: Tensor | None = None
        self._index: tuple[Tensor, Tensor] | None = None
        self._indexed: tuple[Any, ...] = ()

    def narrow(self, vocabulary: int) -> None:
        """Hold ids below ``vocabulary`` in two bytes each where they fit. Of an empty store."""
        if vocabulary <= _NONE[torch.uint16]:
            self.held_SC = torch.full_like(self.held_SC, _NONE[torch.uint16], dtype=torch.uint16)

    @property
    def tokens_SC(self) -> Tensor:
        """Return the ids of all entries, int64, -1 where there is none."""
        return self._ids(self.held_SC)

    def _ids(self, held: Tensor) -> Tensor:
        return held.long().masked_fill(held == _NONE[held.dtype], -1)

    @property
    def is_empty(self) -> bool:
        """Whether there are no chunks."""
        return not bool((self.document_S[:1] >= 0).all()) or not self.entries

    @torch.no_grad()
    def fill(self, stream: Tensor, end_of_text: int | None) -> None:
        """Take the chunks of a stream of training ids, in place of what is there. Raises ModelError if none fits."""
        stream = stream.cpu()
        documents = documents_of(stream, end_of_text)
        counts = torch.bincount(stream % _ROWS, minlength=_ROWS).double()
        self.rarity_R.copy_((1e-4 / (1e-4 + counts / max(len(stream), 1))).float())
        _, lengths = documents.unique_consecutive(return_counts=True)
        ends = lengths.cumsum(0)
        chunks = lengths // self.chunk
        step = max(1, int(chunks.sum()) // max(self.entries, 1))
        rows, owners, left = [], [], self.entries
        for number in [at for first in range(step) for at in range(first, len(lengths), step)]:
            # What comes before the first end is the rest of a document, whose beginning may be held out.
            rest = not number and end_of_text is not None and int(stream[0]) != end_of_text
            if rest or not 0 < chunks[number] <= left:
                continue
            text = stream[ends[number] - lengths[number] : ends[number]]
            padded = functional.pad(text, (0, 2 * self.chunk), value=-1)
            rows.append(padded.unfold(0, 2 * self.chunk, self.chunk)[: int(chunks[number])])
            owners.append(torch.full((len(rows[-1]),), number))
            left -= len(rows[-1])
        if self.entries and not rows and int(chunks.sum()):
            raise ModelError(
                f"store of chunks: of {self.entries} entries, and no document fits; the shortest has "
                f"{int(chunks[chunks > 0].min())} chunks of {self.chunk} tokens, and documents are taken as a whole"
            )
        self._keep(torch.cat(rows) if rows else None, torch.cat(owners) if rows else None)

    def leave_out(self, held_out: Tensor) -> int:
        """Take out every document that shares a run of tokens with ``held_out``, and return their number."""
        there = self.document_S >= 0
        tokens, owners = self._ids(self.held_SC[there]).cpu(), self.document_S[there].cpu()
        known = run_hashes(held_out[None].cpu(), COPIED)[0]
        joined, of = self._joined()
        hashes = run_hashes(joined[None].cpu(), COPIED)[0]
        shared = of.cpu()[: len(hashes)][torch.isin(hashes, known)]
        rows = torch.isin(run_hashes(tokens, COPIED), known).any(1)
        copied = torch.cat([shared, owners[rows]]).unique()
        kept = ~torch.isin(owners, copied)
        self._keep(tokens[kept], owners[kept])
        return len(copied)

    def refuse_copies(self, held_out: Tensor) -> None:
        """Refuse a store that holds held-out text. Raises ContractError naming the document and the position."""
        joined, of = self._joined()
        for owner in of.unique_consecutive().tolist():
            refuse_copies(joined[of == owner][None], held_out, f"store of chunks, document {owner}")
        refuse_copies(self.tokens_SC, held_out, "store of chunks")

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Return the chunks one after the other, ``[N]``, and the document of each token."""
        there = self.document_S >= 0
        return self._ids(self.held_SC[there, : self.chunk]).flatten(), self.document_S[there].repeat_interleave(
            self.chunk
        )

    def vectors(self, tokens_NC: Tensor) -> Tensor:
        """Return the frozen vectors of chunks, ``[N, E]``."""
        places = tokens_NC.clamp_min(0) % _ROWS
        weights = self.rarity_R[places] * (tokens_NC >= 0)
        return functional.normalize(torch.einsum("nc,nce->ne", weights, self._random()[places]), dim=-1)

    def _random(self) -> Tensor:
        """Return the random vectors of tokens, ``[R, E]``, which are the same in every store."""
        if self._table is None or self._table.device != self.rarity_R.device:
            self._table = torch.randn(_ROWS, SIZE, generator=torch.Generator().manual_seed(0)).to(self.rarity_R.device)
        return self._table

    def neighbours(self, ids_BT: Tensor, count: int, query: Any = None) -> tuple[Tensor, Tensor]:
        """Return the neighbours of every whole chunk of sequences: tokens ``[B, U, count, 2C]`` and scores.

        ``query``: a layer from vectors to vectors, by which those of the sequences are moved before the search; scores
        have its gradient. Tokens are -1 where there is no neighbour. Chunk u's depend on tokens up to its end alone: by
        them, too, the documents are known that the sequence itself is of, and that are left out.
        """
        batch, chunks = len(ids_BT), ids_BT.shape[1] // self.chunk
        own_NC = ids_BT[:, : chunks * self.chunk].reshape(-1, self.chunk)
        query_NE = self.vectors(own_NC)
        if query is not None:
            query_NE = functional.normalize(query_NE + query(query_NE), dim=-1)
        scores_NS = query_NE @ self.keys_SE.T
        barred_NS = self._own_documents(ids_BT, chunks).flatten(0, 1) | (self.document_S < 0)
        best_Nk = scores_NS.detach().masked_fill(barred_NS, -torch.inf).topk(min(count, self.entries), 1).indices
        found_Nk = ~barred_NS.gather(1, best_Nk)
        tokens = self._ids(self.held_SC[best_Nk]).masked_fill(~found_Nk[..., None], -1)
        return tokens.unflatten(0, (batch, chunks)), scores_NS.gather(1, best_Nk).unflatten(0, (batch, chunks))

    def _own_documents(self, ids_BT: Tensor, chunks: int) -> Tensor:
        """Return which entries are of a document that the sequence holds a run of, up to each chunk: ``[B, U, S]``."""
        hashes_M, owners_M = self._runs()
        highest = int(self.document_S.max()) + 1
        barred = torch.zeros(len(ids_BT), max(chunks, 1), max(highest, 1), dtype=torch.bool, device=ids_BT.device)
        runs_BP = run_hashes(ids_BT[:, : chunks * self.chunk], self.overlap)
        if runs_BP.numel() and len(hashes_M):
            first, last = (torch.searchsorted(hashes_M, runs_BP, right=right) for right in (False, True))
            counts = (last - first).flatten()
            row = torch.arange(runs_BP.numel(), device=ids_BT.device).repeat_interleave(counts)
            within = torch.arange(len(row), device=ids_BT.device) - (counts.cumsum(0) - counts)[row]
            place = row % runs_BP.shape[1] + self.overlap - 1
            barred[row // runs_BP.shape[1], place // self.chunk, owners_M[first.flatten()[row] + within]] = True
        barred = barred.cumsum(1) > 0
        return barred[:, :chunks, self.document_S.clamp_min(0)]

    def _runs(self) -> tuple[Tensor, Tensor]:
        """Return the hashes of all runs of the store, in order, and the document of each."""
        held = self.held_SC, self.held_SC._version, self.held_SC.device
        if self._index is None or self._indexed[0] is not held[0] or self._indexed[1:] != held[1:]:
            tokens_SC = self.tokens_SC
            hashes = run_hashes(tokens_SC, self.overlap)
            real = (tokens_SC >= 0).unfold(1, self.overlap, 1).all(-1)
            owners = self.document_S[:, None].expand_as(hashes)
            order = hashes[real].argsort()
            self._index, self._indexed = (hashes[real][order], owners[real][order]), held
        return self._index

    def _keep(self, rows: Tensor | None, owners: Tensor | None) -> None:
        self.held_SC.fill_(_NONE[self.held_SC.dtype])
        self.document_S.fill_(-1)
        self.keys_SE.zero_()
        if rows is not None and owners is not None and len(rows):
            rows = rows.to(self.held_SC.device)
            self.held_SC[: len(rows)] = rows.masked_fill(rows < 0, _NONE[self.held_SC.dtype]).to(self.held_SC.dtype)
            self.document_S[: len(rows)] = owners.to(self.document_S)
            self.keys_SE[: len(rows)] = self.vectors(rows[:, : self.chunk])
