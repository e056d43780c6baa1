"""Masks stay with the model: copies, state dicts, files, optimizers, training; folding leaves nothing of them."""

import copy
import io

import octavo
import pytest
import torch
from helpers.models import same_tensors
from octavo.model_folder.weight_files import PACKED_NAME, STRUCTURE
from octavo.prune import Cubic, fold_model, prune_model, report
from octavo.tensors import container
from torch import nn


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 24), nn.Linear(24, 37), nn.Dropout(dropout), nn.ReLU(), nn.Linear(37, 5))


IDS = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))


def gone(model):
    """The elements that masks prune, by path."""
    return {
        path: ~layer.masks.keep(layer, "weight") for path, layer in model.named_modules() if hasattr(layer, "masks")
    }


def assert_masked(model, pruned):
    found = gone(model)
    assert found.keys() == pruned.keys()
    for path, mask in pruned.items():
        assert torch.equal(found[path], mask)
        assert bool((model.get_submodule(path).weight[mask] == 0).all())


def steps(model, optimizer, count=3):
    for _ in range(count):
        model(IDS).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
}


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_pruned_weights_stay_0_through_any_optimizer_and_others_move(make, simulated):
    model = prune_model(network(), 0.6)
    if simulated:
        model = octavo.quantize_model(model, "int8:channel", progress=False)
    pruned, before = gone(model), model[1].weight.detach().clone()
    steps(model, make(model.parameters()))
    assert_masked(model, pruned)
    assert bool((model[1].weight != before)[~pruned["1"]].float().mean() > 0.5)
    assert model[1].weight.grad is None


@pytest.mark.parametrize("fused", [False, True])
def test_a_mask_that_grows_between_updates_wins_over_the_optimizers_momentum(fused):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    steps(model, optimizer)
    prune_model(model, 0.5, inplace=True)
    pruned = gone(model)
    steps(model, optimizer)
    model(IDS)
    assert_masked(model, pruned)
    steps(model, optimizer)
    model.state_dict()
    assert_masked(model, pruned)


def test_weights_that_an_optimizer_has_moved_between_a_check_and_a_step_are_masked_again():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    steps(model, optimizer)
    prune_model(model, 0.5, inplace=True)
    pruned = gone(model)
    model(IDS).square().sum().backward()
    with torch.no_grad():
        model(IDS)  # a validation between the gradient and the step
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        first = model(IDS)
    assert_masked(model, pruned)
    assert torch.equal(first, fold_model(model)(IDS))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_pruned_weights_and_gradients_are_plus_zero_whatever_they_were(dtype):
    layer = prune_model(nn.Linear(9, 5).to(dtype), 0.5)
    pruned = gone(layer)[""]
    with torch.no_grad():
        layer.weight[pruned] = torch.tensor([torch.nan, -1.0, -torch.inf] * 8, dtype=dtype)[: int(pruned.sum())]
    layer(torch.ones(2, 9, dtype=dtype)).sum().backward()
    for values in (layer.weight.detach(), layer.weight.grad):
        assert not values[pruned].any() and not torch.signbit(values[pruned]).any() and values[~pruned].all()


def test_copies_and_pickles_have_masks_of_their_own():
    model = prune_model(network(), 0.6)
    model(IDS).sum().backward()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert same_tensors(other.state_dict(), model.state_dict())
        pruned = gone(other)
        steps(other, torch.optim.AdamW(other.parameters(), lr=0.1))
        assert_masked(other, pruned)
        prune_model(other, 0.9, inplace=True)
    assert report(model).tensors[0].pruned == round(0.6 * 24 * 37)


def test_a_state_dict_brings_its_masks():
    model, other = prune_model(network(), 0.6), prune_model(network(), 0.1, criterion="random")
    other(IDS)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(other(IDS), model(IDS))
    assert same_tensors(other.state_dict(), model.state_dict())
    steps(other, torch.optim.AdamW(other.parameters(), lr=0.1))
    assert_masked(other, gone(model))
    third = prune_model(network(), 0.1)
    third.load_state_dict(model.state_dict(), assign=True)
    steps(third, torch.optim.AdamW(third.parameters(), lr=0.1))
    assert_masked(third, gone(model))


