"""Files of other packages: GGUF is read.

:mod:`~octavo.interchange.gguf` reads the file, :mod:`~octavo.interchange.ggml_types` lists its types of blocks.
"""
