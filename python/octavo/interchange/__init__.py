"""Files of other packages: GGUF is read.

:mod:`~octavo.interchange.gguf` reads the file, :mod:`~octavo.interchange.ggml_types` lists its types of blocks, and
:mod:`~octavo.interchange.ggml_decode` decodes them.
"""
