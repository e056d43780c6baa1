"""Making models smaller or cheaper to train: low-rank adapters (``octavo.compress.lora``)."""

from octavo.compress import lora

__all__ = ["lora"]
