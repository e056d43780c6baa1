"""Pruning is exact: the number that was asked for, whatever the criterion, granularity and shape; ties go by index."""

import copy
import json
import math

import octavo
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo.errors import ModelError
from octavo.nn.masks import packed_bits, unpacked_bits
from octavo.prune import fold_model, prune_model, report
from octavo.prune.ranking import Ranked, lowest, prune_local, prune_n_of_m, prune_together
from torch import nn

CRITERIA = ("magnitude", "random", "wanda", "taylor")
GRANULARITIES = ("element", "row", "column", "block:4x4", "block:3x5", "2:4", "1:3")
SHAPES = ((37, 12), (5, 37), (1, 9), (16, 1))


def network(*shapes, seed=0):
    """Linear layers of odd shapes one after another, with a linear map between misfits, embedding first."""
    torch.manual_seed(seed)
    layers = [nn.Embedding(11, shapes[0][1])]
    for (rows, columns), following in zip(shapes, (*shapes[1:], None), strict=True):
        layers += [nn.Linear(columns, rows), nn.Tanh()]
        if following and following[1] != rows:
            layers.append(nn.Linear(rows, following[1]))
    return nn.Sequential(*layers)


def data():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(11, (3, 7), generator=generator) for _ in range(3)]


def square(model, batch):
    return model(batch).square().mean()


def pruned(model, sparsity=0.5, **options):
    return prune_model(model, sparsity, calibration=data(), loss=square, progress=False, **options)


def masks(model):
    """The pruned elements of each weight, as matrices."""
    return {
        path: ~layer.masks.keep(layer, "weight").flatten(1)
        for path, layer in model.named_modules()
        if "masks" in layer._modules
    }


def units(mask, granularity):
    """How many units there are and how many are pruned whole, and that none is pruned in part: by brute force."""
    rows, columns = mask.shape
    r, c = {"element": (1, 1), "row": (1, columns), "column": (rows, 1)}.get(granularity) or tuple(
        map(int, granularity.partition(":")[2].split("x"))
    )
    blocks = [mask[i : i + r, j : j + c] for i in range(0, rows, r) for j in range(0, columns, c)]
    assert all(bool(block.all()) or not bool(block.any()) for block in blocks)
    return len(blocks), sum(bool(block.all()) for block in blocks)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.83])
def test_sparsity_is_exact_in_every_tensor(criterion, granularity, sparsity):
    model = network(*SHAPES)
    if ":" in granularity and not granularity.startswith("block"):
        keep, group = map(int, granularity.split(":"))
        for name, mask in masks(pruned(model, None, criterion=criterion, granularity=granularity)).items():
            for row in mask:
                for part in row.split(group):
                    assert int((~part).sum()) == math.ceil(len(part) * keep / group), name
        return
    made = pruned(model, sparsity, criterion=criterion, granularity=granularity)
    for mask in masks(made).values():
        count, gone = units(mask, granularity)
        assert gone == round(sparsity * count)
    for path, layer in made.named_modules():
        if isinstance(layer, nn.Linear):
            assert bool((layer.weight.flatten(1)[masks(made)[path]] == 0).all())
    assert not hasattr(model[1], "masks")  # a copy was pruned


@pytest.mark.parametrize("scope", ["global", "isomorphic"])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("granularity", ["element", "row", "block:4x4"])
def test_sparsity_is_exact_in_all_tensors_together_and_no_tensor_goes_below_its_floor(scope, criterion, granularity):
    model = network((37, 12), (5, 37), (16, 5))  # a matrix of one row has nothing to give above its floor
    found = masks(pruned(model, 0.7, criterion=criterion, granularity=granularity, scope=scope, floor=0.1))
    counted = [units(mask, granularity) for mask in found.values()]
    assert all(count - gone >= math.ceil(0.1 * count) for count, gone in counted)
    if scope == "global":
        assert sum(gone for _, gone in counted) == round(0.7 * sum(count for count, _ in counted))


def test_isomorphic_ranks_the_same_parts_of_repeated_blocks_together():
    torch.manual_seed(0)
    model = nn.ModuleDict({"blocks": nn.ModuleList(nn.ModuleDict({"up": nn.Linear(8, 16)}) for _ in range(3))})
    model.head = nn.Linear(8, 16)
    with torch.no_grad():
        model.blocks[0].up.weight.mul_(10)
    found = {name: int(mask.sum()) for name, mask in masks(prune_model(model, 0.5, scope="isomorphic")).items()}
    assert found["head"] == 64 and found["blocks.0.up"] < 64
    assert sum(found[f"blocks.{number}.up"] for number in range(3)) == 192


