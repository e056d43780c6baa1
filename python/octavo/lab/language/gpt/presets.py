"""Configurations by name: functions that return a frozen :class:`GPTConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.feed_forwards import GeluMLP, SquaredReluMLP
from octavo.lab.language.gpt.gpt_config import GPTConfig, Stream
from octavo.lab.language.gpt.softmax_head import Softmax
from octavo.lab.language.gpt.token_table import TokenTable

GPT2_VOCABULARY, GPT2_END_OF_TEXT = 50257, 50256


def nocap_baseline(
    *,
    vocabulary: int = GPT2_VOCABULARY,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    end_of_text: int | None = GPT2_END_OF_TEXT,
) -> GPTConfig:
    """Return the baseline of the benchmark: 123,532,032 parameters at its own sizes.

    Norms without factors before each branch and before the head, which shares the embedding's table; rotary positions,
    exact GELU, no biases; what attention writes is divided by ``sqrt(2 * layers)``. Source: NoCap-Test.
    """
    return GPTConfig(
        vocabulary=vocabulary,
        width=width,
        pattern="a" * layers,
        mixers={"a": Attention(heads=heads)},
        ffn=GeluMLP(),
        head=Softmax(),
        stream=Stream(mixer_scale=1 / math.sqrt(2 * layers)),
        end_of_text=end_of_text,
    )


def modern(
    *,
    vocabulary: int = GPT2_VOCABULARY,
    width: int = 768,
    layers: int = 12,
    heads: int = 6,
    end_of_text: int | None = GPT2_END_OF_TEXT,
) -> GPTConfig:
    """Return the simple modern recipe: normed queries and keys, half of the rotary pairs, squared ReLU, zero outputs.

    Norms have factors and matrices biases; the head has a table of its own, padded to a multiple of 64, and soft-capped
    scores; the scale of attention is fixed at 0.12. It is meant for Muon. Source: the optimizer track of the GPT-2
    speedrun.
    """
    return GPTConfig(
        vocabulary=vocabulary,
        width=width,
        pattern="a" * layers,
        mixers={"a": Attention(heads=heads, qk_norm=True, rotary="half", scale=0.12, bias=True)},
        ffn=SquaredReluMLP(bias=True),
        head=Softmax(tied=False, cap=15.0, padded=-(-vocabulary // 64) * 64, bias=True),
        stream=Stream(norm_embedding=True, gains=True, initial="zero_output"),
        end_of_text=end_of_text,
    )


def modern_skips(
    *,
    vocabulary: int = GPT2_VOCABULARY,
    width: int = 768,
    layers: int = 12,
    heads: int = 6,
    end_of_text: int | None = GPT2_END_OF_TEXT,
) -> GPTConfig:
    """Return :func:`modern` with every skip: of the input, of mirror blocks, of a middle block; value tables in the
    first and the last blocks, smearing, hashed pairs of tokens, and gates of attention heads.
    """
    base = modern(vocabulary=vocabulary, width=width, layers=layers, heads=heads, end_of_text=end_of_text)
    ends = tuple(sorted({0, 1 % layers, layers - 1}))
    stream = replace(base.stream, input_skip=True, mirror_skip=True, backout=True, value_layers=ends)
    return replace(
        base,
        mixers={"a": replace(base.mixer(0), gate=12)},
        embedding=TokenTable(smear=True, pairs=5 * vocabulary),
        stream=stream,
    )


PRESETS: dict[str, Callable[..., GPTConfig]] = {
    "nocap_baseline": nocap_baseline,
    "modern": modern,
    "modern_skips": modern_skips,
}


def preset(name: str, **sizes: int | None) -> GPTConfig:
    """Return the configuration of a name; ``sizes`` go to its function. Raises SettingError for another name."""
    if name not in PRESETS:
        raise SettingError(f"preset is {name!r}; accepted are {', '.join(PRESETS)}")
    return PRESETS[name](**sizes)
