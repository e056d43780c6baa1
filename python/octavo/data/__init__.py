"""Data: readers and tokenizers. The work is done in Rust; arrays are numpy's.

:class:`CharTokenizer`: one character, one token. :mod:`octavo.data.words`: one word, one token.
"""

from octavo.data.tokenizer import CharTokenizer

__all__ = ["CharTokenizer"]
