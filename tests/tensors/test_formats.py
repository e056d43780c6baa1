"""Formats as values: texts are read back as printed, grids and ranges equal the oracle's, wrong texts are explained."""

import copy
import math
import pickle
import re
from pathlib import Path

import numpy as np
import octavo
import pytest
from helpers import oracle
from helpers.oracle import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st
from octavo import Format, FormatError

CATALOGUE = [str(fmt) for fmt in octavo.formats()]
TEXTS = list(dict.fromkeys([*CATALOGUE, *EXAMPLES]))

# ------------------------------------------------------------------------------------------------------ the whole grammar

offsets = st.integers(-511, 511)
blocks = st.integers(1, 65_536) | st.integers(1, 300)
small_widths = st.integers(2, 9)


def joined(element, *options):
    """``element:option,option`` without the options that are empty."""
    given_options = [option for option in options if option]
    return f"{element}:{','.join(given_options)}" if given_options else element


@st.composite
def texts(draw):
    """A valid text of the grammar of FORMATS.md, sections 1 and 6, defaults sometimes written out."""
    family = draw(st.sampled_from(sorted([*oracle.PATTERNS, "ufixed", "uint", "calibrated"])))
    maybe = st.booleans()
    block = f"/{draw(blocks)}"
    optional_block = block if draw(maybe) else ""
    bias = f"b{draw(offsets)}" if draw(maybe) else ""
    if family == "ieee":
        return draw(st.sampled_from(["fp32", "fp16", "bf16"]))
    if family in ("fixed", "ufixed"):
        return f"{family}{draw(st.integers(2, 32))}.{draw(offsets)}"
    if family == "calibrated":
        element = f"{draw(st.sampled_from(['', 'u']))}fixed{draw(st.integers(2, 32))}"
        return joined(element, draw(st.sampled_from(["", "tensor", "channel"])), draw(st.sampled_from(["", "mse"])))
    if family in ("int", "uint"):
        if draw(maybe):
            element = f"{family}{draw(st.integers(2, 8))}"
            return joined(element, f"g{draw(blocks)}", "full" if family == "int" else "offset")
        scope = draw(st.sampled_from(["", "tensor", "channel", f"g{draw(blocks)}"]))
        return joined(f"{family}{draw(st.integers(2, 16))}", scope)
    if family == "minifloat":
        exponent, mantissa = draw(st.integers(1, 8)), draw(st.integers(0, 10))
        finite = (exponent, mantissa) in ((4, 3), (5, 2)) and not bias and draw(maybe)
        return joined(f"e{exponent}m{mantissa}{bias}", "finite" if finite else "")
    if family == "denorm":
        exponent = draw(st.integers(1, 8))
        return f"denorm{draw(st.integers(max(3, exponent + 2), 16))}e{exponent}{bias}"
    if family == "log":
        return f"log{draw(small_widths)}{bias}"
    if family == "binary":
        levels = draw(st.sampled_from(["", "1", "2", "3", "4"]))
        return joined(
            f"binary{levels}",
            draw(st.sampled_from(["", "tensor", "channel", *(["unit"] if levels in ("", "1") else [])])),
        )
    if family == "ternary":
        return joined("ternary", draw(st.sampled_from(["", "unit", "tensor", "channel"])))
    if family == "bfp":
        return f"bfp{draw(st.integers(2, 16))}{block}"
    if family == "bm":
        exponent, mantissa = draw(st.integers(1, 8)), draw(st.integers(0, 10))
        return f"bm{max(1 + exponent + min(mantissa, 15 - exponent), 2)}e{exponent}{block}"
    if family == "blog":
        return f"blog{draw(small_widths)}{block}"
    if family == "mxint":
        return f"mxint{draw(st.integers(2, 16))}{optional_block}"
    if family == "mxfp":
        return f"{draw(st.sampled_from(sorted(oracle.MXFP)))}{optional_block}"
    if family == "nvfp4":
        return f"nvfp4{optional_block}"
    return f"nf{draw(st.sampled_from([3, 4]))}{optional_block}"


