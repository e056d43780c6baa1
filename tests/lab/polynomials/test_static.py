"""Static INT8: integers are what the definition says, bit for bit, and files that say otherwise are refused."""

from dataclasses import replace

import numpy as np
import octavo
import pytest
import torch
from helpers.quick import spread
from lab.polynomials.random_models import random_model
from octavo.errors import ContainerError, DataError, DTypeError, FormatError, NonFiniteError, ShapeError
from octavo.lab.polynomials import static
from octavo.lab.polynomials.seq2seq import HybridSeq2Seq, Seq2SeqConfig, build
from octavo.lab.polynomials.static.layout import linears, lstms, norms, site

CONFIG = Seq2SeqConfig(
    embedding=8, encoder=6, hidden=12, heads=3, layers=2, feedforward=20, max_source=12, max_target=9
)
# Logits of a random model in INT8 against float32, root mean square over that of the logits: an eighth bit, and some.
CLOSE = 0.05
# Cached against uncached, alone against in a batch: float32 sums in another order, which may move a code by one.
REORDERED = 0.02


def model_of(seed=0, config=CONFIG):
    return random_model(config, seed, factor=2)


def sources(rows=16, seed=1, config=CONFIG):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, config.vocabulary, (rows, config.max_source), generator=generator)
    lengths = torch.randint(1, config.max_source + 1, (rows, 1), generator=generator)
    return torch.where(torch.arange(config.max_source) < lengths, ids, 0)


def targets(rows=16, seed=2, length=9):
    return torch.randint(3, CONFIG.vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def distance(integer, model, source):
    """How far the logits of both are apart, over answers that the model gives to sources it was calibrated on."""
    answers = model.generate(source)[0]
    with torch.no_grad():
        expected, found = model(source, answers), integer(source, answers)
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


#: Layers whose inputs have 16 bits in `pair`: one alone, and all that read one tensor.
WIDE = ["bridge", "self_attention.query", "self_attention.key", "self_attention.value"]


@pytest.fixture(scope="module")
def pair():
    model = model_of()
    return model, static.quantize_static(model, static.calibrate(model, [sources()]), WIDE)


# --- an oracle in numpy: int64 sums, float32 where the definition says so --------------------------------------------


def codes_of(x, scale, bits=8):
    inverse, largest = np.float32(1) / np.float32(scale), 2 ** (bits - 1) - 1
    return np.clip(np.rint(x.astype(np.float32) * inverse), -largest, largest).astype(np.int64)


def parts(tensors, name, weight, added, scale):
    packed = tensors[f"{name}.{weight}"]
    codes = packed.codes.numpy().view(np.int8).astype(np.int64)
    step = tensors[f"{name}.{scale}"].numpy()
    return codes, packed.scales.numpy()[:, 0], tensors[f"{name}.{added}"].numpy().astype(np.int64), step


def linear_sums(tensors, name, x):
    codes, _, bias, step = parts(tensors, name, "weight", "bias", "input_scale")
    return codes_of(x, step, int(tensors[f"{name}.input_bits"])) @ codes.T + bias


def gate_sums(tensors, name, tokens, hidden):
    codes, _, table, step = parts(tensors, name, "weight_hh", "table", "state_scale")
    return codes_of(hidden, step) @ codes.T + table[tokens]


# --- arithmetic -----------------------------------------------------------------------------------------------------


def test_every_accumulator_is_what_the_definition_says(pair):
    _, integer = pair
    seen = set()
    for call in static.accumulators(integer, sources(), targets()):
        assert call.accumulators.dtype == torch.int32
        assert call.input.dtype == torch.float32
        if call.tokens is None:
            expected = linear_sums(integer.tensors, call.name, call.input.numpy())
        else:
            expected = gate_sums(integer.tensors, call.name, call.tokens.numpy(), call.input.numpy())
        assert np.array_equal(call.accumulators.numpy(), expected), call.name
        seen.add(call.name)
    assert seen == linears(CONFIG).keys() | lstms(CONFIG).keys()


def test_looking_inside_changes_nothing_and_ends(pair):
    _, integer = pair
    before = integer(sources(), targets())
    static.accumulators(integer, sources(), targets())
    assert torch.equal(integer(sources(), targets()), before)
    assert not any(module._forward_hooks for module in integer.modules())


@pytest.mark.parametrize("name", ["bridge", "self_attention.key", "blocks.1.feedforward.contract", "output"])
def test_a_linear_layer_is_its_sum_times_the_product_of_the_scales(pair, name):
    _, integer = pair
    layer = integer.get_submodule(name)
    x = np.random.default_rng(0).normal(0, 3, (50, linears(CONFIG)[name][1])).astype(np.float32)
    _, scales, _, step = parts(integer.tensors, name, "weight", "bias", "input_scale")
    expected = linear_sums(integer.tensors, name, x).astype(np.float32) * (step * scales)
    assert expected.dtype == np.float32
    assert np.array_equal(layer(torch.from_numpy(x)).numpy(), expected)


def test_codes_round_half_to_even_and_saturate(pair):
    _, integer = pair
    step = float(integer.tensors["output.input_scale"])
    steps = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300.0, -300.0, -126.5, 0.0, 3e38])
    power = torch.tensor(2.0**-7)  # where x / scale and x * (1 / scale) are exact, halves are halves
    from octavo.lab.polynomials.static.integer_layers import to_codes

    assert to_codes(steps * power, power).tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -127, -126, 0, 127]
    x = torch.randn(1000, 12) * 100 * step
    for bits in (8, 16):
        assert np.array_equal(to_codes(x, torch.tensor(step), bits).numpy(), codes_of(x.numpy(), step, bits))
    assert to_codes(torch.tensor([32766.5, 4e4, -4e4, 2.5]) * power, power, 16).tolist() == [32766, 32767, -32767, 2]


