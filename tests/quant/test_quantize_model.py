"""quantize_model: what changes, what stays, and what is refused before anything has changed."""

import copy
import io
import pickle

import octavo
import pytest
import torch
from helpers.models import copied_state, same_tensors, spec
from octavo import CalibrationError, DTypeError, FormatError, NonFiniteError, quantize_model
from octavo.nn import QuantConv1d, QuantEmbedding, Quantizer, QuantLinear, QuantMatmul
from octavo.quant import freeze_scales, prepare_model
from octavo.quant.algorithms import solve_in_order
from octavo.quant.calibration import Products
from octavo.recipe.spec import LayerPlan
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune


class Model(nn.Module):
    """An embedding tied to the head, a convolution, batch norm, a product of activations, a layer used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(13, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.norm = nn.BatchNorm1d(24)
        self.mix = nn.Linear(24, 24)
        self.again = self.mix
        self.product = QuantMatmul()
        self.head = nn.Linear(24, 13, bias=False)
        self.head.weight = self.embed.weight
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids, shift=0):
        x = self.norm(self.conv(self.embed(ids).transpose(1, 2))).transpose(1, 2)
        x = self.again(functional.gelu(self.mix(x))) + shift
        x = x + self.product(self.product(x, x.transpose(1, 2)).softmax(-1), x)
        return self.head(self.dropout(x))


def data(count=4, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 13, (size, 7), generator=generator) for _ in range(count)]


W8A8 = "int8:channel; type:Linear input=int8@mse; type:QuantMatmul input=int8@minmax"


# --- what changes and what stays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["", {}, octavo.Recipe()])
def test_an_empty_recipe_changes_no_bit(recipe):
    model = Model().eval()
    quantized = quantize_model(model, recipe)
    assert same_tensors(copied_state(quantized), copied_state(model)) and torch.equal(
        quantized(data()[0]), model(data()[0])
    )


@pytest.mark.parametrize("inplace", [False, True])
def test_layers_are_replaced_and_everything_else_stays(inplace):
    model = Model()
    model.norm.eval()
    seen = []
    model.mix.register_forward_hook(lambda *_: seen.append(1))
    before, random = copied_state(model), torch.random.get_rng_state()
    quantized = quantize_model(model, W8A8, calibration=data(), inplace=inplace, progress=False)
    assert (quantized is model) == inplace
    assert isinstance(quantized.mix, QuantLinear) and quantized.again is quantized.mix
    assert isinstance(quantized.conv, QuantConv1d) and isinstance(quantized.embed, QuantEmbedding)
    assert quantized.head.weight is quantized.embed.weight
    assert quantized.training and not quantized.norm.training and quantized.mix.training
    assert torch.equal(torch.random.get_rng_state(), random)
    after = copied_state(quantized)
    assert same_tensors({name: after[name] for name in before}, before)
    assert quantized.mix.input_quantizer.is_static and not quantized.mix.weight_quantizer.is_static
    assert all(q.enabled for q in quantized.modules() if isinstance(q, Quantizer))
    seen.clear()
    quantized(data()[0])
    assert seen == [1, 1]
    if not inplace:
        assert type(model.mix) is nn.Linear and same_tensors(copied_state(model), before)


def test_a_quantized_model_is_near_the_float_model():
    model = Model().eval()
    quantized = quantize_model(model, W8A8, calibration=data())
    x = data(seed=1)[0]
    error = (quantized(x) - model(x)).square().mean() / model(x).square().mean()
    assert 0 < error < 1e-3


@pytest.mark.parametrize("reorder", [lambda b: b[::-1], lambda b: [torch.cat(b)], lambda b: iter(b)])
def test_order_and_size_of_batches_change_no_scale(reorder):
    texts = "int4:g8@mse; type:Linear input=uint8@kl output=int8@quantile:0.99; type:QuantMatmul input=int6@mse"
    first, other = (quantize_model(Model(), texts, calibration=given) for given in (data(), reorder(data())))
    assert same_tensors(copied_state(first), copied_state(other))


def test_batches_are_mappings_tuples_or_single_arguments():
    forms = [[(x, 1) for x in data()], [[x, 1] for x in data()], [{"ids": x, "shift": 1} for x in data()]]
    states = [copied_state(quantize_model(Model(), W8A8, calibration=form)) for form in forms]
    assert same_tensors(states[0], states[1]) and same_tensors(states[0], states[2])
    assert not same_tensors(states[0], copied_state(quantize_model(Model(), W8A8, calibration=data())))


def test_as_many_batches_are_read_as_hold_the_samples():
    read = []

    def batches():
        for batch in data(10):
            read.append(batch)
            yield batch

    limited = quantize_model(Model(), W8A8, calibration=batches(), samples=7)
    assert len(read) == 3  # of 3 samples each
    samples = torch.cat(data(10))[:7]
    assert same_tensors(
        copied_state(limited), copied_state(quantize_model(Model(), W8A8, calibration=[samples], samples=None))
    )


def test_the_root_may_be_a_layer():
    layer = nn.Linear(8, 4)
    quantized = quantize_model(layer, "int8")
    assert isinstance(quantized, QuantLinear) and quantized.weight is not layer.weight
    with pytest.raises(DTypeError, match="inplace=True cannot replace the Linear itself"):
        quantize_model(layer, "int8", inplace=True)


def test_a_quantized_model_is_quantized_again_from_its_float_weights():
    model = Model()
    first = quantize_model(model, "int2; type:Linear input=int8@mse", calibration=data())
    again = quantize_model(first, W8A8, calibration=data())
    assert same_tensors(copied_state(again), copied_state(quantize_model(model, W8A8, calibration=data())))


def test_progress_is_told_to_a_function():
    told = []
    quantize_model(Model(), W8A8 + "; mix int4@mse", calibration=data(), progress=lambda *stage: told.append(stage))
    assert told == [("calibrating activations", 1, 1), ("choosing weight scales", 1, 1)]


def test_a_whole_layer_in_integers_is_what_its_codes_say():
    """Static int8 input, int8 weight, int32 bias: the arithmetic that integer hardware has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 16), nn.ReLU()).eval()
    x = torch.randn(50, 24)
    recipe = "type:Linear weight=int8:channel input=int8@minmax bias=int32"
    layer = quantize_model(model, recipe, calibration=[x])[0]
    packed, weight = layer.input_quantizer.encode(x), layer.weight_quantizer.encode(layer.weight)
    steps = packed.scales * weight.scales.flatten()
    bias = (layer.bias.double() / steps.double()).round().long()
    codes = [part.codes.view(torch.int8).long() for part in (packed, weight)]
    assert torch.equal(layer(x), (codes[0] @ codes[1].T + bias).float() * steps)
    with pytest.raises(NonFiniteError, match=r"^0: input: "):
        layer(torch.full((1, 24), float("nan")))