@given(st.integers(1, 60), st.data())
def test_lowest_takes_exactly_as_many_and_ties_by_index(n, given_data):
    values = given_data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
    count = given_data.draw(st.integers(0, n))
    expected = sorted(range(n), key=lambda place: (values[place], place))[:count]
    assert lowest(torch.tensor(values).float(), count).nonzero().flatten().tolist() == sorted(expected)


@given(st.integers(1, 5), st.integers(1, 9), st.floats(0, 0.99), st.data())
def test_rankings_by_row_differ_by_one_at_most_and_n_of_m_keeps_the_highest(rows, columns, sparsity, given_data):
    values = given_data.draw(st.lists(st.integers(0, 3), min_size=rows * columns, max_size=rows * columns))
    scores, none = torch.tensor(values).float(), torch.zeros(rows * columns, dtype=torch.bool)
    chosen = prune_local(Ranked("w", (), sparsity, scores, none, rows)).view(rows, columns)
    assert int(chosen.sum()) == round(sparsity * rows * columns)
    assert int(chosen.sum(1).max() - chosen.sum(1).min()) <= 1
    gone = prune_n_of_m(Ranked("w", (), 0.5, scores, none), columns, 2, 4).view(rows, columns)
    for row, mask in zip(scores.view(rows, columns), gone, strict=True):
        for part, off in zip(row.split(4), mask.split(4), strict=True):
            order = sorted(range(len(part)), key=lambda place: (float(part[place]), place))
            count = len(part) - math.ceil(len(part) / 2)
            assert sorted(order[:count]) == off.nonzero().flatten().tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.floats(0, 0.8), st.floats(0, 0.2))
def test_together_counts_are_exact_and_floors_hold(sizes, sparsity, floor):
    generator = torch.Generator().manual_seed(sum(sizes))
    members = [
        Ranked(str(n), (), sparsity, torch.rand(n, generator=generator), torch.zeros(n, dtype=torch.bool))
        for n in sizes
    ]
    least = [math.ceil(floor * n) for n in sizes]
    if round(sparsity * sum(sizes)) > sum(sizes) - sum(least):
        with pytest.raises(octavo.ModelError, match="a floor of"):
            prune_together(members, floor)
        return
    chosen = prune_together(members, floor)
    assert sum(int(mask.sum()) for mask in chosen) == round(sparsity * sum(sizes))
    assert all(len(mask) - int(mask.sum()) >= held for mask, held in zip(chosen, least, strict=True))