def test_one_step_of_an_lstm_is_the_cell_of_its_gates(pair):
    _, integer = pair
    tokens = torch.tensor([0, 3, 30])
    hidden, cell = torch.rand(3, 12) - 0.5, torch.randn(3, 12)
    _, scales, _, step = parts(integer.tensors, "decoder", "weight_hh", "table", "state_scale")
    sums = gate_sums(integer.tensors, "decoder", tokens.numpy(), hidden.numpy())
    enter, forget, candidate, leave = np.split(sums.astype(np.float32) * (step * scales), 4, 1)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x.astype(np.float64)))

    next_cell = sigmoid(forget) * cell.numpy() + sigmoid(enter) * np.tanh(candidate)
    next_hidden, found_cell = integer.decoder.step(tokens, hidden, cell)
    assert np.allclose(found_cell.numpy(), next_cell, atol=1e-6)
    assert np.allclose(next_hidden.numpy(), sigmoid(leave) * np.tanh(next_cell), atol=1e-6)


def test_biases_and_tables_are_the_nearest_multiples_of_their_step(pair):
    model, integer = pair
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    for name in linears(CONFIG):
        _, scales, bias, step = parts(integer.tensors, name, "weight", "bias", "input_scale")
        exact = weights[f"{name}.bias"] / (np.float64(step) * scales)
        assert np.array_equal(bias, np.rint(exact)), name
    for name in lstms(CONFIG):
        _, scales, table, step = parts(integer.tensors, name, "weight_hh", "table", "state_scale")
        embedding = weights["target_embedding.weight" if name == "decoder" else "source_embedding.weight"]
        added = weights[f"{name}.bias_ih_l0"] + weights[f"{name}.bias_hh_l0"]
        exact = (embedding @ weights[f"{name}.weight_ih_l0"].T + added) / (np.float64(step) * scales)
        assert np.abs(table - exact).max() <= 0.5 + 1e-6, name


def test_weights_are_those_of_int8_channel(pair):
    model, integer = pair
    weights = model.state_dict()
    for name in linears(CONFIG):
        assert integer.tensors[f"{name}.weight"] == octavo.encode(weights[f"{name}.weight"], "int8:channel")
    for name in lstms(CONFIG):
        expected = octavo.encode(weights[f"{name}.weight_hh_l0"], "int8:channel")
        assert integer.tensors[f"{name}.weight_hh"] == expected


