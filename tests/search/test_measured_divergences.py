"""Sensitivity is what quantize_model does to the outputs, one group at a time, found with shared passes."""

import copy
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from octavo import explain, pack_model, quantize_model
from octavo.errors import CalibrationError, ConfigError, DTypeError, FormatError, ModelError
from octavo.quant.calibration import undisturbed
from octavo.search import allocate, measure_sensitivity, measured_divergences, to_recipe
from octavo.search.layer_groups import find_groups
from octavo.search.prefix_cache import SharedPasses
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")

CLOSE = 1e-3  # relative: products in another order


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 4
        return self.out(scores.softmax(-1) @ self.v(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm = Attention(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(x)
        y = self.feed(self.norm(x))
        y += x  # in place, into what another module gave
        return y


class Model(nn.Module):
    """Tied embeddings, three blocks, scores of 20 tokens."""

    def __init__(self, width=32, tied=True):
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 20, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


def batches(count=3, rows=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 20, (rows, 9), generator=generator) for _ in range(count)]


def kl(model, other, data):
    with torch.no_grad():
        pairs = [(model(ids).double().log_softmax(-1), other(ids).double().log_softmax(-1)) for ids in data]
    return torch.cat([(a.exp() * (a - b)).sum(-1).flatten() for a, b in pairs]).mean().item()


FORMATS = ["int4:g16", "int3:channel@mse", "mxfp4@mse", "int2:g16@hqq"]


def test_loss_is_that_of_quantize_model_with_the_group_alone(model):
    data = batches()
    held = measure_sensitivity(model, data, FORMATS, progress=False)
    assert held.formats == (*FORMATS, "keep") and held.divergence == "kl"
    for row, group in enumerate(held.groups):
        for column, text in enumerate(FORMATS):
            recipe = "; ".join(f"{layer} {text}" for layer in group.layers)
            wanted = kl(model, quantize_model(model, recipe, progress=False), data)
            assert held.loss[row, column] == pytest.approx(wanted, rel=CLOSE, abs=1e-7), (group.name, text)
    assert (held.loss[:, -1] == 0).all()


def test_inputs_are_measured_as_quantize_model_rounds_them(model):
    data = batches()
    texts = ["int4@mse", "mxint4", "int4:tensor@quantile:0.99"]
    held = measure_sensitivity(model, data, texts, roles=("weight", "input"), progress=False)
    inputs = [(row, group) for row, group in enumerate(held.groups) if group.role == "input"]
    assert len(inputs) == 13  # of a block q with k and v, out, two of feed; the head
    for row, group in inputs[::3]:
        for column, text in enumerate(texts):
            recipe = "; ".join(f"{layer} input={text}" for layer in group.layers)
            wanted = kl(model, quantize_model(model, recipe, calibration=data, progress=False), data)
            assert held.loss[row, column] == pytest.approx(wanted, rel=CLOSE, abs=1e-7), (group.name, text)


def test_gptq_is_measured_from_the_inputs_of_the_float_model(model):
    data = batches()
    held = measure_sensitivity(model, data, ["int3:g16", "int3:g16@gptq"], progress=False)
    words = next(row for row, group in enumerate(held.groups) if "words" in group.layers)
    assert math.isnan(held.loss[words, 1]) and not math.isnan(held.loss[words, 0])  # rows that are read
    row = next(row for row, group in enumerate(held.groups) if group.layers == ("blocks.0.attention.out",))
    other = quantize_model(model, "blocks.0.attention.out int3:g16@gptq", calibration=data, progress=False)
    assert held.loss[row, 1] == pytest.approx(kl(model, other, data), rel=CLOSE)
    others = [row for row in range(len(held.groups)) if row != words]
    assert held.loss[others, 1].sum() < held.loss[others, 0].sum()


def test_layers_that_read_one_tensor_or_hold_one_parameter_are_one_group(model):
    held = measure_sensitivity(model, batches(1), ["int8"], progress=False)
    names = {group.name: group for group in held.groups}
    assert set(names["words"].layers) == {"words", "head"} and names["words"].tensors == ("words.weight",)
    assert names["blocks.1.attention.q+k+v"].elements == 3 * 32 * 32
    assert names["blocks.1.attention.q+k+v"].macs == 9 * 3 * 32 * 32
    joined = measure_sensitivity(
        model, batches(1), ["int8"], share=["blocks.*.attention.out"], exclude=["blocks.0.**"], progress=False
    )
    assert ("blocks.1.attention.out", "blocks.2.attention.out") in {group.layers for group in joined.groups}
    assert len(joined.kept) == 6 and all(name.startswith("blocks.0.") for name in joined.kept)


def test_experts_are_one_group():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = (
                nn.Linear(16, 3),
                nn.ModuleList(nn.ModuleDict({"up": nn.Linear(16, 16)}) for _ in range(3)),
            )

        def forward(self, x):
            return sum(
                g[..., None] * e["up"](x)
                for g, e in zip(self.gate(x).softmax(-1).unbind(-1), self.experts, strict=True)
            )

    held = measure_sensitivity(Mixture(), [torch.randn(4, 16)], ["int4:g16"], progress=False)
    assert {group.layers for group in held.groups} == {("gate",), tuple(f"experts.{n}.up" for n in range(3))}


def test_the_model_stays_as_it_was(model):
    before, grads = copy.deepcopy(model.state_dict()), model.head.weight.grad
    model.train()
    for method in ("divergence", "fisher"):
        measure_sensitivity(
            model, batches(), ["int4:g16", "int8@mse"], roles=("weight", "input"), method=method, progress=False
        )
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is grads for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all("forward" not in vars(module) for module in model.modules())


def test_bytes_are_those_of_the_packed_model(model):
    texts = ["int4:g16@mse", "mxfp4", "int3:channel", "uint4:g8", "nvfp4", "int8@mse"]
    held = measure_sensitivity(model, batches(), texts, roles=("weight", "input"), progress=False)
    random = np.random.default_rng(0)
    for _ in range(6):
        choice = {
            group.name: str(random.choice(held.formats if group.role == "weight" else ["int8@mse", "keep", "mxfp4"]))
            for group in held.groups
        }
        choice["words"] = "int4:g16@mse"
        packed = pack_model(
            quantize_model(model, to_recipe(choice, held), calibration=batches(), progress=False), inplace=True
        )
        columns = [held.formats.index(choice[group.name]) for group in held.groups]
        assert held.nbytes[range(len(columns)), columns].sum() + held.fixed_nbytes == explain(packed).stored


def test_estimates_are_made_once_for_a_journal(model, tmp_path, monkeypatch):
    texts = ["int4:g32", "mxint8", "uint4:g64"]

    def estimated(count=6, **more):
        return measure_sensitivity(
            model, batches(count), texts, method="fisher", journal=tmp_path / "journal", progress=False, **more
        ).loss

    first = estimated()
    other = estimated(3)
    monkeypatch.setattr(measured_divergences, "fisher_scores", None)
    assert np.array_equal(estimated(), first, equal_nan=True) and not np.array_equal(first, other)
    assert np.array_equal(estimated(3), other, equal_nan=True)
    with pytest.raises(TypeError):
        estimated(roles=("input",))


def test_fisher_scores_rank_as_divergences_do(model):
    texts = ["int2:g16", "int3:g16", "int4:g16", "int6:g16"]
    for roles in (("weight",), ("input",)):
        measured = measure_sensitivity(model, batches(6), texts, roles=roles, progress=False)
        estimated = measure_sensitivity(model, batches(6), texts, roles=roles, method="fisher", progress=False)
        assert estimated.method == "fisher" and estimated.agreement(measured) > 0.85
    # Small changes: the estimate is of the size of what is measured.
    assert 0.3 < np.median(estimated.loss[:, 3] / measured.loss[:, 3]) < 3


def test_a_journal_gives_back_what_was_measured(model, tmp_path):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    first = measure_sensitivity(model, batches(), ["int4:g16", "mxfp4"], journal=tmp_path, progress=False)
    many, lines = len(calls), (tmp_path / "study.jsonl").read_bytes().splitlines(keepends=True)
    calls.clear()
    again = measure_sensitivity(model, batches(), ["int4:g16", "mxfp4"], journal=tmp_path, progress=False)
    assert np.array_equal(first.loss, again.loss) and len(calls) < 15 < many
    # Killed in the midst of a line: the rest is measured.
    (tmp_path / "study.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:20])
    resumed = measure_sensitivity(model, batches(), ["int4:g16", "mxfp4"], journal=tmp_path, progress=False)
    assert np.array_equal(first.loss, resumed.loss)
    handle.remove()
    with torch.no_grad():
        model.blocks[0].norm.weight += 0.1  # another model
    other = measure_sensitivity(model, batches(), ["int4:g16", "mxfp4"], journal=tmp_path, progress=False)
    assert not np.array_equal(first.loss, other.loss)


def shares(model, data):
    """Check that resumed passes give the bits of whole ones, for a change at any layer; return the notes."""
    with undisturbed(model):
        found = find_groups(model, data[0], ("weight",), (), ())
        layers = [model.get_submodule(site.module) for group in found.groups for site in group.sites]
        passes = SharedPasses(model, data, layers)
        whole = [rows.clone() for rows in passes.rows([])]
        for group in found.groups:
            modules = [model.get_submodule(site.module) for site in group.sites]
            assert all(map(torch.equal, passes.rows(modules), whole)), group.group.name
    return passes


def test_resumed_passes_have_the_bits_of_whole_ones(model):
    passes = shares(model, batches())
    assert passes.notes == [] and len(passes._before([model.blocks[2].attention.out])) >= 2
    calls = []
    model.blocks[0].feed[0].register_forward_hook(lambda *_: calls.append(1))
    list(passes.rows([model.blocks[1].attention.q]))
    assert not calls


def test_a_model_that_keeps_state_between_modules_runs_whole():
    class Leaky(Model):
        """What a module inside the first block leaves decides the scores."""

        def forward(self, ids):
            handle = self.blocks[0].feed.register_forward_hook(lambda _, args, y: setattr(self, "left", y.mean()))
            y = super().forward(ids)
            handle.remove()
            left, self.left = self.left, None
            return y * left

    torch.manual_seed(0)
    model = Leaky().eval()
    held = measure_sensitivity(model, batches(1), ["int4:g16"], progress=False)
    data = batches(1)
    row = next(row for row, group in enumerate(held.groups) if group.layers == ("blocks.0.feed.0",))
    wanted = kl(model, quantize_model(model, "blocks.0.feed.0 int4:g16", progress=False), data)
    assert held.loss[row, 0] == pytest.approx(wanted, rel=CLOSE)
    assert any("keeps state between its modules" in note for note in held.notes)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit"])
def test_models_of_transformers_share_passes(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = torch.randint(3, 60, (4, 7), generator=torch.Generator().manual_seed(0))
    small = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**small))
        data = [{"input_ids": ids, "attention_mask": (ids > 9).long()}, {"input_ids": ids + 1}]
    elif name == "gpt2":
        config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        model, data = transformers.GPT2LMHeadModel(config), [{"input_ids": ids}]
    elif name == "llama":
        config = transformers.LlamaConfig(**small, num_key_value_heads=2)
        model, data = transformers.LlamaForCausalLM(config), [{"input_ids": ids}, {"input_ids": ids - 1}]
    elif name == "t5":
        config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        model = transformers.T5ForConditionalGeneration(config)
        data = [{"input_ids": ids, "decoder_input_ids": ids[:, :3]}]
    else:
        size = {key: value for key, value in small.items() if key != "vocab_size"}
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**size, image_size=16, patch_size=8))
        data = [{"pixel_values": torch.randn(2, 3, 16, 16)}]
    passes = shares(model.eval(), data)
    assert passes.notes == []
    held = measure_sensitivity(model, data, ["int3:g16"], progress=False)
    assert held.divergence == ("cosine" if name == "bert" else "kl") and np.nanmax(held.loss) > 1e-6
    point = allocate(held).at(bits=16)
    quantize_model(model, to_recipe(point, held), progress=False)


