"""Lion is its definition; moments in codes cost a quarter of the bytes, train as well, and go on bit for bit."""

import copy

import pytest
import torch
from helpers.quick import spread
from octavo.errors import ConfigError, FormatError, ShapeError
from octavo.lab.language.gpt import GPT, nocap_baseline
from octavo.ops import encode
from octavo.ops.adamw import BLOCK, DYNAMIC, adamw_in_codes
from octavo.train import ParameterGroup, grouped, train
from octavo.train.grouped_optimizer import GroupedOptimizer
from octavo.train.moments_8bit import SMALLEST, Moment, dynamic_codes, dynamic_values, levels
from octavo.train.parameter_groups import assigned
from torch import nn
from train.tiny import Crash, Crashing, Model, Rule, assert_same_run, config

FORMS = ["dynamic8", "bm8e4/256", "mxfp8e4m3"]
SIGNS = [True, False]


def optimizer_of(weight, **group):
    model = nn.Module()
    model.w = weight
    return GroupedOptimizer(assigned(model, [ParameterGroup(names=("*",), **group)]))


# --- Lion -------------------------------------------------------------------------------------------------------------


def test_lion_s_first_three_steps_by_hand():
    weight = nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = optimizer_of(weight, rule="lion", learning_rate=0.5, betas=(0.5, 0.75), weight_decay=0.5)
    # c = b1 m + (1 - b1) g; w <- (1 - 0.25) w - 0.5 sign(c); m <- b2 m + (1 - b2) g
    for gradient, wanted, momentum in [
        ([2.0, -4.0], [0.25, -0.25], [0.5, -1.0]),  # c = 1, -2
        ([-1.0, -1.0], [0.6875, 0.3125], [0.125, -1.0]),  # c = -0.25, -1
        ([0.0, 1.0], [0.015625, 0.234375], [0.09375, -0.5]),  # c = 0.0625, 0
    ]:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        assert weight.tolist() == wanted and optimizer.state[weight]["momentum"].tolist() == momentum


def test_lion_follows_a_float64_reference_and_moves_by_the_rate():
    torch.manual_seed(0)
    start = torch.randn(40, 7)
    weight, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    decayed = optimizer_of(weight, rule="lion", learning_rate=1e-3, betas=(0.9, 0.99), weight_decay=0.5)
    without = optimizer_of(plain, rule="lion", learning_rate=1e-3, betas=(0.9, 0.99))
    w, m = start.double(), torch.zeros(40, 7, dtype=torch.float64)
    for _ in range(50):
        gradient = torch.randn(40, 7)
        weight.grad, plain.grad = gradient.clone(), gradient.clone()
        before = plain.detach().clone()
        decayed.step()
        without.step()
        w = w - 1e-3 * (torch.sign(0.9 * m + 0.1 * gradient.double()) + 0.5 * w)
        m = 0.99 * m + 0.01 * gradient.double()
        assert torch.allclose((plain - before).abs(), torch.full_like(start, 1e-3), rtol=0, atol=1e-6)
    assert torch.allclose(weight.double(), w, rtol=0, atol=1e-5)


# --- the dynamic map --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", SIGNS)
def test_the_map_is_monotone_and_dense_near_zero(signed):
    table = levels(signed)
    assert len(table) == 256 and bool((table.diff() > 0).all())
    assert (
        table[-1] == 1
        and 0 in table
        and (not signed or torch.equal(table[:-1][table[:-1] < 0], -table[128:-1].flip(0)))
    )
    above = table[table > 0]
    assert above[0] < 1e-6  # a linear map's first level is 1 / 127 or 1 / 255
    # The definition: middles of equal parts of 0.1 to 1, two to the decade's number of them.
    parts = 64 if signed else 128
    middles = 0.1 + 0.9 * (torch.arange(parts, dtype=torch.float64) + 0.5) / parts
    assert torch.allclose(above[-parts - 1 : -1].double(), middles, rtol=1e-6)


