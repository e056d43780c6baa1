"""Heads, neurons and layers go whole: every slice of a pruned unit is 0 in all of its tensors, and of no other one."""

import octavo
import pytest
import torch
from octavo.prune import Cubic, callback, fold_model, groups, prune_model, report
from torch import nn

transformers = pytest.importorskip("transformers")

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 50}
BATCHES = [{"input_ids": torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(seed))} for seed in range(2)]


def model_of(name):
    torch.manual_seed(0)
    if name == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)).eval()
    if name == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 1}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, **sizes)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)).eval()


def loss(model, batch):
    return model(**batch).logits.square().mean()


def slices(model, unit, masked):
    """Whether each slice of a unit is pruned whole, of the weights as of the masks."""
    told = []
    for one in (*unit.producers, *unit.consumers):
        value = one.of(model.get_parameter(one.name).detach())
        path, _, last = one.name.rpartition(".")
        keep = one.of(masked[path].keep(model.get_submodule(path), last)) if path in masked else torch.ones(1) > 0
        told.append(not bool(keep.any()))
        assert bool((value == 0).all()) or bool(keep.any())
    return told


KINDS = ("head", "neuron", "layer")  # layers of BERT end in a norm and do not go alone
CASES = [(name, kind, "magnitude") for name in ("bert", "gpt2", "llama") for kind in KINDS[: 2 + (name != "bert")]]
CASES += [("llama", kind, criterion) for kind in KINDS for criterion in ("random", "wanda", "taylor")]


@pytest.mark.parametrize(("name", "kind", "criterion"), CASES)
def test_a_pruned_structure_is_0_in_all_of_its_tensors_and_the_count_is_exact(name, kind, criterion):
    model = model_of(name)
    found = groups(model, kinds=[kind])
    made = prune_model(
        model, 0.5, granularity=kind, criterion=criterion, calibration=BATCHES, loss=loss, scope="local", progress=False
    )
    masked = {path: layer.masks for path, layer in made.named_modules() if hasattr(layer, "masks")}
    for group in found:
        told = [slices(made, unit, masked) for unit in group.units]
        assert all(all(unit) or not any(unit) for unit in told)
        assert sum(all(unit) for unit in told) == round(0.5 * len(group.units))
    assert report(made).pruned == sum(
        one.of(model.get_parameter(one.name)).numel()
        for group in found
        for unit in group.units
        if all(slices(made, unit, masked))
        for one in (*unit.producers, *unit.consumers)
    )
    folded = fold_model(made)
    assert torch.equal(folded(**BATCHES[0]).logits, made(**BATCHES[0]).logits)


def test_structures_are_ranked_with_their_like_by_default_and_each_keeps_its_floor():
    model = model_of("bert")
    with torch.no_grad():
        for parameter in model.bert.encoder.layer[0].attention.parameters():
            parameter.mul_(0.01)
    made = prune_model(model, 0.5, granularity="head", floor=0.2)
    masked = {path: layer.masks for path, layer in made.named_modules() if hasattr(layer, "masks")}
    gone = [sum(all(slices(made, unit, masked)) for unit in group.units) for group in groups(model, kinds=["head"])]
    assert gone == [3, 1]


def test_targets_choose_among_structures():
    made = prune_model(model_of("llama"), {"**.layers.1.**": 0.5}, granularity="head")
    assert {tensor.name.split(".")[2] for tensor in report(made).tensors} == {"1"}
    with pytest.raises(octavo.ModelError, match="none of the selected layers holds a head"):
        prune_model(model_of("llama"), 0.5, granularity="head", targets="lm_head")
    with pytest.raises(octavo.ModelError, match="no head of it can be removed"):
        prune_model(nn.Sequential(nn.Linear(4, 4)), 0.5, granularity="head", inputs=torch.randn(2, 4))


def test_structures_of_simulated_layers_are_pruned_and_rescaled():
    model = octavo.quantize_model(
        prune_model(model_of("bert"), 0.5, granularity="neuron", scope="local", schedule=Cubic(4)),
        "int8:channel@mse",
        progress=False,
    )
    prune = callback(model)
    for step in range(5):
        prune(model, step)
    layer = model.bert.encoder.layer[0].intermediate.dense
    gone = ~layer.masks.keep(layer, "weight").any(1)
    assert int(gone.sum()) == 24 and not bool(layer._weight()[gone].any()) and not bool(layer.bias[gone].any())


@pytest.mark.parametrize("criterion", ["taylor", "movement"])
def test_scores_of_structures_are_gathered_in_training(criterion):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).train()
    model = prune_model(
        model, 0.4, granularity="neuron", criterion=criterion, schedule=Cubic(3), inputs=torch.randn(2, 6)
    )
    prune, optimizer = callback(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        prune(model, step)
        model(torch.randn(4, 6)).square().mean().backward()
        prune.gradients(model, step)
        optimizer.step()
        optimizer.zero_grad()
    assert report(model).pruned == 4 * (6 + 1 + 3)


@pytest.mark.parametrize("kind", ["head", "neuron"])
def test_what_is_pruned_by_structure_is_what_compaction_takes_out(kind):
    model = prune_model(model_of("bert"), 0.5, granularity=kind, scope="local")
    small, told = octavo.prune.compact_model(model)
    assert (small(**BATCHES[0]).logits - model(**BATCHES[0]).logits).abs().max() < 1e-5
    assert all(row["after"] == row["before"] // 2 for row in told.to_rows() if row["kind"] == kind)
