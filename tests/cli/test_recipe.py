"""octavo recipe: a recipe read, and explained on a model."""

import json

from octavo import Recipe

TEXT = "int4:g32; type:Linear input=int8@mse; last:Linear keep"


def test_a_recipe_is_printed_as_toml_that_reads_back(octavo, tmp_path):
    output = octavo("recipe", TEXT).stdout
    assert Recipe.from_toml(output) == Recipe.parse(TEXT)
    (tmp_path / "r.toml").write_text(output)
    assert octavo("recipe", tmp_path / "r.toml").stdout == output
    assert Recipe.from_json(octavo("recipe", TEXT, "--json").stdout) == Recipe.parse(TEXT)


def test_a_recipe_is_explained_on_the_shipped_model(octavo):
    text = octavo("recipe", TEXT, "--model", "polynomials").stdout
    assert "no rule reached" in text and "average bits" in text
    explained = json.loads(octavo("recipe", TEXT, "--model", "polynomials", "--json").stdout)
    assert explained["totals"]["parameters"] == 538_655
    assert {row["rule"] for row in explained["rows"]} == set(TEXT.split("; "))


def test_what_is_wrong_is_said(octavo, tmp_path):
    assert "did you mean" in octavo("recipe", "mxfp6e3m3", code=2).output
    assert "no rules" in octavo("recipe", "", code=2).output
    assert "no such file" in octavo("recipe", tmp_path / "none.toml", code=2).output
    assert "matches no layer" in octavo("recipe", "layers.*=int8", "--model", "polynomials", code=2).output
    told = octavo("recipe", "int8", "--model", "gpt5", code=2).output
    assert "unknown model" in told and "'polynomials', 'minilm'" in told
