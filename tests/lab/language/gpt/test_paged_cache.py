"""The paged cache: decoding equal to contiguous bit for bit, pages shared and given back, none leaked."""

import random
from dataclasses import replace

import pytest
import torch
from octavo.errors import ModelError, RangeError
from octavo.lab.language.gpt import (
    GPT,
    Attention,
    BiasedAttention,
    GatedRecurrence,
    GPTConfig,
    LatentAttention,
    MixtureOfExperts,
    first_state,
    step,
)  # fmt: skip
from octavo.lab.language.gpt.paged_attention import PAGE
from octavo.lab.language.gpt.paged_cache import PagedCache
from octavo.lab.language.gpt.paged_decoding import PagedDecoding


def model(**changes):
    torch.manual_seed(0)
    mixer = Attention(heads=2, kv_heads=1, qk_norm=True)
    return GPT(GPTConfig(**{"vocabulary": 61, "width": 8, "pattern": "aa", "mixers": {"a": mixer}} | changes)).eval()


@torch.no_grad()
def contiguous(network, ids):
    """The log-probabilities after every id, decoded alone."""
    state, found = first_state(network, 1), []
    for one in ids:
        told, state = step(network, torch.tensor([one]), state)
        found.append(told[0])
    return torch.stack(found)


@torch.no_grad()
def test_paged_is_contiguous_bit_for_bit_and_the_whole_at_lengths_around_pages():
    """Sequences of all lengths at once, on pages that another one has left in another order."""
    network, draw = model(), random.Random(0)
    paged = PagedDecoding(network, pages=12)
    before = paged.join()
    for _ in range(3 * PAGE):
        paged.step({before: draw.randrange(61)})
    paged.leave(before)
    texts = {paged.join(): [draw.randrange(61) for _ in range(length)] for length in (1, 63, 64, 65, 130)}
    found = {sequence: [] for sequence in texts}
    for at in range(130):
        for sequence, told in paged.step({s: ids[at] for s, ids in texts.items() if at < len(ids)}).items():
            found[sequence].append(told)
    for sequence, ids in texts.items():
        told = torch.stack(found[sequence])
        assert torch.equal(told, contiguous(network, ids))
        assert torch.allclose(told, network(torch.tensor([ids]))[0], atol=1e-5)
        # Within one page of the need.
        assert len(paged.cache._tables[sequence]) == -(-len(ids) // PAGE)


@pytest.mark.parametrize("changes", [
    {}, {"end_of_text": 0, "keep_documents": True}, {"ffn": MixtureOfExperts(experts=2, route="context")},
])  # fmt: skip
def test_a_shared_beginning_is_held_once_and_both_ends_go_their_own_way(changes):
    network, page = model(**changes), 4
    paged = PagedDecoding(network, pages=8, page=page)
    start = [5, 0, 9, 60, 7, 0, 3, 8, 1, 2]
    first = paged.join()
    for one in start:
        paged.step({first: one})
    second = paged.join(like=first)
    assert paged.cache.free_pages == 8 - 3 - 1  # two full pages shared, the last one copied
    ends = {first: [11, 12, 0, 14], second: [21, 0, 23, 24]}
    found = {sequence: [] for sequence in ends}
    for at in range(4):
        for sequence, told in paged.step({s: ids[at] for s, ids in ends.items()}).items():
            found[sequence].append(told)
    for sequence, ids in ends.items():
        assert torch.equal(torch.stack(found[sequence]), contiguous(network, start + ids)[-4:])
    paged.leave(first)
    assert torch.equal(paged.step({second: 4})[second], contiguous(network, [*start, *ends[second], 4])[-1])
    paged.leave(second)
    assert paged.cache.free_pages == 8


def test_a_thousand_sequences_join_and_leave_without_a_leak():
    """Rows are numbers of sequence and place; what is read back is what that sequence wrote, whoever had the page."""
    cache, draw, inside = PagedCache([(1, 2)], pages=40, page=4), random.Random(1), {}
    for number in range(1000):
        like = draw.choice(list(inside)) if inside and draw.random() < 0.3 and cache.free_pages else None
        sequence = cache.join(like)
        inside[sequence] = list(inside[like]) if like is not None else []
        for _ in range(draw.randrange(12)):
            if not cache.free_pages and cache.length(sequence) % 4 == 0:
                break
            cache.grow(sequence)
            inside[sequence].append((float(number), float(len(inside[sequence]))))
            row = torch.tensor(inside[sequence][-1])[None, None]
            cache.write(sequence, 0, len(inside[sequence]) - 1, row, -row)
        while len(inside) > 8 or (inside and cache.free_pages < 4):
            gone = draw.choice(list(inside))
            wanted = torch.tensor(inside.pop(gone)).view(1, 1, -1, 2)
            key, value = cache.rows([gone], 0)
            assert torch.equal(key, wanted) and torch.equal(value, -wanted)
            cache.leave(gone)
    held = {page for table in cache._tables.values() for page in table}
    assert cache.free_pages == 40 - len(held)
    for sequence in list(inside):
        cache.leave(sequence)
    assert cache.free_pages == 40 and sorted(cache._free) == list(range(40)) and not any(cache._uses)


def test_pages_that_are_short_are_an_error_that_changes_nothing():
    paged = PagedDecoding(model(), pages=2, page=2)
    one, other = paged.join(), paged.join()
    paged.step({one: 1, other: 2})
    paged.step({one: 3, other: 4})
    with pytest.raises(RangeError, match="2 sequences need 2 pages; 0 are free"):
        paged.step({one: 5, other: 6})
    with pytest.raises(RangeError, match="is outside the vocabulary"):
        paged.step({one: 5, other: 1 << 20})
    assert paged.cache.length(one) == paged.cache.length(other) == 2 and paged.step({}) == {}
    with pytest.raises(RangeError, match=r"needs 2 pages for 5 positions and 0 are free"):
        paged.cache.grow(one, 3)
    paged.leave(other)
    assert torch.equal(paged.step({one: 5})[one], contiguous(paged.model, [1, 3, 5])[-1])
    with pytest.raises(RangeError, match="is not in the cache"):
        paged.step({other: 1})


def test_mixers_without_keys_are_refused():
    with pytest.raises(ModelError, match="block 1: GatedRecurrenceMixer keeps no keys"):
        PagedDecoding(model(pattern="ar", mixers={"a": Attention(heads=2), "r": GatedRecurrence()}), pages=1)


LATENT = LatentAttention(heads=2, head_size=6, rotary_size=4, rank=8)


@pytest.mark.parametrize("mixer", [Attention(heads=2, kv_heads=1, qk_norm=True), LATENT])
@pytest.mark.parametrize("window", [0, 20])
def test_pages_are_attended_to_where_they_lie(mixer, window):
    """The same numbers as from gathered rows, up to the order of sums, over several pages."""
    network = model(mixers={"a": replace(mixer, window=window)})
    ids = [random.Random(0).randrange(61) for _ in range(PAGE + 6)]
    paged = PagedDecoding(network, pages=8, in_place=True)
    first = paged.join()
    found = torch.stack([paged.step({first: one})[first] for one in ids])
    assert torch.allclose(found, contiguous(network, ids), atol=1e-5)
    second = paged.join(like=first)
    ends = {first: 5, second: 9}
    together = paged.step(ends)
    for sequence, end in ends.items():
        assert torch.allclose(together[sequence], contiguous(network, [*ids, end])[-1], atol=1e-5)


@torch.no_grad()
def test_latents_are_paged_bit_for_bit():
    network = model(mixers={"a": LATENT})
    paged = PagedDecoding(network, pages=12, page=4)
    ids = [random.Random(0).randrange(61) for _ in range(11)]
    sequence = paged.join()
    found = torch.stack([paged.step({sequence: one})[sequence] for one in ids])
    assert torch.equal(found, contiguous(network, ids))
    assert paged.cache._pools[0][0].shape == (1, 12, 1, 4, 12)  # a row a position, for keys and values


@pytest.mark.parametrize("mixer", [Attention(heads=2, kv_heads=1), LATENT])
@pytest.mark.parametrize("in_place", [False, True])
def test_packed_pages_decode_nearly_the_same(mixer, in_place):
    network = model(mixers={"a": mixer})
    paged = PagedDecoding(network, pages=12, page=8, format="mxint8", in_place=in_place)
    ids = [random.Random(0).randrange(61) for _ in range(20)]
    sequence = paged.join()
    found = torch.stack([paged.step({sequence: one})[sequence] for one in ids])
    wanted = contiguous(network, ids)
    assert torch.allclose(found, wanted, atol=0.05) and not torch.equal(found, wanted)


def test_documents_and_biases_of_distances_are_never_read_in_place():
    for changes in ({"end_of_text": 0, "keep_documents": True}, {"mixers": {"a": BiasedAttention(heads=2)}}):
        network = model(**changes)
        paged = PagedDecoding(network, pages=8, page=4, in_place=True)
        sequence, ids = paged.join(), [5, 0, 9, 60, 7, 0, 3]
        found = torch.stack([paged.step({sequence: one})[sequence] for one in ids])
        assert torch.equal(found, contiguous(network, ids))
