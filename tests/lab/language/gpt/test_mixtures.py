"""Mixtures of experts and gates: equal to a naive loop, balanced as they say, without a look at the future."""

import copy
from dataclasses import replace

import octavo
import pytest
import torch
from lab.language.gpt.mixer_parts import WIDTH, initialized, mixing_context
from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt import (
    AFNO,
    GPT,
    Attention,
    GatedExperts,
    GatedSparseMixers,
    GeluMLP,
    GPTConfig,
    InTraining,
    LatentAttention,
    MixedMixers,
    MixtureOfExperts,
    OperatorKernel,
    ParallelHeads,
    SparseMixers,
    contracts,
)
from octavo.lab.language.gpt.causal_mean import causal_mean, first_mean, next_mean
from octavo.lab.language.gpt.expert_gates import LinearGate, OperatorGate
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.language.gpt.routed_experts import balance_loss
from octavo.lab.language.techniques import technique_of

EVERY = [
    MixtureOfExperts(experts=4, factor=1.0),
    MixtureOfExperts(experts=4, chosen=2, factor=1.0, balance="bias"),
    MixtureOfExperts(experts=4, chosen=2, factor=1.0, route="context"),
    GatedExperts(experts=4, chosen=3, factor=1.0, rank=2),
]


def built(config, kind="ffn"):
    return initialized(technique_of(kind, config).build, config, WIDTH)


@pytest.mark.parametrize("config", EVERY, ids=lambda one: f"{type(one).__name__}-{one.chosen}-{one.route}")
@torch.no_grad()
def test_a_mixture_is_the_naive_loop_over_tokens(config):
    ffn, x = built(config), torch.randn(2, 7, WIDTH)
    scores, wanted = ffn.gate(x, mixing_context(7)), torch.zeros_like(x)
    for row in range(2):
        for at in range(7):
            shares = scores[row, at].softmax(-1)
            best = shares.argsort(descending=True, stable=True)[: config.chosen]
            weights = shares[best] if config.chosen == 1 else shares[best] / shares[best].sum()
            for expert, weight in zip(best.tolist(), weights, strict=True):
                wanted[row, at] += weight * ffn.experts[expert](x[row, at])
    assert torch.allclose(ffn(x, mixing_context(7)), wanted, atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [SparseMixers(heads=4, chunk=2), SparseMixers(heads=4, chunk=2, chosen=2),
     GatedSparseMixers(heads=4, chunk=2, kinds=("attention", "gated_recurrence", "mlp"), rank=2)],
    ids=["switch", "two", "deeponet"],
)  # fmt: skip
@torch.no_grad()
def test_a_sparse_expert_reads_the_tokens_that_it_was_sent_and_no_others(config):
    """One sequence at a time, each expert alone on its tokens; experts of a forward pass read no more than these."""
    mixer, x = built(config, "mixer"), torch.randn(3, 21, WIDTH)
    scores, wanted, sent = mixer.gate(x, mixing_context(21)), torch.zeros_like(x), {}
    for row in range(3):
        shares = scores[row].softmax(-1)
        best = shares.argsort(dim=-1, descending=True, stable=True)[:, : config.chosen]
        weights = shares.gather(1, best)
        weights = weights if config.chosen == 1 else weights / weights.sum(1, keepdim=True)
        for number, expert in enumerate(mixer.experts):
            places, choice = (best == number).nonzero(as_tuple=True)
            sent[number, row] = len(places)
            if len(places):
                own = expert(x[row : row + 1, places], mixing_context(len(places)))[0]
                wanted[row, places] += weights[places, choice, None] * own
    read = {}
    for number, expert in enumerate(mixer.experts):
        expert.register_forward_hook(lambda _, args, out, number=number: read.update({number: args[0].shape[1]}))
    assert torch.allclose(mixer(x, mixing_context(21)), wanted, atol=1e-5)
    for number in range(len(mixer.experts)):
        assert read.get(number, 0) == max(sent[number, row] for row in range(3))


