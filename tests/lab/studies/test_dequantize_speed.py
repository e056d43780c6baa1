"""Decoding is timed on every device, compared with mase-cuda's rule by bits, and the crossing point is found."""

import math

import octavo
import pytest
import torch
from octavo import SettingError, ShapeError
from octavo.lab.mase import mxint8_dequantize
from octavo.lab.studies.dequantize_speed import Dequantize, crossing, grouped, has_groups, unlike_mase
from octavo.lab.studies.dequantize_tables import dequantize_figure, dequantize_notes, dequantize_table
from octavo.search.journal import Journal

CPU = torch.device("cpu")


def all_pairs():
    """Every pair of scale and code of MXINT8, a group a scale."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.int8).repeat(256, 1)
    return codes, torch.arange(256, dtype=torch.uint8)[:, None]


def test_the_rule_is_the_value_where_the_leading_one_is_implied_or_taken_off():
    """Against float64: ``code * 2^(scale - 133)``, but for -128 and, at scale code 0, the one that is not implied."""
    codes, scales = all_pairs()
    found = mxint8_dequantize(codes, scales, 256)[1:255].double()
    exact = codes[1:255].double() * torch.exp2(scales[1:255].double() - 133)
    exact[:, 128] = 0.0
    assert torch.equal(found, exact)
    lowest = mxint8_dequantize(codes, scales, 256)[0].double()
    magnitude = codes[0].double().abs()
    lost = torch.where(magnitude >= 64, magnitude - 64, magnitude)
    lost[128] = 0.0
    assert torch.equal(lowest.abs(), lost * 2.0**-132)  # of 2^-126, whose smallest steps are 2^-133
    with pytest.raises(ShapeError, match="groups 3"):
        mxint8_dequantize(codes, scales, 3)


def test_bits_unlike_the_rule_are_counted():
    values = torch.randn(512, generator=torch.Generator().manual_seed(0))
    packed = octavo.encode(values, "mxint8")
    assert unlike_mase(packed, octavo.decode(packed, dtype=torch.bfloat16)) == 0
    packed.codes[5] = 128
    assert unlike_mase(packed, octavo.decode(packed, dtype=torch.bfloat16)) == 1, "mase-cuda decodes -128 to 0"
    assert unlike_mase(packed, octavo.decode(packed)) is None


def test_the_crossing_point_is_where_the_second_wins_for_good():
    sizes = (1, 4, 16, 64)
    assert crossing(sizes, (1, 1, 1, 1), (8, 2, 0.5, 0.1)) == (16, pytest.approx(8.0))
    assert crossing(sizes, (1, 1, 1, 1), (0.5, 2, 0.5, 0.1)) == (16, pytest.approx(8.0)), "an early win does not last"
    assert crossing(sizes, (1, 1, 1, 1), (2, 2, 2, 2)) is None
    assert crossing(sizes, (2, 2, 2, 2), (1, 1, 1, 1)) == (1, 1.0)
    assert crossing((1, 4), (1, 1), (2, 2)) is None


def test_groups_are_written_into_the_text_of_a_format():
    assert str(grouped("mxint8", 64)) == "mxint8/64" and str(grouped("int4", 64)) == "int4:g64"
    assert str(grouped("int4:g32", 32)) == "int4:g32"
    assert has_groups("mxfp6e2m3") and has_groups("nf4") and not has_groups("fixed8.4") and not has_groups("int4:g32")
    with pytest.raises(SettingError, match=r"'fixed8.4' has no groups"):
        grouped("fixed8.4", 32)


def test_two_devices_are_a_row_and_a_point_is_measured_once(tmp_path):
    study = Dequantize("mxint8", (64, 256), (8, 32), rounds=2)
    with Journal(tmp_path) as journal:
        rows = study.run(journal, {"cpu": CPU, "cuda": CPU}, lambda *_: None)
        assert len(journal) == 4
    assert [(row["group"], row["elements"]) for row in rows] == [(8, 64), (8, 256), (32, 64), (32, 256)]
    for row in rows:
        nbytes = row["elements"] * (1 + 1 / row["group"] + 2)
        assert row["cpu_gb_s"] * row["cpu_s"] * 1e9 == pytest.approx(nbytes) and row["unlike_mase"] == 0
    for row in rows:  # as if the second were a GPU: a launch costs 1 ms, an element nothing
        row |= {"cpu_s": row["elements"] * 1e-5, "cuda_s": 1e-3}
    assert "cuda is faster from about 100 elements (measured at 256)" in "\n".join(dequantize_notes(rows))
    assert [column.header for column in dequantize_table(rows).columns][2:6] == [
        "cpu us",
        "cpu GB/s",
        "cuda us",
        "cuda GB/s",
    ]
    pytest.importorskip("matplotlib")
    panels = dequantize_figure(rows, title="").axes
    (line,) = {round(line.get_xdata()[0]) for line in panels[0].lines if len(set(line.get_xdata())) == 1}
    assert line == 100 and math.isclose(rows[0]["cuda_s"], 1e-3)
