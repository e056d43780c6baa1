"""Sequence-to-sequence models with random weights."""

import torch
from octavo.lab.polynomials.seq2seq import build


def random_model(config, seed=0, factor=3.0):
    """A model with weights ``factor`` times fresh ones, so that answers differ from row to row and gates leave their middle."""
    torch.manual_seed(seed)
    model = build(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(factor)
    return model
