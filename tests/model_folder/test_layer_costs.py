"""explain: the kernel, bytes and time of every layer, and what strict refuses."""

import json
import subprocess
import sys

import octavo
import pytest
import torch
from octavo import DTypeError, KernelError, ModelError, SettingError
from octavo.nn import PackedConv2d, PackedEmbedding, PackedLinear, QuantLinear
from octavo.recipe.spec import LayerPlan, Spec
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
    assert costs["fc"].kernel == octavo.ops.linear.kernel("int4:g32", 1, 32, 64, torch.float32)
    assert (
        costs["integer"].kernel
        == octavo.ops.linear.kernel("int8", 1, 32, 64, torch.float32, "int8")
        != costs["fc"].kernel
    )
    assert costs["conv"].kernel == "decode + torch"
    assert (costs["simulated"].kernel, costs["head"].kernel, costs["embed"].kernel) == ("simulated", "torch", "gather")


def test_formats_of_inputs_and_the_bound_are_told():
    made = octavo.quantize_model(nn.Sequential(nn.Linear(512, 64)), "int4:g32 input=int8:g32", progress=False)
    packed = octavo.pack_model(made)
    cost = octavo.explain(packed).layers[0]
    assert (cost.format, cost.input) == ("int4:g32", "int8:g32")
    assert cost.kernel == octavo.ops.linear.kernel("int4:g32", 1, 64, 512, torch.float32, "int8:g32", rounded=True)
    assert "int4:g32 x int8:g32" in str(octavo.explain(packed)) and "2^-20" in str(octavo.explain(packed))
    assert "2^-20" not in str(octavo.explain(nn.Linear(4, 4)))


def test_times_follow_bytes_and_totals_add_up():
    costs = octavo.explain(model())
    assert costs.bandwidth > 1e8 and costs.bandwidth == octavo.explain(model()).bandwidth
    assert all(cost.seconds == cost.nbytes / costs.bandwidth for cost in costs.layers)
    assert costs.nbytes == sum(cost.nbytes for cost in costs.layers)
    assert json.loads(json.dumps(costs.as_dict()))["nbytes"] == costs.nbytes


class Cell(nn.LSTM):
    """A subclass, which may compute something else: none is made of layers."""


class Mixed(nn.Module):
    """Layers of every kind, and tensors of none: recurrent, states, norms, buffers, ties."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 64), nn.Linear(64, 50)
        self.head.weight = self.embed.weight
        self.conv, self.up = nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 4, 3)
        self.cell, self.norm, self.scale = Cell(64, 32), nn.BatchNorm1d(64), nn.LayerNorm(64)
        self.decay = nn.Parameter(torch.randn(4, 64, 32))
        self.attend = nn.MultiheadAttention(64, 4)
        self.blocks = nn.ModuleList([nn.Linear(64, 64)])
        self.blocks.append(self.blocks[0])
        self.register_buffer("steps", torch.arange(9))
        self.register_buffer("table", torch.zeros(33), persistent=False)


def bytes_in_file(model, folder):
    octavo.save_model(model, folder)
    return sum(entry.nbytes for entry in octavo.inspect(folder / "model.octavo.safetensors"))


def ways(made):
    recipe = "int4:g32; type:Linear int8:channel input=int8; type:Embedding int8:channel"
    simulated = octavo.quantize_model(made, recipe, progress=False)
    static = octavo.quantize_model(made, "int4:g32@mse", progress=False)
    return {"float": made, "simulated": simulated, "packed": octavo.pack_model(simulated), "static": static}


@pytest.mark.parametrize("way", ["float", "simulated", "packed", "static"])
def test_every_tensor_is_listed_and_the_total_is_that_of_the_file(way, tmp_path):
    torch.manual_seed(0)
    made = ways(Mixed())[way]
    costs = octavo.explain(made)
    assert costs.stored == bytes_in_file(made, tmp_path / "model")
    listed = {other.name: other for other in costs.others}
    assert {"decay", "cell.weight_hh_l0", "norm.running_mean", "steps", "table"} <= set(listed)
    assert listed["table"].stored == 0 and listed["steps"].stored == 72 and listed["decay"].owner == "Mixed"
    layers = {cost.path for cost in costs.layers}
    tied = {name for name, _ in made.named_parameters(remove_duplicate=False)} - {n for n, _ in made.named_parameters()}
    for name, _ in [*made.named_parameters(), *made.named_buffers()]:
        owners = {name[:place] for place, letter in enumerate(name) if letter == "."}
        assert name in listed or owners & layers or name in tied, name
    text = str(costs)
    assert "decay" in text and f"total of {len(costs.layers)} and {len(costs.others)} tensors" in text
    assert json.loads(json.dumps(costs.as_dict()))["stored"] == costs.stored


def test_models_without_layers_are_listed(tmp_path):
    model = nn.Sequential(nn.LayerNorm(16), nn.LSTM(16, 16))
    costs = octavo.explain(model)
    assert not costs.layers and costs.stored == bytes_in_file(model, tmp_path / "model")
    assert octavo.explain(nn.Linear(4, 4)).stored == 80


TRANSFORMERS = {
    "Mixtral": {"num_key_value_heads": 2, "num_local_experts": 4}, "Jamba": {"num_key_value_heads": 2, "num_experts": 2},
    "Mamba": {}, "DebertaV2": {"relative_attention": True}, "GPTNeoX": {}, "Bert": {}, "Llama": {"num_key_value_heads": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_totals_are_those_of_the_file_for_models_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{name}Config")(vocab_size=64, **sizes, **TRANSFORMERS[name])
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config)
    for way, made in {"float": model, **ways(model)}.items():
        assert octavo.explain(made).stored == bytes_in_file(made, tmp_path / way), way


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
    with pytest.raises(ModelError, match="GELU without linear layers"):
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
    with pytest.raises(DTypeError, match=r"explain: model is None; accepted is a torch.nn.Module"):
        octavo.explain(None)