@torch.no_grad()
def test_afno_is_the_operator_on_the_chunk_before_and_a_convolution():
    """The operator is written out: a sum over positions for every frequency, the MLP on it, and the sum back."""
    mixer, x = built(AFNO(chunk=6, blocks=2, reach=3), "mixer"), torch.randn(2, 15, WIDTH)
    first, second = (torch.complex(*weight.double()) for weight in (mixer.first, mixer.second))
    turns = torch.exp(-2j * torch.pi * torch.outer(torch.arange(6.0), torch.arange(6.0)).double() / 6)
    spectral = torch.zeros(2, 15, WIDTH, dtype=torch.float64)
    for chunk in range(2):
        part = x[:, 6 * chunk : 6 * chunk + 6].double().to(turns.dtype)
        spectrum = (turns @ part / 6**0.5)[:, :4].unflatten(-1, (2, -1))
        hidden = torch.einsum("bfki,kio->bfko", spectrum, first)
        hidden = torch.complex(hidden.real.relu(), hidden.imag.relu())
        hidden = torch.einsum("bfki,kio->bfko", hidden, second)
        shrunk = [torch.nn.functional.softshrink(part, 0.01) for part in (hidden.real, hidden.imag)]
        half = torch.complex(*shrunk).flatten(-2)
        whole = torch.cat([half, half[:, 1:3].flip(1).conj()], 1)
        whole[:, 0], whole[:, 3] = whole[:, 0].real + 0j, whole[:, 3].real + 0j  # as irfft reads both ends
        after = slice(6 * chunk + 6, min(6 * chunk + 12, 15))
        spectral[:, after] = (turns.conj() @ whole / 6**0.5).real[:, : after.stop - after.start]
    near = mixer.inside(x, mixing_context(15))
    assert torch.allclose(mixer(x, mixing_context(15)), mixer.out(spectral.float()) + near, atol=1e-5)


@torch.no_grad()
def test_equal_experts_are_one_network():
    for config in EVERY:
        ffn, x = built(config), torch.randn(1, 9, WIDTH)
        for expert in ffn.experts[1:]:
            expert.load_state_dict(ffn.experts[0].state_dict())
        factor = ffn.gate(x, mixing_context(9)).softmax(-1).amax(-1, keepdim=True) if config.chosen == 1 else 1.0
        assert torch.allclose(ffn(x, mixing_context(9)), factor * ffn.experts[0](x), atol=1e-6)


def test_every_token_is_served_however_uneven_the_load():
    """Dropless: one expert may get all tokens, and the gate has gradients from each of them."""
    ffn, x = built(MixtureOfExperts(experts=4, factor=1.0)), torch.rand(1, 50, WIDTH) + 0.5
    with torch.no_grad():
        ffn.gate.project.weight.fill_(-1.0)
        ffn.gate.project.weight[2] = 1.0
    x.requires_grad_()
    out = ffn(x, mixing_context(50))
    shares = ffn.gate(x, mixing_context(50)).softmax(-1)
    assert bool((shares.argmax(-1) == 2).all())
    assert torch.allclose(out, shares[..., 2:3] * ffn.experts[2](x), atol=1e-6)
    out.sum().backward()
    assert bool((x.grad.abs().sum(-1) > 0).all()) and bool(ffn.gate.project.weight.grad.any())
    assert all(expert.up.weight.grad is not None for expert in ffn.experts)


def test_the_loss_of_balance_is_one_where_loads_are_even_and_more_where_not():
    even, chosen = torch.full((8, 4), 0.25), (torch.arange(8) % 4)[:, None]
    assert balance_loss(even, chosen) == 1
    one_sided = torch.tensor([[0.97, 0.01, 0.01, 0.01]]).expand(8, 4)
    assert balance_loss(one_sided, torch.zeros(8, 1, dtype=torch.int64)) == pytest.approx(4 * 0.97)


def test_training_evens_the_loads_by_the_loss_and_by_the_bias():
    """From a gate that prefers one expert; the loss moves the gate, the bias leaves it as it is."""
    torch.manual_seed(1)
    x = torch.randn(4, 64, WIDTH) + 1.0
    for config in (
        MixtureOfExperts(experts=4, factor=1.0, balance_weight=1.0, z_weight=0.0),
        MixtureOfExperts(experts=4, factor=1.0, balance="bias", z_weight=0.0, bias_rate=0.02),
    ):
        ffn = built(config)
        with torch.no_grad():
            ffn.gate.project.weight[0] += 0.1
        before = _loads(ffn, x)
        optimizer = torch.optim.SGD(ffn.gate.parameters(), lr=0.05)
        weight = ffn.gate.project.weight.detach().clone()
        for _ in range(150):
            ffn.begin_pass()
            ffn(x, mixing_context(64))
            if config.balance == "loss":
                optimizer.zero_grad()
                ffn.auxiliary.backward()
                optimizer.step()
        assert before.max() > 0.5 and _loads(ffn, x).max() < 0.36, config.balance
        assert torch.equal(ffn.gate.project.weight, weight) == (config.balance == "bias")


@torch.no_grad()
def _loads(ffn, x):
    shares = ffn.gate(x, mixing_context(x.shape[1])).softmax(-1).flatten(0, 1)
    return torch.bincount(ffn.choose(shares).flatten(), minlength=4) / ffn.choose(shares).numel()