# --- states -----------------------------------------------------------------------------------------------------------


MIXED = "int4:g8@mse; conv uint4:g8@minmax; mix fixed6:channel@lsq input=int8@lsq output=uint8@mse; type:QuantMatmul input=fixed8@mse"  # fmt: skip


def test_a_saved_model_loads_into_a_prepared_one():
    quantized = quantize_model(Model(), MIXED, calibration=data()).eval()
    file = io.BytesIO()
    torch.save(quantized.state_dict(), file)
    file.seek(0)
    prepared = prepare_model(Model(), MIXED).eval()
    with pytest.raises(CalibrationError, match="load a state dict"):
        prepared(data()[0])
    prepared.load_state_dict(torch.load(file, weights_only=True))
    assert same_tensors(copied_state(prepared), copied_state(quantized))
    assert torch.equal(prepared(data()[0]), quantized(data()[0]))
    assert {n for n, p in prepared.named_parameters()} == {n for n, p in quantized.named_parameters()}


def test_a_state_of_the_float_model_loads_strictly():
    quantized = quantize_model(Model(), MIXED, calibration=data())
    scales = quantized.embed.weight_quantizer.scales.clone()
    other = Model()
    with torch.no_grad():
        other.mix.weight.mul_(2)
    quantized.load_state_dict(other.state_dict())
    assert torch.equal(quantized.mix.weight, other.mix.weight)
    assert torch.equal(quantized.embed.weight_quantizer.scales, scales)


def test_evaluating_and_training_forward_change_no_statistic():
    quantized = quantize_model(Model(), MIXED, calibration=data())
    quantized.norm.eval()
    before = copied_state(quantized)
    for training in (False, True):
        quantized.mix.train(training)
        quantized(data(seed=3)[0] * 1)
    assert same_tensors(copied_state(quantized), before)


def test_copies_and_pickles_compute_alike():
    quantized = quantize_model(Model(), MIXED, calibration=data()).eval()
    for other in (copy.deepcopy(quantized), pickle.loads(pickle.dumps(quantized))):
        assert torch.equal(other(data()[0]), quantized(data()[0]))


