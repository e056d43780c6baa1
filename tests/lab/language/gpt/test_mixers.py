"""Mixers beyond attention: equal to their definitions, exact at borders, and causal where a plain transform is not."""

import pytest
import torch
from lab.language.gpt.mixer_parts import WIDTH, mixer_of, mixing_context
from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt import (
    GPT,
    Attention,
    ChunkSpectral,
    GatedConvolution,
    GPTConfig,
    LagKernel,
    LatentAttention,
    contracts,
)
from octavo.lab.language.gpt.attention_masks import causal_product
from octavo.lab.language.gpt.chunk_spectral import ChunkSpectralMixer
from octavo.lab.language.gpt.gated_convolution import GatedConvolutionMixer
from octavo.lab.language.gpt.lag_kernel import LagKernelMixer
from octavo.lab.language.gpt.latent_attention import LatentMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.rotary_positions import apply_rotary, frequencies
from torch import nn


def stepped(mixer, x):
    """The outputs of one step after another."""
    state, found = mixer.first_state(len(x), x.device), []
    for at in range(x.shape[1]):
        out, state = mixer.step(x[:, at], state, MixingContext(torch.tensor([at])))
        found.append(out)
    return torch.stack(found, 1)


MIXERS = [
    (LatentMixer, LatentAttention(heads=2, head_size=8, rotary_size=4, rank=6)),
    (LagKernelMixer, LagKernel(modes=3)),
    (ChunkSpectralMixer, ChunkSpectral(chunk=4, blocks=2, heads=2)),
    (GatedConvolutionMixer, GatedConvolution(reach=3)),
]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 15])
@pytest.mark.parametrize(("kind", "config"), MIXERS, ids=lambda value: getattr(value, "__name__", ""))
def test_steps_are_the_whole_at_lengths_around_borders(kind, config, length):
    """For latent attention the steps are the absorbed form, and the whole is the naive one."""
    mixer = mixer_of(kind, config)
    x = torch.randn(2, length, WIDTH)
    with torch.no_grad():
        assert torch.allclose(stepped(mixer, x), mixer(x, mixing_context(length)), atol=1e-5)


def test_latent_attention_of_full_rank_is_attention_with_partly_turned_heads():
    mixer = mixer_of(LatentMixer, LatentAttention(heads=2, head_size=8, rotary_size=4, rank=WIDTH))
    with torch.no_grad():
        mixer.latent.weight.copy_(torch.eye(WIDTH))
    x = torch.randn(2, 11, WIDTH)
    x = x * x.square().mean(-1, keepdim=True).rsqrt()  # normed: the latent's norm then changes nothing
    split = lambda y: y.unflatten(-1, (2, -1)).transpose(1, 2)  # noqa: E731
    turns = frequencies(4, "full", 10000.0, x.device)
    query = split(mixer.query(x))
    query = torch.cat([query[..., :8], apply_rotary(query[..., 8:], torch.arange(11), turns)], -1)
    own = apply_rotary(mixer.rotary_key(x)[:, None], torch.arange(11), turns).expand(-1, 2, -1, -1)
    key = torch.cat([split(mixer.widen_key(x)), own], -1)
    mixed = causal_product(query, key, split(mixer.widen_value(x)), mixing_context(11), window=None)
    assert torch.allclose(mixer(x, mixing_context(11)), mixer.out(mixed.transpose(1, 2).flatten(2)), atol=1e-5)


def test_latent_attention_caches_the_latent_and_one_key():
    mixer = mixer_of(LatentMixer, LatentAttention(heads=2, head_size=8, rotary_size=4, rank=6))
    state = mixer.first_state(3, torch.device("cpu"))
    for at in range(5):
        _, state = mixer.step(torch.randn(3, WIDTH), state, MixingContext(torch.tensor([at])))
    assert state["cached"].rows.numel() == 3 * 5 * mixer.cached_values == 3 * 5 * (6 + 4)
    with pytest.raises(SettingError, match="rotary_size is 3"):
        LatentAttention(rotary_size=3)


