"""Layers and histograms of a report: bytes are those of the file, errors those of the codes, grids those of the format."""

import math

import numpy as np
import octavo
import pytest
import torch
from helpers.models import packed
from octavo.model_folder.pack_checkpoint import measure
from octavo.report.compression_report import PARTS, check_report
from octavo.search import Group, Sensitivity
from octavo.search.report_parts import histogram_rows, layer_rows, sensitivity_part
from torch import nn

FORMATS = ("int4:g16", "uint4:g16", "int3:g32", "int8:channel", "int4:tensor", "nf4", "mxint8", "mxfp4", "mxfp6e2m3",
           "nvfp4", "bfp8/16", "fixed8.4", "e4m3", "log4", "binary", "ternary")  # fmt: skip


class Model(nn.Module):
    """An embedding, tied with the last layer, a convolution whose weight is no matrix, and a norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(40, 32), nn.LayerNorm(32)
        self.conv, self.head = nn.Conv1d(32, 32, 3, padding=1), nn.Linear(32, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.conv(self.embedding(x).mT).mT))


def whole(**parts):
    """A report of these parts alone."""
    return check_report({"schema": "octavo.report", "version": 1, "kind": "compression", "verdict": {}, **parts,
                         "model": {"name": "m", "parameters": 1}, "missing": dict.fromkeys(PARTS, "a test")})  # fmt: skip


@pytest.mark.parametrize("fmt", ["int4:g16", "mxint8"])
def test_rows_are_the_tensors_of_the_file_in_the_order_of_the_model(fmt):
    model, recipe = Model().eval(), octavo.Recipe.of(f"{fmt}; type:Embedding {fmt}")
    after = packed(model, recipe)
    rows = layer_rows(model, after, recipe=recipe, groups={"conv": "a group"}, sensitivity={"conv": 0.5})
    assert whole(layers=rows)
    assert [row["path"] for row in rows] == ["embedding.weight", "norm.weight", "norm.bias", "conv.weight", "conv.bias"]
    assert sum(row["bytes"] for row in rows) == octavo.explain(after).stored
    assert sum(row["parameters"] for row in rows) == sum(p.numel() for p in model.parameters())
    conv = rows[3]
    assert (conv["shape"], conv["format"], conv["group"], conv["sensitivity"]) == ([32, 32, 3], fmt, "a group", 0.5)
    assert "format" not in rows[1] and rows[1]["dtype"] == "float32" and rows[1]["bits"] == 32
    decoded = after.conv.packed_weight.decode(torch.float32)
    assert conv["sqnr_db"] == measure(model.conv.weight.detach().flatten(1), decoded).sqnr_db


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_grid_has_every_value_that_the_format_gave(fmt):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32 if "32" in fmt else 16, 1, bias=False))  # one group, which is the median one
    after = packed(model, fmt)
    (row,) = histogram_rows(model, after, bins=20)
    assert whole(histograms=[row]) and row["path"] == "0.weight"
    assert sum(row["counts"]) == model[0].weight.numel()
    found = set(np.float32(row["grid"]).tolist())
    reach = row["edges"][-1] * 1.001
    assert {value for value in after[0].packed_weight.decode(torch.float32).flatten().tolist() if abs(value) <= reach} <= found  # fmt: skip
    assert len(found) <= 2 ** octavo.Format(fmt).width


def test_the_worst_weights_come_first_and_outliers_are_told():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[1].weight[3, 5] = 40.0
    after = packed(model, "int4:tensor; name:2 mxint8")
    rows = histogram_rows(model, after, most=2)
    assert [row["path"] for row in rows] == ["1.weight", "0.weight"] and rows[0]["sqnr_db"] < rows[1]["sqnr_db"]
    assert "1 of 4,096 weights lie beyond" in rows[0]["grid_told"]


def test_a_sensitivity_is_drawn_without_its_column_of_floats():
    groups = (Group("a", "weight", ("a",), ("a.weight",), 10), Group("b", "weight", ("b",), ("b.weight",), 10))
    loss = [[0.5, 0.1, 0.0], [math.nan, 0.2, 0.0]]
    found = Sensitivity(groups, ("nf4", "mxint8", "keep"), loss, np.ones((2, 3), int), 0, 20)
    part = sensitivity_part(found, samples=4)
    assert part["formats"] == ["nf4", "mxint8"] and part["loss"] == [[0.5, 0.1], [None, 0.2]] and part["unit"] == "nats"
    assert whole(sensitivity=part)
