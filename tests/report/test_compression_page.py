"""The page of a report: one file that loads nothing, and works in a real browser, wide and narrow, light and dark."""

import json
import re

import pytest
from helpers.browser import browser, open_in_browser, open_in_frame
from octavo.report.compression_page import compression_page
from octavo.report.compression_report import PARTS, check_report
from report.samples import compression

HOSTILE = "</script><img src=x onerror=console.error(1)>"


def hostile():
    """A report whose every text would leave its place if it were markup."""

    def spoil(it, key=""):
        if isinstance(it, dict):
            return {name: spoil(one, name) for name, one in it.items()}
        if isinstance(it, list):
            return [spoil(one, key) for one in it]
        kept = key in ("schema", "kind", "unit", "better", "key", "created")
        return HOSTILE + it if isinstance(it, str) and not kept else it

    report = spoil(compression(blocks=1))
    report["machine"][HOSTILE] = "\ud800"  # half of a surrogate pair is no UTF-8
    return check_report(report)


def bare():
    """A report without any part."""
    return check_report({"schema": "octavo.report", "version": 1, "kind": "compression", "verdict": {},
                         "model": {"name": "m", "parameters": 1}, "missing": dict.fromkeys(PARTS, "not asked for")})  # fmt: skip


@pytest.mark.parametrize("make", [compression, hostile, bare])
def test_a_page_loads_nothing_and_holds_its_data_once(make):
    page = compression_page(make())
    assert not re.search(r"(?:https?:)?//[\w.-]+\.\w|url\(|@import|<link[^>]+href=\"(?!data:)|<\w[^<>]*\ssrc=",
                         page.replace("http://www.w3.org/2000/svg", ""))  # fmt: skip
    assert "@" + "INCLUDE" not in page and "@" + "DATA" not in page
    assert page.count("</script>") == 2 and "<img" not in page
    told = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert told["model"]["name"] == make()["model"]["name"] and told["sentence"]
    assert all("examples" not in row for row in told["metrics"])


# --- in a browser -----------------------------------------------------------------------------------------------------

LOOK = """{
const seen = {}, texts = (selector, from) => [...(from || document).querySelectorAll(selector)].map(it => it.textContent);
seen.title = document.title; seen.h1 = texts("h1")[0]; seen.parts = [...document.querySelectorAll(".part")].map(it => it.id);
seen.absent = texts(".absent"); seen.tiles = texts(".tile b"); seen.cells = document.querySelectorAll(".cell").length;
seen.heat = document.querySelectorAll(".heat td").length; seen.framed = document.querySelectorAll("td.framed").length;
seen.flat = document.documentElement.scrollWidth <= innerWidth;
const table = document.querySelector("#table"), column = at => texts(`tbody tr td:nth-child(${at})`, table), sort = table && [...table.querySelectorAll("button.sort")];
if (table) {
  seen.rows = column(1).length; sort[3].click(); seen.down = column(4).map(Number); seen.told = table.querySelectorAll("th")[3].ariaSort;
  sort[3].click(); seen.up = column(4).map(Number); sort[0].click(); seen.names = column(1);
  const input = table.querySelector("input"); input.value = "self.key"; input.dispatchEvent(new Event("input")); seen.found = column(1); seen.count = texts(".tools span", table)[0];
}
const charts = [...document.querySelectorAll("#front svg[role=img]")], walk = (it, key) => { it.dispatchEvent(new KeyboardEvent("keydown", { key })); return texts(".tip")[0]; };
if (charts.length) {
  seen.charts = charts.length; seen.walked = [walk(charts[0], "ArrowRight"), walk(charts[0], "ArrowRight"), walk(charts[0], "ArrowLeft")];
  walk(charts[0], "Escape"); seen.hushed = getComputedStyle(document.querySelector(".tip")).display;
  const mark = charts[0].querySelector(".ring").getBoundingClientRect();
  charts[0].dispatchEvent(new PointerEvent("pointermove", { clientX: mark.x + 9, clientY: mark.y + 9 })); seen.hover = texts(".tip")[0];
}
const canvas = document.createElement("canvas"), ink = canvas.getContext("2d", { willReadFrequently: true });
const light = text => { ink.fillStyle = text; ink.fillRect(0, 0, 1, 1); const [r, g, b] = [...ink.getImageData(0, 0, 1, 1).data].map(it => (it /= 255) <= .04045 ? it / 12.92 : ((it + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const contrast = it => { const own = getComputedStyle(it), [a, b] = [light(own.color), light(own.backgroundColor)].sort((x, y) => y - x); return (a + .05) / (b + .05); };
const least = () => Math.min(9, ...[...document.querySelectorAll(".cell, .heat td.number, .tip, body")].filter(it => it.style.background || !it.matches("td")).map(contrast));
const paper = () => getComputedStyle(document.body).backgroundColor;
seen.paper = [paper()]; seen.contrast = [least()];
for (const _ of [1, 2]) { document.querySelector("#theme").click(); seen.paper.push(paper()); seen.contrast.push(least()); }
document.body.replaceChildren(JSON.stringify(seen));
}"""
NARROW = """(document, window) => ({
  flat: document.documentElement.scrollWidth <= window.innerWidth, width: window.innerWidth,
  small: [...document.querySelectorAll(".chart svg[role=img] text.tick")].every(it => it.getBoundingClientRect().height >= 9),
  beyond: [...document.querySelectorAll("main > *, .part > *")].filter(it => it.getBoundingClientRect().right > window.innerWidth + .5).map(it => it.className),
})"""


