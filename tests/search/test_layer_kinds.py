"""compress_model takes models of every kind of layer; a solver that does not fit a layer is left out, and told."""

import octavo
import pytest
import torch
from helpers.quick import spread
from octavo import quantize_model
from octavo.errors import FormatError
from octavo.search import measure_sensitivity, tune
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::octavo.OctavoWarning")


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Bilinear(8, 8, 4)

    def forward(self, x):
        return self.second(self.first(x), x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        return self.attention(x, x, x)[0].mean(1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.recurrent, self.last = nn.Linear(8, 8), kind(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.recurrent(self.first(x))[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.inner(self.words(ids)))


def convolution(kind, size, **options):
    dimensions = int(kind.__name__[-2])
    layer = kind(8, 8, size, **options)
    shape = (8, *[5] * dimensions)
    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(layer(torch.zeros(1, *shape)).numel(), 4)), shape


def with_zeros():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].weight[:3] = 0
        model[2].weight.zero_()
    return model


IDS = "ids"  # in place of a shape: batches are ids
KINDS = {
    "depthwise": lambda: convolution(nn.Conv2d, 3, groups=8),
    "depthwise, reflected": lambda: convolution(nn.Conv1d, 3, padding=1, padding_mode="reflect", groups=8),
    "grouped 1d": lambda: convolution(nn.Conv1d, 3, groups=2),
    "grouped 2d": lambda: convolution(nn.Conv2d, 3, groups=4),
    "grouped 3d": lambda: convolution(nn.Conv3d, 3, groups=2),
    "transposed": lambda: convolution(nn.ConvTranspose2d, 3),
    "transposed, grouped": lambda: convolution(nn.ConvTranspose1d, 3, groups=2),
    "circular": lambda: convolution(nn.Conv2d, 3, padding=1, padding_mode="circular"),
    "pointwise": lambda: convolution(nn.Conv2d, 1),
    "bilinear": lambda: (Bilinear(), (8,)),
    "attention": lambda: (Attention(), (5, 8)),
    "encoder": lambda: (nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 4)), (5, 8)),
    "bag": lambda: (nn.Sequential(nn.EmbeddingBag(20, 16), nn.Linear(16, 4)), IDS),
    "table alone": lambda: (nn.Sequential(nn.Embedding(20, 16), nn.Flatten()), IDS),
    "tied": lambda: (Tied(), IDS),
    "lstm": lambda: (Recurrent(nn.LSTM), (5, 8)),
    "gru": lambda: (Recurrent(nn.GRU), (5, 8)),
    "of one number": lambda: (nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 1), nn.Linear(1, 3)), (8,)),
    "rows of zeros": lambda: (with_zeros(), (8,)),
}


def made(name):
    torch.manual_seed(0)
    model, shape = KINDS[name]()
    batches = [torch.randint(0, 20, (3, 5)) if shape is IDS else torch.randn(3, *shape) for _ in range(4)]
    return model, batches


@pytest.mark.parametrize("name", spread(KINDS, 2))
def test_models_of_every_kind_of_layer_are_compressed(name):
    model, batches = made(name)
    found = octavo.compress_model(
        model, max_loss=1e6, data=batches, formats=["int4:channel"], fast=True, progress=False
    )
    assert torch.isfinite(found.model(batches[0])).all()
    told = [row["why"] for row in found.report["rejected"] if row["what"].startswith("gptq on 0")]
    grouped = name.startswith(("grouped 1", "grouped 2", "grouped 3", "depthwise"))
    wanted = grouped and found.found.chosen.point.choice["0"] != "keep"
    assert any("no one matrix multiplies" in why for why in told) == wanted


@pytest.mark.parametrize("name", ["depthwise", "tied", "table alone"])
def test_methods_that_do_not_fit_are_left_out_and_told(name):
    model, batches = made(name)
    held = measure_sensitivity(model, batches, ["int4:channel"], progress=False)
    choice = dict.fromkeys((group.name for group in held.groups), "int4:channel")
    tuned = tune(model, choice, held, batches, progress=False)
    left = {"depthwise": {"gptq on 0"}, "tied": {"gptq on words", "hqq on words"}, "table alone": {"gptq on 0", "bias"}}
    assert {what for what, _ in tuned.left_out} == left[name]
    assert all(f"{what}: left out, {why}" in str(tuned) for what, why in tuned.left_out)
    assert tuned.loss <= tuned.before


def test_gptq_of_a_grouped_convolution_is_refused_before_anything_runs():
    model, _ = made("grouped 2d")

    def batches():
        raise AssertionError("read")
        yield

    with pytest.raises(FormatError, match=r"^0: 'int4:channel@gptq': no one matrix .*@mse or @hqq"):
        quantize_model(model, "type:Conv2d int4:channel@gptq", calibration=batches(), progress=False)
