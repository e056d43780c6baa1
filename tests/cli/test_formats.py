import json

import pytest
from helpers.quick import spread
from octavo import Format, formats


def test_every_family_and_format_is_listed(octavo):
    lines = octavo("formats").output.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {str(fmt) for fmt in formats()} <= listed
    assert max(map(len, lines)) <= 100


def test_the_json_list_says_what_the_formats_say(octavo):
    listed = json.loads(octavo("formats", "--json").stdout)
    assert [entry["format"] for entry in listed] == [str(fmt) for fmt in formats()]
    for entry, fmt in zip(listed, formats(), strict=True):
        assert entry["bits_per_element"] == fmt.bits
        assert entry["range"] == list(fmt.range)
        assert entry["values"] == (fmt.values() if fmt.width <= 6 else None)


UNLISTED = ["fixed32.8", "log9", "mxint8/1", "bm16e8/7", "denorm3e1", "int2", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]


@pytest.mark.parametrize("fmt", spread([*map(str, formats()), *UNLISTED], 4))
def test_every_format_can_be_explained(octavo, fmt):
    output = octavo("formats", fmt).output
    assert output.startswith(f"{fmt} - ")
    assert f"bits per element   {Format(fmt).bits:.6g}" in output
    assert max(map(len, output.splitlines())) <= 100
    assert ("quantile" in output) == (Format(fmt).family == "nf")


def test_few_values_are_all_shown_and_plotted(octavo):
    output = octavo("formats", "mxfp4").output
    row = output.split("every value")[1].split("where")[0]
    assert [float(text) for text in row.split()[3:]] == Format("mxfp4").values()
    plot = output.split("linear\n")[1].splitlines()[0]
    assert sum(character != " " for character in plot) == len(Format("mxfp4").values())


def test_the_example_is_what_quantize_does(octavo):
    import torch
    from octavo import quantize

    lines = octavo("formats", "int4:g32").output.splitlines()[-2:]
    x, rounded = ([float(text) for text in line.split()[1:]] for line in lines)
    assert rounded == [float(f"{value:.5g}") for value in quantize(torch.tensor(x), "int4:g32").tolist()]


def test_an_unknown_format_names_the_nearest(octavo):
    assert "did you mean 'mxint8'?" in octavo("formats", "mxinta8", code=2).output
