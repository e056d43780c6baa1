"""Batches of the polynomials as text."""

from octavo.data import CharTokenizer

TOKENIZER = CharTokenizer.polynomials()


def lines_of(batch):
    """The lines of a batch, as ``left=right``."""
    source, target = batch
    return [f"{left}={right}" for left, right in zip(TOKENIZER.decode(source), TOKENIZER.decode(target), strict=True)]
