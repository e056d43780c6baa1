"""Trees of tensors: every container that models take and give, in its own order."""

from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch
from octavo.batches import call_on, map_leaves, tensors_in
from torch import nn

A, B, C = (torch.full((1,), float(number)) for number in range(3))
Pair = namedtuple("Pair", "left right")

TREES = {
    "tensor": (A, [A]),
    "tuple": ((A, (B, C)), [A, B, C]),
    "dict": ({"z": A, "a": [B]}, [A, B]),
    "ordered": (OrderedDict(z=A, a=B), [A, B]),
    "namedtuple": (Pair(A, Pair(B, C)), [A, B, C]),
    "mapping that torch does not know": (UserDict(z=A, a=(B,)), [A, B]),
    "inside a tuple": ((UserDict(z=A), B), [A, B]),
    "others": ({"text": "x", "n": 3, "none": None, "a": A}, [A]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("kind", TREES)
def test_tensors_come_in_the_order_of_their_container(kind):
    tree, expected = TREES[kind]
    found = list(tensors_in(tree))
    assert len(found) == len(expected) and all(a is b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", TREES)
def test_containers_stay_when_leaves_are_mapped(kind):
    tree, expected = TREES[kind]
    made = map_leaves(lambda leaf: leaf + 1 if isinstance(leaf, torch.Tensor) else leaf, tree)
    assert [float(tensor) for tensor in tensors_in(made)] == [float(tensor) + 1 for tensor in expected]
    assert type(made) is (dict if isinstance(tree, UserDict) else type(tree))


class Told(nn.Module):
    def forward(self, *args, **kwargs):
        return args, kwargs


@pytest.mark.parametrize("batch", [A, "text", 3, None])
def test_anything_else_is_the_one_argument(batch):
    assert call_on(Told(), batch) == ((batch,), {})


def test_mappings_are_keywords_and_lists_positions():
    assert call_on(Told(), (A, B)) == call_on(Told(), [A, B]) == ((A, B), {})
    assert call_on(Told(), {"x": A}) == call_on(Told(), UserDict(x=A)) == ((), {"x": A})