def test_the_bias_chooses_and_never_weighs():
    ffn, x = built(EVERY[1]), torch.randn(1, 6, WIDTH)
    with torch.no_grad():
        plain = ffn(x, mixing_context(6))
        ffn.offset_E.fill_(0.7)  # of all experts: the same choice
        assert torch.equal(ffn(x, mixing_context(6)), plain)
        ffn.offset_E.zero_()
        ffn.offset_E[3] = 10.0
        shares = ffn.gate(x, mixing_context(6)).softmax(-1).flatten(0, 1)
        chosen = ffn.choose(shares)
        assert bool((chosen == 3).any(-1).all())
        weights = shares.gather(1, chosen)
        weights = weights / weights.sum(1, keepdim=True)
        told = sum(
            weights[:, place, None] * torch.stack([ffn.experts[e](row) for e, row in zip(chosen[:, place], x[0])])  # noqa: B905
            for place in range(2)
        )
        assert torch.allclose(ffn(x, mixing_context(6))[0], told, atol=1e-6)


# --- in a model -------------------------------------------------------------------------------------------------------


def model(ffn, **changes):
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=61, width=32, pattern="aa", mixers={"a": Attention(heads=4)}, ffn=ffn, **changes))


def test_losses_of_routing_are_trained_on_and_never_evaluated():
    ids, targets = contracts.example_batch()
    ffn = MixtureOfExperts(experts=4, factor=1.0)
    whole = model(ffn)
    total, parts = whole(ids, targets)
    assert (
        float(total.detach()) == pytest.approx(float(parts["nll"] + parts["routing"])) and float(parts["routing"]) > 0
    )
    assert float(parts["nll"]) == pytest.approx(float(whole.nll(ids, targets).sum().detach()), rel=1e-5)
    # 0.01 of about 1 a block and token, and a thousandth of a squared logarithm.
    a_token = float(parts["routing"]) / int(parts["tokens"])
    assert 0.02 <= a_token < 0.05
    with torch.no_grad():
        assert float(whole(ids, targets)[0]) == pytest.approx(float(parts["nll"]), rel=1e-6)
    whole.eval()
    assert "routing" not in whole(ids, targets)[1]
    off = model(replace(ffn, balance_weight=0.0, z_weight=0.0))
    assert float(off(ids, targets)[0].detach()) == float(parts["nll"])


def test_blocks_that_are_computed_again_get_the_same_gradients_and_loads():
    ids, targets = contracts.example_batch()
    for ffn in EVERY:
        found = []
        for recomputed in (0, 2):
            whole = model(ffn, in_training=InTraining(recomputed=recomputed)).train()
            whole(ids, targets)[0].backward()
            loads = [block.ffn.load_E.tolist() for block in whole.blocks if hasattr(block.ffn, "load_E")]
            found.append(([parameter.grad for parameter in whole.parameters()], loads))
            copy.deepcopy(whole)  # no graph is left behind
        assert all(torch.equal(*pair) for pair in zip(found[0][0], found[1][0], strict=True))
        assert found[0][1] == found[1][1]


def test_heads_of_further_tokens_have_mixtures_of_their_own():
    whole = model(EVERY[0], objective=ParallelHeads(ahead=2))
    total, parts = whole(*contracts.example_batch())
    total.backward()
    assert float(total.detach()) == pytest.approx(float(parts["nll"] + parts["further"] + parts["routing"]))


def test_the_router_stays_in_float32_in_lower_precision():
    whole = model(MixtureOfExperts(experts=4, factor=1.0))
    seen = []
    whole.blocks[0].ffn.gate.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        whole(*contracts.example_batch())
    assert seen == [torch.float32]


@pytest.mark.parametrize("ffn", [*EVERY[1:], GeluMLP()], ids=lambda one: type(one).__name__)
def test_a_mixture_keeps_documents_apart(ffn):
    whole = model(ffn, end_of_text=0, keep_documents=True).eval()
    first, second = (torch.cat([torch.tensor([0]), torch.randint(1, 61, (length,))]) for length in (6, 10))
    packed = torch.cat([first, second])[None]
    alone = torch.cat([whole(part[None]) for part in (first, second)], 1)
    assert torch.allclose(whole(packed), alone, atol=1e-5)
    contracts.check_decoding(whole, packed)


def test_state_of_a_biased_mixture_is_saved_with_its_weights():
    one, ids = model(EVERY[1]), contracts.example_batch()
    for _ in range(3):
        one(*ids)
    other = model(EVERY[1])
    other.load_state_dict(one.state_dict())
    losses = []
    for each in (one, other):
        each(*ids)
        losses.append((float(each(*ids)[0].detach()), each.blocks[0].ffn.offset_E.tolist()))
    assert losses[0] == losses[1] and any(losses[0][1])