@given(text=texts())
def test_every_text_of_the_grammar_is_read_back_as_printed(text):
    fmt = Format(text)
    assert Format.parse(str(fmt)) == fmt and str(Format(str(fmt))) == str(fmt)
    assert len(str(fmt)) <= len(text)  # defaults are not printed
    spec, printed = oracle.parse(text), oracle.parse(str(fmt))
    assert {**vars(spec), "text": ""} == {**vars(printed), "text": ""}
    assert fmt.width == spec.width
    assert fmt.block == (spec.block or None)


@given(text=texts(), k=st.integers(1, 3000))
def test_bits_of_every_text_agree_with_the_oracle(text, k):
    assert Format(text).bits_per_element(k) == oracle.bits_per_element(text, k)


@pytest.mark.parametrize("text", TEXTS)
def test_catalogue_and_examples_are_read_back_as_printed(text):
    assert str(Format(text)) == {"nf3/64": "nf3"}.get(text, text)
    assert Format.parse(text) == Format(text) and Format.parse(Format(text)) == Format(text)
    assert repr(Format(text)) == f"Format('{Format(text)}')"


def test_catalogue_has_every_family():
    assert {oracle.parse(text).family for text in CATALOGUE} == {
        *(*oracle.PATTERNS, "ufixed", "uint"), *("fullrange", "affine"),
    }  # fmt: skip
    assert len(set(CATALOGUE)) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("e4m3b7", "e4m3"), ("e3m2b3", "e3m2"), ("log8b63", "log8"), ("denorm8e4b7", "denorm8e4"), ("mxint8/32", "mxint8"),
        ("nvfp4/16", "nvfp4"), ("nf4/64", "nf4"), ("mxfp4/32", "mxfp4"), ("int8:tensor", "int8"), ("binary1", "binary"),
        ("fixed8:tensor,mse", "fixed8:mse"), ("fixed8:mse,channel", "fixed8:channel,mse"), ("ternary:tensor", "ternary"),
    ],
)  # fmt: skip
def test_defaults_are_not_printed(text, shortest):
    assert str(Format(text)) == shortest and Format(text) == Format(shortest)


# ---------------------------------------------------------------------------------------------- what can be represented


@pytest.mark.parametrize("text", [text for text in TEXTS if oracle.parse(text).width <= 16])
def test_values_equal_the_oracle_grid(text):
    codes, values = oracle.grid(text)
    fmt = Format(text)
    listed = fmt.codes()
    assert [value for _, value in listed] == fmt.values() == sorted(values.tolist())
    if oracle.parse(text).family != "binary" or oracle.parse(text).width == 1:  # equal sums have no order
        assert [code for code, _ in listed] == codes.tolist()
    assert fmt.range == (min(values), max(values))
    assert fmt.smallest == min(value for value in values if value > 0)


@pytest.mark.parametrize("text", [text for text in TEXTS if oracle.parse(text).width > 16])
def test_wide_formats_have_a_range_but_no_list(text):
    fmt, spec = Format(text), oracle.parse(text)
    assert fmt.range == oracle._bounds(spec)
    floats = {"fp32": 2.0**-149, "e8m10": 2.0**-136}
    assert fmt.smallest == (floats.get(text) or oracle._fixed_step(spec))
    with pytest.raises(FormatError, match="up to 16 bits"):
        fmt.values()


@given(text=texts().filter(lambda text: oracle.parse(text).width <= 9))
def test_values_of_every_text_equal_the_oracle_grid(text):
    _, values = oracle.grid(text)
    fmt = Format(text)
    np.testing.assert_array_equal(np.array(fmt.values()) + 0.0, np.sort(values) + 0.0)
    assert fmt.range == (min(values), max(values))


@pytest.mark.parametrize(
    ("text", "largest"),
    [
        ("e4m3", 448), ("e5m2", 57344), ("e4m3:finite", 480), ("e5m2:finite", 114688), ("e3m2", 28), ("e2m3", 7.5), ("e2m1", 6),
        ("int8", 127), ("uint8", 255), ("fixed8.4", 127 / 16), ("ufixed8.8", 255 / 256), ("mxint8", 2 - 1 / 64), ("fp16", 65504),
        ("nf4", 1), ("ternary", 1), ("binary2", 2), ("bfp8/16", 127 / 128), ("log8", 2.0**64),
    ],
)  # fmt: skip
def test_largest_values_named_by_the_specification(text, largest):
    assert Format(text).range[1] == largest


