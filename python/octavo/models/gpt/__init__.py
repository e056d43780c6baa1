"""The language lab's networks: GPT-2 and its descendants, of techniques that are registered under names.

A :class:`GPTConfig` names the technique of every part: mixers of positions, feed-forward networks, heads and
objectives. :mod:`octavo.models.techniques` is the registry, :mod:`octavo.models.gpt.contracts` what each of them must
hold, :mod:`octavo.models.gpt.presets` ready configurations. ``model(ids)`` gives normalized log-probabilities;
``model(ids, targets)`` the sum that is trained on and its parts::

    model = GPT(nocap_baseline(vocabulary=512, width=64, layers=2, heads=2))
    loss_sum, parts = model(ids, targets)
"""

from octavo.late_binding import parts_on_demand
from octavo.models.gpt.adaptive_head import AdaptiveSoftmax
from octavo.models.gpt.attention_mixer import Attention
from octavo.models.gpt.biased_attention import BiasedAttention
from octavo.models.gpt.chunk_spectral import ChunkSpectral
from octavo.models.gpt.counted_targets import PrefixTargets, RowSmoothing
from octavo.models.gpt.feed_forwards import GatedMLP, GeluMLP, SquaredReluMLP
from octavo.models.gpt.gated_convolution import GatedConvolution
from octavo.models.gpt.gated_recurrence import GatedRecurrence
from octavo.models.gpt.gpt_config import GPTConfig, Stream
from octavo.models.gpt.gpt_decoding import first_state, step
from octavo.models.gpt.gpt_network import GPT
from octavo.models.gpt.grid_together import GridTogether
from octavo.models.gpt.in_training import InTraining
from octavo.models.gpt.lag_kernel import LagKernel
from octavo.models.gpt.latent_attention import LatentAttention
from octavo.models.gpt.masked_diffusion import MaskedDiffusion
from octavo.models.gpt.mixed_mixers import MixedMixers
from octavo.models.gpt.mixture_of_experts import GatedExperts, MixtureOfExperts
from octavo.models.gpt.multi_token import ChainedModules, ParallelHeads, RepeatedLogits
from octavo.models.gpt.nearest_neighbours import NearestNeighbours
from octavo.models.gpt.next_token import Batch, NextToken
from octavo.models.gpt.noisy_objectives import RDrop, TokenDropout
from octavo.models.gpt.operator_horizons import OperatorHorizons
from octavo.models.gpt.operator_mixer import OperatorKernel
from octavo.models.gpt.paged_cache import PagedCache, PagedDecoding
from octavo.models.gpt.pooled_attention import PooledAttention
from octavo.models.gpt.presets import modern, modern_skips, nocap_baseline, preset
from octavo.models.gpt.retrieval_mixer import Retrieval
from octavo.models.gpt.sampled_heads import NegativeSampling, NoiseContrastive, SampledSoftmax
from octavo.models.gpt.softmax_head import Softmax
from octavo.models.gpt.token_table import TokenTable
from octavo.models.gpt.word_grid import GridSoftmax, GridTable

__all__ = [
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
