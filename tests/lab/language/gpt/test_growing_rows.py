"""What decoding keeps: rows are added in place, and no holder sees another's."""

import math

import pytest
import torch
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, LatentAttention, first_state, step
from octavo.lab.language.gpt.growing_rows import GrowingRows

LENGTH = 200


def test_rows_added_one_by_one_are_the_rows_and_are_copied_at_doublings_alone():
    wanted = torch.randn(2, LENGTH, 3)
    held, places = GrowingRows(torch.empty(2, 0, 3), 1), set()
    for at in range(LENGTH):
        held = held.followed_by(wanted[:, at : at + 1])
        places.add(held.rows.data_ptr())
        assert torch.equal(held.rows, wanted[:, : at + 1])
    assert len(places) <= math.ceil(math.log2(LENGTH))


def test_two_that_grow_from_the_same_rows_do_not_see_each_other():
    begun = GrowingRows(torch.zeros(1, 0), 1).followed_by(torch.tensor([[1.0, 2.0]]))
    one, other = (begun.followed_by(torch.tensor([[value]])) for value in (3.0, 4.0))
    one = one.followed_by(torch.tensor([[5.0]]))
    assert [part.rows.tolist() for part in (begun, one, other)] == [[[1, 2]], [[1, 2, 3, 5]], [[1, 2, 4]]]


def test_rows_of_a_wider_type_widen_all_and_gradients_pass():
    begun = GrowingRows(torch.ones(1, 2), 1)
    assert begun.followed_by(torch.ones(1, 1, dtype=torch.float64)).rows.dtype == torch.float64
    leaf = torch.ones(1, 1, requires_grad=True)
    begun.followed_by(2 * leaf).followed_by(leaf).rows.square().sum().backward()
    assert leaf.grad.item() == 10


def test_rows_of_inference_mode_are_added_to_outside_of_it():
    with torch.inference_mode():
        begun = GrowingRows(torch.zeros(1, 0), 1).followed_by(torch.ones(1, 2))
    assert begun.followed_by(torch.zeros(1, 1)).rows.tolist() == [[1, 1, 0]]
    with torch.inference_mode():
        assert begun.followed_by(torch.zeros(1, 1)).rows.tolist() == [[1, 1, 0]]


@pytest.mark.parametrize("mixer", [Attention(heads=2), LatentAttention(heads=2, head_size=8, rotary_size=4, rank=12)])
def test_a_decoded_token_adds_to_the_cache_where_it_is(mixer):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=31, width=16, pattern="a", mixers={"a": mixer}, end_of_text=0)).eval()
    ids = torch.randint(1, 31, (1, LENGTH))
    state, places, found = first_state(model, 1), set(), []
    name = "key" if isinstance(mixer, Attention) else "cached"
    with torch.no_grad():
        for at in range(LENGTH):
            scores, state = step(model, ids[:, at], state)
            places.add(state.mixers[0][name].rows.data_ptr())
            found.append(scores)
        assert torch.allclose(torch.stack(found, 1), model(ids), atol=1e-4)
    assert len(places) <= math.ceil(math.log2(LENGTH))
