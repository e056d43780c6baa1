"""The polynomial exercise: lines such as ``(7-3*z)*(2*z+5)=-6*z**2-z+35``, generated instead of stored.

The left side is a product of two linear factors in one symbol, the right side its expansion, both as SymPy prints them,
without spaces. The law of the lines:

1. The letter is uniform over the 16 characters of ``sincostan`` + ``hijkxyz``, so n, i and s are twice as frequent.
2. With probability 0.03 the symbol X is ``sin``, ``cos`` or ``tan`` of the letter, else the letter itself.
3. Two independent factors aX+b: a is 1 with probability 0.2, else uniform over -9..8 without 0; b is 0 with probability
   0.2, else uniform over -32..31 without 0.

Lines are drawn with replacement: a million of them hold some 730,000 distinct ones. :func:`splits` keeps the lines that
measure a model out of those that train it.
"""

from octavo.lab.polynomials.data.lines import CHARACTERS, KINDS, LONGEST, Stream, expand, generate, kind
from octavo.lab.polynomials.data.own import own_lines
from octavo.lab.polynomials.data.pair_files import BadLine, Line, read
from octavo.lab.polynomials.data.passes import Passes
from octavo.lab.polynomials.data.splits import Splits, million_lines, split_lines, splits

__all__ = [
    "CHARACTERS",
    "KINDS",
    "LONGEST",
    "BadLine",
    "Line",
    "Passes",
    "Splits",
    "Stream",
    "expand",
    "generate",
    "kind",
    "million_lines",
    "own_lines",
    "read",
    "split_lines",
    "splits",
]