@browser
def test_the_page_works_in_a_browser_and_its_console_is_silent(tmp_path):
    report = check_report(compression())
    seen, said = open_in_browser(compression_page(report), tmp_path, LOOK, "--window-size=1280,900")
    assert said == []
    assert seen["title"] == "minilm: compression report" and seen["h1"].startswith("minilm: 7.22 times smaller")
    assert seen["parts"] == ["metrics", "front", "layers", "sensitivity", "prediction", "table", "histograms",
                             "changed", "rejected", "data", "commands"]  # fmt: skip
    assert seen["tiles"] == ["88.19\u00a0%", "12.59\u00a0MB", "4.43", "4.71\u00a0ms"] and not seen["absent"]
    layers, groups = report["layers"], report["sensitivity"]["groups"]
    assert seen["rows"] == len(layers) == seen["cells"] + 1  # a norm's vector has no cell
    assert (seen["heat"], seen["framed"]) == (8 * len(groups), len(groups)) and seen["flat"]
    bits = sorted(float(f"{row['bits']:.4g}") for row in layers)
    assert seen["up"] == bits and seen["down"] == bits[::-1] and seen["told"] == "descending"
    assert seen["names"] == sorted(row["path"] for row in layers)
    assert len(seen["found"]) == 6 and seen["count"] == f"6 of {len(layers)} rows"
    assert seen["charts"] == 2 and seen["walked"][0] == seen["walked"][2] != seen["walked"][1]
    assert seen["hushed"] == "none" and "chosen" in seen["hover"] and "nats" in seen["hover"]
    assert seen["paper"][0] == seen["paper"][2] != seen["paper"][1]
    assert min(seen["contrast"]) >= 3.5


@browser
@pytest.mark.parametrize("make", [hostile, bare])
def test_hostile_texts_and_missing_parts_are_shown_as_they_are(make, tmp_path):
    report = make()
    seen, said = open_in_browser(compression_page(report), tmp_path, LOOK, "--window-size=500,900")
    assert said == [] and seen["flat"] and seen["title"].startswith(report["model"]["name"])
    if make is bare:
        assert len(seen["absent"]) == len(seen["parts"]) == 9 and not seen["tiles"]
        assert all("not asked for" in text for text in seen["absent"])
    else:
        assert HOSTILE in seen["h1"] and len(seen["parts"]) == 11


@browser
def test_a_phone_shows_the_page_without_overflow(tmp_path):
    for at, make in enumerate((compression, hostile)):
        folder = tmp_path / str(at)
        folder.mkdir()
        seen, said = open_in_frame(compression_page(make()), folder, NARROW, 360)
        assert said == [] and seen == {"flat": True, "width": 360, "small": True, "beyond": []}