@pytest.mark.parametrize("signed", SIGNS)
def test_codes_are_those_of_a_search_for_the_nearest_level(signed):
    torch.manual_seed(0)
    table = levels(signed)
    middles = ((table[:-1].double() + table[1:].double()) / 2).float()
    unit = torch.cat([table, middles, middles.nextafter(torch.tensor(2.0)), torch.logspace(-9, 0, 5000)])
    values = torch.cat([unit, -unit]) if signed else unit
    values = torch.cat([values, torch.zeros(-len(values) % BLOCK)]).view(-1, BLOCK)
    values[:, 0] = 1.0  # every block is scaled by 1
    codes, scales = dynamic_codes(values.flatten(), signed)
    assert torch.equal(scales, torch.ones(len(values)))
    away = (values.double().flatten()[:, None] - table.double()).abs()
    found = away.gather(1, codes.long()[:, None])[:, 0]
    # Two levels may be equally near but for the rounding of their middle to float32.
    assert bool((found - away.amin(1) <= 2**-23 * values.flatten().abs()).all())
    assert torch.equal(codes, torch.bucketize(values.flatten(), middles).to(torch.uint8))


@pytest.mark.parametrize("signed", SIGNS)
def test_values_come_back_within_the_bound_block_by_block(signed):
    torch.manual_seed(0)
    values = torch.randn(10 * BLOCK + 77) * torch.logspace(-20, 10, 10 * BLOCK + 77)
    values[3 * BLOCK : 4 * BLOCK] = 0
    values = values if signed else values.abs()
    codes, scales = dynamic_codes(values, signed)
    back = dynamic_values(codes, scales, signed, torch.empty_like(values))
    largest = scales.repeat_interleave(BLOCK)[: len(values)]
    assert (
        torch.equal(largest[:BLOCK], values[:BLOCK].abs().max().expand(BLOCK)) and not back[3 * BLOCK : 4 * BLOCK].any()
    )
    # Half a step: of a decade's first level, and of the smallest where a value lies below it.
    step = (0.9 / 64 if signed else 0.9 / 128) / 2
    relative = (back - values).abs() / largest.clamp_min(1e-38)
    assert bool((relative <= step * (1 + 1e-4)).all())
    small = (values.abs() < 1e-2 * largest) & (largest > 0)
    assert bool((relative[small] <= step / 10).all())


# --- Adam with codes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [SMALLEST, SMALLEST + 77])
def test_the_first_step_is_adam_s_and_small_tensors_stay_in_float32(form, count):
    torch.manual_seed(0)
    start, gradient = torch.randn(count), torch.randn(count)
    found, wanted, few = (
        nn.Parameter(start.clone()),
        nn.Parameter(start.clone()),
        nn.Parameter(torch.ones(SMALLEST - 1)),
    )
    for weight, moments in ((found, form), (wanted, None)):
        weight.grad = gradient.clone()
        optimizer_of(weight, learning_rate=0.1, weight_decay=0.1, moments=moments).step()
    # Moments are zero, which every format holds; the native update rounds in another order than torch's.
    assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-7)
    few.grad = torch.ones_like(few)
    optimizer = optimizer_of(few, moments=form)
    optimizer.step()
    assert optimizer.state[few]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_state_is_a_quarter_of_the_bytes_and_the_scales(form):
    weight = nn.Parameter(torch.randn(300, 256))
    weight.grad = torch.randn(300, 256)
    optimizer = optimizer_of(weight, moments=form)
    optimizer.step()
    state = optimizer.state[weight]
    nbytes = {name: value.nbytes for name, value in state.items()}
    assert nbytes.pop("step") == 4
    codes = sum(size for name, size in nbytes.items() if name.endswith("_codes"))
    of_a_scale = {"dynamic8": 4 / 256, "bm8e4/256": 1 / 256, "mxfp8e4m3": 1 / 32}[form]
    assert codes == 0.25 * (2 * weight.nbytes) and sum(nbytes.values()) - codes == 2 * weight.numel() * of_a_scale


