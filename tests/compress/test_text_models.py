"""Models of texts that commands name: texts are cut to the positions that a model has."""

import math

import pytest
from octavo.compress.text_models import positions_of
from torch import nn

transformers = pytest.importorskip("transformers")

SIZES = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


@pytest.mark.parametrize("name, most", [("Bert", 40), ("Roberta", 38)])
def test_texts_have_as_many_tokens_as_there_are_positions(name, most):
    config = getattr(transformers, f"{name}Config")(**SIZES, max_position_embeddings=40, pad_token_id=1)
    assert positions_of(getattr(transformers, f"{name}Model")(config)) == most


def test_a_model_without_a_table_has_no_bound():
    assert positions_of(nn.Linear(2, 2)) == math.inf
