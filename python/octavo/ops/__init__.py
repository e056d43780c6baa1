"""The torch ops of Octavo: codecs, packed products, integer products; the CPU file and its CUDA twin side by side."""

from octavo.ops.codec import decode, encode, quantize
from octavo.ops.openmp import share_threads

share_threads()

__all__ = ["decode", "encode", "quantize"]