@pytest.mark.parametrize("form", FORMS)
def test_parts_that_are_updated_one_after_another_are_the_whole(form, monkeypatch):
    """Updates of a tensor in parts equal those in one piece, and those of float32 moments rounded in between."""
    import octavo.train.moments_8bit as module

    monkeypatch.setattr(module, "_is_native", lambda *_: False)  # what other devices do
    torch.manual_seed(0)
    start, slopes = torch.randn(5 * SMALLEST + 300), torch.randn(3, 5 * SMALLEST + 300)
    results = []
    for chunk in (1 << 30, SMALLEST):
        monkeypatch.setattr(module, "_CHUNK", chunk)
        weight = nn.Parameter(start.clone())
        optimizer = optimizer_of(weight, learning_rate=0.1, weight_decay=0.1, moments=form)
        for slope in slopes:
            weight.grad = slope.clone()
            optimizer.step()
        results.append((weight.detach().clone(), optimizer.state[weight]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])
    reference, state = nn.Parameter(start.clone()), {}
    plain = optimizer_of(reference, learning_rate=0.1, weight_decay=0.1)
    for slope in slopes:
        reference.grad = slope.clone()
        plain.step()
        for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
            held = plain.state[reference][name]
            moment = Moment(state, name, reference, form, signed=signed)
            moment.write(0, held)
            moment.read(0, held)
    assert torch.equal(results[0][0], reference)


@pytest.mark.parametrize("form", ["dynamic8", "bm8e4/256", "mxfp8e4m3", "mxfp6e3m2"])
def test_the_native_update_is_that_of_parts_but_for_the_last_bits(form, monkeypatch):
    import octavo.train.moments_8bit as module

    torch.manual_seed(0)
    start, slopes = torch.randn(5 * SMALLEST + 300), torch.randn(3, 5 * SMALLEST + 300)
    native, parts = [], []
    for found in (native, parts):
        weight = nn.Parameter(start.clone())
        optimizer = optimizer_of(weight, learning_rate=0.1, weight_decay=0.1, moments=form)
        for slope in slopes:
            weight.grad = slope.clone()
            optimizer.step()
            found.append(weight.detach().clone())
        assert optimizer.state[weight]["step"] == 3
        monkeypatch.setattr(module, "_is_native", lambda *_: False)
    assert torch.allclose(native[0], parts[0], rtol=1e-6, atol=1e-7)
    # It rounds in another order than torch's, which now and then chooses a neighbouring code.
    assert torch.isclose(native[2], parts[2], rtol=1e-5, atol=1e-6).float().mean() > 0.999
    assert not torch.equal(native[0], start)


KINDS = [
    "normal",
    "many magnitudes",
    "zeros",
    "zeros of both signs",
    "equal",
    "tiny",
    "subnormal",
    "huge",
    "extremes",
    "infinite",
    "nan",
]