class Masked(nn.Module):
    """Scores of tokens by the token alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 32), nn.Linear(32, 8)

    def forward(self, ids, attention_mask):
        return self.head(self.embed(ids))


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("output", [None, lambda given, batch: given])
def test_padding_of_own_models_does_not_count(labelled, output):
    torch.manual_seed(0)
    model, ids = Masked(), torch.randint(0, 16, (4, 6))
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[:, 4:] = 0

    def loss(ids):
        batch = {"ids": ids, "attention_mask": mask}
        data = [(batch, torch.zeros(4))] if labelled else [batch]
        return measure_sensitivity(model, data, ["int2:channel"], output=output, progress=False).loss

    other = ids.clone()
    other[:, 4:] = 3
    seen = ids.clone()
    seen[0, 0] = (seen[0, 0] + 1) % 16
    assert np.array_equal(loss(ids), loss(other)) and not np.array_equal(loss(ids), loss(seen))


def test_an_own_reading_of_outputs_decides_what_counts(model):
    data = batches()
    held = measure_sensitivity(model, data, ["int3:g16"], output=lambda given, batch: given.mean(1), progress=False)
    other = quantize_model(model, "blocks.1.feed.0 int3:g16", progress=False)
    row = next(row for row, group in enumerate(held.groups) if group.layers == ("blocks.1.feed.0",))
    with torch.no_grad():
        pairs = [(model(ids).mean(1), other(ids).mean(1)) for ids in data]
    wanted = 1 - torch.cat([functional.cosine_similarity(a.double(), b.double()) for a, b in pairs]).mean().item()
    assert held.divergence == "cosine" and held.loss[row, 0] == pytest.approx(wanted, rel=1e-3)


def test_layers_without_effect_are_told(model):
    model.unused = nn.Linear(4, 4)
    held = measure_sensitivity(model, batches(1), ["int4"], progress=False)
    assert any("no forward pass calls: unused" in note for note in held.notes)
    assert any("no format of these changes the output" in note for note in held.notes)


def test_wrong_arguments_are_refused_before_anything_runs(model):
    data = batches(1)
    quantized = quantize_model(model, "int8", progress=False)
    for call, error, message in [
        (lambda: measure_sensitivity(model, data, []), ConfigError, "no format"),
        (lambda: measure_sensitivity(model, data, ["int99"]), FormatError, "int99"),
        (lambda: measure_sensitivity(model, data, ["int8"], roles=("bias",)), ConfigError, "weight and input"),
        (lambda: measure_sensitivity(model, data, ["int8"], roles="weight"), DTypeError, "roles is 'weight'"),
        (lambda: measure_sensitivity(model, data, ["int8"], method="guess"), ConfigError, "divergence, fisher"),
        (lambda: measure_sensitivity(model, data, ["int8"], divergence="l1"), ConfigError, "kl, cosine, mse"),
        (lambda: measure_sensitivity(model, data, ["int8"], exclude=["zebra"]), ModelError, "zebra"),
        (lambda: measure_sensitivity(model, data, ["int8"], share=["zebra"]), ModelError, "zebra"),
        (lambda: measure_sensitivity(model, [], ["int8"]), CalibrationError, "no samples"),
        (lambda: measure_sensitivity(model, [torch.randn(2, 2)], ["int8"]), CalibrationError, "batch 0"),
        (lambda: measure_sensitivity(quantized, data, ["int8"]), DTypeError, "quantized already"),
        (lambda: measure_sensitivity(nn.LayerNorm(4), [torch.randn(2, 4)], ["int8"]), ModelError, "no linear layer"),
        (lambda: measure_sensitivity("model", data, ["int8"]), DTypeError, "torch.nn.Module"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_public_names_stay_functions_whatever_is_imported_first():
    code = (
        "import octavo.search.measured_divergences, octavo.search.verification\n"
        "import octavo\nassert callable(octavo.search.measure_sensitivity) and octavo.search.journal.NAME"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