# Section 1's table: bits per element by text, with n the number of elements that share a scale.
SECTION_1 = [
    ("fp32", 32), ("fp16", 16), ("bf16", 16), ("fixed12.4", 12), ("ufixed7.3", 7), ("fixed8:channel", "8 + 8/n"),
    ("fixed8", "8 + 8/n"), ("int8", "8 + 32/n"), ("int4:channel", "4 + 32/n"), ("int4:g64", "4 + 16/n"),
    ("uint8", "8 + (32 + 8)/n"), ("uint4:g64", "4 + (16 + 4)/n"), ("e5m2", 8), ("e3m4b3", 8), ("denorm8e4", 8), ("log7", 7),
    ("binary:unit", 1), ("binary", "1 + 32/n"), ("binary3", "3 + 32*3/n"), ("ternary", "2 + 32/n"), ("ternary:unit", 2),
    ("bfp6/64", "6 + 8/n"), ("bm6e2/64", "6 + 8/n"), ("blog4/64", "4 + 8/n"), ("mxint8/64", "8 + 8/n"),
    ("mxfp8e4m3/64", "8 + 8/n"), ("mxfp6e2m3/64", "6 + 8/n"), ("mxfp4/64", "4 + 8/n"), ("nvfp4/64", "4 + 8/n"),
    ("nf4", "4 + 16/n"), ("nf3/64", "3 + 16/n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "bits"), SECTION_1)
def test_bits_agree_with_the_table_of_section_1(text, bits):
    wanted = eval(str(bits), {"n": 64})
    assert Format(text).bits_per_element(64) == wanted
    assert Format(text).bits == (wanted if Format(text).granularity == "block" else Format(text).width)


def test_default_blocks_are_those_of_the_table():
    blocks_by_text = {"mxint8": 32, "mxfp4": 32, "mxfp8e5m2": 32, "nvfp4": 16, "nf4": 64, "nf3": 64}
    assert {text: Format(text).block for text in blocks_by_text} == blocks_by_text


def test_every_format_of_the_specification_table_is_read():
    """Every text in the first column of section 1's table, with the letters filled in."""
    document = Path(__file__).resolve().parents[2] / "FORMATS.md"
    table = document.read_text().split("## 1. Grammar")[1].split("## 2.")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    found = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if not text.startswith((":", "bB"))]
    assert len(found) > 25
    for text in found:
        filled = re.sub(r"(?<=[a-z])[WN]", "6", text).replace("eE", "e2").replace("mM", "m3").replace(".F", ".3")
        filled = filled.replace("binary6", "binary2").replace("/B", "/32")
        assert Format(filled).width > 0, text


@pytest.mark.parametrize("text", TEXTS)
def test_descriptions_agree_with_the_oracle(text):
    fmt, spec = Format(text), oracle.parse(text)
    assert fmt.granularity == spec.scope.replace("unit", "none")
    assert fmt.scale_type == {"none": None, "F": "int8"}.get(spec.scale, spec.scale)
    assert fmt.family == {"ieee": "native", "ufixed": "fixed"}.get(spec.family, spec.family)
    assert fmt.is_block == (len(oracle.rules(text)) > 1)
    assert fmt.core.has_nan == oracle.has_nan(spec)
    assert fmt.core.has_zeros == (spec.family == "uint") and fmt.core.has_offsets == (spec.family == "affine")
    assert fmt.core.has_levels == (spec.family == "nvfp4")


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("mxfp6e3m3", "did you mean 'mxfp6e3m2'"), ("mxfp8e4m4", "did you mean 'mxfp8e4m3'"), ("nvfp8", "did you mean 'nvfp4'"),
        ("int8:grp32", "g"), ("int8:chanel", "channel"), ("e4m3:finit", "finite"), ("fixed8.4:channel", "channel"),
        ("bfp8", "/"), ("e4m3/32", "block"), ("binary2:unit", "unit"), ("int1", "2..16"), ("int17", "2..16"), ("log10", "2..9"),
        ("fixed33.0", "2..32"), ("e9m3", "1..8"), ("e4m11", "0..10"), ("mxint8/0", "1..65536"), ("int4:g65537", "1..65536"),
        ("mxint99", "2..16"), ("binary5", "4"), ("denorm4e3", "mantissa"), ("MXINT8", "mxint8"), ("mxint 8", "mxint"), ("", "unknown"),
    ],
)  # fmt: skip
def test_wrong_texts_name_what_is_wrong_and_what_is_near(text, part):
    with pytest.raises(FormatError) as caught:
        Format(text)
    message = str(caught.value)
    assert part in message
    assert message[0].islower() or message[0] == "'"
    assert "\n" not in message and not message.endswith((".", "!"))