def test_a_pruned_row_keeps_its_bias_and_its_table():
    model = model_of()
    with torch.no_grad():
        model.output.weight[5] = 0
        model.output.bias[5] = 1.25
        model.bridge.weight[3] = 1e-30
        model.bridge.bias[3] = -0.75
        model.decoder.weight_hh_l0[7] = 0
        model.blocks[0].feedforward.expand.weight[2] = 0
        model.blocks[0].feedforward.expand.bias[2] = 0
    integer = static.quantize_static(model, static.calibrate(model, [sources()]))
    logits = integer(sources(), targets())
    assert torch.allclose(logits[..., 5], torch.tensor(1.25), atol=1e-6)
    assert distance(integer, model, sources()) < CLOSE
    x = torch.randn(4, 12)
    assert torch.allclose(integer.bridge(x)[:, 3], torch.tensor(-0.75), atol=1e-6)
    assert torch.equal(integer.blocks[0].feedforward.expand(x)[:, 2], torch.zeros(4))


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, heads=1, layers=1, encoder=1, hidden=1, feedforward=1)])
def test_it_is_close_to_the_model_it_was_made_of(config):
    model = model_of(config=config)
    integer = static.quantize_static(model, static.calibrate(model, [sources()]))
    logits = integer(sources(), targets())
    assert logits.shape == (16, 9, 31)
    assert logits.dtype == torch.float32
    assert distance(integer, model, sources()) < CLOSE


@pytest.mark.parametrize("beam", [1, 3])
def test_cached_and_uncached_generation_are_the_same(pair, beam):
    _, integer = pair
    tokens, scores = integer.generate(sources(), beam=beam)
    whole, whole_scores = integer.generate(sources(), beam=beam, cache=False)
    assert torch.equal(tokens, whole)
    assert torch.allclose(scores, whole_scores, atol=REORDERED)


def test_rows_do_not_depend_on_padding_or_on_each_other(pair):
    _, integer = pair
    ids, after = sources(), targets()
    together = integer(ids, after)
    for row, length in enumerate((ids != 0).sum(1).tolist()):
        alone = integer(ids[row : row + 1, :length], after[row : row + 1])
        assert (alone[0] - together[row]).abs().max() < REORDERED


def test_integer_sums_do_not_depend_on_the_batch(pair):
    """The part that is defined by integers is equal, not close."""
    _, integer = pair
    x = torch.randn(33, 12)
    whole = integer.output.accumulate(x)
    for row in range(33):
        assert torch.equal(integer.output.accumulate(x[row : row + 1])[0], whole[row])


