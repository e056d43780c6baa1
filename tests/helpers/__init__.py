"""What tests of several rooms share: one function for one thing, imported as ``from helpers.values import normal``.

- ``values``: tensors to test with, and what equal means
- ``codecs``: scales for the codecs, and the parts of a packed tensor
- ``simd``: SIMD levels, forced one by one
- ``models``: layers, specs and small networks of transformers
- ``files``: what a folder holds
- ``processes``: fresh interpreters, the command line in this process, deaths of processes
- ``kills``: runs that are killed again and again
- ``core_stub``: what the stub of the core says of its functions
- ``oracle``: FORMATS.md as a brute-force search
- ``ptrace``: kills a process before each of its changes to files
- ``browser``: pages in Chromium
- ``quick``: the share of a long list that a quick run takes
"""
