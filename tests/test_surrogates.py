"""Texts with half of a surrogate pair, which Python has and UTF-8 has not, at every public door that takes a text."""

import octavo
import pytest
import torch

X = torch.zeros(2, 32)
HALF = "\ud800"
HALVES = {
    "name": lambda at: octavo.save({HALF: X}, at / "x"),
    "name of a packed tensor": lambda at: octavo.tensors.container.dumps({f"a{HALF}b": octavo.encode(X, "mxint8")}),
    "key of metadata": lambda at: octavo.tensors.container.dumps({"a": X}, metadata={HALF: "x"}),
    "value of metadata": lambda at: octavo.tensors.container.dumps({"a": X}, metadata={"x": HALF}),
    "wanted name": lambda at: octavo.load(at / "plain", names=[HALF]),
    "name of a layer": lambda at: octavo.save_model(torch.nn.ModuleDict({HALF: torch.nn.Linear(2, 2)}), at / "m"),
    "save": lambda at: octavo.save({"a": X}, at / HALF),
    "load": lambda at: octavo.load(at / HALF),
    "inspect": lambda at: octavo.inspect(at / HALF),
    "metadata": lambda at: octavo.tensors.container.metadata(at / HALF),
    "save_model": lambda at: octavo.save_model(torch.nn.Linear(2, 2), at / HALF),
    "load_model": lambda at: octavo.load_model(at / HALF),
    "decoder": lambda at: octavo.TextGenerator.load(at / HALF),
    "encoder": lambda at: octavo.TextEncoder.load(at / HALF),
    "engine": lambda at: octavo.lab.polynomials.Engine.load(at / HALF),
    "precision": lambda at: octavo.lab.polynomials.Engine.load(precision=HALF),
    "route": lambda at: octavo.lab.polynomials.Engine.load(route=HALF),
    "device": lambda at: octavo.lab.polynomials.Engine.load(device=HALF),
    "format": lambda at: octavo.Format(HALF),
    "format of a codec": lambda at: octavo.quantize(X, HALF),
    "format of codes": lambda at: octavo.encode(X, HALF),
    "rule of scales": lambda at: octavo.encode(X, "mxint8", scale=HALF),
    "recipe": lambda at: octavo.quantize_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), f"{HALF} mxint8"),
}


@pytest.mark.parametrize("what", HALVES)
def test_half_of_a_surrogate_pair_is_refused_by_a_typed_error(what, tmp_path):
    """As UTF-8 has no bytes for it; nothing is written."""
    octavo.save({"a": X}, tmp_path / "plain")
    with pytest.raises((octavo.OctavoError, FileNotFoundError)):
        HALVES[what](tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize("value", [None, 5, "fast", ["float"]])
def test_options_of_the_engine_that_are_none_are_refused(value):
    for option in ("precision", "route"):
        with pytest.raises(octavo.SettingError, match=f"unknown {option} .*accepted are"):
            octavo.lab.polynomials.Engine.load(**{option: value})
