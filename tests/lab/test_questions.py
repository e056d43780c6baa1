"""Answers of docs/lab/questions.md: quoted lines are in our kernels, and what is said of bits, tiles and shares holds."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo import Format
from octavo.lab.mase import mxint8_dequantize

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lab" / "questions.md").read_text(encoding="utf-8")
QUOTES = re.findall(r"^`([\w/.]+)`\n\n```cpp\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


def source(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_question_quotes_our_kernels():
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == 4 and len(QUOTES) == PAGE.count("```cpp")
    assert all("```cpp" in section for section in sections)


@pytest.mark.parametrize(("path", "quote"), QUOTES, ids=[f"{number}-{path}" for number, (path, _) in enumerate(QUOTES)])
def test_quoted_lines_are_in_their_files(path, quote):
    lines = {line.strip() for line in source(path).splitlines()}
    for line in quote.strip().splitlines():
        assert line.strip() in lines, f"{path} has no line {line!r} any more"


def constant(path, name):
    return int(re.search(rf"#define {name} (\d+)\n", source(path)).group(1))


def test_tiles_cover_every_unit_once_and_only_the_last_reaches_past_the_end():
    threads = constant("rust/cuda/kernels/codec/units.cu", "THREADS")
    in_flight = constant("rust/cuda/kernels/codec/decode.cu", "IN_FLIGHT")
    assert threads * in_flight * 8 == 8192 and "256 x 4 x 8 = 8,192" in PAGE
    elements, size = 20_000, 8
    units = -(-elements // size)
    blocks = -(-units // (threads * in_flight))
    first = np.arange(blocks)[:, None, None] * threads * in_flight + np.arange(threads)[None, :, None]
    taken = first + np.arange(in_flight) * threads
    assert np.array_equal(np.sort(taken.ravel()), np.arange(blocks * threads * in_flight))
    past = (np.arange(blocks) + 1) * threads * in_flight * size > elements
    assert past.tolist() == [False] * (blocks - 1) + [True]
    assert np.array_equal(np.diff(taken[0, :, 0]), np.ones(threads - 1)), "neighbours take neighbouring units"


def test_the_bias_is_needed_where_the_bit_is_clear_and_nowhere_else():
    codes = torch.arange(-127, 128, dtype=torch.int32)
    magnitude = codes.abs()
    for scale in range(1, 255):
        base = (codes < 0).int() * -0x8000 | scale << 7
        as_it_stands = (base | (magnitude & 0x3F) << 1).to(torch.int16).view(torch.bfloat16).double()
        bias = base.to(torch.int16).view(torch.bfloat16).double()
        value = codes.double() * 2.0 ** (scale - 133)
        is_set = magnitude & 0x40 != 0
        assert torch.equal(as_it_stands == value, is_set)
        assert torch.equal((as_it_stands - bias)[~is_set], value[~is_set])
        rule = mxint8_dequantize(codes.to(torch.int8), torch.tensor([scale], dtype=torch.uint8), 255)
        assert torch.equal(rule.double(), value)


def test_one_subtraction_gives_every_code():
    """The kernel's own constants: the flipped byte under ``0x4b000000``, less 2^23 + 128."""
    quote = next(quote for _, quote in QUOTES if "0x4b000000" in quote)
    exponent, off = int(re.search(r"0x4b\w+", quote).group(), 16), float(re.search(r"- (\d+\.0)f", quote).group(1))
    codes = np.arange(-128, 128).astype(np.int8)
    bits = exponent | (codes.view(np.uint8) ^ 0x80).astype(np.uint32)
    assert np.array_equal(bits.view(np.float32) - np.float32(off), codes.astype(np.float32))
    assert off == 2**23 + 128


def test_shares_of_deberta_are_those_of_its_configuration():
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        vocab_size=128_100, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, share_att_key=True, pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0, num_labels=6,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.DebertaV2ForSequenceClassification(config)
    total = sum(parameter.numel() for parameter in model.parameters())

    def share(kind):
        return sum(m.weight.numel() for m in model.modules() if isinstance(m, kind)) / total

    linear, embeddings = share(torch.nn.Linear), share(torch.nn.Embedding)
    saved = 1 - Format("mxint8").bits_per_element(32) / 32
    shown = re.findall(r"\| (0\.\d+) \|", PAGE)
    assert shown == [f"{value:.3f}" for value in (linear, embeddings, linear * saved, (linear + embeddings) * saved)]
    assert f"all {total / 1e6:.1f} million" in PAGE and f"{saved:.3f} of the bytes go" in PAGE
