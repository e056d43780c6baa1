"""Costs that a report tells: memory is what a model holds and what a call takes, times are of as many samples as said."""

import octavo
import pytest
import torch
from octavo.search.measured_costs import cost_row, forward_costs, held_bytes, peak_bytes, resized
from torch import nn


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 16)).eval()


def test_peak_memory_is_weights_and_what_a_call_takes():
    model, x = wide(), torch.randn(64, 16)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert held_bytes(model) == weights
    hidden, output = 64 * 4096 * 4, 64 * 16 * 4
    taken = peak_bytes(model, x) - weights
    assert hidden + output <= taken <= 1.5 * (hidden + output)  # a product may copy an operand
    assert peak_bytes(model, torch.cat([x, x])) - weights == pytest.approx(2 * taken, rel=0.05)


def test_a_packed_model_holds_its_codes_and_shared_tensors_count_once():
    model = wide()
    packed = octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False))
    assert held_bytes(packed) < 0.3 * held_bytes(model)
    model.append(nn.Linear(16, 4096))
    model[3].weight = model[0].weight
    assert held_bytes(model) == held_bytes(wide()) + model[3].bias.nbytes


def test_costs_are_of_one_and_of_32_samples():
    seen = []

    class Watched(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x * 2

    rows = {row["key"]: row for row in forward_costs(Watched(), Watched(), torch.randn(5, 3))}
    assert list(rows) == ["peak_bytes", "latency_1", "latency_32"]
    assert set(seen) == {1, 32} and "batch 32" in rows["peak_bytes"]["label"]
    for row in rows.values():
        assert row["better"] == "lower" and row["before"]["value"] >= 0 and row["after"]["value"] >= 0
    assert (
        rows["latency_1"]["after"]["low"] <= rows["latency_1"]["after"]["value"] <= rows["latency_1"]["after"]["high"]
    )


def test_a_model_that_takes_one_size_of_batch_says_so():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.view(4, 3)

    rows = forward_costs(Fixed(), Fixed(), torch.randn(4, 3))
    assert all("samples" in row["missing"] and "before" not in row for row in rows[1:])
    assert rows[0]["label"] == "peak memory" and rows[0]["after"]["value"] >= 0


def test_batches_are_cut_and_repeated():
    batch = {"ids": torch.arange(6).view(3, 2), "scale": torch.tensor(2.0), "name": "x"}
    small, large = resized(batch, 1), resized(batch, 7)
    assert small["ids"].tolist() == [[0, 1]] and large["ids"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2 + [[0, 1]]
    assert large["scale"] == 2 and large["name"] == "x"


def test_a_row_holds_numbers_or_whole_values():
    row = cost_row("k", "l", "B", 3, {"value": 2, "count": 5}, told="how")
    assert row["before"] == {"value": 3} and row["after"]["count"] == 5 and row["told"] == "how"
    assert "after" not in cost_row("k", "l", "B", 3)
