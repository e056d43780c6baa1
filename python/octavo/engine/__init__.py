"""Exported models run natively, without torch: :class:`Engine` expands lines, :class:`Encoder` embeds texts."""

from octavo.engine.native_encoder import Encoder
from octavo.engine.native_engine import Engine, Summary

__all__ = ["Encoder", "Engine", "Summary"]
