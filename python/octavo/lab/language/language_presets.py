"""Runs by name: a table of presets, each one small difference from a base, which make a :class:`LanguageConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import SettingError
from octavo.lab.language import gpt
from octavo.lab.language import preset_changes as at
from octavo.lab.language.language_config import AdamW, LanguageConfig, Lion, Muon, Reptile
from octavo.lab.language.language_scales import SCALES, Scale
from octavo.lab.language.preset_changes import Change, batch, calm_end, mixer, model, noise, pattern, phases, run

BASE, TUNED = "nocap_baseline", "tuned_baseline"


@dataclass(frozen=True)
class Preset:
    """A run by name: ``base`` with ``changes``, one after the other; None: the baseline itself.

    ``summary``: what it is, in a line. ``predicted``: what was expected of it beside the baseline at the same tokens,
    before it was measured: ``better``, ``even`` or ``worse``; ``even`` where a difference within the noise of seeds is
    expected.
    """

    name: str
    base: str | None
    predicted: str
    summary: str
    changes: tuple[Change, ...]

    def make(self, scale: Scale) -> LanguageConfig:
        """Return the run at sizes."""
        config = at.nocap_baseline(scale) if self.base is None else PRESETS[self.base].make(scale)
        for change in self.changes:
            config = change(config, scale)
        return config


def preset(name: str, scale: Scale | str = "true") -> LanguageConfig:
    """Return the run of a name at sizes, or at those of a name. Raises SettingError for another name."""
    if isinstance(scale, str):
        if scale not in SCALES:
            raise SettingError(f"scale is {scale!r}; accepted are {', '.join(SCALES)}")
        scale = SCALES[scale]
    if name not in PRESETS:
        raise SettingError(f"preset is {name!r}; accepted are {', '.join(PRESETS)}")
    return PRESETS[name].make(scale)


def _row(name: str, base: str | None, predicted: str, summary: str, *changes: Change) -> Preset:
    return Preset(name, base, predicted, summary, changes)


_TABLE = (
    # --- baselines ----------------------------------------------------------------------------------------------------
    _row(BASE, None, "even", "the baseline of the benchmark: GPT-2 with RoPE and RMSNorm, AdamW"),
    _row(TUNED, BASE, "better", "the baseline with learning rate, batch and cool-down tuned",
         batch(lambda scale: scale.batch // 2),
         run(cooldown=0.5, optimizer=lambda scale: AdamW(learning_rate=1.5 * scale.learning_rate))),
    # --- optimizers, blocks -------------------------------------------------------------------------------------------
    _row("muon", BASE, "better", "the baseline's model trained with Muon",
         run(optimizer=Muon(), warmup=0.0, cooldown=0.7)),
    _row("normuon_cautious", "muon", "better", "Muon with row rescaling and cautious decay",
         run(optimizer=Muon(row_rescale=0.95, cautious=True))),
    _row("modern_block", BASE, "better",
         "QK-norm, squared ReLU and zero-initialized outputs, with the baseline's AdamW",
         mixer(lambda scale: gpt.Attention(heads=scale.heads, qk_norm=True)),
         model(ffn=gpt.SquaredReluMLP(), stream=gpt.Stream(initial="zero_output"))),
    _row("modern", "muon", "better", "the simple modern recipe with Muon",
         at.modern_model(gpt.modern)),
    _row("modern_skips", "muon", "better", "the modern recipe with every skip, value tables, smearing and hashed pairs",
         at.modern_model(gpt.modern_skips)),
    _row("gated_mlp", BASE, "worse", "a gated feed-forward network of as many parameters",
         model(ffn=gpt.GatedMLP())),
    # --- schedules, stages --------------------------------------------------------------------------------------------
    _row("large_batch", BASE, "worse", "four times the batch, a quarter of the updates",
         batch(lambda scale: 4 * scale.batch)),
    _row("long_cooldown", BASE, "better", "half of the tokens cool down",
         run(cooldown=0.5)),
    _row("one_cycle", BASE, "even",
         "one cycle: the rate rises over 30 % of the tokens and falls to 0, momentum inversely",
         run(schedule="one_cycle", warmup=0.3)),
    _row("length_curriculum", "one_cycle", "even",
         "one cycle, and sequences that grow from a quarter to the whole length",
         phases(  # updates of the same number of tokens
             lambda scale: {"share": 1 / 3, "context": scale.context // 4, "batch": scale.batch * 4},
             lambda scale: {"share": 1 / 3, "context": scale.context // 2, "batch": scale.batch * 2},
             lambda scale: {"share": 1 / 3},
         )),
    _row("window_warmup", BASE, "even", "windows of attention that grow from an eighth to the whole context",
         phases(
             lambda scale: {"share": 1 / 3, "window": scale.context // 8},
             lambda scale: {"share": 1 / 3, "window": scale.context // 4},
             lambda scale: {"share": 1 / 3},
         )),
    _row("batch_warmup", BASE, "better", "a batch that grows from a half over the whole to one and a half",
         phases(  # with the rates of the record
             lambda scale: {"share": 1 / 3, "batch": scale.batch // 2, "rate": 1.0 / 1.52},
             lambda scale: {"share": 1 / 3},
             lambda scale: {"share": 1 / 3, "batch": scale.batch * 3 // 2, "rate": 1.73 / 1.52},
         )),
    _row("shuffled_documents", BASE, "even", "whole documents shuffled in every epoch",
         run(order="documents")),
    # --- precision ----------------------------------------------------------------------------------------------------
    _row("tf32", BASE, "even", "products in TF32, on GPUs that have it",
         run(precision="tf32")),
    _row("bf16", BASE, "even", "products in bfloat16, as the benchmark has them",
         run(precision="bf16")),
    _row("fp16", BASE, "even", "products in float16, with loss scaling",
         run(precision="fp16")),
    _row("fp8", BASE, "worse", "linear layers of the blocks in simulated FP8: e4m3 forward, e5m2 backward",
         run(precision="fp8")),
    # --- heads and objectives -----------------------------------------------------------------------------------------
    _row("lightrnn", BASE, "worse", "LightRNN: words in a grid, rows and columns predicted one after the other",
         model(embedding=gpt.GridTable(), head=gpt.GridSoftmax())),
    _row("lightrnn_reallocated", "lightrnn", "worse", "LightRNN whose words move to cheaper cells three times",
         run(reallocations=3)),
    _row("lightrnn_smoothed", "lightrnn", "worse",
         "LightRNN with rows smoothed towards those that follow the previous token",
         model(objective=gpt.RowSmoothing())),
    _row("cocont", BASE, "even", "CoCoNT: corpus frequencies of next tokens as targets at the start of a window",
         model(objective=gpt.PrefixTargets())),
    _row("mtp_parallel", BASE, "worse", "multi-token prediction: a head for the token after the next",
         model(objective=gpt.ParallelHeads(ahead=2))),
    _row("mtp_chained", BASE, "worse", "multi-token prediction: a chained module for the token after the next",
         model(objective=gpt.ChainedModules(ahead=2))),
    _row("mtp_repeated", BASE, "even", "multi-token prediction: the same scores for three tokens, annealed to one",
         model(objective=gpt.RepeatedLogits())),
    _row("adaptive_softmax", BASE, "worse", "adaptive softmax: frequent tokens, and clusters of rare ones",
         model(
             head=lambda scale: gpt.AdaptiveSoftmax(
                 cutoffs=(scale.vocabulary // 5, scale.vocabulary // 2), divisor=2.0
             )
         )),
    _row("sampled_softmax", BASE, "worse", "sampled softmax over an eighth of the vocabulary",
         model(head=lambda scale: gpt.SampledSoftmax(samples=scale.vocabulary // 8))),
    _row("nce", BASE, "worse", "noise-contrastive estimation with draws of an eighth of the vocabulary",
         model(head=lambda scale: gpt.NoiseContrastive(samples=scale.vocabulary // 8))),
    _row("negative_sampling", BASE, "worse", "negative sampling, corrected in evaluation",
         model(head=lambda scale: gpt.NegativeSampling(samples=scale.vocabulary // 8))),
    # --- attention ----------------------------------------------------------------------------------------------------
    _row("gqa", BASE, "even", "grouped-query attention: half of the keys and values",
         mixer(at.grouped_attention)),
    _row("gqa_wide", BASE, "better",
         "grouped-query attention, and 12 % more width: the memory of decoding stays below the baseline's",
         at.resized(at.wider, mixer(at.grouped_attention))),
    _row("alibi", BASE, "even", "ALiBi: scores fall with the distance, by a slope a head; no rotary positions",
         mixer(lambda scale: gpt.BiasedAttention(heads=scale.heads))),
    _row("relative_bias", BASE, "even", "a learned bias for buckets of distances; no rotary positions",
         mixer(lambda scale: gpt.BiasedAttention(heads=scale.heads, distance="buckets"))),
    _row("pooled_mean", BASE, "worse", "attention to an eighth of the context, and to means of the chunks before",
         mixer(at.pooled("mean"))),
    _row("pooled_max", BASE, "worse", "attention to an eighth of the context, and to maxima of the chunks before",
         mixer(at.pooled("max"))),
    _row("pooled_latents", BASE, "worse",
         "attention to an eighth of the context, and to two learned means of every chunk before",
         mixer(at.pooled("latents"))),
    _row("pooled_reservoir", BASE, "worse",
         "attention to an eighth of the context, and to as many earlier positions, drawn evenly",
         mixer(at.pooled("reservoir"))),
    _row("mla", BASE, "even", "multi-head latent attention",
         mixer(at.latent_attention)),
    _row("fixed_window", BASE, "worse", "attention within a window of a quarter of the context",
         mixer(lambda scale: gpt.Attention(heads=scale.heads, window=scale.context // 4))),
    _row("document_mask", BASE, "even", "attention within documents alone",
         model(keep_documents=True)),
    # --- spectral mixers, hybrids -------------------------------------------------------------------------------------
    _row("spectral", BASE, "worse", "a long convolution by Fourier transforms in every block, no AFNO",
         pattern(at.repeated("s"), s=gpt.LagKernel())),
    _row("spectral_hybrid", BASE, "worse", "attention in the first third of the blocks, spectral mixers above",
         pattern(at.low_attention("s"), s=gpt.LagKernel())),
    _row("afno", BASE, "worse", "AFNO in every block: Fourier operators on finished chunks and short convolutions",
         pattern(at.repeated("s"), s=at.fourier_operator)),
    _row("afno_hybrid", BASE, "worse", "attention in the first third of the blocks, AFNO above",
         pattern(at.low_attention("s"), s=at.fourier_operator)),
    _row("chunk_spectral_hybrid", BASE, "worse",
         "AFNO by chunks beside attention inside the chunk, in the upper two thirds",
         pattern(
             at.low_attention("c"),
             c=lambda scale: gpt.ChunkSpectral(chunk=min(64, scale.context // 4), heads=scale.heads),
         )),
    _row("convolution_hybrid", BASE, "even", "gated convolutions low, attention in every second block above",
         pattern(at.repeated("ga"), g=gpt.GatedConvolution())),
    _row("spectral_middle", BASE, "worse",
         "spectral mixers between attention in the first and the last sixth of the blocks",
         pattern(at.outer_attention, s=gpt.LagKernel())),
    _row("local_hybrid", BASE, "worse", "gated convolutions, and attention in every fourth block, the last among them",
         pattern(at.repeated("ggga"), g=gpt.GatedConvolution())),
    # --- operators, recurrences ---------------------------------------------------------------------------------------
    _row("operator_modes", BASE, "worse", "operator mixers: kernels of eight modes that all channels share",
         mixer(gpt.OperatorKernel())),
    _row("operator_mlp", BASE, "worse", "operator mixers: kernels that are a network of the lag",
         mixer(gpt.OperatorKernel(kernel="mlp"))),
    _row("gated_recurrence", BASE, "worse", "gated linear recurrences in place of attention",
         mixer(at.recurrence)),
    _row("recurrence_hybrid", BASE, "even",
         "two gated linear recurrences for every attention, which the last block has",
         pattern(at.repeated("rra"), r=at.recurrence)),
    # --- mixtures, gates ----------------------------------------------------------------------------------------------
    _row("moe_2", BASE, "even", "two experts, one a token: the work of the baseline, twice its feed-forward weights",
         model(ffn=gpt.MixtureOfExperts(experts=2))),
    _row("moe_4", BASE, "better", "four experts, one a token",
         model(ffn=gpt.MixtureOfExperts(experts=4))),
    _row("moe_8", BASE, "better", "eight experts, one a token",
         model(ffn=gpt.MixtureOfExperts(experts=8))),
    _row("moe_8_top2", BASE, "better", "eight experts of half the width, two a token",
         model(ffn=gpt.MixtureOfExperts(experts=8, chosen=2, factor=2.0))),
    _row("moe_8_bias", BASE, "better", "eight experts, kept busy by a bias that only the choice sees",
         model(ffn=gpt.MixtureOfExperts(experts=8, balance="bias"))),
    _row("moe_8_context", BASE, "even", "eight experts, chosen by the mean of the positions before, not by the token",
         model(ffn=gpt.MixtureOfExperts(experts=8, route="context"))),
    _row("deeponet_experts", BASE, "even", "eight experts behind a DeepONet's gate of token and context",
         model(ffn=gpt.GatedExperts(experts=8))),
    _row("mixed_mixers", BASE, "even",
         "attention, a convolution and a recurrence in every block, weighed by a DeepONet's gate",
         mixer(lambda scale: gpt.MixedMixers(heads=scale.heads))),
    _row("sparse_experts", BASE, "worse",
         "experts of five kinds, one a token: attention, recurrence, AFNO, convolution or MLP, behind a switch",
         mixer(at.sparse_mixers(gpt.SparseMixers))),
    _row("sparse_experts_deeponet", BASE, "worse",
         "experts of five kinds, one a token, behind a DeepONet's gate of token and context",
         mixer(at.sparse_mixers(gpt.GatedSparseMixers))),
    _row("operator_horizons", BASE, "worse", "an operator head: two further horizons, a vector each, in training alone",
         model(objective=gpt.OperatorHorizons())),
    # --- diffusion, retrieval, small updates --------------------------------------------------------------------------
    _row("masked_diffusion", BASE, "worse",
         "masked diffusion: hidden tokens predicted from both sides; a bound on the likelihood, no exact loss",
         model(objective=gpt.MaskedDiffusion())),
    _row("block_diffusion", BASE, "worse",
         "masked diffusion within blocks of 16 tokens, which follow each other; a bound, no exact loss",
         model(objective=lambda scale: gpt.MaskedDiffusion(block=min(16, scale.context)))),
    _row("retro", BASE, "worse", "RETRO: a middle block reads neighbours of the chunk before, found in other documents",
         pattern(at.middle_block("r"), r=at.retrieval(joint=False))),
    _row("joint_retriever", BASE, "worse",
         "RETRO whose search has a learned query, trained through the scores of neighbours",
         pattern(at.middle_block("r"), r=at.retrieval(joint=True))),
    _row("knn_lm", BASE, "better", "kNN-LM: a quarter of the probability is that of the nearest states of training",
         model(head=at.nearest_neighbours)),
    _row("test_time_training", BASE, "better",
         "test-time training: the last validation trains on retrieved neighbours of what it has scored",
         run(test_time=at.test_time)),
    _row("reptile", BASE, "worse", "Reptile: every ten updates the weights go half of the way from where they were",
         run(reptile=Reptile(every=10, rate=0.5))),
    _row("lightrnn_cocont_mtp2", "lightrnn", "worse",
         "LightRNN, rows smoothed by n-grams and two tokens ahead at half the context, as once reported at 3.34",
         model(objective=gpt.GridTogether()),
         phases(  # the last tenth has the context of validation: losses at another one compare with none
             lambda scale: {"share": 0.9, "context": scale.context // 2, "batch": 2 * scale.batch},
             lambda scale: {"share": 0.1},
         )),
    # --- optimizers in micro-batches ----------------------------------------------------------------------------------
    _row("lion", "eight_micro_batches", "even", "the baseline's model trained with Lion, eight micro-batches an update",
         run(optimizer=lambda scale: Lion(learning_rate=scale.learning_rate / 5))),
    _row("adam_8bit", "eight_micro_batches", "even",
         "AdamW with moments in 8 bits on a dynamic map, eight micro-batches an update",
         run(optimizer=lambda scale: AdamW(learning_rate=scale.learning_rate, moments="dynamic8"))),
    _row("adam_minifloat", "eight_micro_batches", "even",
         "AdamW with moments in 8-bit minifloats whose blocks share a bias, eight micro-batches an update",
         run(optimizer=lambda scale: AdamW(learning_rate=scale.learning_rate, moments="bm8e4/256"))),
    _row("eight_micro_batches", BASE, "even",
         "AdamW with eight micro-batches an update, beside which Lion and 8-bit moments are seen",
         batch(at.eighth_batch),
         run(micro_tokens=lambda scale: -(-at.eighth_batch(scale) // 8) * scale.context)),
    # --- order of documents, noise of training, recomputed blocks -----------------------------------------------------
    _row("easy_documents_first", BASE, "worse", "documents of frequent tokens first, those of rare ones last",
         run(order="easy_first")),
    _row("layer_drop", BASE, "worse",
         "LayerDrop: a tenth of the blocks left out, all of them in the last fifth of the tokens",
         noise(layer_drop=0.1),
         calm_end),
    _row("stochastic_depth", BASE, "worse",
         "stochastic depth: the last block left out in a tenth of the passes, earlier ones less often",
         noise(layer_drop=0.1, layer_drop_grows=True)),
    _row("dropout", BASE, "worse", "drop-out of a tenth of what mixers and feed-forward networks write",
         noise(dropout=0.1)),
    _row("dropout_fused", "dropout", "worse", "drop-out with residual, drop-out and norm as one operation",
         noise(fused=True)),
    _row("r_drop", "dropout", "worse", "R-Drop: two passes with drop-out that are to agree",
         model(objective=gpt.RDrop())),
    _row("token_dropout", BASE, "worse", "token drop-out: 15 % of the inputs are a mask vector",
         model(objective=gpt.TokenDropout()),
         calm_end),
    _row("masked_agreement", BASE, "worse",
         "token drop-out in two passes of other masks that are to agree: R-Drop with the mask as its noise",
         model(objective=gpt.RDrop(share=0.15)),
         calm_end),
    _row("random_ltd", BASE, "worse", "random-LTD: inner blocks pass over a quarter of the positions",
         noise(positions_passed_over=0.25),
         calm_end),
    _row("recomputed_context", BASE, "even",
         "twice the context at the memory of one, early blocks recomputed; the last tenth at the plain length",
         noise(recomputed=lambda scale: -(-3 * scale.layers // 4)),
         run(micro_tokens=lambda scale: 2 * scale.micro_tokens),
         phases(  # an update has as many tokens; the last tenth has the length at which all arms are validated
             lambda scale: {"share": 0.9, "context": 2 * scale.context, "batch": max(1, scale.batch // 2)},
             lambda scale: {"share": 0.1},
         )),
)  # fmt: skip
PRESETS = {row.name: row for row in _TABLE}