@given(st.lists(st.booleans(), min_size=0, max_size=70))
def test_packed_bits_come_back(bits):
    keep = torch.tensor(bits, dtype=torch.bool)
    packed = packed_bits(keep)
    assert packed.shape == (math.ceil(len(bits) / 8),)
    assert [bool(packed[i // 8] >> (i % 8) & 1) for i in range(len(bits))] == bits
    assert torch.equal(unpacked_bits(packed, (len(bits),)), keep)


# --- criteria ---------------------------------------------------------------------------------------------------------


def test_magnitude_takes_the_smallest_and_wanda_those_of_small_inputs():
    model = nn.Sequential(nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[4.0, -3.0, 2.0, -1.0], [1.0, 2.0, -3.0, 4.0]]))
    by_weight = masks(prune_model(model, 0.5))["0"]
    assert by_weight.tolist() == [[False, False, True, True], [True, True, False, False]]
    inputs = [torch.tensor([[0.1, 1.0, 1.0, 10.0], [0.1, 1.0, -1.0, 10.0]])]
    by_both = masks(prune_model(model, 0.5, criterion="wanda", calibration=inputs, progress=False))["0"]
    assert by_both.tolist() == [[True, False, True, False], [True, True, False, False]]


def test_taylor_is_the_magnitude_of_weight_times_gradient_over_batches():
    model, batches = network((6, 5), (4, 6)), data()
    expected = []
    for batch in batches:
        found = torch.autograd.grad(square(model, batch), [model[1].weight, model[3].weight])
        expected.append([(w * g).abs() for w, g in zip((model[1].weight, model[3].weight), found, strict=True)])
    made = masks(pruned(model, 0.4, criterion="taylor"))
    for number, path in enumerate(("1", "3")):
        score = sum(one[number] for one in expected).detach().flatten()
        assert torch.equal(made[path].flatten(), lowest(score, round(0.4 * score.numel())))


def test_random_follows_the_seed_and_the_name_alone():
    model = network(*SHAPES)
    whole = masks(prune_model(model, 0.5, criterion="random", seed=3))
    part = masks(prune_model(model, 0.5, criterion="random", seed=3, targets="name:3"))
    assert torch.equal(whole["3"], part["3"]) and set(part) == {"3"}
    assert not torch.equal(whole["1"], masks(prune_model(model, 0.5, criterion="random", seed=4))["1"])
    more = masks(prune_model(model, 0.8, criterion="random", seed=3))
    assert all(bool(more[path][mask].all()) for path, mask in whole.items())  # more prunes what less prunes


def test_a_second_call_goes_on_from_the_first_and_back_is_refused():
    first = pruned(network(*SHAPES), 0.3)
    again = pruned(first, 0.6, criterion="random")
    assert all(bool(masks(again)[path][mask].all()) for path, mask in masks(first).items())
    with pytest.raises(octavo.ModelError, match=r"1\.weight: sparsity 0\.1 means .* pruned already"):
        pruned(first, 0.1)


# --- layers and targets -----------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.conv(self.embed(ids).transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("granularity", ["element", "row", "column", "block:2x4", "2:4"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_kernels_and_tied_weights_are_pruned_as_matrices_once(criterion, granularity):
    torch.manual_seed(0)
    made = pruned(Mixed(), 0.5, criterion=criterion, granularity=granularity)
    assert [tensor.name for tensor in report(made).tensors] == ["conv.weight", "head.weight"]
    assert made.head.weight is made.embed.weight
    assert report(made).parameters == 11 * 6 + 6 * 6 * 3 + 6 + 11
    more = prune_model(made, 0.8, targets="embed") if ":" not in granularity else made
    assert more.embed.weight is more.head.weight and not hasattr(more.embed, "masks")  # one mask, where it was
    assert bool((more.embed.weight.detach() == 0)[~more.head.masks.keep(more.head, "weight")].all())


def test_transformers_linear_layers_are_pruned_along_their_inputs():
    Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(6, 8))  # weight [in 8, out 6]
    keep = prune_model(model, granularity="2:4")[0]
    kept = keep.masks.keep(keep, "weight")
    assert kept.shape == (8, 6) and bool((kept.T.reshape(-1, 4).sum(1) == 2).all())


