"""Data: generators, readers and tokenizers. The work is done in Rust; arrays are numpy's.

:mod:`octavo.data.polynomials`: the polynomial exercise, generated. :class:`CharTokenizer`: one character, one token.
:mod:`octavo.data.sentiment`: labelled sentences, split without leaks. :mod:`octavo.data.words`: one word, one token.
"""

from octavo.data import polynomials
from octavo.data.tokenizer import CharTokenizer

__all__ = ["CharTokenizer", "polynomials"]
