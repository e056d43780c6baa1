"""Formats, packed tensors, and files of tensors."""
