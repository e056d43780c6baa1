"""Where everything that reads a unit is zero, nothing that makes the unit matters."""

import pytest
import torch
from octavo import ModelError
from octavo.prune import groups, structure
from prune.prune_zoo import MODELS, batch, made, result
from torch import nn

NAMES = list(MODELS)
ROUNDING = 1e-10  # in float64: sums in another order


def units_of(model, given, **options):
    return groups(model, given, **options)


def chosen(group, seed):
    """Return the numbers of some units of a group, not all."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, len(group.units) // 2)
    return torch.randperm(len(group.units), generator=generator)[:count].tolist()


@torch.no_grad()
def write(model, piece, values):
    parameter = dict(model.named_parameters(remove_duplicate=False))[piece.name]
    parameter.index_copy_(piece.dim, piece.indices, values(piece.of(parameter)))


@pytest.mark.parametrize(("name", "query_heads"), [*((name, False) for name in NAMES), ("llama", True)])
def test_what_makes_a_unit_is_read_by_its_consumers_alone(name, query_heads):
    model = made(name, 3, torch.float64)
    given = batch(model, 1)
    found = units_of(model, given, query_heads=query_heads)
    assert {group.kind for group in found} >= ({"neuron"} if name == "perceptron" else {"head", "neuron"})
    before = result(model, given)
    for group in found:
        for number in chosen(group, 5):
            for piece in group.units[number].consumers:
                write(model, piece, torch.zeros_like)
    zeroed = result(model, given)
    assert (before - zeroed).abs().max() > 1e-3
    for group in found:
        for number in chosen(group, 5):
            for piece in group.units[number].producers:
                write(model, piece, torch.randn_like)
    assert (result(model, given) - zeroed).abs().max() <= ROUNDING * max(1.0, float(zeroed.abs().max()))


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_units_share_no_weight(name):
    model = made(name, 4)
    for group in groups(model, batch(model, 1), kinds=("head", "neuron")):
        for place in (*group.producers, *group.consumers):
            assert place.indices.shape[0] == len(group.units)
            assert place.indices.unique().numel() == place.indices.numel()
            shape = dict(model.named_parameters(remove_duplicate=False))[place.name].shape
            assert int(place.indices.max()) < shape[place.dim]
        first = group.units[0]
        assert [piece.name for piece in first.consumers] == [place.name for place in group.consumers]


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit", "t5", "seq2seq"])
def test_a_layer_whose_branches_end_in_zeros_is_the_identity(name):
    model = made(name, 6, torch.float64)
    given = batch(model, 2)
    layers = [unit for group in groups(model, given, kinds=("layer",)) for unit in group.units]
    assert layers
    unit = layers[-1]
    for piece in unit.consumers:
        write(model, piece, torch.zeros_like)
    seen = {}

    def look(module, args, kwargs, out):
        seen["in"] = args[0] if args else kwargs["hidden_states"]
        seen["out"] = out[0] if isinstance(out, tuple) else out

    model.get_submodule(unit.name).register_forward_hook(look, with_kwargs=True)
    result(model, given)
    assert torch.equal(seen["in"], seen["out"])


def test_layers_that_normalize_behind_the_sum_are_refused_by_name():
    found = structure(made("bert", 1))
    assert "bert.encoder.layer" in found.refused
    with pytest.raises(ModelError, match=r"no layer of it can be removed.*bert\.encoder\.layer"):
        groups(made("bert", 1), kinds=("layer",))


def test_shared_keys_and_values():
    model = made("llama", 2)
    heads = [group for group in groups(model) if group.kind == "head"]
    queries = [group for group in groups(model, query_heads=True) if group.kind == "head"]
    config = model.config
    for group, alone in zip(heads, queries, strict=True):
        assert len(group.units) == config.num_key_value_heads
        assert group.queries * len(group.units) == len(alone.units) == config.num_attention_heads
        assert {place.name.split(".")[-2] for place in group.producers} == {"q_proj", "k_proj", "v_proj"}
        assert {place.name.split(".")[-2] for place in alone.producers} == {"q_proj"}


class Normed(nn.Module):
    """A feed-forward whose inner layer is normalized: no neuron is independent."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(self.norm(self.up(x).relu()))


class Sorted(nn.Module):
    """An operator that nobody told Octavo about."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(self.up(x).relu().sort(-1).values)


@pytest.mark.parametrize(("make", "why"), [(Normed, "layer_norm in norm mixes"), (Sorted, "aten.sort.*as a whole")])
def test_what_cannot_be_told_is_refused_by_name(make, why):
    with pytest.raises(ModelError, match=why):
        groups(make(), (torch.randn(4, 6),))


def test_a_weight_that_is_shared_goes_at_all_of_its_places():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
            self.second.weight = self.first.weight

        def forward(self, x):
            x = self.down(self.first(x).relu())
            return self.down(self.second(x).tanh())

    (group,) = groups(Twice(), (torch.randn(4, 6),))
    assert sorted(place.name for place in group.producers) == ["first.bias", "first.weight", "second.bias"]
    assert [place.name for place in group.consumers] == ["down.weight"]
