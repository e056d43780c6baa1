"""Tokenizers of GGUF files as the files that transformers and our engine read.

Source: llama.cpp, ``src/llama-vocab.cpp`` (texts are split as it splits them) and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.interchange.gguf import GgufFile
from octavo.storage.reading import shown

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens."""
# Squares of the lengths of tokens, summed: characters that are looked at when tokens are split. Llama 2 has 2 million.
_SPLIT_CHARACTERS = 100_000_000
WORD_START = "▁"
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
"""Special tokens: as transformers names them, and the key of their number; the misspelling is that of the files."""
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


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


def _bytes(*, splits: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splits}


def _sequence(first: dict[str, Any], *, splits: bool) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [first, _bytes(splits=splits)]}


def _matches(expression: str) -> dict[str, Any]:
    first = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return _sequence(first, splits=False)


_GPT2 = Splitting(_bytes(splits=True))
_NEOX = Splitting(_bytes(splits=True), composes=True)
_DIGITS = Splitting(_sequence({"type": "Digits", "individual_digits": True}, splits=True))
_LLAMA_3 = Splitting(_matches(_LLAMA3), ignores_merges=True, begins=True)
_QWEN_2 = Splitting(_matches(_QWEN2), composes=True)
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
}
"""How texts are split before pairs are merged, by ``tokenizer.ggml.pre``; files are written with the first name."""


class _UnreadError(Exception):
    """Why a tokenizer is not read."""


def tokenizer_files(file: GgufFile, positions: int) -> tuple[dict[str, str], str | None]:
    """Return the texts of a tokenizer's files by their names, or none and why it is not read.

    ``positions``: that the model has.
    """
    return texts_of(file.metadata, positions)


def texts_of(metadata: Mapping[str, Any], positions: int) -> tuple[dict[str, str], str | None]:
    """Return what :func:`tokenizer_files` does, of metadata by key."""
    try:
        return _files(metadata, positions), None
    except _UnreadError as error:
        return {}, str(error)


def _files(metadata: Mapping[str, Any], positions: int) -> dict[str, str]:
    model = metadata.get(f"{PREFIX}model")
    if model not in ("gpt2", "llama", "bert"):
        raise _UnreadError(f"{PREFIX}model is {shown(model)}; read are gpt2, llama and bert")
    tokens = _texts(metadata, "tokens")
    if len(set(tokens)) != len(tokens):
        raise _UnreadError(f"{PREFIX}tokens has a token twice")
    kinds = metadata.get(f"{PREFIX}token_type", [])
    special = _special(metadata, tokens)
    if model == "gpt2":
        parts = _pairs(metadata, tokens)
    else:
        parts = _pieces(metadata, tokens, special) if model == "llama" else _words(tokens, special)
    added = [
        {
            "id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind == CONTROL,
        }
        for number, kind in enumerate(kinds[: len(tokens)] if isinstance(kinds, list) else [])
        if kind in (CONTROL, USER)
    ]  # fmt: skip
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions, **special}
    files = {TOKENIZER: json.dumps(tokenizer, ensure_ascii=False), SETTINGS: json.dumps(settings, ensure_ascii=False)}
    template = metadata.get("tokenizer.chat_template")
    return {**files, TEMPLATE: template} if isinstance(template, str) else files


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    texts = metadata.get(f"{PREFIX}{key}")
    if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        raise _UnreadError(f"{PREFIX}{key} is {'missing' if texts is None else 'no list of texts'}")
    return texts


