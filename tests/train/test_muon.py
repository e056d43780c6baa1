"""Muon, groups of parameters and the one-cycle schedule: equal to torch's where torch has them, refused by name else."""

import pytest
import torch
from octavo.errors import ConfigError, DTypeError, OptimizerError
from octavo.lab.language.gpt import GPT, modern, nocap_baseline
from octavo.train import ParameterGroup, grouped, language_groups
from octavo.train.grouped_optimizer import GroupedOptimizer, momentum_at
from octavo.train.learning_rate import momentum_at_rate, rate_factor
from octavo.train.newton_schulz import cautious, orthogonalized, row_rescaled
from octavo.train.optimizer import check_coverage, check_parameters
from octavo.train.parameter_groups import assigned
from torch import nn
from train.tiny import Model, config, losses, run

SHAPES = [(16, 16), (48, 16), (16, 48)]


def conditioned(shape, seed=0):
    """A matrix whose smallest singular value is a tenth of its largest."""
    torch.manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    return u @ torch.diag(torch.linspace(1, 0.1, min(shape))) @ v, u @ v


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_near_one_and_exactly_one(shape):
    matrix, nearest = conditioned(shape)
    values = torch.linalg.svdvals(orthogonalized(matrix))
    assert values.min() >= 0.65 and values.max() <= 1.25
    assert torch.allclose(orthogonalized(matrix, exact=True), nearest, atol=1e-3)
    rotation, _ = torch.linalg.qr(torch.randn(shape[0], shape[0]))
    turned = orthogonalized(rotation @ matrix, exact=True)
    assert torch.allclose(turned, rotation @ orthogonalized(matrix, exact=True), atol=1e-3)
    assert not orthogonalized(torch.zeros(shape)).any()


def updates(optimizer, weight, count=10):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize("shape", SHAPES)
def test_muon_is_torch_s_for_ten_updates(shape):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon before 2.9")
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    group = ParameterGroup(names=("w",), rule="muon", learning_rate=0.02, weight_decay=0.1)
    model = nn.Module()
    model.w = ours
    mine = updates(GroupedOptimizer(assigned(model, [group])), ours)
    wanted = updates(torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95), theirs)
    # Bfloat16 products in another order: an update of norm 1 moves by 2 ** -8.
    assert torch.allclose(mine, wanted, atol=10 * 0.02 * 2**-6)
    assert (mine - start).norm() > 20 * (mine - wanted).norm()


def test_adamw_of_a_group_is_torch_s_bit_for_bit():
    start = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    model = nn.Module()
    model.w, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    group = ParameterGroup(names=("*",), learning_rate=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-10)
    mine = updates(grouped([group])(model, config()), model.w)
    torch_s = torch.optim.AdamW([other], lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-10, fused=True)
    assert torch.equal(mine, updates(torch_s, other))


def test_rows_are_rescaled_with_the_norm_kept_and_decay_is_cautious():
    update, second = torch.randn(6, 10) * torch.tensor([1.0, 2, 3, 4, 5, 6])[:, None], torch.zeros(6, 1)
    scaled = row_rescaled(update, second, 0.95)
    assert scaled.norm() == pytest.approx(update.norm().item(), rel=1e-5)
    assert torch.allclose(scaled.square().mean(1), scaled.square().mean(1)[:1].expand(6), rtol=1e-3)
    weight = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert cautious(weight, torch.tensor([0.5, -0.5, -0.5, 0.5])).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_momentum_grows_over_its_warm_up():
    group = {"momentum": 0.95, "first_momentum": 0.85, "momentum_warmup": 10}
    assert [momentum_at(group, step) for step in (0, 5, 10, 99)] == pytest.approx([0.85, 0.9, 0.95, 0.95])


SMALL = dict(vocabulary=61, width=32, layers=2, heads=2, end_of_text=0)


@pytest.mark.parametrize("make", [nocap_baseline, modern])
def test_the_groups_of_a_language_model_cover_it(make):
    model = GPT(make(**SMALL))
    groups = language_groups(model)
    optimizer = grouped(groups)(model, config())
    check_coverage(model, optimizer)
    muon = {id(p) for group in optimizer.param_groups if group["rule"] == "muon" for p in group["params"]}
    named = {name for name, parameter in model.named_parameters() if id(parameter) in muon}
    assert "blocks.0.mixer.query.weight" in named and "blocks.1.ffn.down.weight" in named
    assert not any(name.startswith(("embedding", "head")) or name.endswith("bias") for name in named)


def test_a_parameter_in_no_group_or_in_two_is_refused_by_name():
    model = Model()
    with pytest.raises(OptimizerError, match=r"^hidden\.weight: no group takes it"):
        assigned(model, [ParameterGroup(names=("embed.*", "norm.*", "head.*"))])
    with pytest.raises(OptimizerError, match=r"^head\.weight: groups 0 and 1 take it"):
        assigned(model, [ParameterGroup(names=("*",)), ParameterGroup(names=("head.weight",))])
    with pytest.raises(OptimizerError, match=r"^hidden\.bias: of shape \(32,\); Muon takes matrices alone"):
        assigned(model, [ParameterGroup(names=("*",), rule="muon")])
    with pytest.raises(OptimizerError, match=r"group 1 takes no parameter: nothing"):
        assigned(model, [ParameterGroup(names=("*",)), ParameterGroup(names=("nothing",))])


