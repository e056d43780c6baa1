"""smooth_model: the function stays, outliers shrink, and norms that others read are left with a reason."""

import copy
import math

import pytest
import torch
from octavo import CalibrationError, DTypeError, FormatError, NonFiniteError, quantize_model
from octavo.quant import smooth_model
from torch import nn


def roughened(model, seed=0):
    """A model whose norms have channels a hundred times the others, as trained transformers do."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            with torch.no_grad():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
                parameter[::7] *= 30
    return model.eval()


class Block(nn.Module):
    """A pre-norm block whose norm feeds three layers, as a Llama's does; extra readers on request."""

    def __init__(self, norm=nn.LayerNorm, extra=None):
        super().__init__()
        torch.manual_seed(0)
        self.norm = norm(28)
        self.q, self.k, self.v = (nn.Linear(28, 28, bias=i > 0) for i in range(3))
        self.second_norm = norm(28)
        self.up = nn.Linear(28, 40)
        self.down = nn.Linear(40, 28)
        self.extra = extra

    def forward(self, x):
        h = self.norm(x)
        y = self.q(h).softmax(-1) * self.k(h.reshape(-1, 28)).view_as(x) + self.v(h)
        if self.extra:
            y = self.extra(self, y, h)
        x = x + y
        return x + self.down(torch.relu(self.up(self.second_norm(x))))


def batches(width=28, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 5, width, generator=generator) for _ in range(3)]


def difference(model, other, data):
    with torch.no_grad():
        wanted = torch.cat([model(x) for x in data])
        got = torch.cat([other(x) for x in data])
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_the_function_stays_and_outliers_shrink(norm, strength):
    model = roughened(Block(norm))
    smoothed = copy.deepcopy(model)
    report = smooth_model(smoothed, batches(), strength=strength)
    assert difference(model, smoothed, batches(seed=1)) < 1e-5
    assert [(fold.norm, fold.consumers) for fold in report.folds] == [
        ("norm", ("q", "k", "v")),
        ("second_norm", ("up",)),
    ]
    assert not report.skipped
    if strength:
        assert all(fold.after < fold.before for fold in report.folds)
    assert "norm -> q, k, v: largest channel" in str(report)


def test_an_iterator_of_batches_is_as_good_as_a_list():
    one, other = roughened(Block()), roughened(Block())
    smooth_model(one, batches(), progress=False)
    smooth_model(other, iter(batches()), progress=False)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_int8_activations_gain():
    model = roughened(Block())
    smoothed = copy.deepcopy(model)
    smooth_model(smoothed, batches())
    errors = []
    for float_model in (model, smoothed):
        quantized = quantize_model(float_model, "type:Linear weight=int8:channel input=int8", progress=False).eval()
        errors.append(difference(float_model, quantized, batches(seed=1)))
    assert errors[1] < errors[0]


def test_torch_encoder_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    model = roughened(nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)).double()
    smoothed = copy.deepcopy(model)
    report = smooth_model(smoothed, [batch.double() for batch in batches(32)])
    assert [fold.consumers for fold in report.folds] == [
        (f"layers.{i}.{name}",) for i in range(2) for name in ("self_attn", "linear1")
    ]
    assert report.skipped == {"norm": "the model returns its output"}
    assert difference(model, smoothed, [batch.double() for batch in batches(32, 1)]) < 1e-12


def test_post_norm_is_left():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = roughened(nn.Sequential(layer, nn.Linear(32, 3)))
    before = copy.deepcopy(model.state_dict())
    report = smooth_model(model, batches(32))
    assert [fold.norm for fold in report.folds] == ["0.norm2"]
    assert report.skipped == {"0.norm1": "its output is also read by add"}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0.norm2.weight", "0.norm2.bias", "1.weight"}


def also_written(model, y, h):
    h.add_(1.0)
    return y


def read_with_another(model, y, h):
    return y + model.q(y)


LEFT = {
    "a residual": (lambda model, y, h: y + h, "also read by add"),
    "written": (also_written, "also read by add_"),
    "another input": (read_with_another, "a Linear that reads its output reads others too"),
    "a product": (lambda model, y, h: y + (h @ h.transpose(1, 2)) @ y, "also read by bmm"),
}


