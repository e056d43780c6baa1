"""Exported models run natively, without torch.

:class:`Engine` expands lines, :class:`Encoder` embeds texts, :class:`Decoder` continues them.
"""

from octavo.engine.native_decoder import Decoder, Sampling
from octavo.engine.native_encoder import Encoder
from octavo.engine.native_engine import Engine, Summary

__all__ = ["Decoder", "Encoder", "Engine", "Sampling", "Summary"]
