"""Octavo within transformers: a cache whose keys and values are packed.

``import octavo.transformers`` imports transformers; ``import octavo`` does not.
"""

from octavo.transformers.cache import QuantizedCache

__all__ = ["QuantizedCache"]
