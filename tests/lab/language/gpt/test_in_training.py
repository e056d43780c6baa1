"""Noise of training: at 0 the plain model bit for bit, off in evaluation, in the rates it says, exact to the gradient."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from octavo.errors import ModelError, SettingError
from octavo.lab.language import gpt
from octavo.lab.language.gpt import (
    GPT,
    GPTConfig,
    InTraining,
    LagKernel,
    RDrop,
    TokenDropout,
    contracts,
    gpt_network,
    nocap_baseline,
)
from octavo.lab.language.gpt.dropout_mask import drawn_seed
from octavo.lab.language.gpt.in_training import PLAIN, drawn
from octavo.lab.language.gpt.noisy_objectives import divergence
from octavo.lab.language.gpt.presets import preset
from octavo.lab.language.gpt.residual_norm import plain_residual_norm
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

SMALL = dict(vocabulary=contracts.VOCABULARY, width=32, layers=4, heads=4, end_of_text=0)
NOISES = [
    InTraining(dropout=0.3),
    InTraining(dropout=0.3, fused=True),
    InTraining(layer_drop=0.4),
    InTraining(layer_drop=0.4, layer_drop_grows=True),
    InTraining(positions_passed_over=0.5),
    InTraining(dropout=0.3, recomputed=3),
]
CPU = torch.device("cpu")


def model_of(noise=None, **changes):
    """A model of four blocks with parameters that hide no defect; the same for every noise."""
    torch.manual_seed(0)
    model = GPT(replace(nocap_baseline(**SMALL), in_training=noise or InTraining(), **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return model


def gradients(model, seed=3, scale=1.0):
    """The loss of one batch, its gradients by name, and the state of the generator after them."""
    torch.manual_seed(seed)
    total, _ = model(*contracts.example_batch())
    (total * scale).backward()
    return total.item(), {name: p.grad for name, p in model.named_parameters()}, torch.get_rng_state()


def assert_same(found, wanted):
    assert found[0] == wanted[0] and torch.equal(found[2], wanted[2])
    assert all(torch.equal(found[1][name], wanted[1][name]) for name in wanted[1])


# --- contracts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise_keeps_the_contracts(noise):
    model = model_of(noise)
    ids, targets = contracts.example_batch()
    contracts.check_causality(model, ids)
    contracts.check_one_loss(model, ids, targets)
    contracts.check_decoding(model, ids)
    contracts.check_leak(model, ids, targets)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_evaluation_uses_all_of_the_model(noise):
    ids, targets = contracts.example_batch()
    assert torch.equal(model_of(noise).eval().nll(ids, targets), model_of().eval().nll(ids, targets))


@pytest.mark.parametrize(
    "zero",
    [InTraining(layer_drop_grows=True), InTraining(recomputed=4), InTraining(dropout=0.0, positions_passed_over=0.0)],
    ids=str,
)
def test_at_rate_0_a_model_is_the_plain_one_and_draws_nothing(zero):
    assert_same(gradients(model_of(zero)), gradients(model_of()))


@pytest.mark.parametrize("noise", [InTraining(layer_drop=0.5), InTraining(positions_passed_over=0.5)], ids=str)
def test_a_stage_without_noise_is_plain(noise):
    model = model_of(noise)
    model.noise = 0.0
    assert_same(gradients(model), gradients(model_of()))


def test_a_configuration_with_noise_is_written_down_and_read_again():
    config = model_of(NOISES[3]).config
    assert GPTConfig.from_dict(config.as_dict()) == config
    with pytest.raises(SettingError, match="layer_drop is 1"):
        InTraining(layer_drop=1)
    with pytest.raises(SettingError, match="recomputed is 5; accepted are 0 to 4"):
        model_of(InTraining(recomputed=5))
    with pytest.raises(ModelError, match="LagKernel takes positions to follow each other"):
        model_of(NOISES[4], mixers={"a": LagKernel(modes=4)})


# --- blocks that are left out -----------------------------------------------------------------------------------------


def test_blocks_stay_at_their_rates():
    torch.manual_seed(0)
    passes = 4000
    for grows in (False, True):
        noise = InTraining(layer_drop=0.4, layer_drop_grows=grows)
        draws = [[draw.factor for draw in drawn(noise, 4, 8, 0.5, CPU)] for _ in range(passes)]
        for layer in range(4):
            rate = 0.2 * (layer + 1) / 4 if grows else 0.2
            kept = [row[layer] for row in draws if row[layer]]
            assert set(kept) == {1 / (1 - rate)}
            # Five standard deviations of a share.
            assert abs(len(kept) / passes - (1 - rate)) < 5 * (rate * (1 - rate) / passes) ** 0.5


def test_a_block_that_is_left_out_costs_nothing_and_gets_no_gradient(monkeypatch):
    model, ids = model_of(InTraining(layer_drop=0.5)), contracts.example_batch()[0]

    def flops(kept):
        draws = [PLAIN if layer in kept else PLAIN._replace(factor=0.0) for layer in range(4)]
        monkeypatch.setattr("octavo.lab.language.gpt.gpt_network.drawn", lambda *_: draws)
        with FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
        return counter.get_total_flops()

    without_blocks, one = flops(()), flops((1,)) - flops(())
    assert one > 0 and without_blocks > 0
    assert flops((0, 3)) == without_blocks + 2 * one and flops(range(4)) == without_blocks + 4 * one
    model.zero_grad(set_to_none=True)
    flops((1, 2))
    given = {name.split(".")[1] for name, p in model.named_parameters() if "blocks" in name and p.grad is not None}
    assert given == {"1", "2"}


def test_the_mean_over_draws_of_what_a_block_adds_is_what_it_adds():
    noise = InTraining(layer_drop=0.25)
    assert sum(chance * factor for chance, factor in ((0.75, 1 / 0.75), (0.25, 0.0))) == 1
    torch.manual_seed(0)
    factors = torch.tensor([[draw.factor for draw in drawn(noise, 4, 8, 1.0, CPU)] for _ in range(4000)])
    assert torch.allclose(factors.mean(0), torch.ones(4), atol=5 * (0.25 / 0.75 / 4000) ** 0.5)


@pytest.mark.parametrize("grows", [False, True])
def test_compiled_code_leaves_blocks_out_and_has_a_graph_a_block(grows):
    """Whatever blocks are left out: the draws, losses and gradients are those of eager mode, and blocks cost nothing."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, counter = model_of(InTraining(layer_drop=0.5, layer_drop_grows=grows)), CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=False)
    ids, targets = contracts.example_batch()
    without, graphs = 0, []
    for seed in range(12):
        found = []
        for one in (model, compiled):
            torch.manual_seed(seed)
            model.zero_grad(set_to_none=True)
            total = one(ids, targets)[0]
            total.backward()
            found.append((total.detach(), {name: p.grad for name, p in model.named_parameters()}))
        torch.testing.assert_close(found[1][0], found[0][0])
        for name, gradient in found[0][1].items():
            assert (gradient is None) == (found[1][1][name] is None)
            without += gradient is None
            if gradient is not None:
                torch.testing.assert_close(found[1][1][name], gradient)
        graphs.append(counter.frame_count)
    assert without > 0 and graphs[-1] == graphs[5], "new combinations of blocks compile nothing"
    torch._dynamo.reset()


