"""The page of a graph: one file that loads nothing, whose rows add up, and which works in a real browser."""

import json
import re

import octavo
import pytest
import torch
from graph.zoo import BERT, MODELS, classifier, masked, tokens
from helpers.browser import browser, open_in_browser
from octavo.graph import capture, to_html
from octavo.graph.page import page_data
from torch import nn


def rows(row, times=1):
    """Every row, and how many equals it stands for."""
    yield row, times * row["count"]
    for child in row["children"]:
        yield from rows(child, times * row["count"])


@pytest.mark.parametrize(
    ("name", "recipe"),
    [pytest.param("bert with a mask", "mxint4; first:Linear int8", marks=pytest.mark.slow),
     pytest.param("llama", None, marks=pytest.mark.slow), pytest.param("t5", None, marks=pytest.mark.slow),
     ("resnet", "mxint4"), ("classifier", "int8; last:Linear keep"), ("classifier", None)],
)  # fmt: skip
def test_rows_add_up_to_the_costs(name, recipe):
    make, inputs = MODELS[name]
    graph = capture(make(), inputs(2, 7))
    costs = graph.costs(recipe)
    totals = costs.at()
    tree = page_data(graph, recipe)["tree"]
    expected = {"macs": totals.macs, "bitops": totals.bitops, "traffic": totals.traffic_bytes,
                "bytes": totals.weight_bytes, "weights": sum(record.elements for record in graph.weights)}  # fmt: skip
    assert tree["values"] == expected
    leaves = [(row, times) for row, times in rows(tree) if not row["children"]]
    for key, total in expected.items():
        assert sum(row["values"].get(key, 0) * times for row, times in leaves) == total
    assert sum(times for row, times in leaves if row["kind"] == "operator") == len(graph.nodes)
    assert sum(times for row, times in rows(tree) if row["kind"] == "module") == sum(
        len(record.paths) for record in graph.modules
    )


def test_repeated_layers_are_one_row_and_a_recipe_parts_them():
    graph = capture(BERT(), masked(2, 7))
    found = [row for row, _ in rows(page_data(graph)["tree"]) if row["class"] == "BertLayer"]
    assert [(row["name"], row["count"]) for row in found] == [("0 … 1", 2)]
    found = [row for row, _ in rows(page_data(graph, "bert.encoder.layer.0.** int4")["tree"])]
    assert [row["name"] for row in found if row["class"] == "BertLayer"] == ["0", "1"]


def test_sizes_and_recipes_are_told():
    graph = capture(classifier(), masked(2, 7))
    data = page_data(graph, "int8", batch=8)
    assert "costs at batch 8, sequence 7" in data["facts"] and "as packed by: int8" in data["facts"]
    with pytest.raises(octavo.ModelError, match="'depth' is no size"):
        page_data(graph, depth=3)


class Hostile(nn.Module):
    """Names that would leave their place if they were markup."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


Hostile.__name__ = "</script><img src=x onerror=console.error(1)>"


def test_names_are_texts_and_nothing_is_loaded():
    graph = capture(Hostile(), torch.randn(2, 4))
    page = to_html(graph)
    assert graph.refusal and "<img" not in page and page.count("</script>") == 2
    for text in (page, to_html(capture(classifier(), tokens(2, 7)))):
        assert not re.search(
            r"(?:https?:)?//[\w.-]+\.\w|url\(|@import|<link[^>]+href=\"(?!data:)|<\w[^<>]*\ssrc=", text
        )
    told = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert told["tree"]["class"] == Hostile.__name__
    assert "missing" in told["notes"][0] and [m["key"] for m in told["measures"]] == ["bytes", "bits"]


# --- in a browser -----------------------------------------------------------------------------------------------------

LOOK = """
const seen = {}, count = () => document.querySelectorAll(".row").length, click = text => document.querySelector(text).click();
seen.title = document.title; seen.first = count(); seen.times = [...document.querySelectorAll(".count")].map(it => it.textContent);
click("#open"); seen.all = count(); seen.flat = document.documentElement.scrollWidth <= innerWidth;
click("#close"); seen.folded = count();
document.querySelectorAll(".row")[1].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"})); seen.key = count();
const look = () => document.querySelector(".row .value").textContent + getComputedStyle(document.querySelector(".row .fill")).backgroundColor;
seen.shown = [...document.querySelectorAll(".choice button")].map(it => { it.click(); return look() + it.ariaPressed; });
const paper = () => getComputedStyle(document.body).backgroundColor;
seen.paper = [paper(), (click("#theme"), paper()), (click("#theme"), paper())];
document.body.replaceChildren(JSON.stringify(seen));
"""


@browser
def test_the_page_works_in_a_browser_and_its_console_is_silent(tmp_path):
    graph = capture(MODELS["llama"][0](), tokens(2, 7))
    data = page_data(graph, "int4:g16")
    seen, said = open_in_browser(to_html(graph, "int4:g16"), tmp_path, LOOK, "--window-size=500,900")
    assert said == []
    assert seen["title"] == "LlamaForCausalLM" and "×2" in seen["times"] and seen["flat"]
    every = sum(1 for _ in rows(data["tree"]))
    assert seen["all"] == every > seen["first"] > seen["folded"] == 1 + len(data["tree"]["children"])
    assert seen["key"] > seen["folded"]
    assert len(set(seen["shown"])) == 5 and all(text.endswith("true") for text in seen["shown"])
    assert seen["paper"][0] == seen["paper"][2] != seen["paper"][1]


@browser
def test_a_page_of_a_refused_model_with_hostile_names_works(tmp_path):
    seen, said = open_in_browser(to_html(capture(Hostile(), torch.randn(2, 4))), tmp_path, LOOK)
    assert said == [] and seen["title"] == Hostile.__name__ and seen["all"] == 4


@browser
def test_an_error_in_a_page_would_be_seen(tmp_path):
    page = to_html(capture(Hostile(), torch.randn(2, 4))) + "<script>fetch('https://example.org'); none()</script>"
    assert len(open_in_browser(page, tmp_path, LOOK)[1]) >= 2
