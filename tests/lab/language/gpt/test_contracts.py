"""Every registered technique keeps the contracts, and every mistake that a contract is there for is caught by name."""

import pytest
import torch
from helpers.quick import spread
from lab.language.gpt.mixer_parts import SmoothedHead
from octavo.errors import ContractError, ModelError, SettingError
from octavo.lab.language.gpt import (
    GPT,
    Attention,
    GPTConfig,
    Softmax,
    Stream,
    TokenTable,
    contracts,
    modern,
    modern_skips,
    nocap_baseline,
)
from octavo.lab.language.gpt.attention_mixer import AttentionMixer
from octavo.lab.language.gpt.growing_rows import GrowingRows
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.language.gpt.softmax_head import SoftmaxHead
from octavo.lab.language.techniques import names, register, technique, techniques
from torch import nn

SMALL = dict(vocabulary=contracts.VOCABULARY, width=32, layers=4, heads=4, end_of_text=0)


@pytest.mark.parametrize("one", spread(techniques(), 4), ids=lambda one: f"{one.kind}-{one.name}")
def test_a_technique_keeps_the_contracts(one):
    contracts.check_technique(one)


def drawn(config):
    torch.manual_seed(0)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.5 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5))
    return model


@pytest.mark.parametrize("make", [nocap_baseline, modern, modern_skips])
@pytest.mark.parametrize("documents", [False, True])
def test_presets_keep_the_contracts(make, documents):
    from dataclasses import replace

    model = drawn(replace(make(**SMALL), keep_documents=documents))
    ids, targets = contracts.example_batch()
    contracts.check_causality(model, ids)
    contracts.check_normalization(model, ids)
    contracts.check_one_loss(model, ids, targets)
    contracts.check_decoding(model, ids)
    contracts.check_gradients(model, ids, targets)
    contracts.check_leak(model, ids, targets)


SWITCHES = [{"input_skip": True}, {"mirror_skip": True}, {"backout": True}, {"value_layers": (0, 3)}]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: next(iter(switch)))
def test_a_skip_starts_as_the_plain_model(switch):
    """C6 of the residual stream: factors begin where the skip does nothing, bit for bit."""
    plain = nocap_baseline(**SMALL)
    torch.manual_seed(0)
    wanted = GPT(plain)
    torch.manual_seed(0)
    made = GPT(GPTConfig.from_dict({**plain.as_dict(), "stream": {**plain.as_dict()["stream"], **switch}}))
    made.load_state_dict(wanted.state_dict(), strict=False)
    ids, _ = contracts.example_batch()
    if "value_layers" in switch:
        assert all(not table.weight.any() for table in made.values.values())
    assert torch.equal(made(ids), wanted(ids))


def small(**changes):
    base = dict(vocabulary=contracts.VOCABULARY, width=32, pattern="aa", mixers={"a": Attention(heads=4)})
    return drawn(GPTConfig(**{**base, **changes}))


class SeesTheFuture(AttentionMixer):
    """Fourier transform over positions and a non-linearity in the spectrum: padding does not make it causal."""

    def forward(self, x_BTD, context):
        length = x_BTD.shape[1]
        spectrum = torch.fft.rfft(x_BTD, n=2 * length, dim=1)
        return self.out(torch.fft.irfft(torch.complex(spectrum.real.relu(), spectrum.imag.relu()), dim=1)[:, :length])


class MixesChannels(AttentionMixer):
    """The supposed repair: a transform over the channels of each position, which mixes no positions."""

    def forward(self, x_BTD, context):
        return self.out(torch.fft.irfft(torch.fft.rfft(x_BTD, dim=-1).square(), dim=-1))


class Unnormalised(SoftmaxHead):
    """Scores of skip-grams taken for logarithms of probabilities."""

    def log_probs(self, h_ND):
        return nn.functional.logsigmoid(self.scores(h_ND))

    def nll(self, h_ND, y_N):
        return -self.log_probs(h_ND).gather(1, y_N[:, None])[:, 0]


def with_mixer(kind):
    model = small()
    for block in model.blocks:
        block.mixer.__class__ = kind
    return model


def with_head(kind):
    model = small()
    model.head.__class__ = kind
    return model


def test_a_leak_of_the_future_is_caught_by_name():
    ids, targets = contracts.example_batch()
    with pytest.raises(ContractError, match=r"^causality: .* sees the future"):
        contracts.check_causality(with_mixer(SeesTheFuture), ids)
    with pytest.raises(ContractError, match=r"^leak: "):
        contracts.check_leak(with_mixer(SeesTheFuture), ids, targets)


def test_a_mixer_that_mixes_nothing_is_caught_by_name():
    mixer = with_mixer(MixesChannels).blocks[0].mixer
    contracts.check_reach(mixer, (0,), 32)
    with pytest.raises(ContractError, match=r"^reach: position 20 does not depend on position 19"):
        contracts.check_reach(mixer, (1,), 32)


def test_an_unnormalised_head_is_caught_by_name():
    ids, _ = contracts.example_batch()
    with pytest.raises(ContractError, match=r"^normalization: probabilities of a position add up to"):
        contracts.check_normalization(with_head(Unnormalised), ids)


def test_a_smoothed_validation_loss_is_caught_by_name():
    with pytest.raises(ContractError, match=r"^one loss: .* smoothing"):
        contracts.check_one_loss(with_head(SmoothedHead), *contracts.example_batch())