def test_masks_move_with_the_model_and_keep_their_bits():
    model = prune_model(network(), 0.6)
    pruned = gone(model)
    moved = copy.deepcopy(model).to(torch.float64).to(torch.bfloat16)
    assert_masked(moved, pruned)
    assert moved[1].masks.weight.dtype == torch.uint8
    meta = copy.deepcopy(model).to("meta")
    meta.state_dict()
    assert meta[1].masks.weight.is_meta


@pytest.mark.parametrize("recipe", [None, "int8:channel", "int4:g32@mse"])
def test_model_folders_hold_masks_as_packed_bits(tmp_path, recipe):
    model = prune_model(network(), 0.6, schedule=None)
    if recipe:
        model = octavo.quantize_model(model, recipe, progress=False)
    octavo.save_model(model, tmp_path / "m")
    held = container.load(tmp_path / "m" / PACKED_NAME)
    assert held["1.masks.weight"].dtype == torch.uint8 and held["1.masks.weight"].shape == (24 * 37 / 8,)
    loaded = octavo.load_model(tmp_path / "m", network)
    assert same_tensors(loaded.state_dict(), model.eval().state_dict())
    assert torch.equal(loaded(IDS), model(IDS))
    steps(loaded.train(), torch.optim.AdamW(loaded.parameters(), lr=0.1))
    assert_masked(loaded, gone(model))
    octavo.save_model(loaded, tmp_path / "again")
    assert same_tensors(octavo.load_model(tmp_path / "again", network()).state_dict(), loaded.state_dict())


def test_gathered_scores_stay_out_of_model_folders(tmp_path):
    model = prune_model(network(), 0.6, criterion="movement", schedule=Cubic(10))
    assert "1.masks.weight_scores" in model.state_dict()
    octavo.save_model(model, tmp_path / "m")
    assert not any("scores" in name for name in container.load(tmp_path / "m" / PACKED_NAME))
    octavo.load_model(tmp_path / "m", network)


@pytest.mark.parametrize("name", ["1.height", "0.masks.weight", "9.weight", "", 3])
def test_a_file_whose_masks_have_no_place_is_refused(tmp_path, name):
    import json

    octavo.save_model(prune_model(network(), 0.6), tmp_path / "m")
    file = tmp_path / "m" / PACKED_NAME
    metadata = container.metadata(file)
    structure = json.loads(metadata[STRUCTURE])
    structure["masked"].append(name)
    container.save(container.load(file), file, metadata={**metadata, STRUCTURE: json.dumps(structure)})
    with pytest.raises(octavo.ContainerError, match=str(file)):
        octavo.load_model(tmp_path / "m", network)


def test_a_mask_of_another_size_is_refused(tmp_path):
    octavo.save_model(prune_model(network(), 0.6), tmp_path / "m")
    file = tmp_path / "m" / PACKED_NAME
    held = {**container.load(file), "1.masks.weight": torch.zeros(3, dtype=torch.uint8)}
    container.save(held, file, metadata=container.metadata(file))
    with pytest.raises(octavo.ContainerError, match=r"1\.masks\.weight"):
        octavo.load_model(tmp_path / "m", network)


