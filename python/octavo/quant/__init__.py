"""Quantising and packing models."""