def test_sparsity_by_selector_the_last_that_matches_counts():
    made = prune_model(network(*SHAPES), {"**": 0.5, "name:3": 0.25, "last:Linear": 0.0})
    shares = {tensor.name: tensor.sparsity for tensor in report(made).tensors}
    assert shares["1.weight"] == 0.5 and shares["3.weight"] == round(0.25 * 185) / 185
    assert list(shares) == [f"{path}.weight" for path in ("1", "3", "5", "6")][: len(shares)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_pruned(dtype):
    made = prune_model(network(*SHAPES).to(dtype), 0.5)
    assert report(made).tensors[0].pruned == 222 and made[1].weight.dtype == dtype


# --- simulated layers -------------------------------------------------------------------------------------------------

FORMATS = ("int8:channel", "int4:g32", "uint4:g32", "mxint8", "mxfp4", "nf4", "ternary", "fixed8", "e4m3", "int8@mse")


@pytest.mark.parametrize("fmt", FORMATS)
def test_masks_act_before_the_quantizer_and_scales_are_chosen_again(fmt):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    quantized = octavo.quantize_model(model, fmt, progress=False)
    made = prune_model(quantized, 0.5).eval()
    layer, gone = made[0], masks(made)["0"]
    assert torch.equal(gone, masks(prune_model(model, 0.5))["0"])  # the mask is that of the float weight
    rounded = layer._weight()
    assert bool((rounded[gone] == 0).all())
    assert torch.equal(
        rounded, octavo.quantize_model(fold_model(prune_model(model, 0.5)), fmt, progress=False)[0]._weight()
    )
    packed = octavo.pack_model(fold_model(made))
    assert bool((packed[0].packed_weight.decode()[gone] == 0).all())


def test_frozen_scales_are_chosen_again():
    torch.manual_seed(0)
    quantized = octavo.quant.freeze_scales(
        octavo.quantize_model(nn.Sequential(nn.Linear(64, 16)), "int4:g32", progress=False)
    )
    made = prune_model(quantized, 0.9, granularity="row")
    assert made[0].weight_quantizer.is_static
    assert not torch.equal(made[0].weight_quantizer.scales, quantized[0].weight_quantizer.scales)


def test_a_format_without_zero_is_refused_by_name():
    model = nn.Sequential(nn.Linear(64, 16))
    with pytest.raises(octavo.FormatError, match=r"0\.weight: 'binary' has no 0"):
        prune_model(octavo.quantize_model(model, "binary", progress=False), 0.5)
    with pytest.raises(octavo.FormatError, match="0: weight: 'binary' has no 0"):
        octavo.quantize_model(prune_model(model, 0.5), "binary", progress=False)
    with pytest.raises(octavo.FormatError, match="'binary' has no 0"):
        octavo.quant.FormatSchedule({0: "binary"})(
            octavo.quantize_model(prune_model(model, 0.5), "int8", progress=False), 0
        )


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sparsity": 1.0}, "sparsity is 1.0"),
        ({"sparsity": -0.1}, "sparsity is -0.1"),
        ({"sparsity": None}, "no sparsity given"),
        ({"sparsity": {}}, "empty mapping"),
        ({"sparsity": {"nothing.*": 0.5}}, "'nothing.*' matches no layer"),
        ({"criterion": "l1"}, "unknown criterion 'l1'"),
        ({"criterion": "movement"}, "give schedule="),
        ({"granularity": "4:2"}, "keeps 4 of every 2"),
        ({"granularity": "channel"}, "unknown granularity 'channel'"),
        ({"granularity": "2:4", "sparsity": 0.4}, "prunes 0.5"),
        ({"granularity": "2:4", "scope": "global"}, "inside its groups"),
        ({"scope": "world"}, "unknown scope 'world'"),
        ({"targets": "nothing.*"}, "'nothing.*' matches no layer"),
        ({"targets": []}, "targets is empty"),
        ({"scope": "global", "sparsity": 0.9, "floor": 0.5}, "a floor of 0.5"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_model_is_as_it_was(options, words):
    model = network(*SHAPES)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(octavo.ModelError, match=words.replace("*", r"\*")):
        prune_model(model, **{"sparsity": 0.5, "inplace": True, **options})
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_missing_data_and_unreached_layers_are_refused():
    with pytest.raises(octavo.CalibrationError, match="criterion wanda needs data"):
        prune_model(network(*SHAPES), 0.5, criterion="wanda")
    model = network((4, 4))
    model.unused = nn.Linear(4, 4)
    model.forward = lambda ids: model[1](model[0](ids))
    with pytest.raises(octavo.CalibrationError, match="unused: got no calibration data"):
        prune_model(model, 0.5, criterion="wanda", calibration=data(), progress=False, inplace=True)
    with pytest.raises(octavo.ModelError, match="taylor needs a loss"):
        prune_model(network(*SHAPES), 0.5, criterion="taylor", calibration=data(), progress=False)


def test_weights_that_are_not_finite_and_packed_layers_are_refused():
    model = network(*SHAPES)
    with torch.no_grad():
        model[3].weight[0, 0] = torch.nan
    with pytest.raises(octavo.NonFiniteError, match=r"3\.weight"):
        prune_model(model, 0.5)
    packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(8, 8)), "mxint8", progress=False))
    with pytest.raises(octavo.ModelError, match="0: is packed"):
        prune_model(packed, 0.5)


def test_the_report_is_exact_data():
    found = report(prune_model(network(*SHAPES), 0.5))
    told = json.loads(found.to_json())
    assert told["pruned"] == sum(tensor["pruned"] for tensor in told["tensors"]) == found.pruned
    assert told["sparsity"] == found.pruned / found.elements and "1.weight" in str(found)
    assert "speed" not in str(found) and found.mask_bytes == sum(-(-one.elements // 8) for one in found.tensors)


def test_n_of_m_takes_its_own_share_and_layers_without_elements():
    model = nn.Linear(12, 4)
    pruned = octavo.prune_model(model, 2 / 3, granularity="1:3", progress=False)
    assert int((pruned.weight != 0).sum()) == 16
    empty = nn.Sequential(nn.Linear(0, 4), nn.Linear(4, 0))
    assert octavo.prune.report(octavo.prune_model(empty, granularity="2:4", progress=False)).pruned == 0


def test_taylor_refuses_a_loss_without_a_gradient():
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ModelError, match="taylor: the loss has no gradient"):
        octavo.prune_model(
            model, 0.5, criterion="taylor", calibration=[torch.randn(2, 4)], loss=lambda model, batch: torch.zeros(()),
            progress=False,
        )  # fmt: skip