@pytest.mark.parametrize("length", [1, 7, 16, 33])
def test_the_transform_is_the_direct_sum_over_lags(length):
    mixer = mixer_of(LagKernelMixer, LagKernel(modes=5))
    x = torch.randn(2, length, WIDTH)
    kernel, value = mixer.kernel(length).double(), mixer.value(x).double()
    wanted = torch.zeros_like(value)
    for at in range(length):
        for lag in range(at + 1):
            wanted[:, at] += kernel[:, lag] * value[:, at - lag]
    wanted = mixer.out(wanted.float() * nn.functional.silu(mixer.gate(x)))
    assert torch.allclose(mixer(x, mixing_context(length)), wanted, atol=1e-5)


def test_a_lag_kernel_is_the_same_everywhere_and_for_any_length():
    mixer = mixer_of(LagKernelMixer, LagKernel(modes=5))
    x = torch.randn(1, 12, WIDTH)
    moved = torch.cat([torch.zeros(1, 5, WIDTH), x], 1)
    assert torch.allclose(mixer(moved, mixing_context(17))[:, 5:], mixer(x, mixing_context(12)), atol=1e-5)
    assert torch.allclose(mixer.kernel(40)[:, :12], mixer.kernel(12), atol=1e-6)


def test_a_chunk_learns_of_the_chunk_before_and_of_no_other():
    mixer = mixer_of(ChunkSpectralMixer, ChunkSpectral(chunk=4, blocks=2, heads=2))
    x = torch.randn(1, 14, WIDTH)
    before = mixer(x, mixing_context(14))
    for changed_at in range(14):
        changed = x.clone()
        changed[:, changed_at] += 1
        moved = (mixer(changed, mixing_context(14)) - before).abs().amax((0, 2)) > 1e-6
        own, after = changed_at // 4, changed_at // 4 + 1
        for at in range(14):
            assert bool(moved[at]) == (at // 4 == after or (at // 4 == own and at >= changed_at)), (changed_at, at)


def test_a_convolution_keeps_documents_apart():
    mixer = mixer_of(GatedConvolutionMixer, GatedConvolution(reach=4))
    x, numbers = torch.randn(1, 9, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]])
    packed = mixer(x, MixingContext(torch.arange(9), numbers))
    parts = [mixer(part, mixing_context(part.shape[1])) for part in x.split([3, 4, 2], 1)]
    assert torch.allclose(packed, torch.cat(parts, 1), atol=1e-6)


def test_a_pattern_names_the_mixer_of_every_block_and_the_whole_keeps_the_contracts():
    mixers = {
        "a": Attention(heads=4), "s": ChunkSpectral(chunk=8, blocks=2, heads=4), "k": LagKernel(modes=3),
        "c": GatedConvolution(), "l": LatentAttention(heads=2, head_size=8, rotary_size=4, rank=6),
    }  # fmt: skip
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=61, width=32, pattern="aacskla", mixers=mixers))
    kinds = [type(block.mixer.config).__name__ for block in model.blocks]
    assert kinds == [type(mixers[letter]).__name__ for letter in "aacskla"]
    ids, targets = contracts.example_batch()
    contracts.check_causality(model, ids)
    contracts.check_decoding(model, ids)
    contracts.check_leak(model, ids, targets)


@pytest.mark.parametrize("mixer", [LagKernel(), ChunkSpectral(heads=4)])
def test_a_mixer_across_documents_is_refused_where_they_are_kept_apart(mixer):
    config = GPTConfig(vocabulary=61, width=32, pattern="s", mixers={"s": mixer}, end_of_text=0, keep_documents=True)
    with pytest.raises(ModelError, match="mixes across documents"):
        GPT(config)


def test_gradients_of_the_mixers_are_those_of_differences():
    for kind, config in MIXERS:
        mixer = mixer_of(kind, config, width=4 if kind is not LatentMixer else 6).double()
        if kind is ChunkSpectralMixer or kind is LagKernelMixer:
            continue  # float32 inside: transforms do not run in float64
        x = torch.randn(1, 5, mixer.out.out_features, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda given, at=mixer: at(given, mixing_context(5)), (x,), eps=1e-5, atol=1e-3, rtol=1e-2
        )