def edits(text):
    """Texts one typing error away: a letter lost, doubled, swapped with the next, or replaced."""
    for i in range(len(text)):
        yield text[:i] + text[i + 1 :]
        yield text[:i] + text[i] + text[i:]
        yield text[:i] + text[i + 1 : i + 2] + text[i] + text[i + 2 :]
        yield text[:i] + "x" + text[i + 1 :]


@pytest.mark.parametrize("text", TEXTS)
def test_suggested_spellings_are_valid(text):
    for wrong in edits(text):
        try:
            Format(wrong)
        except FormatError as error:
            suggested = re.search(r"did you mean '([^']*)'", str(error))
            if suggested:
                Format(suggested.group(1))


@given(text=st.text(max_size=30) | st.text(st.sampled_from("mxintfpebolgfdrnavuk0123456789:/.,-"), max_size=16))
def test_any_text_is_read_or_refused(text):
    try:
        fmt = Format(text)
    except FormatError as error:
        assert str(error)
        with pytest.raises(ValueError):
            raise error
    else:
        assert Format(str(fmt)) == fmt


@pytest.mark.parametrize("thing", [None, 8, 1.5, b"mxint8", ["mxint8"], object()])
def test_formats_are_made_of_texts_alone(thing):
    with pytest.raises(FormatError, match="text"):
        Format(thing)


def test_lone_surrogates_and_long_texts_are_refused():
    for text in ("\ud800", "mxint8" * 100_000, "int8:" + "g" * 1_000_000, "fixed8." + "9" * 10_000, "mxint8\0"):
        with pytest.raises(Exception) as caught:
            Format(text)
        assert isinstance(caught.value, ValueError)
        assert len(str(caught.value)) < 1000


# ----------------------------------------------------------------------------------------------------------- as values


@pytest.mark.parametrize("text", TEXTS)
def test_formats_are_values(text):
    fmt = Format(text)
    assert fmt == Format(text) and hash(fmt) == hash(Format(text)) and fmt in {Format(text)}
    for same in (pickle.loads(pickle.dumps(fmt)), copy.copy(fmt), copy.deepcopy(fmt)):
        assert same == fmt and type(same) is Format
    assert pickle.loads(pickle.dumps(fmt.core)) == fmt.core and hash(fmt.core) == hash(Format(text).core)


def test_formats_differ_by_every_part():
    assert (
        len({Format(text) for text in TEXTS})
        == len({str(Format(text)) for text in TEXTS})
        == len(set(TEXTS) - {"nf3/64"})
    )
    assert Format("mxint8") != "mxint8" and Format("mxint8") != Format("mxint8").core


@pytest.mark.parametrize("name", ["text", "core", "width", "anything"])
def test_formats_are_immutable(name):
    fmt = Format("mxint8")
    with pytest.raises(AttributeError):
        setattr(fmt, name, 1)
    with pytest.raises(AttributeError):
        delattr(fmt, name)
    with pytest.raises(AttributeError):
        setattr(fmt.core, name, 1)
    assert str(fmt) == "mxint8"


def test_sizes_that_overflow_are_refused():
    fmt = Format("mxint8")
    assert fmt.nbytes((4, 100)) == 4 * 100 + 4 * 4
    for shape in ((2**62, 4), (2**40, 2**40), (2**63 - 1,)):
        with pytest.raises(octavo.ShapeError, match="too many"):
            fmt.nbytes(shape)
    assert math.isfinite(fmt.bits_per_element(2**63))
