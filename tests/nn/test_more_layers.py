"""Transposed and three-dimensional convolutions and bags of embeddings, float to folder."""

import copy

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.conv_transposed import matrix_of, weight_of
from torch import nn

GAP = 2e-6  # products summed in another order, relative to the largest output


def convolutions():
    side = {"kernel_size": 2, "stride": 2}
    return {
        "side by side": (nn.ConvTranspose2d(64, 32, **side), (2, 64, 5, 6)),
        "one vector": (nn.ConvTranspose1d(64, 48, 4, 4, bias=False), (64, 5)),
        "volume": (nn.ConvTranspose3d(64, 32, (1, 2, 2), (1, 2, 2)), (1, 64, 2, 5, 3)),
        "narrow": (nn.ConvTranspose2d(24, 32, **side), (1, 24, 4, 4)),
        "overlapping": (nn.ConvTranspose2d(64, 32, 4, 2, 1), (2, 64, 5, 6)),
        "groups": (nn.ConvTranspose2d(64, 32, 3, 2, output_padding=1, groups=4), (1, 64, 3, 4)),
        "dilated": (nn.ConvTranspose1d(32, 16, 3, dilation=2), (1, 32, 9)),
        "Conv3d": (nn.Conv3d(4, 32, (2, 4, 4), (2, 4, 4)), (1, 4, 4, 8, 8)),
        "Conv3d, padded": (nn.Conv3d(4, 32, 3, padding=1, groups=2), (1, 4, 4, 5, 6)),
    }


PRODUCTS = ("side by side", "one vector", "volume")
RECIPES = ("int8", "int8:tensor", "int4:g32", "uint4:g32", "mxint4", "int8 input=int8 output=int8")


def stages(layer, recipe, tmp_path):
    """Yield a layer simulated, packed, and both loaded again."""
    model = nn.Sequential(copy.deepcopy(layer)).eval()
    simulated = octavo.quantize_model(model, recipe, progress=False)
    packed = octavo.pack_model(simulated)
    for name, made in (("simulated", simulated), ("packed", packed)):
        octavo.save_model(made, tmp_path / name)
        yield name, made
        yield f"{name}, loaded", octavo.load_model(tmp_path / name, copy.deepcopy(model))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", convolutions())
def test_every_form_of_a_convolution_is_the_float_layer_of_rounded_weights(name, recipe, tmp_path):
    torch.manual_seed(0)
    layer, shape = convolutions()[name]
    x = torch.randn(shape)
    found = {stage: model(x).detach() for stage, model in stages(layer, recipe, tmp_path)}
    simulated = octavo.quantize_model(nn.Sequential(layer), recipe, progress=False)
    if recipe == "int4:g32":
        rounded = copy.deepcopy(layer)
        fmt, weight = octavo.Format(recipe), layer.weight.data
        if isinstance(layer, nn.Conv3d):
            rounded.weight.data = octavo.quantize(weight.flatten(1), fmt).view_as(weight)
        else:
            matrix = octavo.quantize(matrix_of(weight, layer.groups), fmt)
            rounded.weight.data = weight_of(matrix, layer.groups, layer.kernel_size).contiguous()
        assert torch.equal(found["simulated"], rounded(x))
    largest = found["simulated"].abs().max()
    assert torch.equal(found["simulated"], found["simulated, loaded"])
    assert torch.equal(found["packed"], found["packed, loaded"])
    # An output that is rounded may fall on the other side of a step.
    gap = 1 / 64 if "output" in recipe else GAP
    assert (found["packed"] - found["simulated"]).abs().max() <= gap * largest
    plain = unpack(Checkpoint.open(tmp_path / "packed"))["0.weight"]
    assert plain.shape == layer.weight.shape
    torch.testing.assert_close(plain, simulated[0]._weight().detach(), atol=0, rtol=0)
    explained = {row.role: row for row in octavo.Recipe.parse(recipe).explain(nn.Sequential(layer)).rows}
    kept = octavo.pack_model(simulated)[0].packed_weight
    assert explained["weight"].bits == pytest.approx(8 * kept.nbytes / layer.weight.numel())


@pytest.mark.parametrize("name", [name for name in convolutions() if not name.startswith("Conv3d")])
def test_a_kernel_that_does_not_overlap_is_a_product_of_codes(name):
    layer, shape = convolutions()[name]
    packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(layer), "int4:g32", progress=False))
    assert (packed[0].cost(4)[0] != "decode + torch") == (name in PRODUCTS)
    with octavo.strict():
        if name in PRODUCTS:
            packed(torch.randn(shape))
        else:
            with pytest.raises(octavo.KernelError, match="kernels overlap"):
                packed(torch.randn(shape))