def test_half_precision_models_stay_in_half_precision():
    model = Model().to(torch.bfloat16)
    quantized = quantize_model(model, W8A8, calibration=data())
    assert quantized.mix.weight.dtype == torch.bfloat16
    assert quantized.mix.input_quantizer.scales.dtype == torch.float32
    assert quantized(data()[0]).dtype == torch.bfloat16


def test_freezing_scales_of_a_weight_with_nan_freezes_nothing():
    model = quantize_model(Model(), "int4").eval()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError):
        freeze_scales(model)
    assert not any(m.weight_quantizer.is_static for m in (model.embed, model.conv, model.head, model.mix))


def test_freezing_fixes_scales_of_weights_and_ends_learning():
    quantized = freeze_scales(quantize_model(Model(), "int4; mix int4@lsq", calibration=data()).eval())
    before = quantized(data()[0])
    assert all(m.weight_quantizer.is_static for m in (quantized.embed, quantized.conv, quantized.head, quantized.mix))
    assert not quantized.mix.weight_quantizer.scales.requires_grad
    scales = quantized.conv.weight_quantizer.scales.clone()
    assert torch.equal(before, quantize_model(Model(), "int4; mix int4@mse").eval()(data()[0]))
    with torch.no_grad():
        quantized.conv.weight.mul_(3)
    quantized(data()[0])
    assert torch.equal(quantized.conv.weight_quantizer.scales, scales)


# --- torch's own transformer ------------------------------------------------------------------------------------------


def test_the_fast_path_of_torchs_transformer_does_not_go_past_the_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 5, 16), torch.tensor([[False] * 3 + [True] * 2] * 3)
    quantized = quantize_model(model, "glob:**.linear? int2")
    with torch.no_grad():
        results = [quantized(x, src_key_padding_mask=mask) for mask in (None, padding)]
    with torch.enable_grad():
        expected = [quantized(x, src_key_padding_mask=mask) for mask in (None, padding)]
    for got, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(got[:, :3], wanted[:, :3])
        assert (got - model(x)).abs().max() > 0.1


def test_a_projection_that_attention_reads_itself_is_refused():
    class Mixer(nn.MultiheadAttention):
        """A subclass, which may compute something else: none is made of layers."""

    model = Mixer(16, 2)
    with pytest.raises(DTypeError, match=r"out_proj: torch\.nn.MultiheadAttention reads"):
        quantize_model(model, {"out_proj": LayerPlan(weight=spec("int8"))})


# --- gptq and hqq -----------------------------------------------------------------------------------------------------


def solver(asked):
    """Stands for gptq and hqq: notes what it is asked, and halves the weight."""

    def solve(weight, *rest, **options):
        asked.append((weight.clone(), *rest))
        packed = octavo.encode(weight / 2, rest[-1])
        return packed.decode(), packed.scales, packed.unpack_zeros(), None

    return solve


def test_gptq_gets_the_hessian_of_inputs_in_the_model_quantized_so_far(monkeypatch):
    asked = []
    monkeypatch.setattr(solve_in_order, "solved", solver(asked))
    model = Model()
    recipe = "name:mix weight=int4:g8@gptq input=int4@minmax; name:conv weight=uint4:g8@gptq"
    quantized = quantize_model(model, recipe, calibration=data())
    # The convolution runs first, so its solved weight feeds the linear layer, whose own is still the float one.
    probe = quantize_model(model, "name:mix input=int4@minmax", calibration=data()).eval()
    with torch.no_grad():
        probe.conv.weight.copy_(quantized.conv.weight)
    inputs, convolved = [], []
    probe.mix.register_forward_pre_hook(lambda m, x: inputs.append(m.input_quantizer(x[0]).flatten(0, 1)))
    probe.conv.register_forward_pre_hook(lambda m, x: convolved.append(x[0]))
    with torch.no_grad():
        for batch in data():
            probe(batch)
    x = torch.cat(inputs).double()
    patches = torch.cat([functional.pad(c, (1, 1)).unfold(2, 3, 1).transpose(1, 2).flatten(2).flatten(0, 1) for c in convolved]).double()  # fmt: skip
    assert [len(factors.hessian) for _, factors, _ in asked] == [72, 24]
    for (given, factors, _), rows, weight in zip(
        asked, (patches, x), (model.conv.weight, model.mix.weight), strict=True
    ):
        torch.testing.assert_close(factors.hessian.double(), 2 / len(rows) * rows.T @ rows, rtol=1e-4, atol=1e-5)
        assert torch.equal(given, weight.flatten(1))
    packed = octavo.encode(model.mix.weight / 2, "int4:g8")
    assert torch.equal(quantized.mix.weight, packed.decode())
    assert torch.equal(quantized.mix.weight_quantizer.scales, packed.scales)
    assert torch.equal(quantized.mix._weight(), quantized.mix.weight)