@pytest.mark.parametrize(
    "change", [{"rule": "sgd"}, {"learning_rate": 0.0}, {"momentum": 1.0}, {"momentum_warmup": -1}], ids=str
)
def test_a_wrong_group_is_refused_by_name(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        ParameterGroup(names=("*",), **change)


def test_master_weights_in_bfloat16_are_refused_by_name():
    """Updates under 0.4 % of such a weight vanish; in float32 a thousand of 1e-5 move it by 1e-2."""
    model = GPT(nocap_baseline(**SMALL))
    model.blocks[1].ffn.down.to(torch.bfloat16)
    with pytest.raises(DTypeError, match=r"^blocks\.1\.ffn\.down\.weight: trained weights are float32"):
        check_parameters(model)
    for dtype, moved in [(torch.float32, 1e-2), (torch.bfloat16, 0.0)]:
        weight = torch.ones((), dtype=dtype)
        for _ in range(1000):
            weight -= 1e-5
        assert 1 - weight.item() == pytest.approx(moved, rel=1e-2)


def matrix_groups(model):
    inner = ParameterGroup(
        names=("hidden.weight",), rule="muon", learning_rate=0.02, weight_decay=0.1, row_rescale=0.95, cautious=True,
        momentum_warmup=20,
    )  # fmt: skip
    return [inner, ParameterGroup(names=("hidden.bias", "embed.*", "norm.*", "head.*"), learning_rate=3e-3)]


def test_a_resumed_run_of_muon_and_one_cycle_ends_with_the_same_bits(tmp_path):
    from octavo.train import train
    from train.tiny import Rule

    def go(folder, steps):
        made = config(schedule="one_cycle", warmup=15)
        model = Model()
        stop = lambda model, step: (_ for _ in ()).throw(KeyboardInterrupt) if step == steps else None  # noqa: E731
        try:
            train(
                model, Rule(), made, folder, progress=False, optimizer=grouped(matrix_groups(model)), callbacks=[stop]
            )
        except KeyboardInterrupt:
            assert steps < 40
        return model.state_dict()

    whole = go(tmp_path / "whole", 99)
    go(tmp_path / "cut", 23)
    resumed = go(tmp_path / "cut", 99)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]


def test_one_cycle_moves_momentum_against_the_rate():
    made = config(schedule="one_cycle", warmup=16, steps=40, final=0.0, low_momentum=0.8)
    rates = [rate_factor(made, step) for step in range(40)]
    assert rates[15] == 1.0 and rates[0] == 1 / 16 and rates[-1] == pytest.approx(1 / 24)
    assert rates == [rate_factor(config(schedule="linear", warmup=16), step) for step in range(40)]
    assert [momentum_at_rate(made, 0.9, factor) for factor in (0.0, 0.5, 1.0)] == pytest.approx([0.9, 0.85, 0.8])
    assert momentum_at_rate(config(), 0.9, 1.0) == 0.9
    assert momentum_at_rate(config(schedule="one_cycle", low_momentum=0.95), 0.9, 1.0) == 0.9


def test_a_run_with_one_cycle_sets_the_momentum_of_its_optimizer(tmp_path):
    seen = []

    def make(model, made):
        seen.append(torch.optim.AdamW(model.parameters(), lr=made.learning_rate, betas=(0.9, 0.99)))
        return seen[0]

    from octavo.train import train
    from train.tiny import Rule

    moments = []
    watch = lambda model, step: moments.append(seen[0].param_groups[0]["betas"])  # noqa: E731
    train(
        Model(),
        Rule(),
        config(schedule="one_cycle", warmup=20),
        tmp_path,
        progress=False,
        optimizer=make,
        callbacks=[watch],
    )
    assert moments[20] == pytest.approx((0.85, 0.99)) and moments[1][0] > 0.89
    assert run(tmp_path / "plain").reason == "finished"


@pytest.mark.slow
def test_muon_learns_faster_than_tuned_adamw():
    """Two blocks of width 64 on bytes of this package, 200 updates: Muon beats the best of four rates by 0.05 nats."""
    from pathlib import Path

    import octavo

    text = b"".join(path.read_bytes() for path in sorted(Path(octavo.__file__).parent.rglob("*.py")))
    stream = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def loss_after(make, seed=0):
        torch.manual_seed(seed)
        model = GPT(nocap_baseline(vocabulary=256, width=64, layers=2, heads=2, end_of_text=None))
        optimizer, generator = make(model), torch.Generator().manual_seed(seed)
        starts = [group["lr"] for group in optimizer.param_groups]
        last = []
        for step in range(200):
            for group, start in zip(optimizer.param_groups, starts, strict=True):
                group["lr"] = start * min(1, (step + 1) / 10, (200 - step) / 100)
            places = torch.randint(0, len(stream) - 129, (8,), generator=generator)
            batch = torch.stack([stream[place : place + 129] for place in places])
            total, parts = model(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            (total / parts["tokens"]).backward()
            optimizer.step()
            last.append(total.item() / parts["tokens"].item())
        return sum(last[-20:]) / 20

    rates = (1e-3, 3e-3, 6e-3, 1.2e-2)
    tuned = min(
        loss_after(lambda model, rate=rate: torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95)))
        for rate in rates
    )
    muon = loss_after(lambda model: grouped(language_groups(model, head=6e-3, momentum_warmup=50))(model, config()))
    assert muon <= tuned - 0.05, (muon, tuned)
