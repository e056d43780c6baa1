"""The language lab's networks: GPT-2 and its descendants, of techniques that are registered under names.

A :class:`GPTConfig` names the technique of every part: mixers of positions, feed-forward networks, heads and
objectives. :mod:`octavo.lab.language.techniques` is the registry, :mod:`octavo.lab.language.gpt.contracts` what each of
them must hold, :mod:`octavo.lab.language.gpt.presets` ready configurations. ``model(ids)`` gives normalized
log-probabilities;
``model(ids, targets)`` the sum that is trained on and its parts::

    model = GPT(nocap_baseline(vocabulary=512, width=64, layers=2, heads=2))
    loss_sum, parts = model(ids, targets)
"""

from octavo.lab.language.gpt.adaptive_head import AdaptiveSoftmax
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.biased_attention import BiasedAttention
from octavo.lab.language.gpt.chunk_spectral import ChunkSpectral
from octavo.lab.language.gpt.counted_targets import PrefixTargets, RowSmoothing
from octavo.lab.language.gpt.feed_forwards import GatedMLP, GeluMLP, SquaredReluMLP
from octavo.lab.language.gpt.fourier_operator import AFNO
from octavo.lab.language.gpt.gated_convolution import GatedConvolution
from octavo.lab.language.gpt.gated_recurrence import GatedRecurrence
from octavo.lab.language.gpt.gpt_config import GPTConfig, Stream
from octavo.lab.language.gpt.gpt_decoding import first_state, step
from octavo.lab.language.gpt.gpt_network import GPT
from octavo.lab.language.gpt.grid_together import GridTogether
from octavo.lab.language.gpt.in_training import InTraining
from octavo.lab.language.gpt.lag_kernel import LagKernel
from octavo.lab.language.gpt.latent_attention import LatentAttention
from octavo.lab.language.gpt.masked_diffusion import MaskedDiffusion
from octavo.lab.language.gpt.mixed_mixers import MixedMixers
from octavo.lab.language.gpt.mixture_of_experts import GatedExperts, MixtureOfExperts
from octavo.lab.language.gpt.multi_token import ChainedModules, ParallelHeads, RepeatedLogits
from octavo.lab.language.gpt.nearest_neighbours import NearestNeighbours
from octavo.lab.language.gpt.next_token import Batch, NextToken
from octavo.lab.language.gpt.noisy_objectives import RDrop, TokenDropout
from octavo.lab.language.gpt.operator_horizons import OperatorHorizons
from octavo.lab.language.gpt.operator_mixer import OperatorKernel
from octavo.lab.language.gpt.paged_cache import PagedCache
from octavo.lab.language.gpt.paged_decoding import PagedDecoding
from octavo.lab.language.gpt.pooled_attention import PooledAttention
from octavo.lab.language.gpt.presets import modern, modern_skips, nocap_baseline, preset
from octavo.lab.language.gpt.retrieval_mixer import Retrieval
from octavo.lab.language.gpt.sampled_heads import NegativeSampling, NoiseContrastive, SampledSoftmax
from octavo.lab.language.gpt.softmax_head import Softmax
from octavo.lab.language.gpt.sparse_mixers import GatedSparseMixers, SparseMixers
from octavo.lab.language.gpt.token_table import TokenTable
from octavo.lab.language.gpt.word_grid import GridSoftmax, GridTable
from octavo.late_binding import parts_on_demand

__all__ = [
    "AFNO",
    "GPT",
    "AdaptiveSoftmax",
    "Attention",
    "Batch",
    "BiasedAttention",
    "ChainedModules",
    "ChunkSpectral",
    "GPTConfig",
    "GatedConvolution",
    "GatedExperts",
    "GatedMLP",
    "GatedRecurrence",
    "GatedSparseMixers",
    "GeluMLP",
    "GridSoftmax",
    "GridTable",
    "GridTogether",
    "InTraining",
    "LagKernel",
    "LatentAttention",
    "MaskedDiffusion",
    "MixedMixers",
    "MixtureOfExperts",
    "NearestNeighbours",
    "NegativeSampling",
    "NextToken",
    "NoiseContrastive",
    "OperatorHorizons",
    "OperatorKernel",
    "PagedCache",
    "PagedDecoding",
    "ParallelHeads",
    "PooledAttention",
    "PrefixTargets",
    "RDrop",
    "RepeatedLogits",
    "Retrieval",
    "RowSmoothing",
    "SampledSoftmax",
    "Softmax",
    "SparseMixers",
    "SquaredReluMLP",
    "Stream",
    "TokenDropout",
    "TokenTable",
    "first_state",
    "modern",
    "modern_skips",
    "network",
    "nocap_baseline",
    "preset",
    "step",
]


def network(config: GPTConfig) -> type[GPT]:
    """Return the class of the model that a configuration is of."""
    return GPT


__getattr__ = parts_on_demand(__name__, __path__)
