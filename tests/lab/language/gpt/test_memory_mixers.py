"""Positions by distance, pooled memories and recurrences: equal to their definitions, in training and in decoding."""

import math

import pytest
import torch
from lab.language.gpt.mixer_parts import WIDTH, mixer_of, mixing_context
from octavo.errors import SettingError
from octavo.lab.language.gpt import BiasedAttention, GatedRecurrence, PooledAttention
from octavo.lab.language.gpt.biased_attention import BiasedAttentionMixer, bucket
from octavo.lab.language.gpt.gated_recurrence import GatedRecurrenceMixer, scan
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.language.gpt.pooled_attention import PooledAttentionMixer, drawn_slot, kept_until

DISTANCES = [BiasedAttention(heads=2), BiasedAttention(heads=2, distance="buckets", buckets=4, farthest=9)]
POOLED = [
    PooledAttention(heads=2, chunk=4),
    PooledAttention(heads=2, chunk=4, pooling="max"),
    PooledAttention(heads=2, chunk=3, pooling="latents", latents=2),
    PooledAttention(heads=2, chunk=4, pooling="reservoir", reservoir=3),
]


def shifted(kind, config):
    """A mixer whose weights are none of those that it starts with."""
    mixer = mixer_of(kind, config)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def stepped(mixer, x, documents=None):
    """The outputs of one step after another, and the last state."""
    state, found = mixer.first_state(len(x), x.device), []
    for at in range(x.shape[1]):
        told = None if documents is None else documents[:, at : at + 1]
        out, state = mixer.step(x[:, at], state, MixingContext(torch.tensor([at]), told))
        found.append(out)
    return torch.stack(found, 1), state


def moved_by(mixer, length):
    """Which outputs move when an input changes: bool [changed, moved]."""
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(2))
    before, found = mixer(x, mixing_context(length)), []
    for at in range(length):
        changed = x.clone()
        changed[:, at] = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(3 + at))
        found.append((mixer(changed, mixing_context(length)) - before).abs().amax((0, 2)) > 1e-6)
    return torch.stack(found)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 15])
@pytest.mark.parametrize(
    ("kind", "config"),
    [(BiasedAttentionMixer, one) for one in DISTANCES]
    + [(PooledAttentionMixer, one) for one in POOLED]
    + [(GatedRecurrenceMixer, GatedRecurrence(longest=8))],
    ids=str,
)
@torch.no_grad()
def test_steps_are_the_whole_at_lengths_around_borders(kind, config, length):
    mixer = shifted(kind, config)
    x = torch.randn(2, length, WIDTH)
    assert torch.allclose(stepped(mixer, x)[0], mixer(x, mixing_context(length)), atol=1e-5)


# --- distances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", DISTANCES, ids=lambda one: one.distance)
@torch.no_grad()
def test_a_bias_of_distances_is_added_to_the_explicit_scores(config):
    mixer, length = shifted(BiasedAttentionMixer, config), 11
    x = torch.randn(2, length, WIDTH)
    query, key, value = (
        part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (mixer.query, mixer.key, mixer.value)
    )
    scores = query @ key.mT / math.sqrt(8)
    for head in range(2):
        for at in range(length):
            for to in range(length):
                back = at - to
                if back < 0:
                    scores[:, head, at, to] = -math.inf
                elif config.distance == "alibi":
                    scores[:, head, at, to] -= 2.0 ** (-4 * (head + 1)) * back
                else:
                    scores[:, head, at, to] += mixer.bias_HN[head, bucket(torch.tensor(back), 4, 9)]
    wanted = mixer.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
    assert torch.allclose(mixer(x, mixing_context(length)), wanted, atol=1e-5)


def test_buckets_hold_near_distances_one_by_one_and_far_ones_together():
    found = bucket(torch.arange(300), 32, 128)
    assert found[:17].tolist() == list(range(17)) and bool((found.diff() >= 0).all())
    assert found.max() == 31 and len(found.unique()) == 32 and int(bucket(torch.tensor(-5), 32, 128)) == 0
    with pytest.raises(SettingError, match="farthest is 16"):
        BiasedAttention(farthest=16)


@torch.no_grad()
def test_biases_keep_documents_apart():
    for config in DISTANCES:
        mixer = shifted(BiasedAttentionMixer, config)
        x, numbers = torch.randn(1, 9, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]])
        packed = mixer(x, mixing_context(9, numbers))
        parts = [mixer(part, mixing_context(part.shape[1])) for part in x.split([3, 4, 2], 1)]
        assert torch.allclose(packed, torch.cat(parts, 1), atol=1e-6)
        assert torch.allclose(stepped(mixer, x, numbers)[0], packed, atol=1e-6)


