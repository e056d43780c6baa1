"""explain: the kernel, bytes and time of every layer, and what strict refuses."""

import json
import subprocess
import sys

import octavo
import pytest
import torch
from octavo import DTypeError, KernelError, ModelError, SettingError
from octavo.nn import PackedConv2d, PackedEmbedding, PackedLinear, QuantLinear
from octavo.quant.spec import LayerPlan, Spec
from torch import nn


def model():
    torch.manual_seed(0)
    layers = nn.Sequential()
    layers.embed = PackedEmbedding.from_embedding(nn.Embedding(50, 64), "mxint8")
    layers.fc = PackedLinear.from_linear(nn.Linear(64, 32), "int4:g32")
    spec = Spec(octavo.Format("int8"))
    layers.integer = PackedLinear.from_linear(QuantLinear.from_linear(nn.Linear(64, 32), LayerPlan(spec, spec)))
    layers.simulated = QuantLinear.from_linear(nn.Linear(32, 8), LayerPlan(weight=Spec(octavo.Format("mxint8"))))
    layers.conv = PackedConv2d.from_conv(nn.Conv2d(4, 8, 3), "mxint8")
    layers.head = nn.Linear(32, 8)
    return layers


def test_bytes_are_those_that_a_call_reads():
    costs = {cost.path: cost for cost in octavo.explain(model(), batch=3).layers}
    assert costs["fc"].nbytes == octavo.Format("int4:g32").nbytes((32, 64)) + 4 * 32
    assert costs["embed"].nbytes == 3 * octavo.Format("mxint8").nbytes((1, 64))
    assert costs["head"].nbytes == costs["simulated"].nbytes == 4 * (32 * 8 + 8)
    assert costs["conv"].nbytes == octavo.Format("mxint8").nbytes((8, 36)) + 2 * 4 * 8 * 36 + 4 * 8
    assert costs["fc"].format == "int4:g32" and costs["simulated"].format == "mxint8" and costs["head"].format is None


def test_kernels_are_named():
    layers = model()
    costs = {cost.path: cost for cost in octavo.explain(layers).layers}
    assert costs["fc"].kernel == octavo.linear.kernel("int4:g32", 1, 32, 64, torch.float32)
    assert (
        costs["integer"].kernel == octavo.linear.kernel("int8", 1, 32, 64, torch.float32, "int8") != costs["fc"].kernel
    )
    assert costs["conv"].kernel == "decode + torch"
    assert (costs["simulated"].kernel, costs["head"].kernel, costs["embed"].kernel) == ("simulated", "torch", "gather")


def test_times_follow_bytes_and_totals_add_up():
    costs = octavo.explain(model())
    assert costs.bandwidth > 1e8 and costs.bandwidth == octavo.explain(model()).bandwidth
    assert all(cost.seconds == cost.nbytes / costs.bandwidth for cost in costs.layers)
    assert costs.nbytes == sum(cost.nbytes for cost in costs.layers)
    assert json.loads(json.dumps(costs.as_dict()))["nbytes"] == costs.nbytes


def test_the_table_names_every_layer_and_the_total():
    text = str(octavo.explain(model(), batch=4))
    for name in ("embed", "fc", "conv", "decode + torch", "50 x 64", "total of 6", "batch 4"):
        assert name in text
    assert "(itself)" in str(octavo.explain(model().fc))


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, 10**30])
def test_batches_are_positive_integers(batch):
    with pytest.raises(ModelError, match="batch is"):
        octavo.explain(model(), batch=batch)


def test_models_without_weights_are_refused():
    with pytest.raises(ModelError, match="without linear layers"):
        octavo.explain(nn.GELU())


def test_strict_refuses_layers_without_a_kernel_and_no_others():
    layers, x = model(), torch.randn(1, 4, 5, 5)
    with octavo.strict():
        layers.fc(torch.randn(2, 64))
        layers.embed(torch.tensor([1]))
        layers.integer(torch.randn(2, 64))
        with pytest.raises(KernelError, match="PackedConv2d"):
            layers.conv(x)
        with octavo.strict(False):
            layers.conv(x)
    layers.conv(x)


def test_strict_may_be_set_for_the_whole_process(monkeypatch):
    from octavo import settings

    monkeypatch.setenv("OCTAVO_STRICT", "yes")
    with pytest.raises(SettingError, match="OCTAVO_STRICT='yes'; accepted are 0 and 1"):
        settings.apply()
    program = "from octavo import settings\nassert settings.is_strict()\nwith settings.strict(False): assert not settings.is_strict()"
    monkeypatch.setenv("OCTAVO_STRICT", "1")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_no_model_is_refused():
    with pytest.raises(DTypeError, match=r"explain tells about a torch.nn.Module, got NoneType"):
        octavo.explain(None)