def gradients_of(kind, count):
    """Gradients whose squares, too, are of the kind: the second moment is never anything but a square here."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(count))
    many = x * torch.logspace(-30, 15, count)
    return {
        "normal": x,
        "many magnitudes": many,
        "zeros": torch.zeros(count),
        "zeros of both signs": torch.zeros(count).copysign(x),
        "equal": torch.full((count,), -0.3),
        "tiny": x * 1e-20,  # squares are subnormal
        "subnormal": x * 1e-40,
        "huge": x * 1e18,
        "extremes": torch.where(x > 0.5, 1.8e19, torch.where(x < -0.5, -1.8e19, 1e-38)),
        "infinite": torch.where(torch.arange(count) % 600 == 0, -torch.inf, x),
        "nan": torch.where(torch.arange(count) % 600 == 0, torch.nan, many),
    }[kind]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 4096 + 33])
@pytest.mark.parametrize("kind", KINDS)
def test_the_native_dynamic_map_has_the_bits_of_this_one(kind, count):
    gradients = gradients_of(kind, count)
    settings = {"lr": 0.1, "eps": 1e-8, "weight_decay": 0.0}
    first, second = dynamic_codes(torch.zeros(count), True), dynamic_codes(torch.zeros(count), False)
    # Without memory, moments are the gradient and its square, rounded once.
    adamw_in_codes(torch.zeros(count), gradients, first, second, DYNAMIC, step=1, betas=(0.0, 0.0), **settings)
    for found, values, signed in ((first, gradients, True), (second, gradients.square(), False)):
        assert_same_parts(found, dynamic_codes(values, signed))
    # Without a gradient and with half of the memory, they are halves of what their codes stand for.
    held = [
        dynamic_values(*parts, signed, torch.empty(count)) / 2 for parts, signed in ((first, True), (second, False))
    ]
    adamw_in_codes(torch.zeros(count), torch.zeros(count), first, second, DYNAMIC, step=2, betas=(0.5, 0.5), **settings)
    for found, values, signed in ((first, held[0], True), (second, held[1], False)):
        assert_same_parts(found, dynamic_codes(values, signed))


def assert_same_parts(found, wanted):
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1].isnan(), wanted[1].isnan())
    assert torch.equal(found[1].nan_to_num(nan=0.0).view(torch.int32), wanted[1].nan_to_num(nan=0.0).view(torch.int32))


def language_losses(moments, steps=300):
    """Losses of a small model on a text of its own making, the mean of the last updates first."""
    torch.manual_seed(0)
    model = GPT(nocap_baseline(vocabulary=128, width=48, layers=1, heads=2, end_of_text=None))
    optimizer = grouped([ParameterGroup(names=("*",), learning_rate=4e-3, weight_decay=0.1, moments=moments)])(
        model, config()
    )
    table = torch.randint(0, 128, (128, 3), generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(steps):
        ids = torch.randint(0, 128, (8, 1), generator=generator)
        for _ in range(16):
            choice = torch.randint(0, 3, (8,), generator=generator)
            ids = torch.cat([ids, table[ids[:, -1], choice][:, None]], 1)
        optimizer.zero_grad()
        total, parts = model(ids[:, :-1], ids[:, 1:])
        (total / parts["tokens"]).backward()
        optimizer.step()
        found.append((total / parts["tokens"]).item())
    return sum(found[-30:]) / 30


@pytest.fixture(scope="module")
def plain_loss():
    return language_losses(None)


@pytest.mark.parametrize("form", spread(["dynamic8", "bm8e4/256"], 2))
def test_three_hundred_updates_end_within_two_percent_of_float32_moments(form, plain_loss):
    assert plain_loss < 2.5  # it has learned: chance is 4.85, the text's own entropy about 1.1
    assert language_losses(form) == pytest.approx(plain_loss, rel=0.02)


def test_linear_codes_lose_small_second_moments_and_the_step_explodes():
    """The trap that the dynamic map is there for: a value of 1e-4 beside 1 comes back as 0 from 8 linear bits."""
    values = torch.full((BLOCK,), 1e-4).index_fill(0, torch.tensor([0]), 1.0)
    for form, lost in (("int8:g256", True), ("dynamic8", False), ("bm8e4/256", False)):
        moment = Moment({}, "exp_avg_sq", values, form, signed=False)
        moment.write(0, values)
        back = moment.read(0, torch.empty(BLOCK))
        assert bool((back[1:] == 0).all()) is lost
        assert lost or torch.allclose(back, values, rtol=0.15)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_that_was_saved_goes_on_bit_for_bit(form):
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(SMALLEST * 2)) for _ in range(2)]
    with torch.no_grad():
        weights[1].copy_(weights[0])
    first, second = (optimizer_of(weight, moments=form) for weight in weights)

    def step(optimizer, weight, seed):
        weight.grad = torch.randn(len(weight), generator=torch.Generator().manual_seed(seed))
        optimizer.step()

    step(first, weights[0], 1)
    with torch.no_grad():
        weights[1].copy_(weights[0])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for name, value in first.state[weights[0]].items():
        other = second.state[weights[1]][name]
        assert other.dtype == value.dtype and torch.equal(other, value) and other.data_ptr() != value.data_ptr()
    step(first, weights[0], 2)
    step(second, weights[1], 2)
    assert torch.equal(*weights)


@pytest.mark.parametrize("settings", [{"moments": "dynamic8"}, {"moments": "bm8e4/256"}, {"rule": "lion"}], ids=str)
def test_a_stopped_run_ends_with_the_same_bits(tmp_path, settings):
    make = grouped([ParameterGroup(names=("*",), learning_rate=3e-3, **settings)])
    changes = dict(steps=16, evaluate_every=8, schedule="one_cycle")

    def run(folder, task):
        return train(Model(64, dropout=0.1), task, config(**changes), folder, progress=False, optimizer=make)

    run(tmp_path / "whole", Rule())
    with pytest.raises(Crash):
        run(tmp_path / "stopped", Crashing(10))
    run(tmp_path / "stopped", Rule())
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("wrong", ["int8", "e4m3", "uint8:g256", "nvfp4", "int8:g512", "dynamic9"])
def test_formats_that_hold_no_moments_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"moments is '{wrong}'; accepted: None, dynamic8, or a format whose blocks"):
        ParameterGroup(names=("*",), moments=wrong)
    with pytest.raises(ConfigError, match="for lion"):
        ParameterGroup(names=("*",), rule="lion", moments="dynamic8")


def test_the_native_update_refuses_parts_that_are_not_those_of_its_weights():
    weights = torch.zeros(512)
    settings = {"step": 1, "lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    parts = encode(torch.zeros(512), "bm8e4/256").parts[:2]
    again = tuple(part.clone() for part in parts)
    for given, message in [
        ((weights, torch.zeros(511), parts, again), "gradients"),
        ((weights, torch.zeros(512, dtype=torch.float16), parts, again), "gradients"),
        ((weights, torch.zeros(1024)[::2], parts, again), "not contiguous"),
        ((weights, torch.zeros(512), (parts[0][:-1], parts[1]), again), "codes of the first moment"),
        ((weights, torch.zeros(512), parts, (again[0], again[1][:0])), "scales of the second moment"),
        ((weights, weights, parts, again), "weights"),
        ((weights, torch.zeros(512), parts, parts), "codes"),
    ]:
        with pytest.raises(ShapeError, match=message):
            adamw_in_codes(*given, "bm8e4/256", **settings)
    first, second = dynamic_codes(torch.zeros(512), True), dynamic_codes(torch.zeros(512), False)
    for given, message in [
        ((weights, torch.zeros(511), first, second), "gradients"),
        ((weights, torch.zeros(512), (first[0][:-1], first[1]), second), "codes of the first moment"),
        ((weights, torch.zeros(512), first, (second[0], second[1][:1])), "scales of the second moment"),
        ((weights, torch.zeros(512), first, (second[0], second[1].half())), "scales of the second moment"),
        ((weights, torch.zeros(512), first, first), "codes"),
    ]:
        with pytest.raises(ShapeError, match=message):
            adamw_in_codes(*given, DYNAMIC, **settings)
    for form in ("int8:channel", "uint8:g32", "nvfp4"):
        first, second = (encode(torch.zeros(512), form).parts[:2] for _ in range(2))
        with pytest.raises(FormatError, match=r"moments.*bm8e4/256"):
            adamw_in_codes(weights, torch.ones(512), first, second, form, **settings)
    assert not weights.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.49, 0.5, 0.9])
def test_a_gradient_after_a_huge_one_is_not_lost(form, beta):
    """The first moment is ``beta m + (1 - beta) g``, however much larger m was."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(SMALLEST))
    optimizer = optimizer_of(weight, moments=form, learning_rate=1e-3, betas=(beta, 0.9))
    gradients = [torch.full((SMALLEST,), 1e12), torch.randn(SMALLEST)]
    wanted = torch.zeros(SMALLEST, dtype=torch.float64)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        wanted = beta * wanted + (1 - beta) * gradient.double()
    held = torch.empty(SMALLEST)
    Moment(optimizer.state[weight], "exp_avg", weight, form, signed=True).read(0, held)
    again = torch.empty(SMALLEST)
    twin = Moment({}, "exp_avg", weight, form, signed=True)
    twin.write(0, wanted.float())
    twin.read(0, again)
    # Codes of what was wanted, or one beside it where the moment before was rounded.
    assert (held - again).abs().max() <= (0 if beta == 0 else 0.15) * wanted.abs().max()
    assert held.count_nonzero() > SMALLEST / 2