def test_it_generates_under_bfloat16_autocast_with_the_same_integers(pair):
    _, integer = pair
    x = torch.randn(5, 12)
    expected = integer.output.accumulate(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(integer.output.accumulate(x), expected)
        integer.generate(sources())


def test_it_refuses_what_the_model_refuses(pair):
    _, integer = pair
    with pytest.raises(ShapeError):
        integer.generate(torch.ones(2, 13, dtype=torch.long))
    with pytest.raises(DTypeError):
        integer.generate(torch.ones(2, 3))


def test_it_needs_no_gradient_and_nothing_random(pair):
    model, integer = pair
    assert not integer(sources(), targets()).requires_grad
    before = torch.get_rng_state()
    static.quantize_static(model, static.calibrate(model, [sources()]))
    assert torch.equal(torch.get_rng_state(), before)


def test_making_it_leaves_the_model_alone():
    model = model_of()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    static.quantize_static(model, static.calibrate(model, [sources()]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# --- calibration ----------------------------------------------------------------------------------------------------


def seen_by(model, source):
    """The largest magnitude each linear layer reads when the tokens that the model answers are given to it at once."""
    tokens, _ = model.generate(source)
    found = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: found.update({name: max(found.get(name, 0), float(inputs[0].abs().max()))})
        )
        for name in linears(model.config)
    ]
    with torch.no_grad():
        model(source, tokens)
    for hook in hooks:
        hook.remove()
    return found


def test_absmax_covers_what_generation_shows_the_layers():
    model = model_of()
    source = sources()[:1, :3]
    scales = static.calibrate(model, [source])
    for name, largest in seen_by(model, source).items():
        assert scales[name] * 127 == pytest.approx(largest, rel=1e-5), name


def test_layers_that_read_the_same_share_their_scale(pair):
    model, _ = pair
    scales = static.calibrate(model, [sources()])
    assert scales.keys() == linears(CONFIG).keys() | lstms(CONFIG).keys()
    assert len({scales[f"self_attention.{part}"] for part in ("query", "key", "value")}) == 1
    cross = [scales[f"blocks.{block}.cross_attention.{part}"] for block in range(2) for part in ("key", "value")]
    assert len(set(cross)) == 1
    assert len(set(scales.values())) == len({site(name) for name in scales})


@pytest.mark.parametrize("method", spread(static.METHODS))
def test_padding_batches_and_their_order_have_no_influence(pair, method):
    model, _ = pair
    ids = sources(40)
    scales = static.calibrate(model, [ids], method)
    padded = torch.nn.functional.pad(ids[:, :10], (0, 2))  # rows of up to 10 tokens, with two columns of padding
    assert static.calibrate(model, [padded], method) == static.calibrate(model, [ids[:, :10]], method)
    pieces = static.calibrate(model, (piece.to(torch.uint8) for piece in ids.flip(0).split(7)), method)
    assert pieces == pytest.approx(scales, rel=1e-5)


def test_mse_has_the_least_error_and_cuts_off_no_more_than_it_must():
    from octavo.lab.polynomials.static.input_scales import Counts

    generator = torch.Generator().manual_seed(0)
    for x in (torch.randn(20_000, generator=generator), torch.rand(20_000, generator=generator) - 0.5):
        counts = Counts()
        for piece in x.split(3001):
            counts.add(piece)

        def error(scale, x=x):
            return float(((x / scale).round().clamp(-127, 127) * scale - x).square().mean())

        best = counts.scale("mse")
        for factor in (0.5, 0.8, 0.95, 1.05, 1.2, 2):
            assert error(best) <= error(best * factor) * 1.01
        assert counts.scale("absmax") == pytest.approx(float(x.abs().max()) / 127)
        cut = float((x.abs() > counts.scale("quantile") * 127).double().mean())
        assert cut <= 3e-4  # one in ten thousand, and the rest of its bin
        assert counts.scale("quantile") <= counts.scale("absmax")


def test_a_layer_that_sees_only_zeros_gets_a_usable_scale():
    model = model_of()
    with torch.no_grad():
        model.self_norm.weight.zero_()
        model.self_norm.bias.zero_()
    scales = static.calibrate(model, [sources()])
    assert scales["self_attention.query"] == 1
    integer = static.quantize_static(model, scales)
    assert distance(integer, model, sources()) < CLOSE


def test_calibration_refuses_what_it_cannot_use(pair):
    model, integer = pair
    with pytest.raises(FormatError, match="unknown method 'max'; accepted are absmax, quantile, mse"):
        static.calibrate(model, [sources()], "max")
    with pytest.raises(DataError, match="no row"):
        static.calibrate(model, [])
    with pytest.raises(DataError, match="no row"):
        static.calibrate(model, [torch.zeros(3, 4, dtype=torch.long)])
    for other in (integer, build(replace(CONFIG, architecture="transformer"))):
        with pytest.raises(DTypeError, match="accepted is a HybridSeq2Seq"):
            static.calibrate(other, [sources()])
        with pytest.raises(DTypeError, match="accepted is a HybridSeq2Seq"):
            static.quantize_static(other, {})
    broken = model_of()
    broken.bridge.bias.data[0] = torch.nan
    with pytest.raises(NonFiniteError, match="NaN"):
        static.calibrate(broken, [sources()])
    with pytest.raises(NonFiniteError, match=r"bridge\.bias"):
        static.quantize_static(broken, static.calibrate(model, [sources()]))
    assert isinstance(broken, HybridSeq2Seq)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in broken.modules())


# --- equalization ---------------------------------------------------------------------------------------------------

# Float64 logits of an equalized model against those of the model: every product is rounded anew.
REROUNDED = 1e-9


