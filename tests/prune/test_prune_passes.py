"""Pruning and folding are passes: written down, replayed to the same bytes, and refused out of order."""

import octavo
import pytest
import torch
from graph.zoo import BERT, masked
from octavo.graph import Pipeline, find_pass
from octavo.prune import report
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5))


STEPS = [
    ("prune", {"sparsity": 0.6, "criterion": "random", "seed": 2, "scope": "global"}),
    ("quantize", {"recipe": "int8:channel"}),
    "fold_masks",
    "pack",
    "sparsity",
]


def test_a_pipeline_with_pruning_replays_to_the_same_bytes():
    pipeline = Pipeline(STEPS)
    model = pipeline.run(network())
    again = Pipeline.from_toml(pipeline.to_toml()).run(network())
    for name, value in model.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    rows = dict(model.reports)["prune"].to_rows()
    assert rows[-2]["pruned"] == round(0.6 * (32 * 24 + 24 * 5))


def test_pruning_may_follow_quantizing_by_itself_but_not_in_a_pipeline():
    quantized = octavo.quantize_model(network(), "int8:channel", progress=False)
    made, _ = find_pass("prune")(quantized, sparsity=0.5)
    assert report(made).sparsity == 0.5
    with pytest.raises(octavo.ModelError, match="follows quantize"):
        Pipeline([("quantize", {"recipe": "int8"}), ("prune", {"sparsity": 0.5})])


def test_heads_that_were_pruned_are_taken_out_and_what_is_left_is_packed(tmp_path):
    model, inputs = BERT(), masked(2, 7)
    before = ["remove_dropout", ("prune", {"sparsity": 0.5, "granularity": "head"})]
    dense = Pipeline(before).run(model, inputs=inputs).model
    compact = Pipeline([*before, "compact"]).run(model, inputs=inputs)
    assert dict(compact.reports)["compact"].parameters[1] < sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        assert torch.allclose(dense(**inputs).logits, compact.model(**inputs).logits, atol=1e-5)
    after = [("quantize", {"recipe": "int8; last:Linear keep"}), "pack"]
    packed = Pipeline([*before, "compact", *after]).run(model, inputs=inputs).model
    octavo.save_model(packed, tmp_path / "small")
    with torch.no_grad():
        assert torch.equal(octavo.load_model(tmp_path / "small")(**inputs).logits, packed(**inputs).logits)
    with pytest.raises(octavo.ModelError, match="follows quantize"):
        Pipeline([after[0], "compact"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "prune: no sparsity"),
        ({"sparsity": 2.0}, "prune: sparsity is 2.0"),
        ({"sparsity": 0.5, "samples": 0}, "prune: samples is 0"),
        ({"sparsity": 0.5, "granularty": "row"}, "did you mean 'granularity'"),
    ],
)
def test_options_are_checked_when_a_pipeline_is_made(options, words):
    with pytest.raises(octavo.ModelError, match=words):
        Pipeline([("prune", options)])