def test_models_of_transformers_come_back_with_their_masks(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = prune_model(transformers.BertForSequenceClassification(config).eval(), 0.5, scope="global")
    octavo.save_model(model, tmp_path / "m")
    loaded = octavo.load_model(tmp_path / "m")
    assert same_tensors(loaded.state_dict(), model.state_dict())
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


# --- folding ----------------------------------------------------------------------------------------------------------


def test_folding_leaves_the_plain_model_with_the_same_outputs():
    plain, model = network(), prune_model(network(), 0.6)
    pruned = gone(model)
    folded = fold_model(model)
    assert list(folded.state_dict()) == list(plain.state_dict())
    assert torch.equal(folded(IDS), model(IDS))
    assert all(bool((folded.get_submodule(path).weight[mask] == 0).all()) for path, mask in pruned.items())
    for module, before in zip(folded.modules(), plain.modules(), strict=True):
        assert type(module) is type(before) and list(module._modules) == list(before._modules)
        for name, value in vars(before).items():  # no hook is left
            if "hooks" in name:
                assert getattr(module, name) == value, name
    assert all(parameter._backward_hooks in (None, {}) for parameter in folded.parameters())
    assert_masked(model, pruned)
    steps(folded, torch.optim.SGD(folded.parameters(), lr=0.1))
    assert bool((folded[1].weight[pruned["1"]] != 0).any())  # plain weights again


def test_folding_after_quantizing_leaves_no_hook():
    model = octavo.quantize_model(prune_model(network(), 0.6), "int8:channel", progress=False).eval()
    expected = model(IDS)
    folded = fold_model(model, inplace=True)
    assert folded is model and not folded[1]._forward_pre_hooks and not folded[1]._state_dict_pre_hooks
    assert torch.equal(folded(IDS), expected)


def test_packing_asks_for_folding_and_folding_for_masks():
    quantized = octavo.quantize_model(prune_model(network(), 0.6), "int8:channel", progress=False)
    with pytest.raises(octavo.ModelError, match=r"masks.*fold_model"):
        octavo.pack_model(quantized)
    packed = octavo.pack_model(fold_model(quantized))
    assert bool((packed[1].packed_weight.decode()[gone(quantized)["1"]] == 0).all())
    with pytest.raises(octavo.ModelError, match="no layer has masks"):
        fold_model(network())


def test_adapters_train_on_pruned_layers_and_fuse_after_folding():
    model = octavo.lora.insert(prune_model(network(), 0.6), rank=2, targets="name:1")
    pruned = gone(model)
    steps(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert_masked(model, pruned)
    expected = model.eval()(IDS)
    with pytest.raises(octavo.ModelError, match=r"lora: 1: has masks.*fold_model"):
        octavo.lora.fuse(model)
    folded = fold_model(model)
    octavo.lora.fuse(folded)
    assert torch.allclose(folded(IDS), expected, atol=1e-5)


def test_compiled_and_exported_models_hold_no_masks():
    model = prune_model(network(), 0.6).eval()
    graph = octavo.graph.capture(model, IDS)
    plain = octavo.graph.capture(fold_model(model), IDS)
    assert [node.op for node in graph.nodes] == [node.op for node in plain.nodes]


def test_data_parallel_training_keeps_masks():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = prune_model(network(), 0.6)
        pruned, wrapped = gone(model), nn.parallel.DistributedDataParallel(model)
        steps(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=0.1))
        assert_masked(model, pruned)
    finally:
        dist.destroy_process_group()


class Tied(nn.Module):
    """The masked head reads its weight after the embedding has."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.rows.weight

    def forward(self, ids):
        return self.head(self.rows(ids))


@pytest.mark.parametrize("copied", [False, True])
def test_no_reader_of_a_tied_weight_sees_what_an_optimizer_wrote(copied):
    torch.manual_seed(0)
    model, ids = octavo.prune_model(Tied(), 0.5, targets="head", progress=False), torch.randint(20, (4, 5))
    if copied:
        model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    optimizer.state[model.head.weight] = {
        "step": torch.tensor(1.0),
        "exp_avg": torch.ones(20, 8),
        "exp_avg_sq": torch.ones(20, 8),
    }
    for _ in range(3):
        model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        first = model(ids)
        assert torch.equal(first, model(ids))
    folded = octavo.prune.fold_model(model)
    assert not folded._forward_pre_hooks and torch.equal(folded(ids), first)
