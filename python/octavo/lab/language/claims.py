"""What reports on the benchmark claimed or proposed, and what benches measured of it, negative results included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

UNMEASURED = "not measured in these benches"
TRIED, NEXT, SECOND = "tried in the report", "next steps of the report", "second list"


@dataclass(frozen=True)
class Claim:
    """A technique of a list, and the arms of the bench that measure it.

    ``claimed``: or proposed, in the words of the list. ``command``: where no loss decides, the line that shows it, or
    "".
    """

    list: str
    technique: str
    claimed: str
    arms: tuple[str, ...] = ()
    command: str = ""


_PAGED = "octavo lab train gpt --data DATA --validation paged --stride 32"
_ATTENTION = "octavo lab bench attention --kinds mha,gqa,mla,mla_absorbed,paged"

CLAIMS = (
    Claim(TRIED, "precision", "BF16, FP16 with loss scaling, TF32 and FP8 train faster at the same loss",
          ("bf16", "fp16", "tf32", "fp8")),
    Claim(TRIED, "latent attention", "keys and values compressed; FlashMLA decodes faster", ("mla",), _ATTENTION),
    Claim(TRIED, "pooled memory", "older positions as means, maxima, learned latents or a reservoir cost little",
          ("pooled_mean", "pooled_max", "pooled_latents", "pooled_reservoir")),
    Claim(TRIED, "biases of distances", "ALiBi and relative biases as scores of FlexAttention",
          ("alibi", "relative_bias")),
    Claim(TRIED, "multi-token prediction", "an auxiliary loss of up to four tokens ahead: twice the tokens a step",
          ("mtp_parallel", "mtp_parallel@ahead=4", "mtp_chained", "mtp_repeated")),
    Claim(TRIED, "mixture of experts", "two experts and a gate, one a token, by token or by context",
          ("moe_2", "moe_8_context")),
    Claim(TRIED, "LightRNN", "40 times fewer parameters of the softmax; words rearranged in the grid",
          ("lightrnn", "lightrnn_reallocated", "lightrnn_smoothed")),
    Claim(TRIED, "CoCoNT", "the same perplexity in half of the steps", ("cocont",)),
    Claim(TRIED, "LightRNN, CoCoNT and two tokens ahead", "the best run: 3.34", ("lightrnn_cocont_mtp2",)),
    Claim(TRIED, "adaptive softmax", "a cheaper output layer", ("adaptive_softmax",)),
    Claim(TRIED, "sampled losses", "noise-contrastive estimation and negative sampling in place of the softmax",
          ("nce", "negative_sampling", "sampled_softmax")),
    Claim(TRIED, "grouped-query attention", "12 % more width in the same memory", ("gqa", "gqa_wide")),
    Claim(TRIED, "AFNO", "1.76 nats after 0.27 billion tokens, by a mixer that saw the future",
          ("afno", "chunk_spectral_hybrid", "spectral")),
    Claim(TRIED, "schedules", "another schedule than the baseline's", ("one_cycle", "long_cooldown")),
    Claim(TRIED, "diffusion", "generation by masked diffusion", ("masked_diffusion", "block_diffusion")),
    Claim(NEXT, "1: flash attention alone", "fused attention; the baseline has it",
          command="octavo lab study attention"),
    Claim(NEXT, "2: latent attention over longer contexts", "2,048 to 4,096 tokens at the memory of the baseline",
          ("mla", "mla@context=256")),
    Claim(NEXT, "3: lengths that grow, one cycle", "256 to 1,024 tokens with a one-cycle rate",
          ("one_cycle", "length_curriculum")),
    Claim(NEXT, "4: LayerDrop, stochastic depth", "a tenth of the blocks left out, none in the last fifth",
          ("layer_drop", "stochastic_depth", "layer_drop+length_curriculum")),
    Claim(NEXT, "5: 8-bit Adam, Lion, eight micro-batches", "less memory of the optimizer, larger updates",
          ("adam_8bit", "adam_minifloat", "lion", "eight_micro_batches")),
    Claim(NEXT, "6: keys and values kept in validation", "half of the time of validation", command=_PAGED),
    Claim(NEXT, "7: mixture of two experts", "a feed-forward network of two experts", ("moe_2",)),
    Claim(NEXT, "8: masked tokens and consistency", "15 % of the tokens masked, same predictions",
          ("token_dropout", "r_drop", "token_dropout+r_drop", "masked_agreement")),
    Claim(NEXT, "9: recomputed blocks", "2,048 tokens at the memory of 1,024", ("recomputed_context",)),
    Claim(NEXT, "10: attention below, AFNO above", "aaaassssssss: less work at the same loss",
          ("afno_hybrid", "chunk_spectral_hybrid", "spectral_hybrid")),
    Claim(SECOND, "1: compressed keys and values", "FlashMLA", ("mla",), _ATTENTION),
    Claim(SECOND, "2: lengths that grow, one cycle", "with a one-cycle rate", ("length_curriculum",)),
    Claim(SECOND, "3: LayerDrop", "blocks left out in training", ("layer_drop",)),
    Claim(SECOND, "4: Lion", "in place of AdamW", ("lion",)),
    Claim(SECOND, "5: paging in validation", "states reused", command=_PAGED),
    Claim(SECOND, "6: mixture of experts", "in place of the feed-forward network",
          ("moe_2", "moe_4", "moe_8", "moe_8_top2", "moe_8_bias")),
    Claim(SECOND, "7: token drop-out, R-Drop", "noise and consistency", ("token_dropout", "r_drop")),
    Claim(SECOND, "8: recomputed blocks", "twice the context", ("recomputed_context",)),
    Claim(SECOND, "9: hybrid of attention and spectral mixers", "attention low, spectral mixers above",
          ("afno_hybrid", "spectral_hybrid", "spectral_middle")),
    Claim(SECOND, "10: retrieval", "RETRO, Atlas, nearest neighbours", ("retro", "joint_retriever", "knn_lm")),
    Claim(SECOND, "11: DeepONet as a gate", "sparse experts, and experts of different architectures, behind it",
          ("deeponet_experts", "sparse_experts_deeponet", "sparse_experts", "mixed_mixers")),
    Claim(SECOND, "12: learning from small updates", "meta-learning; retrieval as memory; self-supervision",
          ("reptile", "test_time_training", "masked_diffusion")),
    Claim(SECOND, "13: operator networks", "DeepONet and Fourier operators as a language model",
          ("operator_modes", "operator_mlp", "operator_horizons")),
)  # fmt: skip


def claim_rows(arms: Sequence[dict[str, Any]], command_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return a row for every claim and arm: what was claimed, what was measured, verdict, the line that repeats it.

    ``arms``: rows of the study. ``command_of``: the line that measures an arm which is not among them.
    """
    measured = {row["arm"]: row for row in arms}
    rows = []
    for claim in CLAIMS:
        facts = {"list": claim.list, "technique": claim.technique, "claimed": claim.claimed}
        for name in claim.arms:
            row = measured.get(name)
            verdict = UNMEASURED if row is None else row["sentence"]
            command = command_of(name) if row is None else row["command"]
            cells = {} if row is None else _by_kind(row["cells"])
            rows.append({**facts, "arm": name, **cells, "verdict": verdict, "command": command})
        if claim.command:
            verdict = "no loss decides; the line shows it"
            rows.append({**facts, "arm": "", "verdict": verdict, "command": claim.command})
    return rows


def _by_kind(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the cells of fixed tokens and of fixed time, whole ones before parts."""
    kinds: dict[str, dict[str, Any]] = {}
    for budget, cell in sorted(cells.items(), key=lambda item: item[0][0].isdigit()):
        kinds.setdefault("at_tokens" if budget.endswith("tokens") else "at_time", {"budget": budget, **cell})
    return kinds
