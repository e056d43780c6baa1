"""Trees of tensors: every container that models take and give, in its own order."""

from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch
from octavo.data.batches import Batches, call_numbered, call_on, map_leaves, tensors_in
from octavo.errors import CalibrationError
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


# --- what data loaders give ------------------------------------------------------------------------------------------


class Takes(nn.Module):
    """A model whose forward is given; it returns the names of what it got."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


IDS, FLOATS, CLASSES = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3), torch.arange(4)


@pytest.mark.parametrize(
    ("forward", "batch", "expected"),
    [
        (lambda x: "x", (FLOATS, CLASSES), "x"),
        (lambda x: "x", [FLOATS, FLOATS, CLASSES], "x"),
        (lambda x, mask=None: "x" if mask is None else "mask", (FLOATS, CLASSES), "x"),
        (lambda x, mask=None: "x" if mask is None else "mask", (IDS, IDS), "mask"),
        (lambda x, y: "both", (FLOATS, CLASSES), "both"),
        (lambda input_ids, labels=None: "no" if labels is None else "labels", {"input_ids": IDS, "labels": CLASSES}, "labels"),
        (lambda input_ids: "ids", {"input_ids": IDS, "labels": CLASSES, "label": CLASSES}, "ids"),
        (lambda input_ids, **rest: sorted(rest), {"input_ids": IDS, "labels": CLASSES, "other": IDS}, ["other"]),
        (lambda **batch: sorted(batch), {"x": IDS, "labels": CLASSES}, ["labels", "x"]),
        (lambda input_ids: "ids", ({"input_ids": IDS}, CLASSES), "ids"),
    ],
)  # fmt: skip
def test_labels_that_a_model_does_not_take_are_left_out(forward, batch, expected):
    assert call_on(Takes(forward), batch) == expected


def test_an_iterator_and_a_shuffling_loader_give_every_pass_the_same():
    data = torch.utils.data.TensorDataset(torch.arange(64.0)[:, None])
    for given in (iter([torch.ones(2), torch.zeros(2)]), torch.utils.data.DataLoader(data, 8, shuffle=True)):
        batches = Batches(given, 32)
        first, second = ([float(tensor.sum()) for tensor in map(next, map(tensors_in, batches))] for _ in range(2))
        assert first == second and len(first) == len(batches)


def test_a_generator_is_read_only_as_far_as_it_is_needed():
    def endless():
        while True:
            yield torch.zeros(8, 2)

    assert sum(map(len, Batches(endless(), 20))) == 24


def test_texts_need_a_tokenizer_and_become_batches():
    def tokenizer(texts, *, padding, truncation, max_length, return_tensors):
        return {"input_ids": torch.tensor([[len(text)] for text in texts])}

    found = [batch["input_ids"] for batch in Batches(["a", "bb", "ccc"], 2, tokenizer=tokenizer)]
    assert torch.cat(found).tolist() == [[1], [2]]
    with pytest.raises(CalibrationError, match="give the tokenizer"):
        Batches(["a"], 2)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))

    def forward(self, x, *, scale=1):
        return self.body(x * scale)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (torch.zeros(2, 3), r"batch 7, counted from 0: layer 'body.1' \(Linear\) .*argument 0 float32\[2, 3\]"),
        (torch.zeros(2, 9), r"layer 'body.0' \(Linear\)"),
        ({"x": torch.zeros(2, 3), "colour": 1}, "no argument 'colour' .it has x, scale.*colour of type int"),
        ({"scale": torch.zeros(3)}, "needs the argument 'x'"),
        ((), "needs the argument 'x'.*holds nothing"),
    ],
)
def test_what_a_model_cannot_take_names_batch_argument_and_layer(batch, told):
    with pytest.raises(CalibrationError, match=told):
        call_numbered(Deep(), batch, 7)
