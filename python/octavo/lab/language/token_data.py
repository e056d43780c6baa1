"""The tokens of a run: shards that are there, or a vocabulary and shards made of text files."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.data import BytePairTokenizer, find_shards, read_shard, write_shards
from octavo.data.document_files import files_below, identity
from octavo.data.shards import check_ids
from octavo.errors import DataError
from octavo.lab.language.gpt.presets import GPT2_END_OF_TEXT, GPT2_VOCABULARY
from octavo.storage import files
from octavo.storage.reading import member, read_json

END = "<|endoftext|>"
TOKENIZER, SHARDS, SOURCES = "tokenizer.json", "shards", "sources.json"
# Of a text that is turned into shards, the share of its tokens that validation takes at most.
_HELD_OUT = 0.1
# Ids that heads and objectives count at most.
COUNTED = 1 << 25

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TokenData:
    """Shards with a split for validation. ``tokenizer``: None where the folder has none; ``end``: begins documents."""

    train: tuple[Path, ...]
    validation: tuple[Path, ...]
    vocabulary: int
    end: int
    tokenizer: BytePairTokenizer | None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes of all shards, in order."""
        state = hashlib.sha256()
        for path in (*self.train, *self.validation):
            state.update(hashlib.sha256(read_shard(path).data).digest())
        return state.hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what the record of a run says of the data."""
        told = None if self.tokenizer is None else hashlib.sha256(self.tokenizer.to_json().encode()).hexdigest()
        return {
            "sha256": self.digest,
            "train_tokens": sum(len(read_shard(path)) for path in self.train),
            "validation_tokens": sum(len(read_shard(path)) for path in self.validation),
            "vocabulary": self.vocabulary,
            "tokenizer_sha256": told,
        }

    def validation_ids(self, most: int) -> NDArray[np.int64]:
        """Return the first ids of validation: ``most`` targets and the id before them, or all there are."""
        return _first(self.validation, most + 1, self.vocabulary)

    def counted_ids(self) -> torch.Tensor:
        """Return the first training ids, int64, for heads and objectives that count."""
        return torch.from_numpy(_first(self.train, COUNTED, self.vocabulary))

    def nbytes(self, ids: NDArray[np.int64]) -> int | None:
        """Return the bytes of text that ids stand for, ends of documents not counted; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        known, counts = np.unique(ids[ids != self.end], return_counts=True)
        return sum(len(self.tokenizer.token(int(number))) * int(n) for number, n in zip(known, counts, strict=True))


def prepare(
    data: Path, folder: Path, *, vocabulary: int, validation_tokens: int, tell: Tell | None = None
) -> TokenData:
    """Return the tokens of ``data``: a folder of shards as it is; of text files, shards that are made in ``folder``.

    Text: a file or a folder of them, as ``octavo tokenize`` takes. A vocabulary of ``vocabulary`` ids is learned from
    all but nothing of it is read at evaluation; the first ``validation_tokens`` ids, a tenth of all at most, are for
    validation. What a killed call made is kept, and a call on the same files goes on. Raises DataError for a folder
    without a split for validation, for a folder that was made of other files, and for too little text; OSErrors.
    """
    if data.is_dir() and any(file.suffix == ".bin" for file in data.iterdir()):
        return read_folder(data)
    sources = [data]
    told = {"sources": identity(files_below(sources)), "vocabulary": vocabulary}
    made = folder / SHARDS
    note = folder / SOURCES
    if note.exists() and read_json(note, error=DataError) != told:
        raise DataError(f"{folder}: holds the tokens of other files or options; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    files.write(note, json.dumps(told))
    vocabulary_file = folder / TOKENIZER
    if vocabulary_file.exists():
        tokenizer = BytePairTokenizer.load(vocabulary_file)
    else:
        tokenizer = BytePairTokenizer.train_files(
            sources, vocabulary, journal=folder / f".{TOKENIZER}.counts", tell=tell
        )
        tokenizer.save(vocabulary_file)
    if not (made / "shards.json").exists():
        # Three bytes are a token at least on average, of these vocabularies and languages; a rough bound is enough.
        most = max(2, round(_HELD_OUT * sum(path.stat().st_size for path in files_below(sources)) / 3))
        index = write_shards(sources, made, tokenizer, validation=min(validation_tokens, most), tell=tell)
        if len(index.shards) < 2:
            shutil.rmtree(made)
            raise DataError(
                f"{data}: {index.tokens} tokens, and all of them are for validation; give more text, or ask for fewer "
                "tokens of validation"
            )
    return read_folder(made)


def read_folder(folder: Path) -> TokenData:
    """Return the tokens of a folder of shards; without ``shards.json`` ids are those of GPT-2. Raises DataError."""
    train, validation = (tuple(find_shards(folder, split)) for split in ("train", "val"))
    index = folder / "shards.json"
    vocabulary, end = GPT2_VOCABULARY, GPT2_END_OF_TEXT
    if index.exists():
        facts = read_json(index, error=DataError)
        vocabulary, end = (member(facts, name, int, str(index), error=DataError) for name in ("vocabulary", "end"))
    tokenizer = BytePairTokenizer.load(folder) if (folder / TOKENIZER).exists() else None
    return TokenData(train, validation, vocabulary, end, tokenizer)


def _first(paths: tuple[Path, ...], most: int, vocabulary: int) -> NDArray[np.int64]:
    parts, left = [], most
    for path in paths:
        ids = read_shard(path)[:left]
        if len(ids):
            check_ids(str(path), ids, vocabulary)
        parts.append(np.asarray(ids, np.int64))
        left -= len(ids)
        if not left:
            break
    return np.concatenate(parts)
