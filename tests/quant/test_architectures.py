"""Every layer of many architectures, quantized alone to one bit: the output changes, or a warning or error names it.

Run as a program it prints a row for each architecture: modules with parameters, how many changed the output, were
named, were wrong.
"""

import sys
import time
import warnings

import octavo
import pytest
import torch
from helpers.architectures import ARCHITECTURES as SWEPT
from helpers.architectures import IDS, gap, of, outputs
from octavo import DTypeError, FormatError, UnusedLayerWarning
from torch import nn

FORMATS = ("binary", "ternary")
GAP = 2e-5  # packed against simulated, relative to the largest output: sums in another order


class Recurrent(nn.Module):
    """Recurrent and transposed layers of torch."""

    def __init__(self, cell=nn.LSTM):
        super().__init__()
        self.embed, self.cell = nn.Embedding(61, 16), cell(16, 16, batch_first=True)
        self.up, self.head = nn.ConvTranspose1d(16, 16, 2), nn.Linear(16, 61)

    def forward(self, ids):
        x, _ = self.cell(self.embed(ids))
        return self.head(self.up(x.transpose(1, 2)).transpose(1, 2))


class Encoder(nn.Module):
    """Torch's own transformer, whose fast path reads weights past its layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 32), nn.Linear(32, 61)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


class Attends(nn.Module):
    """MultiheadAttention alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(61, 32), nn.MultiheadAttention(32, 4), nn.Linear(32, 61)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.attend(x, x, x)[0])


class ReadsPast(nn.Module):
    """A model that reads weights and biases itself, and has a layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.embed, self.dense, self.spare = nn.Embedding(61, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.mix, self.head = nn.Conv1d(16, 16, 3, padding=1, groups=4), nn.Linear(16, 61)

    def forward(self, ids):
        x = nn.functional.embedding(ids, self.embed.weight)
        x = x @ self.dense.weight.t() + self.dense.bias
        x = nn.functional.conv1d(x.transpose(1, 2), self.mix.weight, self.mix.bias, padding=1, groups=4)
        return torch.addmm(self.head.bias, x.transpose(1, 2).flatten(0, 1), self.head.weight.T)


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
ARCHITECTURES = {
    "reads past": (ReadsPast, {"ids": IDS}),
    "nn.LSTM, ConvTranspose": (Recurrent, {"ids": IDS}),
    "nn.GRU, ConvTranspose": (lambda: Recurrent(nn.GRU), {"ids": IDS}),
    "nn.TransformerEncoder": (Encoder, {"ids": IDS}),
    "nn.MultiheadAttention": (Attends, {"ids": IDS}),
    "MobileBert": of(
        "MobileBertForMaskedLM", "MobileBertConfig", **{**SMALL, "intermediate_size": 64}, embedding_size=16,
        intra_bottleneck_size=16, num_feedforward_networks=2, true_hidden_size=16,
    ),
    "RWKV, rescaled": of(
        "RwkvForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=61, attention_hidden_size=32
    ),
    **SWEPT,
}  # fmt: skip

QUICK = (
    "reads past", "nn.LSTM, ConvTranspose", "nn.TransformerEncoder", "DebertaV2", "MobileBert", "Mamba", "Mixtral",
)  # fmt: skip


def build(name):
    make, inputs = ARCHITECTURES[name]
    if make.__module__ != __name__ and not isinstance(make, type):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():  # norms and biases that begin as 1 and 0 hide what goes through them
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model, inputs


def layers_of(model):
    """Paths of all modules with parameters of their own, layers that a recipe reaches or not."""
    return [
        path
        for path, module in model.named_modules()
        if path and any(p is not None for p in module._parameters.values())
    ]


def try_layer(model, inputs, path, text, expected):
    """Return ``changed``, ``named`` or ``wrong`` for one layer, and how far the packed model is from the simulated."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            simulated = octavo.quantize_model(model, {"rules": [{"name": path, "weight": text}]}, progress=False)
        except (FormatError, DTypeError) as error:  # no layer that takes formats, or a weight that something computes
            return "named" if path in str(error) else "wrong", 0.0
        found = outputs(simulated, inputs)
    named = {
        layer for entry in caught if isinstance(entry.message, UnusedLayerWarning) for layer in entry.message.layers
    }
    packed = outputs(octavo.pack_model(simulated, inplace=True), inputs)
    apart = max(gap(a, b) for a, b in zip(packed, found, strict=True))
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return "named" if path in named else "wrong" if same else "changed", apart


def measure(name):
    """Return the verdict on each layer of an architecture, the formats in turn, and the largest gap of packing."""
    model, inputs = build(name)
    expected = outputs(model, inputs)
    verdicts, largest = {}, 0.0
    for number, path in enumerate(layers_of(model)):
        verdicts[path], apart = try_layer(model, inputs, path, FORMATS[number % len(FORMATS)], expected)
        largest = max(largest, apart)
    return verdicts, largest


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_every_layer_changes_the_output_or_is_named(name):
    verdicts, largest = measure(name)
    assert verdicts and set(verdicts.values()) <= {"changed", "named"}, verdicts
    assert largest <= GAP


def main():
    total = {"changed": 0, "named": 0, "wrong": 0}
    print(f"{'architecture':26}{'layers':>8}{'changed':>9}{'named':>7}{'wrong':>7}{'packed gap':>12}{'seconds':>9}")
    for name in sys.argv[1:] or ARCHITECTURES:
        start = time.perf_counter()
        try:
            verdicts, largest = measure(name)
        except Exception as error:  # a row for every architecture
            print(f"{name:26} {type(error).__name__}: {error}"[:300], flush=True)
            continue
        counts = {verdict: list(verdicts.values()).count(verdict) for verdict in total}
        for verdict, count in counts.items():
            total[verdict] += count
        cells = "".join(
            f"{counts[verdict]:>{width}}" for verdict, width in (("changed", 9), ("named", 7), ("wrong", 7))
        )
        seconds = time.perf_counter() - start
        print(f"{name:26}{len(verdicts):>8}{cells}{largest:>12.1e}{seconds:>9.1f}", flush=True)
        for path, verdict in verdicts.items():
            if verdict == "wrong":
                print(f"    wrong: {path}")
    print(f"{sum(total.values())} layers: {total}")


if __name__ == "__main__":
    main()