def uneven(seed=0):
    """A model whose channels differ in range up to a thousandfold, as those of trained models do, less so."""
    model = model_of(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, width in norms(CONFIG).items():
            factors = torch.exp(torch.randn(width, generator=generator) * 1.5)
            norm = model.get_submodule(name)
            norm.weight.mul_(factors)
            norm.bias.copy_(torch.randn(width, generator=generator) * factors / 2)
        for name in linears(CONFIG):
            weight = model.get_submodule(name).weight
            weight.div_(weight.norm(dim=1, keepdim=True))
    return model


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.8, 1.0])
def test_an_equalized_model_computes_the_same(strength):
    model = uneven().double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    equalized = static.equalize(model, [sources()], strength=strength)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        expected, found = model(sources(), targets()), equalized(sources(), targets())
    assert torch.allclose(found, expected, atol=REROUNDED, rtol=REROUNDED)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in equalized.state_dict().items())
    for name in ("encoder.forwards.weight_hh_l0", "decoder.weight_ih_l0", "source_embedding.weight", "bridge.weight"):
        assert torch.equal(equalized.state_dict()[name], before[name])


def test_equalizing_loses_less():
    plain = equalized = 0.0
    for seed in range(2):
        model = uneven(seed)
        batches = [sources(32, seed)]
        plain += distance(static.quantize_static(model, static.calibrate(model, batches)), model, batches[0])
        other = static.equalize(model, batches)
        equalized += distance(static.quantize_static(other, static.calibrate(other, batches)), model, batches[0])
    assert equalized < 0.8 * plain


def test_channels_that_are_never_seen_are_no_obstacle():
    model = model_of().double()
    with torch.no_grad():
        model.self_norm.weight[:5] = 0
        model.self_norm.bias[:5] = 0
        model.blocks[0].feedforward.expand.bias[:7] = -1e3  # always behind the ReLU
        model.blocks[1].feedforward.contract.weight[:, 3] = 0
    equalized = static.equalize(model, [sources()])
    assert all(tensor.isfinite().all() for tensor in equalized.state_dict().values())
    with torch.no_grad():
        expected, found = model(sources(), targets()), equalized(sources(), targets())
    assert torch.allclose(found, expected, atol=REROUNDED, rtol=REROUNDED)
    assert (
        distance(static.quantize_static(equalized, static.calibrate(equalized, [sources()])), model, sources()) < CLOSE
    )


def test_equalizing_refuses_what_calibration_refuses(pair):
    _, integer = pair
    with pytest.raises(DTypeError, match="accepted is a HybridSeq2Seq"):
        static.equalize(integer, [sources()])
    with pytest.raises(DataError, match="no row"):
        static.equalize(model_of(), [])


# --- scales ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("decoder"), "missing scale 'decoder'"),
        (lambda s: s.update(colour=1.0), "unknown scale 'colour'"),
        (lambda s: s.update(bridge=0.0), "scale of bridge is 0.0"),
        (lambda s: s.update(bridge=-1.0), "scale of bridge is -1.0"),
        (lambda s: s.update(bridge=float("nan")), "scale of bridge is nan"),
        (lambda s: s.update(bridge=1e-40), "finite inverse"),
        (lambda s: s.update({"self_attention.key": 0.5}), "which reads the same"),
    ],
)
def test_wrong_scales_are_refused(pair, change, message):
    model, _ = pair
    scales = static.calibrate(model, [sources()])
    change(scales)
    with pytest.raises(FormatError, match=message):
        static.quantize_static(model, scales)


@pytest.mark.parametrize(
    ("wide", "message"),
    [
        (["colour"], "'colour' is no linear layer"),
        (["decoder"], "'decoder' is no linear layer"),
        (["self_attention.key"], "self_attention.key is wide, and self_attention.query, which reads the same, is not"),
    ],
)
def test_wrong_wide_layers_are_refused(pair, wide, message):
    model, _ = pair
    with pytest.raises(FormatError, match=message):
        static.quantize_static(model, static.calibrate(model, [sources()]), wide)