# --- positions that are passed over -----------------------------------------------------------------------------------


def test_inner_blocks_see_a_part_of_the_positions_in_order():
    torch.manual_seed(0)
    draws = drawn(InTraining(positions_passed_over=0.25), 4, 20, 1.0, CPU)
    assert draws[0].positions_K is None and draws[3].positions_K is None
    for draw in draws[1:3]:
        assert len(draw.positions_K) == 15 and bool((draw.positions_K.diff() > 0).all())
    assert not torch.equal(draws[1].positions_K, draws[2].positions_K)


@pytest.mark.parametrize("documents", [False, True])
def test_positions_that_are_seen_keep_their_places(documents):
    """A block on some positions is the block on all, where attention may see those alone; the others stay as are."""
    model = model_of(keep_documents=documents)
    ids, _ = contracts.example_batch()
    places = torch.tensor([0, 3, 4, 9, 15, 22])
    embedded = model.embedding(ids)
    _, context = model.trunk(ids, window=9)
    found = model._block(1, embedded, context, (model._mixed, model._fed), PLAIN._replace(positions_K=places))
    others = torch.ones(ids.shape[1], dtype=torch.bool).index_fill(0, places, False)
    assert torch.equal(found[:, others], embedded[:, others])
    mixer, block = model.blocks[1].mixer, model.blocks[1]
    normed = block.mixer_norm(embedded)
    query, key, value = mixer._projected(normed, context)
    query, key = (mixer._turned(part, context.positions_T) for part in (query, key))
    back = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    seen = (back >= 0) & (back < 9) & ~others
    if documents:
        seen = (seen & (context.documents_BT[:, :, None] == context.documents_BT[:, None]))[:, None]
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    wanted = block.through(embedded, lambda _: mixer._joined(mixed, normed), block.ffn)
    assert torch.allclose(found[:, places], wanted[:, places], atol=1e-5)


