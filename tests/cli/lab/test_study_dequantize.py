"""``octavo lab study dequantize``: measures, draws, goes on, and refuses before work starts."""

import json

import pytest


def test_the_command_measures_draws_and_goes_on(octavo, tmp_path):
    out = tmp_path / "study"
    command = (
        "study",
        "dequantize",
        "--device",
        "cpu",
        "--sizes",
        "64,1024",
        "--groups",
        "8,32",
        "--rounds",
        2,
        "-o",
        out,
    )
    first = octavo(*command).stdout
    assert "measured on cpu alone" in first and "unlike mase-cuda" in first
    lines = (out / "study.jsonl").read_text()
    assert octavo(*command).stdout == first and (out / "study.jsonl").read_text() == lines
    told = json.loads((out / "results.json").read_text())
    assert told["machines"]["cpu"]["device"] == "cpu" and [row["format"] for row in told["rows"]][::2] == [
        "mxint8/8",
        "mxint8",
    ]
    octavo(
        "study",
        "dequantize",
        "--device",
        "cpu",
        "--format",
        "fixed8.4",
        "--sizes",
        100,
        "--rounds",
        1,
        "-o",
        tmp_path / "f",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--format", "mxint99"), "mxint99"),
        (("--format", "fixed8.4", "--groups", "8"), "'fixed8.4' has no groups"),
        (("--sizes", "100"), "100 elements do not fill groups of 8 (mxint8/8)"),
        (("--sizes", "1e6"), "'1e6' is no number of elements"),
        (("--dtype", "int8"), "accepted are float32, bfloat16, float16"),
        (("--rounds", "0"), "--rounds: 0"),
        (("--device", "cpu,cuda,cuda:1"), "accepted are one device, or two"),
        (("--device", "tpu"), "device is 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_work_starts(octavo, tmp_path, given, message):
    shown = octavo("study", "dequantize", *given, "-o", tmp_path / "s", code=2).output
    assert message in " ".join(shown.split()) and not (tmp_path / "s").exists()