# --- pooled memories --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", POOLED, ids=lambda one: one.pooling)
@torch.no_grad()
def test_a_position_sees_its_own_chunk_and_what_memory_holds_of_finished_ones(config):
    length, moved = 15, moved_by(shifted(PooledAttentionMixer, config), 15)
    last = kept_until(length, config.chunk, config.reservoir)
    for changed in range(length):
        for at in range(length):
            own, seen = changed // config.chunk, at // config.chunk
            wanted = at >= changed if seen == own else seen > own
            if config.pooling == "reservoir" and seen > own:
                wanted = seen <= last[changed]
            # A maximum may not move where another position holds it in every channel.
            assert bool(moved[changed, at]) == wanted or (config.pooling == "max" and wanted), (changed, at)


@torch.no_grad()
def test_pooled_memories_hold_as_many_rows_as_they_say():
    for config in POOLED:
        mixer = shifted(PooledAttentionMixer, config)
        for length in (1, 3, 4, 9, 23):
            _, state = stepped(mixer, torch.randn(2, length, WIDTH))
            rows = state["key"].shape[2] + state["far_key"].shape[2]
            assert rows == state["value"].shape[2] + state["far_value"].shape[2] == mixer.rows_kept(length)


@torch.no_grad()
def test_mean_and_maximum_are_those_of_the_chunk():
    """With one key everywhere attention is a mean, of which every summary is one part."""
    for pooling, pool in (("mean", lambda part: part.mean(1)), ("max", lambda part: part.amax(1))):
        mixer = shifted(PooledAttentionMixer, PooledAttention(heads=1, chunk=4, pooling=pooling))
        mixer.key.weight.zero_()
        x = torch.randn(1, 10, WIDTH)
        value = mixer.value(x)
        rows = torch.stack([pool(value[:, :4]), pool(value[:, 4:8]), value[:, 8], value[:, 9]], 1)
        assert torch.allclose(mixer(x, mixing_context(10))[:, 9], mixer.out(rows.mean(1)), atol=1e-5)


def test_a_reservoir_keeps_every_position_equally_often():
    """Algorithm R: of 20,000 positions each is among the 2,000 that are held with the same probability."""
    slots = {}
    for position in range(20_000):
        slot = drawn_slot(position, 2000)
        if slot is not None:
            slots[slot] = position
    quarters = torch.histc(torch.tensor(list(slots.values()), dtype=torch.float32), 4, 0, 20_000)
    assert quarters.sum() == 2000 and bool(((quarters - 500).abs() < 4 * math.sqrt(500 * 0.75)).all())


def test_a_window_beside_chunks_is_refused():
    with pytest.raises(SettingError, match="window is 4"):
        PooledAttention(window=4)


# --- recurrences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 7, 16, 33])
def test_a_scan_is_the_recurrence_step_by_step(length):
    torch.manual_seed(0)
    keep, fresh = torch.rand(2, length, 5, dtype=torch.float64), torch.randn(2, length, 5, dtype=torch.float64)
    state, wanted = torch.zeros(2, 5, dtype=torch.float64), []
    for at in range(length):
        state = keep[:, at] * state + fresh[:, at]
        wanted.append(state)
    assert torch.allclose(scan(keep, fresh), torch.stack(wanted, 1), atol=1e-12)


def test_gradients_of_a_scan_are_those_of_differences():
    torch.manual_seed(0)
    keep = torch.rand(1, 9, 3, dtype=torch.float64, requires_grad=True)
    fresh = torch.randn(1, 9, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scan, (keep, fresh))


@torch.no_grad()
def test_a_recurrence_forgets_at_the_border_of_a_document():
    mixer = shifted(GatedRecurrenceMixer, GatedRecurrence())
    x, numbers = torch.randn(1, 9, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]])
    packed = mixer(x, mixing_context(9, numbers))
    parts = [mixer(part, mixing_context(part.shape[1])) for part in x.split([3, 4, 2], 1)]
    assert torch.allclose(packed, torch.cat(parts, 1), atol=1e-6)
    assert torch.allclose(stepped(mixer, x, numbers)[0], packed, atol=1e-6)


@torch.no_grad()
def test_a_recurrence_keeps_as_many_numbers_at_any_length():
    mixer = shifted(GatedRecurrenceMixer, GatedRecurrence())
    for length in (1, 40):
        assert stepped(mixer, torch.randn(2, length, WIDTH))[1]["state"].shape == (2, WIDTH)


@torch.no_grad()
def test_half_lives_run_from_one_position_to_the_longest():
    mixer = GatedRecurrenceMixer(GatedRecurrence(longest=64), WIDTH)
    initialize(mixer, "torch")
    mixer.decay.weight.zero_()
    keep, _ = mixer._terms(torch.zeros(WIDTH))
    assert keep[0] == pytest.approx(0.5) and keep[-1] ** 64 == pytest.approx(0.5, rel=1e-4)