def test_a_layer_of_many_inputs_is_never_wide():
    """Its sums could leave int32."""
    model = model_of(config=replace(CONFIG, feedforward=300))
    scales = static.calibrate(model, [sources()])
    name = "blocks.0.feedforward.contract"
    assert name not in static.damages(model, [sources()], scales)
    with pytest.raises(FormatError, match="has 300 inputs; with 16 bits accepted are up to 256"):
        static.quantize_static(model, scales, [name])


# --- which inputs get 16 bits ----------------------------------------------------------------------------------------


def test_sixteen_bits_of_all_inputs_leave_little_but_the_weights_error():
    model = uneven()
    scales = static.calibrate(model, [sources()])
    plain = distance(static.quantize_static(model, scales), model, sources())
    wide = distance(static.quantize_static(model, scales, list(linears(CONFIG))), model, sources())
    assert wide < plain / 2
    assert static.quantize_static(model, scales, WIDE).wide == WIDE


def test_the_damage_of_an_input_is_that_of_rounding_it_alone(pair):
    model, _ = pair
    scales = static.calibrate(model, [sources()])
    found = static.damages(model, [sources()], scales)
    assert found.keys() == linears(CONFIG).keys()
    assert len({found[f"self_attention.{part}"] for part in ("query", "key", "value")}) == 1
    source, name = sources(), "bridge"
    answers = model.generate(source)[0]
    step = torch.tensor(scales[name])

    def rounded(_, inputs):
        return ((inputs[0] / step).round().clamp(-127, 127) * step,)

    with torch.no_grad():
        expected = model(source, answers).log_softmax(-1)
        hook = model.bridge.register_forward_pre_hook(rounded)
        changed = model(source, answers).log_softmax(-1)
        hook.remove()
    divergence = (expected.exp() * (expected - changed)).sum(-1)[answers != 0].mean()
    assert found[name] == pytest.approx(float(divergence), rel=0.02)
    coarse = static.damages(model, [sources()], {**scales, name: scales[name] * 8})
    assert coarse[name] > 8 * found[name]
    assert coarse["output"] == pytest.approx(found["output"])


def test_the_damage_does_not_depend_on_batches(pair):
    model, _ = pair
    scales = static.calibrate(model, [sources()])
    whole = static.damages(model, [sources()], scales)
    pieces = static.damages(model, sources().split(5), scales)
    assert pieces == pytest.approx(whole, rel=1e-2)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(DataError, match="no row"):
        static.damages(model, [], scales)
    with pytest.raises(FormatError, match="missing scale"):
        static.damages(model, [sources()], {})


@pytest.mark.parametrize(
    ("left", "expected"),
    [(1.0, []), (0.6, ["bridge"]), (0.5, ["bridge"]), (0.1, ["bridge", *WIDE[1:]]), (0.0, [*WIDE, "output"])],
)
def test_the_costliest_go_first_until_little_is_left(left, expected):
    """Layers that read the same tensor are one."""
    damages = {"output": 0.05, "bridge": 0.5, **dict.fromkeys(WIDE[1:], 0.45), "blocks.0.cross_attention.query": 0.0}
    assert sorted(static.costly(damages, left)) == sorted(expected)