def _special(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    numbers = {name: metadata.get(f"{PREFIX}{key}") for name, key in SPECIAL.items()}
    return {
        name: tokens[number] for name, number in numbers.items() if type(number) is int and 0 <= number < len(tokens)
    }


def _pairs(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Byte pairs, as GPT-2 has them."""
    splits = metadata.get(f"{PREFIX}pre")
    if not isinstance(splits, str) or splits not in SPLITS:
        raise _UnreadError(f"{PREFIX}pre is {shown(splits)}; read are {', '.join(SPLITS)}")
    merges = [merge.split(" ") for merge in _texts(metadata, "merges")]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise _UnreadError(f"{PREFIX}merges has {shown(' '.join(wrong))}, which is no pair")
    splitting = SPLITS[splits]
    return {
        "normalizer": {"type": "NFC"} if splitting.composes else None,
        "pre_tokenizer": splitting.steps,
        "post_processor": _around(metadata, tokens, begins=splitting.begins),
        "decoder": _bytes(splits=True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": splitting.ignores_merges, "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip


def _pieces(metadata: Mapping[str, Any], tokens: Sequence[str], special: Mapping[str, str]) -> dict[str, Any]:
    """Pieces of SentencePiece: the adjacent pair whose union has the best score is joined first."""
    scores = metadata.get(f"{PREFIX}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(type(one) is float for one in scores):
        raise _UnreadError(f"{PREFIX}scores has no number for each token")
    if "unk_token" not in special:
        raise _UnreadError(f"{PREFIX}{SPECIAL['unk_token']} is missing")
    spaces: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": WORD_START}]
    removals: list[dict[str, Any]] = []
    if metadata.get(f"{PREFIX}add_space_prefix", True) is not False:
        spaces.insert(0, {"type": "Prepend", "prepend": WORD_START})
        removals = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": None,
        "post_processor": _around(metadata, tokens, begins=True),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": WORD_START}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *removals,
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": special["unk_token"], "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": vocabulary, "merges": _merges(vocabulary, scores),
        },
    }  # fmt: skip


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Return the pairs whose union is a token, the best score first."""
    if sum(len(token) ** 2 for token in vocabulary) > _SPLIT_CHARACTERS:
        raise _UnreadError(f"{PREFIX}tokens is too long")
    pairs = [
        (-scores[number], number, token[:cut], token[cut:])
        for token, number in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    pairs.sort(key=lambda pair: pair[:2])
    return [[left, right] for *_, left, right in pairs]


def _around(metadata: Mapping[str, Any], tokens: Sequence[str], *, begins: bool) -> dict[str, Any]:
    """Return the step that puts the first and the last token around a text; ``begins``: where the file is silent."""
    around: list[list[str]] = []
    for name, default in (("bos", begins), ("eos", False)):
        number = metadata.get(f"{PREFIX}{name}_token_id")
        wanted = metadata.get(f"{PREFIX}add_{name}_token", default) is True and not isinstance(number, bool)
        around.append([tokens[number]] if wanted and isinstance(number, int) and 0 <= number < len(tokens) else [])
    return _template(around[0], around[1], tokens)


def _words(tokens: Sequence[str], special: Mapping[str, str]) -> dict[str, Any]:
    """Pieces of words, as BERT has them; texts lose case and accents, as llama.cpp does it for all such files."""
    missing = next((name for name in ("cls_token", "sep_token", "unk_token") if name not in special), None)
    if missing is not None:
        raise _UnreadError(f"{PREFIX}{SPECIAL[missing]} is missing")
    vocabulary = {_piece(token): number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _UnreadError(f"{PREFIX}tokens has a token twice")
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template([special["cls_token"]], [special["sep_token"]], tokens),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": special["unk_token"], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        },
    }  # fmt: skip


def _piece(token: str) -> str:
    """Return a piece as WordPiece writes it; files mark those that begin a word, and leave special ones as they are."""
    if token.startswith(WORD_START):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"


def _template(before: Sequence[str], after: Sequence[str], tokens: Sequence[str]) -> dict[str, Any]:
    """Return the step that puts special tokens around a text, or around two."""

    def token(text: str, number: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": number}}

    def text(name: str, number: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": number}}

    single = [*(token(one, 0) for one in before), text("A", 0), *(token(one, 0) for one in after)]
    second = [text("B", 1), *(token(one, 1) for one in after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second],
        "special_tokens": {
            one: {"id": one, "ids": [tokens.index(one)], "tokens": [one]} for one in (*before, *after)
        },
    }  # fmt: skip
