"""Architectures of GGUF files, a file a family; :mod:`all_architectures` lists them."""
