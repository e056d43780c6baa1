"""Static INT8: a sequence-to-sequence model whose matrix products are integer arithmetic with calibrated scales.

:func:`equalize` makes the ranges of channels alike, :func:`calibrate` finds the scale of every layer's input on real
generation, :func:`quantize_static` makes the integer model, :func:`save` and :func:`load` keep them in a file::

    model = equalize(model, sources)
    scales = calibrate(model, sources)
    integer = quantize_static(model, scales, wide=costly(damages(model, sources, scales)))

Weights have 8 bits, and so have inputs, but for those of the layers that :func:`costly` names: theirs have 16, because
rounding them to 8 does nine tenths of the damage. :func:`damages` measures it one tensor at a time.

The arithmetic, exact to the last bit in every implementation (rounding is half to even; the rest of the model - norms,
softmax, LSTM cells - is float32):

- a linear layer: ``x_q = clamp(round(x * fl32(1 / input_scale)), -L, L)``, L = 127 or, with 16 bits, 32767,
  ``acc = bias[row] + sum_k x_q[k] * w_q[row, k]`` in int32, ``y = fl32(acc) * fl32(input_scale * w_scale[row])``;
- the gates of an LSTM: ``h_q`` from the float32 hidden state and ``state_scale`` in the same way at every step,
  ``acc = table[token, row] + sum_k h_q[k] * w_q[row, k]``, ``gate = fl32(acc) * fl32(state_scale * w_scale[row])``.
  The table holds ``embedding @ weight_ih^T + bias_ih + bias_hh`` of every token, divided by the product of the scales;
- keys and values of attention: float16, cut at its largest number.

Weights are ``int8:channel`` of FORMATS.md, one scale a row. Layers that read the same tensor share its scale.
"""

from octavo.lab.polynomials.static.equalization import equalize
from octavo.lab.polynomials.static.input_scales import METHODS, calibrate
from octavo.lab.polynomials.static.sensitivity import costly, damages
from octavo.lab.polynomials.static.static_seq2seq import (
    Accumulation,
    StaticInt8Seq2Seq,
    accumulators,
    load,
    quantize_static,
    save,
)

__all__ = [
    "METHODS",
    "Accumulation",
    "StaticInt8Seq2Seq",
    "accumulators",
    "calibrate",
    "costly",
    "damages",
    "equalize",
    "load",
    "quantize_static",
    "save",
]
