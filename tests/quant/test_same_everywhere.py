"""What calibration, GPTQ and HQQ write is the same at any number of threads and any SIMD level."""

import math

import numpy as np
import octavo
import pytest
import torch
from helpers.quick import spread
from helpers.simd import available_levels
from octavo import _core
from octavo.quant import gptq, hqq
from octavo.quant.calibration import Products
from octavo.search import measure_sensitivity
from octavo.tensors.fixed_order import logarithm, one_thread, ordered_sum
from torch import nn

LEVELS = available_levels()


@pytest.fixture(autouse=True)
def _as_before():
    threads, ours = torch.get_num_threads(), _core.num_threads()
    yield
    torch.set_num_threads(threads)
    _core.set_num_threads(ours)
    _core.force_simd(None)


def everywhere(work):
    """What ``work`` gives on one to three threads of torch and of the core, at every level, as text of all bits."""
    found = {}
    for level in LEVELS:
        for threads, ours in ((1, 1), (2, 1), (1, 2), (3, 3)):
            torch.set_num_threads(threads)
            _core.set_num_threads(ours)
            _core.force_simd(level)
            found[level, threads, ours] = work()
    return found


def same(found):
    first = next(iter(found.values()))
    for place, other in found.items():
        assert len(other) == len(first)
        for one, two in zip(first, other, strict=True):
            assert torch.equal(one, two), place


def recorded(k, seed=0):
    """A weight and inputs of a layer, as they were recorded, and their Hessian."""
    generator = torch.Generator().manual_seed(seed)
    weight, inputs = torch.randn(70, k, generator=generator), torch.randn(333, k, generator=generator)
    inputs[:, 3] *= 30
    return weight, inputs


@pytest.mark.parametrize("k", [24, 130])
@pytest.mark.parametrize("text", ["int4:g32", "nf3/32", "mxint4", "uint4:g16", "int8:channel", "fixed6"])
def test_weights_solved_from_recorded_inputs(text, k):
    weight, inputs = recorded(k)
    layer = octavo.quantize_model(nn.Sequential(nn.Linear(k, 70)), "int8:channel", progress=False)[0]

    def work():
        products = Products(layer)
        for part in inputs.split(100):
            products.add(part)
        hessian = products.hessian()
        found = [products.sums, hessian]
        for order in ("natural", "descending"):
            found += [part for part in gptq(weight, hessian, text, order=order, scale="mse") if part is not None]
        return found + [part for part in hqq(weight, text) if part is not None]

    same(everywhere(work))


@pytest.mark.parametrize("method", spread(["mse", "quantile:0.999", "minmax", "kl"], 2))
def test_scales_chosen_from_recorded_inputs(method):
    weight, inputs = recorded(64)
    layer = nn.Sequential(nn.Linear(64, 70))
    layer[0].weight.data = weight
    weights = "minmax" if method == "kl" else method

    def work():
        made = octavo.quantize_model(
            layer, f"int4:g32@{weights}; input=int8@{method}", calibration=[inputs], progress=False
        )
        return list(made.state_dict().values())

    same(everywhere(work))


def test_models_calibrated_on_any_number_of_threads():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=40, **sizes)).eval()
    batches = [{"input_ids": torch.randint(0, 40, (rows, 5 + rows))} for rows in (1, 2, 5)]
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        made = octavo.quantize_model(
            model, "int4:g32@gptq; input=int8@mse; type:Embedding keep", calibration=batches, progress=False
        )
        losses = [
            measure_sensitivity(model, batches, ["nf3", "int3:g32@gptq"], method=method, progress=False).loss
            for method in ("divergence", "fisher")
        ]
        assert torch.get_num_threads() == threads
        found.append(
            [*made.state_dict().values(), *map(torch.from_numpy, map(lambda loss: np.nan_to_num(loss), losses))]
        )
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def test_hessians_are_sums_in_the_order_of_rows():
    _, inputs = recorded(24)
    layer = octavo.quantize_model(nn.Sequential(nn.Linear(24, 4)), "int8:channel", progress=False)[0]
    exact = inputs.double()
    sums = torch.zeros(24, 24, dtype=torch.float64)
    for row in exact:
        sums += row[:, None] * row
    for size in (1, 50, 333):
        products = Products(layer)
        for part in inputs.split(size):
            products.add(part)
        assert products.n == 333 and torch.equal(products.sums.triu(), sums.triu())
        assert torch.equal(products.hessian(), (sums * (2 / 333)).float())


@pytest.mark.parametrize("count", range(12))
def test_ordered_sums_of_whole_numbers_are_exact(count):
    x = torch.randint(-99, 99, (3, count, 4)).double()
    for dim in (0, 1, 2, -1):
        assert torch.equal(ordered_sum(x, dim), x.sum(dim))


def test_logarithms_are_close():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, generator=generator, dtype=torch.float64)
    x = torch.cat([x * 10.0 ** torch.randint(-300, 300, x.shape, generator=generator).double(), 1 + 1e-6 * (x - 0.5)])
    for got, value in zip(logarithm(x).tolist(), x.tolist(), strict=True):
        assert abs(got - math.log(value)) <= 4e-16 * max(abs(math.log(value)), 1)


def test_threads_are_as_before_after_an_error():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
