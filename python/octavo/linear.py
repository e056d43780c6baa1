"""Products with packed weights, and the name of the kernel of one: the functions of ``octavo.ops.linear``."""

from octavo.ops.linear import integer_linear, kernel, packed_embedding, packed_linear, rounded_linear

__all__ = ["integer_linear", "kernel", "packed_embedding", "packed_linear", "rounded_linear"]
