"""The laboratory: our own models and questions about formats. The library never imports it; only the command line does.

:mod:`polynomials <octavo.lab.polynomials>`: a model that expands polynomials, and its engine. :mod:`language
<octavo.lab.language>`: GPT-2 and its descendants of named techniques. :mod:`classifiers <octavo.lab.classifiers>`:
classifiers of texts from fresh weights. :mod:`architectures <octavo.lab.architectures>`: searches over spaces of
models. :mod:`studies <octavo.lab.studies>`: questions answered with a table, a picture and a journal. :mod:`mase
<octavo.lab.mase>`: reproductions of MASE's quantizers. :mod:`subjects <octavo.lab.subjects>`: what the library finds of
it by entry points.
"""

from octavo.late_binding import bind, parts_on_demand

bind({"load_cuda_engine": "octavo.lab.polynomials.cuda_engine:load"})

__getattr__ = parts_on_demand(__name__, __path__)
