"""Reports in notebooks: the cells of their table, and what print shows below it."""

import re

import octavo
from octavo.display.console import plain_text
from octavo.display.notebook import html_table
from torch import nn


def words(text):
    return re.sub(r"<[^>]*>|\s+", " ", text).split()


def test_a_report_has_the_cells_and_lines_of_its_text():
    model = octavo.quantize_model(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)), "int8", progress=False)
    for report in (octavo.quant.coverage(model), octavo.explain(octavo.pack_model(model)), octavo.explain(model)):
        shown = report._repr_html_()
        assert shown.startswith("<table>") and shown.count("<tr>") == len(report.to_table().rows) + 1
        for cell in (cell for column in report.to_table().columns for cell in column.cells):
            assert f">{cell}</td>" in shown
        below = str(report).replace(plain_text(report.to_table()), "").split()
        assert below and words(shown)[-len(below) :] == below


def test_names_cannot_steer_the_page():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>", nn.Linear(32, 32))

        def forward(self, x):
            return self.get_submodule("<b>")(x)

    shown = html_table(octavo.explain(octavo.quantize_model(Odd(), "int8", progress=False)).to_table())
    assert "<b>" not in shown and "&lt;b&gt;" in shown