# --- recomputed blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recomputed", [1, 4])
@pytest.mark.parametrize(
    "noise", [InTraining(), InTraining(dropout=0.3), InTraining(dropout=0.3, layer_drop=0.3)], ids=str
)
def test_recomputed_blocks_give_the_same_gradients_bit_for_bit(noise, recomputed):
    found, wanted = gradients(model_of(replace(noise, recomputed=recomputed))), gradients(model_of(noise))
    assert found[0] == wanted[0]
    for name, gradient in wanted[1].items():
        assert (gradient is None and found[1][name] is None) or torch.equal(found[1][name], gradient), name


def kept_bytes(model, batch=2, length=32):
    """Bytes of activations that a forward pass keeps for the backward pass, each storage once, parameters left out."""
    held = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.randint(1, contracts.VOCABULARY, (batch, length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total, _ = model(ids, ids)
    assert total.requires_grad
    return sum(nbytes for nbytes, _ in held.values())


def test_kept_bytes_fall_by_what_a_block_keeps_and_its_input_stays():
    """Every block that is recomputed keeps its input, float32 ``[B, T, D]``, and nothing else."""
    found = [kept_bytes(model_of(InTraining(recomputed=count))) for count in range(5)]
    falls = [before - after for before, after in pairwise(found)]
    assert len(set(falls)) == 1 and falls[0] > 0
    of_one_block = kept_bytes(model_of()) - kept_bytes(model_of(pattern="aaa"))
    assert falls[0] == of_one_block - 2 * 32 * 32 * 4


# --- residual, drop-out and norm as one -------------------------------------------------------------------------------


def test_a_model_with_the_one_operation_is_the_model_of_its_definition(monkeypatch):
    model = model_of(InTraining(dropout=0.3, fused=True))
    found = gradients(model)

    def defined(x, branch, gain, *, scale, p, eps):
        return plain_residual_norm(x, branch, gain, scale=scale, p=p, eps=eps, seed=drawn_seed(x.device))

    monkeypatch.setattr(gpt_network, "residual_dropout_norm", defined)
    wanted = gradients(model_of(InTraining(dropout=0.3, fused=True)))
    assert found[0] == pytest.approx(wanted[0], rel=1e-6) and torch.equal(found[2], wanted[2])
    for name, gradient in wanted[1].items():
        assert torch.allclose(found[1][name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max()), name
    assert kept_bytes(model) < kept_bytes(model_of(InTraining(dropout=0.3)))


# --- objectives -------------------------------------------------------------------------------------------------------


def test_a_share_of_the_inputs_is_the_mask_vector(monkeypatch):
    model = model_of(objective=TokenDropout(share=0.3))
    seen = []
    through = model._through_blocks
    monkeypatch.setattr(model, "_through_blocks", lambda x, *rest: (seen.append(x), through(x, *rest))[1])
    ids = torch.randint(1, contracts.VOCABULARY, (40, 50))
    model(ids, ids)
    masked = (seen[0] == model.objective.mask_D).all(-1)
    assert torch.equal(seen[0][~masked], model.embedding(ids)[~masked])
    assert abs(masked.float().mean().item() - 0.3) < 5 * (0.3 * 0.7 / masked.numel()) ** 0.5
    model.noise = 0.0
    model(ids, ids)
    assert torch.equal(seen[1], model.embedding(ids))


def test_the_divergence_is_symmetric_never_negative_and_zero_for_equals():
    torch.manual_seed(0)
    first, second = torch.randn(2, 50, 9).log_softmax(-1)
    found = divergence(first, second)
    assert torch.equal(found, divergence(second, first)) and bool((found > 0).all())
    assert not divergence(first, first).any()
    wanted = functional.kl_div(second, first, log_target=True, reduction="none").sum(-1)
    wanted = wanted + functional.kl_div(first, second, log_target=True, reduction="none").sum(-1)
    assert torch.allclose(found, wanted / 2, atol=1e-5)


def test_r_drop_has_no_divergence_without_drop_out_and_needs_it():
    model = model_of(InTraining(dropout=0.3), objective=RDrop(weight=2.0))
    ids, targets = contracts.example_batch()
    assert model(ids, targets)[1]["divergence"] > 0
    for block in model.blocks:
        block.dropout = 0.0
    total, parts = model(ids, targets)
    plain, _ = model_of()(ids, targets)
    assert parts["divergence"] == 0 and total.item() == pytest.approx(plain.item(), rel=1e-6)
    with pytest.raises(ModelError, match="no dropout and no layer_drop"):
        model_of(objective=RDrop())


def test_a_joined_batch_equals_two_passes(monkeypatch):
    """With the zeros of drop-out given, the loss over the joined batch is that of two passes with a half of them each."""
    model = model_of(InTraining(dropout=0.4), objective=RDrop(weight=0.7))
    ids, targets = contracts.example_batch()
    masks = [(torch.rand(4, ids.shape[1], 32) >= 0.4).float() / 0.6 for _ in range(8)]

    def with_rows(rows):
        given = iter(masks)
        monkeypatch.setattr(functional, "dropout", lambda x, p: x * next(given)[rows])

    with_rows(slice(0, 4))
    total, parts = model(ids, targets)
    passes = []
    for rows in (slice(0, 2), slice(2, 4)):
        with_rows(rows)
        passes.append(model.log_probs(ids).flatten(0, 1))
    own = [-one.gather(1, targets.flatten()[:, None]).sum() for one in passes]
    wanted = (own[0] + own[1]) / 2 + 0.7 * divergence(*passes).sum()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5) and int(parts["tokens"]) == targets.numel()
    assert parts["nll"].item() == pytest.approx(((own[0] + own[1]) / 2).item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modern", "modern_skips"])
def test_a_stream_of_16_bits_is_one_under_autocast_in_training_alone(name):
    torch.manual_seed(0)
    plain = GPT(preset(name, vocabulary=97, width=32, layers=3, heads=2, end_of_text=0)).train()
    with torch.no_grad():  # outputs of blocks begin at zero
        for parameter in plain.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    light = GPT(plain.config.with_training(autocast_stream=True)).train()
    light.load_state_dict(plain.state_dict())
    ids, targets = torch.randint(97, (2, 2, 16))
    seen = []
    light.blocks[1].register_forward_hook(lambda *told: seen.append(told[-1].dtype))
    light.blocks[1].mixer.register_forward_hook(lambda *told: seen.append(told[1][0].dtype))
    assert torch.equal(plain(ids, targets)[0], light(ids, targets)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = (model(ids, targets)[0] for model in (plain, light))
        whole = torch.compile(light, backend="aot_eager", fullgraph=True)(ids, targets)[0]
        assert torch.equal(plain.eval()(ids), light.eval()(ids))
    assert set(seen) == {torch.float32, torch.bfloat16}
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0)
    torch.testing.assert_close(whole, found, rtol=0.001, atol=0)
    assert not torch.equal(found, wanted)
    found.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in light.parameters() if parameter.grad is not None)


def small(**changes):
    torch.manual_seed(0)
    mixers = {"a": gpt.Attention(heads=2)}
    return GPT(GPTConfig(vocabulary=97, width=32, pattern="aa", mixers=mixers, **changes)).train()


@pytest.mark.parametrize("light", [False, True])
def test_one_operation_and_three_agree_under_autocast_with_gains(light):
    ids, targets = torch.randint(97, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    losses, gradients = [], []
    for fused in (False, True):
        model = small(stream=gpt.Stream(gains=True), in_training=InTraining(autocast_stream=light, fused=fused))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses.append(model(ids, targets)[0])
        gradients.append(torch.autograd.grad(losses[-1], list(model.parameters())))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=0)
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05)


def test_streams_that_autocast_leaves_alone_stay():
    light = InTraining(autocast_stream=True)
    ids, targets = torch.randint(97, (2, 2, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(small(in_training=light).double()(ids, targets)[0])
        head = gpt.AdaptiveSoftmax(cutoffs=(20, 50))
        wanted, found = (small(in_training=part, head=head)(ids, targets)[0] for part in (InTraining(), light))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
    with torch.device("meta"):
        unmade = small(in_training=light)
    assert unmade(ids.to("meta")).shape == (2, 16, 97)
