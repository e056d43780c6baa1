"""Packed models run natively, without torch.

:class:`TextEncoder` embeds texts, :class:`TextGenerator` continues them.
"""

from octavo.engine.text_encoder import TextEncoder
from octavo.engine.text_generator import Sampling, TextGenerator

__all__ = ["Sampling", "TextEncoder", "TextGenerator"]
