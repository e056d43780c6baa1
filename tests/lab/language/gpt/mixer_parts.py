"""Parts of language models by themselves: layers with first weights, and the context that mixers are called in."""

import torch
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.language.gpt.softmax_head import SoftmaxHead
from torch import nn

WIDTH = 16


def initialized(build, *arguments):
    """What ``build`` gives, with the first weights of seed 0."""
    torch.manual_seed(0)
    part = build(*arguments)
    initialize(part, "torch")
    return part


def mixer_of(kind, config, width=WIDTH):
    return initialized(kind, config, width)


def mixing_context(length, documents=None):
    """Positions 0 to ``length``, of one document or of several."""
    return MixingContext(torch.arange(length), documents)


class SmoothedHead(SoftmaxHead):
    """Validation with the training targets: a tenth of the target's weight goes to all others."""

    def nll(self, h_ND, y_N):
        return nn.functional.cross_entropy(self.scores(h_ND), y_N, reduction="none", label_smoothing=0.1)