def test_an_output_size_is_taken_as_by_the_float_layer():
    model = nn.ConvTranspose2d(64, 32, 2, 2)
    simulated = octavo.nn.QuantConvTranspose2d.from_layer(
        model, octavo.recipe.spec.LayerPlan(weight=octavo.recipe.spec.Spec(octavo.Format("int8")))
    )
    x = torch.randn(1, 64, 3, 4)
    packed = octavo.nn.PackedConvTranspose2d.from_layer(simulated)
    assert simulated(x, output_size=[7, 9]).shape == model(x, output_size=[7, 9]).shape == (1, 32, 7, 9)
    assert torch.equal(packed(x, output_size=[7, 9]), simulated(x, output_size=[7, 9]))


def test_input_rows_of_a_volume_are_its_patches():
    layer = octavo.quantize_model(
        nn.Sequential(nn.Conv3d(4, 32, (2, 3, 1), (1, 2, 1), padding=1)), "fp16", progress=False
    )[0]
    x = torch.randn(2, 4, 4, 5, 6)
    rows = layer.input_rows(x) @ layer.weight.flatten(1).T + layer.bias
    torch.testing.assert_close(rows, layer(x).permute(0, 2, 3, 4, 1).flatten(0, 3), atol=5e-3, rtol=0)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags_are_those_of_rounded_rows(mode, padding, tmp_path):
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(40, 64, mode=mode, padding_idx=padding)
    rounded = copy.deepcopy(layer)
    rounded.weight.data = octavo.quantize(layer.weight.data, "int4:g32")
    ids = torch.randint(0, 40, (24,))
    calls = [
        ((ids, torch.tensor([0, 4, 4, 9])), {}), ((ids.view(4, 6),), {}), ((ids[:0], torch.tensor([0, 0])), {}),
        ((ids.int(), torch.tensor([0, 5], dtype=torch.int32)), {}),
    ]  # fmt: skip
    if mode == "sum":
        calls.append(((ids.view(4, 6),), {"per_sample_weights": torch.randn(4, 6)}))
    for stage, model in stages(layer, "int4:g32", tmp_path):
        for args, options in calls:
            assert torch.equal(model[0](*args, **options), rounded(*args, **options)), stage
    last = copy.deepcopy(layer)
    last.include_last_offset = True
    made = octavo.pack_model(octavo.quantize_model(nn.Sequential(last), "int4:g32", progress=False))[0]
    assert torch.equal(made(ids, torch.tensor([0, 4, 24])), rounded(ids, torch.tensor([0, 4])))
    assert made.cost(4) == ("gather", -(-made.packed_weight.nbytes * 4 // 40))


def test_gradients_of_bags_reach_their_table():
    layer = octavo.quantize_model(nn.Sequential(nn.EmbeddingBag(10, 32, mode="sum")), "int8", progress=False)[0]
    layer(torch.tensor([[1, 2], [2, 5]])).sum().backward()
    assert layer.weight.grad.sum(1).tolist() == [0, 32, 64, 0, 0, 32, 0, 0, 0, 0]


def test_a_bag_that_rewrites_rows_is_not_packed():
    made = octavo.quantize_model(nn.Sequential(nn.EmbeddingBag(10, 32, max_norm=1.0)), "int8", progress=False)
    with pytest.raises(octavo.ModelError, match="0: max_norm rewrites rows"):
        octavo.pack_model(made)


class Calibrated(nn.Module):
    """One of each new kind, to be calibrated."""

    def __init__(self):
        super().__init__()
        self.bag, self.cube = nn.EmbeddingBag(40, 64), nn.Conv3d(4, 16, (2, 2, 2))
        self.up, self.attend = nn.ConvTranspose2d(16, 32, 2, 2), nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, ids, x):
        y = self.up(self.cube(x).mean(2)).flatten(2).transpose(1, 2)
        y, _ = self.attend(y, y, y, need_weights=False)
        return self.head(y.mean(1)) + self.bag(ids)


def test_scales_of_every_new_kind_are_calibrated(tmp_path):
    torch.manual_seed(0)
    model = Calibrated().eval()
    batches = [(torch.randint(0, 40, (2, 5)), torch.randn(2, 4, 3, 4, 4)) for _ in range(3)]
    recipe = "int8@mse input=int8@minmax; type:EmbeddingBag int8 output=int8@minmax"
    simulated = octavo.quantize_model(model, recipe, calibration=batches, progress=False)
    quantizers = {
        path: part
        for path, part in simulated.named_modules()
        if isinstance(part, octavo.nn.Quantizer) and "weight" not in path
    }
    assert {path.partition(".")[0] for path in quantizers} == {"bag", "cube", "up", "attend", "head"}
    assert all(quantizer.is_static for quantizer in quantizers.values())
    packed = octavo.pack_model(simulated)
    octavo.save_model(packed, tmp_path)
    with torch.no_grad():
        expected, found = simulated(*batches[0]), packed(*batches[0])
        assert (expected - model(*batches[0])).norm() < 0.05 * model(*batches[0]).norm()
        assert (
            found - expected
        ).abs().max() <= expected.abs().max() / 64  # an input may fall on the other side of a step
        assert torch.equal(octavo.load_model(tmp_path, Calibrated)(*batches[0]), found)