SIGNS = """{
const seen = {}, texts = selector => [...document.querySelectorAll(selector)].map(it => it.textContent);
seen.names = texts("#prediction .name"); seen.guides = document.querySelectorAll("#prediction .guide").length;
seen.lead = texts("#prediction .lead")[0]; seen.heading = texts("#prediction h3")[0];
seen.heads = texts("#rejected thead th"); seen.changed = texts("#changed tbody tr").length; seen.bad = texts("#changed .bad").length;
seen.machine = texts("#metrics p.soft.small").join(" ");
seen.boxes = [...document.querySelectorAll(".wide")].map(it => (it.dispatchEvent(new Event("scroll")), { cut: it.scrollWidth - it.clientWidth > 2 || it.scrollHeight - it.clientHeight > 2, faded: it.matches(".right, .below"), told: it.nextElementSibling.textContent }));
document.body.replaceChildren(JSON.stringify(seen));
}"""


@browser
@pytest.mark.parametrize("width", [1280, 500])
def test_a_table_that_is_cut_fades_and_says_how_it_scrolls(width, tmp_path):
    seen, said = open_in_browser(
        compression_page(check_report(compression())), tmp_path, SIGNS, f"--window-size={width},900"
    )
    assert said == [] and any(box["cut"] for box in seen["boxes"]) and not all(box["cut"] for box in seen["boxes"])
    for box in seen["boxes"]:
        assert box["cut"] == box["faded"] == ("scrolls" in box["told"])
    assert "AMD EPYC 9B14" in seen["machine"] and (seen["changed"], seen["bad"]) == (10, 10)


@browser
def test_a_prediction_of_another_unit_has_two_axes_and_no_diagonal(tmp_path):
    report = compression()
    (pair, *_) = report["prediction"]["pairs"]
    report["prediction"] |= {
        "measured": {"label": "errors (1 - accuracy)", "unit": "share"},
        "pairs": [pair | {"measured": 0.12}],
    }
    report["rejected"] = [{key: it for key, it in one.items() if key != "bits"} for one in report["rejected"]]
    seen, said = open_in_browser(compression_page(check_report(report)), tmp_path, SIGNS, "--window-size=1280,900")
    assert said == [] and seen["guides"] == 0 and "predicted exactly" not in seen["lead"]
    assert seen["names"] == ["predicted KL of logits (nats)", "measured errors (1 - accuracy)"]
    assert "1 point ·" in seen["heading"] and "rank correlation 0.971" in seen["heading"]
    assert seen["heads"] == ["what", "bytes", "accuracy", "why not"]  # no column without a value
    (tmp_path / "alike").mkdir()
    seen, _ = open_in_browser(
        compression_page(check_report(compression())), tmp_path / "alike", SIGNS, "--window-size=1280,900"
    )
    assert seen["guides"] == 1 and "predicted exactly" in seen["lead"]
    assert seen["names"] == ["predicted KL of logits (nats)", "measured KL of logits (nats)"]


@browser
@pytest.mark.slow
def test_a_page_of_five_hundred_layers_and_twelve_formats_answers_at_once(tmp_path):
    formats = ("int2:g32", "int3:g32", "mxfp4", "nf4", "int4:g32", "nvfp4", "int5:g32", "mxfp6e2m3", "int6:g32",
               "mxfp8e4m3", "mxint8", "int8:channel")  # fmt: skip
    page = compression_page(check_report(compression(blocks=83, formats=formats)))
    look = LOOK.replace("const seen = {}", "const seen = { ready: performance.now() }").replace(
        "sort[3].click(); seen.down",
        "const at = performance.now(); sort[3].click(); table.getBoundingClientRect(); seen.sorted = performance.now() - at; seen.down",
    )
    seen, said = open_in_browser(page, tmp_path, look, "--window-size=1280,900")
    assert said == [] and seen["rows"] == 501 and seen["heat"] == 12 * 498
    assert seen["ready"] < 10_000 and seen["sorted"] < 2000  # milliseconds, on a busy machine
