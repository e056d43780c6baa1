"""Files of other packages: GGUF is read.

:mod:`~octavo.interchange.gguf` parses the file, :mod:`~octavo.interchange.gguf_tensors` gives its tensors. Of ggml's
blocks, :mod:`~octavo.interchange.ggml_types` lists the types, :mod:`~octavo.interchange.ggml_decode` decodes them, and
:mod:`~octavo.interchange.ggml_carry` carries them into formats of ours.
"""
