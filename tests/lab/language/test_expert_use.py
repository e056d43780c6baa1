"""Use of experts by source: shares that are counted, bits that tell sources apart or do not."""

import math

import pytest
import torch
from octavo.errors import DataError, ModelError
from octavo.lab.language.expert_use import ExpertUse, expert_use, information
from octavo.lab.language.gpt import GPT, Attention, GeluMLP, GPTConfig, MixedMixers, MixtureOfExperts


def model(ffn, mixer=Attention(heads=2)):  # noqa: B008 - frozen
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=61, width=16, pattern="aa", mixers={"a": mixer}, ffn=ffn))


def ids(length, seed=0, first=0, last=61):
    return torch.randint(first, last, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_shares_are_the_choices_of_every_window():
    network = model(MixtureOfExperts(experts=4, chosen=2, factor=1.0)).eval()
    stream, counts = ids(50), torch.zeros(4)
    found = expert_use(network, {"a": stream}, context=16)
    for first in (0, 16, 32, 48):
        window = stream[first : min(first + 16, 49)][None]
        x = network.embedding(window)
        context = network.trunk(window)[1]
        block = network.blocks[0]
        x = x + block.mixer(block.mixer_norm(x), context)
        scores = block.ffn.gate(block.ffn_norm(x), context)
        counts += torch.bincount(scores.topk(2).indices.flatten(), minlength=4)
    assert [use.part for use in found] == ["blocks.0.ffn", "blocks.1.ffn"] and found[0].tokens == 49
    assert found[0].shares == pytest.approx((counts / 98).tolist())


def test_a_gate_that_weighs_has_shares_of_weight_and_hooks_are_gone():
    network = model(GeluMLP(), MixedMixers(heads=2))
    found = expert_use(network, {"a": ids(40), "b": ids(40, 1)}, context=16)
    assert len(found) == 4 and all(math.isclose(sum(use.shares), 1, rel_tol=1e-6) for use in found)
    assert not any(part._forward_hooks for part in network.modules())


def test_an_expert_tells_as_many_bits_as_sources_are_apart():
    def uses(*shares):
        return [ExpertUse(str(at), "p", 10, one) for at, one in enumerate(shares)]

    assert information(uses((0.5, 0.5), (0.5, 0.5)))["p"] == 0
    assert information(uses((1.0, 0.0), (0.0, 1.0)))["p"] == pytest.approx(1)
    assert information(uses((1.0, 0.0), (0.5, 0.5)))["p"] == pytest.approx(0.8113 - 0.5, abs=1e-4)
    assert uses((1.0, 0.0))[0].evenness == 0 and uses((0.25,) * 4)[0].evenness == 1


def test_what_has_no_experts_or_no_text_is_refused():
    with pytest.raises(ModelError, match="no mixture"):
        expert_use(model(GeluMLP()), {"a": ids(9)}, context=4)
    with pytest.raises(DataError, match="source 'a'"):
        expert_use(model(MixtureOfExperts(experts=2)), {"a": ids(1)}, context=4)
