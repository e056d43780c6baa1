"""Rules of scales in ggml's blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.interchange.check.decode_layers import E4M3
from octavo.interchange.check.findings import PLACES, Findings, Rule, rule
from octavo.interchange.check.scale_rules import NAN, NEGATIVE, RANGE, ZERO
from octavo.interchange.check.scan import places
from octavo.interchange.check.stored_layers import Layer

GGUF_FACTOR = rule(
    "nvfp4-factor-missing", "suspect",
    "an NVFP4 tensor of a GGUF file has no tensor `.scale`, and its block scales fill the range of E4M3",
    "llama.cpp multiplies by 1: weights are wrong by the lost factor",
    "convert again with a converter that writes the `.scale` tensors",
)  # fmt: skip

# Where the float16 scales of ggml's blocks are.
_GGML_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,),
    "Q2_0": (0,), "IQ4_XS": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "IQ1_S": (0,),
}  # fmt: skip
# Codes of a block of zeros, by type, as bytes behind the scale.
_GGML_ZEROS = {"Q4_0": (2, 0x88), "Q8_0": (2, 0)}


def check_blocks(layer: Layer, findings: Findings) -> None:
    """Check the scales of a tensor of a GGUF file."""
    from octavo.interchange.ggml_types import TYPES

    raw = layer.codes
    kind = next(one for one in TYPES.values() if one.name == raw.dtype)
    blocks = raw.data().reshape(-1, kind.nbytes)

    def add(broken: Rule, wrong: NDArray[Any], at: int, texts: Iterable[str], text: str) -> None:
        """Report some blocks for what stands at byte ``at`` of each."""
        if not len(wrong):
            return
        positions = [int(one) for one in wrong[:PLACES]]
        shown = places(
            replace(raw, offset=raw.offset + at),
            positions,
            layer.columns // kind.elements,
            list(texts),
            step=kind.nbytes,
        )
        findings.add(
            broken,
            layer.name,
            f"{raw.dtype}: {len(wrong)} of {len(blocks)} {text}",
            file=raw.file.name,
            places=shown,
            count=len(wrong),
        )

    for at in _GGML_HALVES.get(kind.name, ()):
        halves = np.ascontiguousarray(blocks[:, at : at + 2]).view("<u2").reshape(-1)
        wrong = np.flatnonzero(halves & 0x7C00 == 0x7C00)
        add(NAN, wrong, at, (f"0x{int(halves[one]):04X}" for one in wrong[:PLACES]), "float16 scales are not finite")
        if kind.name in _GGML_ZEROS and at == 0:
            begin, zero = _GGML_ZEROS[kind.name]
            empty = np.flatnonzero(halves & 0x7FFF == 0)
            filled = empty[(blocks[empty, begin:] != zero).any(1)]
            add(ZERO, filled, at, ["0"] * len(filled[:PLACES]), "scales are zero over codes that are not")
    if kind.name == "MXFP4":
        codes = np.ascontiguousarray(blocks[:, 0])
        wrong = np.flatnonzero(codes >= 253)
        text = "E8M0 codes are above 252: ggml overflows, 255 is NaN elsewhere"
        add(RANGE, wrong, 0, (str(codes[one]) for one in wrong[:PLACES]), text)
    elif kind.name == "NVFP4":
        codes = np.ascontiguousarray(blocks[:, :4])
        is_nan = (codes & 0x7F == 0x7F).any(1)
        wrong, signed = np.flatnonzero(is_nan), np.flatnonzero((codes > 0x80).any(1) & ~is_nan)
        for broken, which, text in (
            (NAN, wrong, "blocks have an E4M3 scale that is NaN; ggml reads 0"),
            (NEGATIVE, signed, "blocks have a negative E4M3 scale"),
        ):
            add(broken, which, 0, (codes[one].tobytes().hex() for one in which[:PLACES]), text)
        largest = float(E4M3[int((codes & 0x7F).max())]) if not len(wrong) else 0.0
        if "factor" not in layer.parts and largest >= 224:
            findings.add(
                GGUF_FACTOR,
                layer.name,
                f"no {layer.module}.scale, and the largest block scale is {largest:g} of 448",
                file=raw.file.name,
            )
