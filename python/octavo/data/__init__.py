"""Data: readers, tokenizers, shards of tokens. The work is done in Rust; arrays are numpy's.

:class:`CharTokenizer`: one character, one token. :class:`BytePairTokenizer`: byte-level BPE, as GPT-2 and most language
models have it. :mod:`octavo.data.words`: one word, one token. :func:`write_shards` turns files of documents into
shards, :class:`TokenLoader` gives batches of them. :class:`Sentences`: labelled texts, which :func:`read_labelled`
reads from a file. :func:`read_texts` reads lines, JSON objects and chat messages, and :func:`text_windows` makes full
windows of them for a language model.
"""

from octavo.data.byte_pairs import BytePairStream, BytePairTokenizer
from octavo.data.calibration_texts import read_texts, text_windows
from octavo.data.labelled import Sentences
from octavo.data.labelled_files import read_labelled
from octavo.data.shards import find_shards, read_shard, write_shard
from octavo.data.token_loader import TokenAccount, TokenBatch, TokenLoader
from octavo.data.tokenize_files import ShardIndex, TokenCount, count_tokens, write_shards
from octavo.data.tokenizer import CharTokenizer

__all__ = [
    "BytePairStream",
    "BytePairTokenizer",
    "CharTokenizer",
    "Sentences",
    "ShardIndex",
    "TokenAccount",
    "TokenBatch",
    "TokenCount",
    "TokenLoader",
    "count_tokens",
    "find_shards",
    "read_labelled",
    "read_shard",
    "read_texts",
    "text_windows",
    "write_shard",
    "write_shards",
]