def test_a_parameter_without_a_gradient_is_caught_by_name():
    model = small()
    model.forgotten = nn.Parameter(torch.zeros(3))
    with pytest.raises(ContractError, match=r"^gradients: forgotten"):
        contracts.check_gradients(model, *contracts.example_batch())


def test_a_parameter_without_a_rule_for_its_start_is_refused_by_name():
    model = small()
    model.blocks[1].forgotten = nn.Parameter(torch.zeros(3))
    with pytest.raises(ModelError, match=r"^blocks\.1\.forgotten: 0 rules"):
        initialize(model, "torch")


def test_a_decoder_that_forgets_is_caught_by_name():
    class Forgets(AttentionMixer):
        def step(self, x_BD, state, context):
            out, state = super().step(x_BD, state, context)
            return out, state | {name: GrowingRows(state[name].rows[:, :, -3:], 2) for name in ("key", "value")}

    with pytest.raises(ContractError, match=r"^decoding: position 4"):
        contracts.check_decoding(with_mixer(Forgets), contracts.example_batch()[0])


def test_an_off_switch_that_changes_a_bit_is_caught_by_name():
    with pytest.raises(ContractError, match=r"^off switch: "):
        contracts.check_off_switch(technique("head", "softmax"), Softmax(cap=1e6), Softmax())


def test_the_registry_refuses_what_it_cannot_tell_apart():
    with pytest.raises(SettingError, match="registered already"):
        register("head", "softmax", int, examples=(1,))
    with pytest.raises(SettingError, match="configures 'softmax' already"):
        register("head", "other", Softmax, examples=(Softmax(),))
    with pytest.raises(SettingError, match="kind is 'heads'"):
        register("heads", "other", int, examples=(1,))
    with pytest.raises(SettingError, match="examples"):
        register("head", "other", int, examples=())
    with pytest.raises(SettingError, match=r"head is 'x'; accepted are .*softmax"):
        technique("head", "x")
    assert "attention" in names("mixer")


def test_an_untied_head_begins_as_a_copy():
    model = small()
    ids, targets = contracts.example_batch()
    before = model(ids)
    model.head.untie()
    assert torch.equal(model(ids), before)
    assert model.head.project.weight is not model.embedding.table.weight
    contracts.check_gradients(model, ids, targets)
    with pytest.raises(ModelError, match="already"):
        model.head.untie()


def test_windows_end_exactly():
    """A window of w shows the own position and w - 1 before it, in training and in decoding, set by the model or a stage."""
    torch.manual_seed(0)
    mixer = AttentionMixer(Attention(heads=2, window=4), 16)
    initialize(mixer, "torch")
    x = torch.randn(1, 12, 16)
    context = contracts.MixingContext(torch.arange(12))
    before = mixer(x, context)
    for lag in range(8):
        changed = x.clone()
        changed[:, 10 - lag] += 1
        assert torch.equal(mixer(changed, context)[:, 10], before[:, 10]) == (lag >= 4), lag
    wide = AttentionMixer(Attention(heads=2), 16)
    wide.load_state_dict(mixer.state_dict())
    assert torch.equal(wide(x, contracts.MixingContext(torch.arange(12), None, 4)), before)


def test_packed_documents_are_as_if_alone():
    model = drawn(GPTConfig(
        vocabulary=61, width=32, pattern="aa", mixers={"a": Attention(heads=4)}, end_of_text=0, keep_documents=True,
        embedding=TokenTable(smear=True, pairs=50), stream=Stream(value_layers=(1,)),
    ))  # fmt: skip
    first, second = (torch.cat([torch.tensor([0]), torch.randint(1, 61, (length,))]) for length in (6, 10))
    packed = model(torch.cat([first, second])[None])
    alone = torch.cat([model(part[None]) for part in (first, second)], 1)
    assert torch.allclose(packed, alone, atol=1e-5)


@pytest.mark.parametrize("length", [1, 7, 33])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_attention_is_the_explicit_softmax(length, size):
    torch.manual_seed(0)
    mixer = AttentionMixer(Attention(heads=2, kv_heads=1, rotary="none", window=5), 2 * size)
    initialize(mixer, "torch")
    x = torch.randn(2, length, 2 * size)
    query, key, value = (
        part(x).unflatten(-1, (-1, size)).transpose(1, 2) for part in (mixer.query, mixer.key, mixer.value)
    )
    key, value = (part.repeat_interleave(2, 1) for part in (key, value))
    back = torch.arange(length)[:, None] - torch.arange(length)
    scores = (query @ key.mT * size**-0.5).masked_fill((back < 0) | (back >= 5), -torch.inf)
    wanted = mixer.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
    assert torch.allclose(mixer(x, contracts.MixingContext(torch.arange(length))), wanted, atol=1e-5)


def test_grouped_heads_with_copied_weights_are_all_heads():
    torch.manual_seed(0)
    few, all_heads = AttentionMixer(Attention(heads=4, kv_heads=2), 32), AttentionMixer(Attention(heads=4), 32)
    initialize(few, "torch")
    with torch.no_grad():
        for name in ("query", "out"):
            getattr(all_heads, name).weight.copy_(getattr(few, name).weight)
        for name in ("key", "value"):
            copied = getattr(few, name).weight.view(2, 8, 32).repeat_interleave(2, 0).view(32, 32)
            getattr(all_heads, name).weight.copy_(copied)
    x, context = torch.randn(2, 9, 32), contracts.MixingContext(torch.arange(9))
    assert torch.allclose(few(x, context), all_heads(x, context), atol=1e-6)
    assert (few.cached_values, all_heads.cached_values) == (2 * 2 * 8, 2 * 4 * 8)