def test_steps_and_betas_outside_of_their_range_are_refused():
    parts = [encode(torch.zeros(256), "bm8e4/256").parts[:2] for _ in range(2)]
    for step, betas, message in [(0, (0.9, 0.95), "step is 0"), (-1, (0.9, 0.95), "step is -1"),
                                 (1, (1.0, 0.95), "betas"), (1, (0.9, 1.5), "betas"), (1, (float("nan"), 0.9), "betas")]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            adamw_in_codes(torch.zeros(256), torch.ones(256), *parts, "bm8e4/256", step=step, lr=1e-3, betas=betas,
                           eps=1e-8, weight_decay=0.0)  # fmt: skip


def test_a_gradient_of_infinity_leaves_moments_that_their_format_holds():
    weight = nn.Parameter(torch.zeros(SMALLEST))
    weight.grad = torch.zeros(SMALLEST)
    weight.grad[0] = torch.inf
    optimizer = optimizer_of(weight, moments="bm8e4/256")
    optimizer.step()
    weight.grad.zero_()
    optimizer.step()
    assert weight.detach()[1:].eq(0).all() and not optimizer.state[weight]["exp_avg_codes"][BLOCK:].any()


@pytest.mark.parametrize("native", [True, False])
def test_a_gradient_of_infinity_takes_its_block_along_on_the_dynamic_map(native, monkeypatch):
    import octavo.train.moments_8bit as module

    if not native:
        monkeypatch.setattr(module, "_is_native", lambda *_: False)
    weight = nn.Parameter(torch.zeros(SMALLEST))
    weight.grad = torch.zeros(SMALLEST)
    weight.grad[0] = torch.inf
    optimizer = optimizer_of(weight, moments=DYNAMIC)
    optimizer.step()
    weight.grad.zero_()
    optimizer.step()
    assert weight.detach()[:BLOCK].isnan().all() and weight.detach()[BLOCK:].eq(0).all()


@pytest.mark.parametrize("form", [None, DYNAMIC, "bm8e4/256"])
@pytest.mark.parametrize(
    "view", [lambda whole: whole.flatten()[::2], lambda whole: whole.T, lambda whole: whole[:, :64]]
)
def test_parameters_with_gaps_or_in_another_order_are_updated(view, form):
    whole = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    results = []
    for values in (view(whole.clone()), view(whole).clone(memory_format=torch.contiguous_format)):
        weight = nn.Parameter(values)
        optimizer = optimizer_of(weight, moments=form)
        for _ in range(2):
            weight.grad = torch.linspace(-1, 1, values.numel()).view(values.shape)
            optimizer.step()
        results.append(weight.detach().clone())
    torch.testing.assert_close(*results)
    assert not torch.equal(results[0], view(whole))
