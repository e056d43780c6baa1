"""Algorithms that choose better codes, scales, biases and weights than rounding to nearest does."""
