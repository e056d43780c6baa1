"""Exported models run natively, without torch: :class:`Engine` expands lines, :class:`Encoder` embeds texts."""

from octavo.engine.encoder import Encoder
from octavo.engine.native import Engine, Summary

__all__ = ["Encoder", "Engine", "Summary"]
