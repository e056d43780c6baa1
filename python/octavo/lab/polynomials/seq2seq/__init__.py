"""Small sequence-to-sequence models: three architectures behind one interface (:class:`Seq2Seq`)."""

from octavo.lab.polynomials.seq2seq.decoder_state import END, PAD, START, State
from octavo.lab.polynomials.seq2seq.hybrid import HybridSeq2Seq
from octavo.lab.polynomials.seq2seq.interface import Seq2Seq
from octavo.lab.polynomials.seq2seq.lstm import LSTMSeq2Seq
from octavo.lab.polynomials.seq2seq.seq2seq_config import ARCHITECTURES, Seq2SeqConfig
from octavo.lab.polynomials.seq2seq.transformer import TransformerSeq2Seq

__all__ = [
    "ARCHITECTURES",
    "END",
    "PAD",
    "START",
    "HybridSeq2Seq",
    "LSTMSeq2Seq",
    "Seq2Seq",
    "Seq2SeqConfig",
    "State",
    "TransformerSeq2Seq",
    "build",
    "network",
]

_CLASSES = {"lstm": LSTMSeq2Seq, "hybrid": HybridSeq2Seq, "transformer": TransformerSeq2Seq}


def network(config: Seq2SeqConfig) -> type[Seq2Seq]:
    """Return the class of the model that a configuration is of."""
    return _CLASSES[config.architecture]


def build(config: Seq2SeqConfig) -> Seq2Seq:
    """Return a model of the configured architecture with fresh weights, drawn from torch's global generator."""
    return network(config)(config)