class Again(nn.Module):
    """Runs ``a`` twice, or as its argument says, and ``b`` in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, times=None):
        if times is None:
            return self.a(torch.relu(self.a(x) + self.b(x)))
        for _ in range(times):
            x = torch.relu(self.a(x))
        return self.b(x)


@pytest.mark.parametrize("times, runs", [((None, None), 4), ((1, 3), 4), ((3, 1, 0), 4), ((1, 1), 2)])
def test_hessians_hold_every_call_of_a_layer(monkeypatch, times, runs):
    rows = {}
    add = Products.add

    def counted(self, x):
        rows[self.layer] = rows.get(self.layer, 0) + len(x)
        add(self, x)

    monkeypatch.setattr(Products, "add", counted)
    batches = [(torch.randn(5, 8), n) for n in times]
    quantized = quantize_model(Again(), "int4:g8@gptq", calibration=batches, progress=False)
    assert rows == {quantized.a: 5 * runs, quantized.b: 5 * len(times)}


@pytest.mark.parametrize("count, samples", [(4, None), (4, 5), (1, 512)])
def test_an_iterator_of_batches_is_as_good_as_a_list(count, samples):
    recipe = "type:Linear weight=int4:g8@gptq input=int8@mse"
    torch.manual_seed(1)
    given = [torch.randn(3, 8) for _ in range(count)]
    wanted, *found = (
        quantize_model(Again(), recipe, calibration=batches, samples=samples, progress=False)
        for batches in (given, iter(given), (x for x in given))
    )
    assert all(same_tensors(copied_state(wanted), copied_state(model)) for model in found)


@pytest.mark.parametrize("inplace", [False, True])
def test_weights_are_as_they_were_where_gptq_fails(monkeypatch, inplace):
    asked = []

    def fails(*args, **options):
        if asked:
            raise NonFiniteError("hessian holds NaN")
        return solver(asked)(*args, **options)

    monkeypatch.setattr(solve_in_order, "solved", fails)
    model = Model()
    before = copied_state(model)
    with pytest.raises(NonFiniteError, match="mix: weight: hessian holds NaN"):
        quantize_model(
            model, "name:mix weight=int4:g8@gptq; name:conv weight=int4:g8@gptq", calibration=data(), inplace=inplace
        )
    assert len(asked) == 1 and same_tensors(copied_state(model), before)


@pytest.mark.parametrize("fmt", ["int4:g8", "uint4:channel", "mxint4/8", "mxfp4", "nvfp4", "nf4/8", "e4m3", "fixed6"])
def test_gptq_lowers_what_the_outputs_lose(fmt):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16)).eval()
    batches = [torch.randn(64, 6) @ torch.randn(6, 48) + 0.1 * torch.randn(64, 48) for _ in range(4)]
    plain = quantize_model(model, f"type:Linear weight={fmt}", progress=False)
    solved = quantize_model(model, f"type:Linear weight={fmt}@gptq", calibration=batches, progress=False)
    with torch.no_grad():
        x = torch.cat(batches)
        wanted = model(x)
        assert (solved(x) - wanted).square().sum() < 0.7 * (plain(x) - wanted).square().sum()
    for layer in solved[::2]:
        assert torch.equal(layer.weight_quantizer.encode(layer.weight_matrix()).decode(), layer.weight_matrix())


def test_hqq_needs_no_data(monkeypatch):
    asked = []
    monkeypatch.setattr(octavo.quant, "hqq", solver(asked), raising=False)
    model = Model()
    quantized = quantize_model(model, "name:mix weight=uint4:g8@hqq")
    assert len(asked) == 1 and torch.equal(quantized.mix._weight(), quantized.mix.weight)
    assert not torch.equal(quantized.mix.weight, model.mix.weight)


def test_hqq_solves_a_tied_weight_once_where_its_owners_agree(monkeypatch):
    monkeypatch.setattr(octavo.quant, "hqq", solver([]), raising=False)
    quantized = quantize_model(Model(), "embed uint4:g8@hqq")
    assert quantized.head.weight is quantized.embed.weight
    assert torch.equal(quantized.head._weight(), quantized.head.weight)
    assert torch.equal(quantized.embed(torch.arange(13)), quantized.head.weight)


@pytest.mark.parametrize("method", ["gptq", "hqq"])
def test_a_tied_weight_is_not_solved_for_one_of_its_owners(method):
    with pytest.raises(DTypeError, match=f"head and embed.weight share a weight, which {method} would change for both"):
        quantize_model(Model(), {"head": LayerPlan(weight=spec("int4:g8", method))}, calibration=data())


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(error, match, recipe, model=None, **options):
    """Refused, and nothing has changed."""
    model = model or Model()
    before, types = copied_state(model), [type(module) for module in model.modules()]
    for inplace in (False, True):
        with pytest.raises(error, match=match):
            quantize_model(model, recipe, inplace=inplace, **options)
        assert [type(module) for module in model.modules()] == types
        after = copied_state(model)
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) or before[name].isnan().any() for name in before)


def test_calibration_that_is_missing_is_asked_for():
    told = r"mix: input: 'int8@mse' is calibrated from data; give quantize_model calibration=batches, or write 'int8'"
    refused(CalibrationError, told, "type:Linear input=int8@mse")
    refused(CalibrationError, "mix: 'int4@gptq' needs inputs of the layer", "name:mix weight=int4@gptq")


def test_calibration_that_is_no_data_is_refused():
    for given, told in (
        (data()[0], "calibration is a Tensor; accepted is an iterable of batches"),
        (data()[0].numpy(), "calibration is a ndarray; accepted is an iterable of batches"),
        ({"ids": data()[0]}, "calibration is a dict"),
        ([], "holds no samples"),
        (iter([]), "holds no samples"),
    ):
        refused(CalibrationError, told, W8A8, calibration=given)
    refused(DTypeError, "calibration is 5; accepted is an iterable or None", W8A8, calibration=5)
    refused(CalibrationError, "samples is 0", W8A8, calibration=data(), samples=0)


def test_a_layer_that_no_batch_reaches_is_named():
    model = Model()
    model.spare = nn.Linear(3, 3)
    refused(CalibrationError, "spare: input: .* never called", "spare input=int8@mse", model, calibration=data())


def test_activations_that_are_not_finite_are_named():
    model = Model()
    with torch.no_grad():
        model.conv.bias[0] = float("nan")
    refused(NonFiniteError, "mix: input: NaN among", W8A8, model, calibration=data())


def test_an_error_of_the_model_leaves_it_as_it_was():
    refused(CalibrationError, "no argument 'colour'", W8A8, calibration=[{"colour": 1}])


def test_what_a_plan_cannot_mean_is_refused():
    refused(FormatError, "no module 'mixx'; nearest names: mix", {"mixx": LayerPlan(weight=spec("int8"))})
    twice = {"mix": LayerPlan(weight=spec("int8")), "again": LayerPlan(weight=spec("int4"))}
    refused(FormatError, "mix and again are one module", twice)
    refused(
        DTypeError,
        r"norm is a BatchNorm1d; accepted are Conv1d, Conv2d, Conv3d, .*Embedding, .*Linear",
        {"norm": LayerPlan(weight=spec("int8"))},
    )
    refused(FormatError, "embed: a Embedding has no input", {"embed": LayerPlan(input=spec("int8"))})
    refused(FormatError, "mix: input: 'int8:channel@mse'", {"mix": LayerPlan(input=spec("int8:channel", "mse"))}, calibration=data())  # fmt: skip
    refused(FormatError, "mix: weight: 'e4m3@mse'", {"mix": LayerPlan(weight=spec("e4m3", "mse"))})
    refused(FormatError, "input: 'int8@gptq': gptq is for weights", {"mix": LayerPlan(input=spec("int8", "gptq"))}, calibration=data())  # fmt: skip


def pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.parametrize("hook, undo", [(nn.utils.weight_norm, "remove_weight_norm"), (nn.utils.spectral_norm, "remove_spectral_norm"), (pruned, "prune.remove")])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_a_weight_that_a_hook_computes_is_refused(hook, undo):
    model = nn.Sequential(nn.ReLU(), hook(nn.Linear(8, 8)))
    model(torch.randn(2, 8))
    with pytest.raises(DTypeError, match=f"1: a hook computes its weight before every call; .*{undo}"):
        quantize_model(model, "int8")


def test_an_error_on_the_way_names_its_batch():
    with pytest.raises(CalibrationError, match=r"batch 1, counted from 0: layer '.*' \(.*Linear\).*float32\[2, 9\]"):
        quantize_model(Again(), "int4:g8@gptq", calibration=[torch.randn(2, 8), torch.randn(2, 9)], progress=False)