@pytest.mark.parametrize("extra, reason", LEFT.values(), ids=LEFT)
def test_left_with_a_reason(extra, reason):
    model = roughened(Block(extra=extra))
    smoothed = copy.deepcopy(model)
    report = smooth_model(smoothed, batches())
    assert [fold.norm for fold in report.folds] == ["second_norm"]
    assert reason in report.skipped["norm"]
    assert difference(model, smoothed, batches(seed=1)) < 1e-5


def test_shared_weights_and_norms_without_are_left():
    model = Block()
    model.embed = nn.Embedding(28, 28)
    model.embed.weight = model.q.weight
    model.second_norm = nn.LayerNorm(28, elementwise_affine=False)
    report = smooth_model(model.eval(), batches())
    assert not report.folds
    assert report.skipped["norm"] == "a Linear that reads its output shares its weight"
    assert report.skipped["second_norm"] == "it has no weight for each channel"


class OneAndRMSNorm(nn.Module):
    """Scales with 1 + weight, as Gemma's does, so it cannot take scales in by division."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + self.weight)


def test_norms_that_do_not_scale_with_their_weight_are_left():
    model = roughened(Block(OneAndRMSNorm))
    before = copy.deepcopy(model.state_dict())
    report = smooth_model(model, batches())
    assert report.skipped["norm"] == "a OneAndRMSNorm does not scale with its weight"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, n_positions=20, bos_token_id=0, eos_token_id=0)  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    data = [{"input_ids": torch.randint(0, 50, (2, 7))} for _ in range(2)]
    with torch.no_grad():
        wanted = model(**data[0]).logits
    report = smooth_model(model, data)
    with torch.no_grad():
        torch.testing.assert_close(model(**data[0]).logits, wanted, rtol=1e-5, atol=1e-5)
    assert [fold.consumers for fold in report.folds] == [
        ("transformer.h.0.attn.c_attn",),
        ("transformer.h.0.mlp.c_fc",),
    ]
    assert report.skipped == {"transformer.ln_f": "a Linear that reads its output shares its weight"}


def test_modes_hooks_and_progress():
    model, told = Block(), []
    model.train()
    model.norm.eval()
    smooth_model(model, batches(), progress=lambda *stage: told.append(stage))
    assert model.training and not model.norm.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert told == [("measuring norms", 1, 1)]  # three batches of samples of one shape


WRONG = {
    "strength": (FormatError, "strength is 2", lambda m: smooth_model(m, batches(), strength=2)),
    "NaN strength": (NonFiniteError, "strength is nan", lambda m: smooth_model(m, batches(), strength=math.nan)),
    "model": (DTypeError, "model is 3", lambda m: smooth_model(3, batches())),
    "no batch": (CalibrationError, "no samples", lambda m: smooth_model(m, [])),
    "one tensor": (CalibrationError, "iterable of batches", lambda m: smooth_model(m, batches()[0])),
    "NaN": (NonFiniteError, "norm: the output", lambda m: smooth_model(m, [torch.full((1, 2, 28), math.nan)])),
    "quantized": (DTypeError, "q is quantized already", lambda m: smooth_model(quantize_model(m, "name:q int8"), batches())),
}  # fmt: skip


@pytest.mark.parametrize("error, match, attempt", WRONG.values(), ids=WRONG)
def test_refused(error, match, attempt):
    model = Block().eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=match):
        attempt(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dead", [1, 14, 27, 28])
def test_outliers_are_measured_against_channels_that_are_alive(dead):
    model = roughened(Block())
    with torch.no_grad():
        for norm in (model.norm, model.second_norm):
            norm.weight[:dead] = 0
            norm.bias[:dead] = 0
            norm.weight[dead:].fill_(1.0)
            norm.weight[-1] *= 100.0 if dead < 28 else 0.0
    report = smooth_model(model, [torch.randn(8, 28)], progress=False)
    assert report.folds
    for fold in report.folds:
        assert 1 <= fold.after <= fold.before <= 1000