def test_mixers_of_a_mixture_keep_documents_where_all_of_them_do():
    for kinds, refused in ((("attention", "gated_recurrence"), False), (("attention", "lag_kernel"), True)):
        config = dict(
            vocabulary=61, width=32, pattern="m", mixers={"m": MixedMixers(heads=4, kinds=kinds)}, end_of_text=0
        )
        if refused:
            with pytest.raises(ModelError, match="mixes across documents"):
                GPT(GPTConfig(keep_documents=True, **config))
        else:
            GPT(GPTConfig(keep_documents=True, **config))


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(SettingError, match="chosen is 3"):
        MixtureOfExperts(experts=2, chosen=3)
    with pytest.raises(SettingError, match="route is 'context'"):
        GatedExperts(route="context")
    with pytest.raises(SettingError, match="kinds is"):
        MixedMixers(kinds=("attention", "mlp"))


# --- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2]])])
def test_a_causal_mean_is_of_what_was_before_in_the_document(documents):
    x, state = torch.randn(1, 9, 4), first_mean(1)
    found = causal_mean(x, mixing_context(9, documents))
    for at in range(9):
        begin = 0 if documents is None else int((documents[0] == documents[0, at]).nonzero()[0])
        wanted = x[0, begin:at].mean(0) if at > begin else torch.zeros(4)
        told = None if documents is None else documents[:, at : at + 1]
        mean, state = next_mean(x[:, at], state, MixingContext(torch.tensor([at]), told))
        assert torch.allclose(found[0, at], wanted, atol=1e-6) and torch.allclose(mean[0], wanted, atol=1e-6)


def test_a_constant_branch_is_a_linear_gate():
    torch.manual_seed(0)
    gate, linear = OperatorGate(WIDTH, 5, rank=3), LinearGate(WIDTH, 5, reads_before=False)
    for each in (gate, linear):
        initialize(each, "torch")
    with torch.no_grad():
        gate.branch.weight.zero_()
        gate.branch.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
        linear.project.weight.copy_(torch.einsum("k,ked->ed", gate.branch.bias, gate.trunk.weight.unflatten(0, (3, 5))))
        x = torch.randn(2, 7, WIDTH)
        assert torch.allclose(gate(x, mixing_context(7)), linear(x, mixing_context(7)), atol=1e-5)


@pytest.mark.parametrize("rank", [1, 3])
@torch.no_grad()
def test_scores_of_a_token_over_contexts_have_the_gate_s_rank(rank):
    torch.manual_seed(0)
    gate = OperatorGate(WIDTH, 8, rank)
    initialize(gate, "torch")
    h, before = torch.randn(WIDTH).double(), torch.randn(40, WIDTH).double()
    scores = gate.double().scores(h.expand(40, -1), before)
    assert int(torch.linalg.matrix_rank(scores)) == rank


@torch.no_grad()
def test_mixers_are_weighed_by_the_gate():
    mixer, x = built(MixedMixers(heads=2), "mixer"), torch.randn(2, 6, WIDTH)
    shares = mixer.gate(x, mixing_context(6)).softmax(-1)
    wanted = sum(shares[..., at, None] * expert(x, mixing_context(6)) for at, expert in enumerate(mixer.experts))
    assert torch.allclose(mixer(x, mixing_context(6)), wanted, atol=1e-6)
    mixer.gate.trunk.weight.zero_()
    assert torch.allclose(
        mixer(x, mixing_context(6)), sum(e(x, mixing_context(6)) for e in mixer.experts) / 3, atol=1e-6
    )


@pytest.mark.parametrize("form", ["quantized", "packed"])
def test_a_packed_model_decodes_as_it_reads_whole(form):
    """Gates, experts, latents and operators whose layers hold codes in place of weights."""
    mixers = {
        "l": LatentAttention(heads=4, head_size=8, rotary_size=4, rank=12), "m": MixedMixers(heads=4),
        "o": OperatorKernel(kernel="mlp"),
    }  # fmt: skip
    torch.manual_seed(0)
    whole = GPT(GPTConfig(vocabulary=61, width=32, pattern="lmo", mixers=mixers, ffn=EVERY[3])).eval()
    changed = octavo.quantize_model(whole, "type:Linear mxint8", progress=False)
    changed = octavo.pack_model(changed) if form == "packed" else changed
    contracts.check_decoding(changed, contracts.example_batch()[0])
