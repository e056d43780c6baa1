"""Exact products of int8 matrices: the function of ``octavo.ops.gemm``."""

from octavo.ops.gemm import int8_gemm

__all__ = ["int8_gemm"]
