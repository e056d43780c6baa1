"""SentencePiece's tokenizers of GGUF files as parts of ``tokenizer.json``: pieces joined by scores, and unigrams.

Ids are those of SentencePiece, and of the tokenizer that transformers makes of its model. Source: SentencePiece,
``src/normalizer.cc``, ``src/bpe_model.cc`` and ``src/unigram_model.cc``; llama.cpp, ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

WORD_START = "▁"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens."""
# Squares of the lengths of tokens, summed: characters that are looked at when tokens are split. Llama 2 has 2 million.
_SPLIT_CHARACTERS = 100_000_000


def joined_pieces(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], unknown: str, *, prefix: bool
) -> dict[str, Any]:
    """Return the parts of pieces that are joined: the adjacent pair whose union has the best score is first.

    ``kinds``, ``scores``: of each token. ``unknown``: the token of unknown characters without bytes. ``prefix``: a
    space is put before texts. Raises ValueError for tokens that are too long.
    """
    spaces = [{"type": "Replace", "pattern": {"String": " "}, "content": WORD_START}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*_prefix(prefix), *spaces]},
        "pre_tokenizer": None,
        "decoder": _decoder(prefix),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)}, "merges": _merges(tokens, kinds, scores),
        },
    }  # fmt: skip


def unigrams(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], unknown: int, *,
    prefix: bool, squeezes: bool, characters: object,
) -> dict[str, Any]:  # fmt: skip
    """Return the parts of unigrams: of all ways to cut a text, the one with the best sum of scores.

    As :func:`joined_pieces`, with the number of the unknown token. ``squeezes``: spaces at both ends and beside another
    are left out. ``characters``: bytes of the table of replacements (``precompiled_charsmap``). Raises ValueError for
    a table that is damaged.
    """
    steps: list[dict[str, Any]] = []
    if characters is not None:
        steps.append({"type": "Precompiled", "precompiled_charsmap": _table(characters)})
    if squeezes:
        steps += [_replacement(r"\A +|[ ▁]+\z", ""), _replacement(" {2,}", " ")]
    steps += [*_prefix(prefix), {"type": "Replace", "pattern": {"String": " "}, "content": WORD_START}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _decoder(prefix),
        "model": {
            "type": "Unigram", "unk_id": unknown, "byte_fallback": kinds.count(BYTE) == 256,
            "vocab": _scored(tokens, kinds, scores),
        },
    }  # fmt: skip


def _prefix(prefix: bool) -> list[dict[str, Any]]:
    return [{"type": "Prepend", "prepend": WORD_START}] if prefix else []


def _replacement(expression: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": content}


def _decoder(prefix: bool) -> dict[str, Any]:
    spaces = {"type": "Replace", "pattern": {"String": WORD_START}, "content": " "}
    first = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *first]}


def _merges(tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Return the pairs whose union is a token, the best score first. No pair makes a special token or a byte."""
    vocabulary = {token: number for number, token in enumerate(tokens) if kinds[number] not in (UNKNOWN, CONTROL, BYTE)}
    if sum(len(token) ** 2 for token in vocabulary) > _SPLIT_CHARACTERS:
        raise ValueError("tokens is too long")
    pairs = [
        (-scores[number], number, token[:cut], token[cut:])
        for token, number in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    pairs.sort(key=lambda pair: pair[:2])
    return [[left, right] for *_, left, right in pairs]


def _scored(tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[list[Any]]:
    """Return tokens with scores: those that are no pieces of texts have one below that of any way to cut a text."""
    normal = [score for score, kind in zip(scores, kinds, strict=True) if kind == NORMAL]
    least = 1000 * min([-1.0, *normal])
    return [
        [token, score if kind == NORMAL else least] for token, kind, score in zip(tokens, kinds, scores, strict=True)
    ]


def _table(characters: object) -> str:
    """Return a table of replacements as ``tokenizer.json`` has it: its size, a double array, and texts ending in 0.

    All nodes that a text can reach are looked at: the package ``tokenizers`` does not check them.
    """
    wrong = "precompiled_charsmap is no table of replacements"
    if not isinstance(characters, list) or not all(type(one) is int and -128 <= one < 256 for one in characters):
        raise ValueError(wrong)
    data = bytes(one & 255 for one in characters)
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 4 or not 0 < size <= len(data) - 4:
        raise ValueError(wrong)
    units, texts = np.frombuffer(data, "<u4", size // 4, 4), data[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise ValueError(wrong) from None
    starts = np.frombuffer(texts, np.uint8) & 0xC0 != 0x80  # of characters
    seen = np.zeros(len(units), bool)
    nodes = np.zeros(1, np.int64)
    letters = np.arange(1, 256)
    while len(nodes):
        seen[nodes] = True
        unit = units[nodes].astype(np.int64)
        base = nodes ^ ((unit >> 10) << ((unit & 512) >> 6))
        if (base | 255).max() >= len(units):
            raise ValueError(wrong)
        values = units[base[unit & 256 != 0]] & 0x7FFFFFFF
        if len(values) and (values.max() >= len(starts) or not starts[values].all()):
            raise ValueError(wrong)
        children = (base[:, None] ^ letters).ravel()
        same = (units[children].reshape(-1, 255) & (1 << 31 | 255)) == letters
        nodes = np.unique(children[same.ravel()])
        nodes = nodes[~seen[nodes]]
    return base64.b64encode(data).decode()