@pytest.mark.parametrize("left", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(left):
    with pytest.raises(FormatError, match="accepted are shares"):
        static.costly({"bridge": 1.0}, left)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_gives_the_same_model(pair, tmp_path):
    _, integer = pair
    static.save(integer, tmp_path / "integer.safetensors")
    loaded = static.load(tmp_path / "integer.safetensors", CONFIG)
    assert torch.equal(loaded(sources(), targets()), integer(sources(), targets()))
    static.save(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "integer.safetensors").read_bytes()


def test_the_tensors_of_a_file_are_these(pair, tmp_path):
    """Other implementations depend on names, dtypes and shapes."""
    _, integer = pair
    static.save(integer, tmp_path / "integer.safetensors")
    entries = {entry.name: entry for entry in octavo.inspect(tmp_path / "integer.safetensors")}
    expected = {}
    for name, (outputs, inputs) in linears(CONFIG).items():
        expected |= {f"{name}.weight": ("int8:channel", (outputs, inputs)), f"{name}.bias": ("int32", (outputs,))}
        expected |= {f"{name}.input_scale": ("float32", ()), f"{name}.input_bits": ("int32", ())}
    for name, units in (("encoder.forwards", 6), ("encoder.backwards", 6), ("decoder", 12)):
        expected |= {
            f"{name}.weight_hh": ("int8:channel", (4 * units, units)),
            f"{name}.table": ("int32", (31, 4 * units)),
        }
        expected |= {f"{name}.state_scale": ("float32", ())}
    for name, width in norms(CONFIG).items():
        expected |= {f"{name}.{part}": ("float32", (width,)) for part in ("weight", "bias")}
    assert {name: (entry.format or entry.dtype, entry.shape) for name, entry in entries.items()} == expected
    layers = [name for name, module in model_of().named_modules() if isinstance(module, torch.nn.Linear)]
    assert sorted(linears(CONFIG)) == sorted(layers)
    assert sorted(norms(CONFIG)) == sorted(
        n for n, m in model_of().named_modules() if isinstance(m, torch.nn.LayerNorm)
    )


def with_code(packed, code):
    packed.codes[0, 0] = code
    return packed


def with_scale(packed, scale):
    packed.scales[0, 0] = scale
    return packed


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bridge.bias", None, r"bridge\.bias is missing"),
        ("extra", lambda _: torch.zeros(2), "extra is no tensor of the model"),
        ("bridge.bias", lambda t: t.float(), r"bridge\.bias is torch\.float32 \(24,\); accepted is torch\.int32"),
        ("bridge.bias", lambda t: t[:3], r"bridge\.bias is torch\.int32 \(3,\)"),
        ("bridge.weight", lambda t: t.decode(), r"bridge\.weight is torch\.float32 .* accepted is 'int8:channel'"),
        ("bridge.weight", lambda t: octavo.encode(t.decode(), "int8"), "bridge.weight is 'int8'"),
        ("bridge.weight", lambda t: octavo.encode(t.decode(), "int8:channel", axis=0), "along axis 0"),
        ("bridge.weight", lambda t: t.to(dtype=torch.float16), r"of torch\.float16"),
        ("bridge.weight", lambda t: with_code(t, 0x80), "the code -128"),
        ("bridge.weight", lambda t: with_scale(t, torch.nan), "negative or not finite"),
        ("bridge.weight", lambda t: with_scale(t, -1), "negative or not finite"),
        ("bridge.bias", lambda t: t.fill_(2**31 - 1), "which int32 cannot hold"),
        ("bridge.bias", lambda t: t.fill_(-(2**31)), "which int32 cannot hold"),
        ("decoder.table", lambda t: t.fill_(2**31 - 1), "which int32 cannot hold"),
        ("bridge.input_scale", lambda t: t.zero_(), "accepted are positive"),
        ("bridge.input_scale", lambda t: t.fill_(torch.inf), "holds NaN or infinity"),
        ("bridge.input_scale", lambda t: t.fill_(1e-40), "whose inverse is finite"),
        ("decoder.state_scale", lambda t: t.neg(), "accepted are positive"),
        ("self_attention.key.input_scale", lambda t: 2 * t, "which reads the same"),
        ("self_attention.key.input_bits", lambda t: t // 2, "input_bits is 8, and .* which reads the same, has 16"),
        ("output.input_bits", lambda t: t + 4, "output.input_bits is 12; accepted are 8 and 16"),
        ("bridge.bias", lambda t: t.fill_(2**31 - 10**7), "which int32 cannot hold"),
        ("memory_norm.weight", lambda t: t.fill_(torch.nan), "holds NaN or infinity"),
    ],
)
def test_a_file_that_could_not_be_computed_with_is_refused(pair, tmp_path, name, change, message):
    _, integer = pair
    path = tmp_path / "integer.safetensors"
    static.save(integer, path)
    tensors = octavo.load(path)
    tensors[name] = change(tensors.get(name)) if change else None
    octavo.save({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(ContainerError, match=message) as caught:
        static.load(path, CONFIG)
    assert str(path) in str(caught.value)
    with pytest.raises(ContainerError):
        static.load(path, replace(CONFIG, layers=3))
