"""How byte-pair tokenizers of GGUF files split texts, by ``tokenizer.ggml.pre``.

The rules are those of the tokenizers that files are made of: each name stands for the ``tokenizer.json`` of a family of
models. Where llama.cpp splits otherwise (``src/llama-vocab.cpp`` simplifies some expressions and leaves out normal
forms), the model's own rule counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(within: str, suffix: str, rest: str) -> str:
    """Return an expression that cuts words before their capitals, as o200k of OpenAI does."""
    upper, lower, first = f"{_UPPER}{within}]", f"{_LOWER}{within}]", r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{suffix}|{first}{upper}+{lower}*{suffix}|{rest}|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"


_O200K = _cased("", f"{_CONTRACTIONS}?", r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*")
_TEKKEN = _cased("", "", r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*")
_KIMI = r"[\p{Han}]+|" + _cased(
    r"&&[^\p{Han}]", f"{_CONTRACTIONS}?", r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
)  # fmt: skip
_BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
# Six are written by their number: another form of them is equivalent in Unicode, but no end of a range.
_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄ"
    "ῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    "[\r\n]",
    f"\\s?[{_LETTERS}]+",
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
)


@dataclass(frozen=True)
class Splitting:
    """How texts become pieces before pairs are merged.

    ``steps``: the part of ``tokenizer.json``. ``ignores_merges``: a piece that is a token is one. ``begins``: texts get
    the first token where a file is silent. ``composes``: texts get the normal form C, which llama.cpp leaves out.
    """

    steps: dict[str, Any]
    ignores_merges: bool = False
    begins: bool = False
    composes: bool = False


def bytes_step(*, splits: bool) -> dict[str, Any]:
    """Return the step that makes bytes characters; ``splits``: as GPT-2 does it, before."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splits}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _digits(*, each: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": each}


def _matches(*expressions: str, digits: bool = False) -> dict[str, Any]:
    """Return steps that cut pieces by one expression after the other, and then digits."""
    last = [_digits(each=True)] if digits else []
    return _sequence(*map(_split, expressions), *last, bytes_step(splits=False))


_GPT2 = Splitting(bytes_step(splits=True))
_NEOX = Splitting(bytes_step(splits=True), composes=True)
_EACH_DIGIT = _sequence(_digits(each=True), bytes_step(splits=True))
_DIGITS = Splitting(_EACH_DIGIT)
_LLAMA_3 = Splitting(_matches(_LLAMA3), ignores_merges=True, begins=True)
_QWEN_2 = Splitting(_matches(_QWEN2), composes=True)
_OF_RANKS = Splitting(_matches(_O200K), ignores_merges=True)
_GLM = Splitting(_matches(_LLAMA3), ignores_merges=True)
_FALCON = _sequence(
    {"type": "Punctuation", "behavior": "Contiguous"},
    bytes_step(splits=True),
    _digits(each=False),
    _split("[0-9][0-9][0-9]"),
)
SPLITS = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "llama-bpe": _LLAMA_3,
    "qwen2": _QWEN_2,
    "olmo": _NEOX,
    "dbrx": Splitting(_matches(_LLAMA3)),
    "stablelm2": Splitting(_matches(_QWEN2)),
    "phi-2": _GPT2,
    "jais": _GPT2,
    "mpt": _NEOX,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "smaug-bpe": Splitting(_matches(_LLAMA3)),
    "deepseek-r1-qwen": _QWEN_2,
    "megrez": _QWEN_2,
    "qwen35": Splitting(_matches(_QWEN35), composes=True),
    "gpt-4o": _OF_RANKS,
    "llama4": _OF_RANKS,
    "tekken": Splitting(_matches(_TEKKEN), ignores_merges=True, begins=True),
    "glm4": _GLM,
    "chatglm-bpe": _GLM,
    "kimi-k2": Splitting(_matches(_KIMI), ignores_merges=True),
    "deepseek-llm": Splitting(_matches(*_DEEPSEEK_LLM, digits=True)),
    "deepseek-coder": Splitting(_matches(*_DEEPSEEK_CODER, digits=True)),
    "deepseek-v3": Splitting(_matches(*_DEEPSEEK_V3)),
    "command-r": Splitting(_EACH_DIGIT, composes=True),
    "falcon": Splitting(_FALCON),
    "bloom": Splitting(_matches(_BLOOM)),
}
"""How texts are split before pairs are merged, by ``tokenizer.ggml.pre``; files are written with the first name."""
