"""Tokenizers of GGUF files as the files that transformers and our engine read.

Source: llama.cpp, ``src/llama-vocab.cpp`` and ``convert_hf_to_gguf.py``. Ids are those of the tokenizer that the file
was made of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import ContainerError
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_pieces import CONTROL, NORMAL, UNKNOWN, UNUSED, USER, WORD_START, joined_pieces, unigrams
from octavo.interchange.gguf_splits import SPLITS, bytes_step
from octavo.storage.reading import CONFIG_BYTES, VOCABULARY_BYTES, parse_json, read_text, shown

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
PREFIX = "tokenizer.ggml."
JSON_VALUES = 8_000_000
"""Most values of a ``tokenizer.json``."""
_WHOLE = "tokenizer.huggingface.json"
_MODELS = ("gpt2", "llama", "t5", "bert")
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


class _UnreadError(Exception):
    """Why a tokenizer is not read."""


def tokenizer_files(file: GgufFile, positions: int) -> tuple[dict[str, str], str | None]:
    """Return the texts of a tokenizer's files by their names, or none and why it is not read.

    ``positions``: that the model has. Where the keys of the file name no tokenizer that is read, its copy of a
    ``tokenizer.json`` counts, or the ``tokenizer.json`` beside it, with the settings there.
    """
    files, problem = texts_of(file.metadata, positions)
    if problem is None:
        return files, None
    try:
        return _given(file, positions), None
    except (_UnreadError, ContainerError) as error:
        return {}, f"{problem}; {error}"


def texts_of(metadata: Mapping[str, Any], positions: int) -> tuple[dict[str, str], str | None]:
    """Return the files that the keys of a file name, as :func:`tokenizer_files` does."""
    try:
        model = metadata.get(f"{PREFIX}model")
        if model not in _MODELS:
            raise _UnreadError(f"{PREFIX}model is {shown(model)}; read are {', '.join(_MODELS[:-1])} and {_MODELS[-1]}")
        tokens = _texts(metadata, "tokens")
        if len(set(tokens)) != len(tokens):
            raise _UnreadError(f"{PREFIX}tokens has a token twice")
        content = {"version": "1.0", "truncation": None, "padding": None, **_content(metadata, tokens)}
        return _files(metadata, tokens, json.dumps(content, ensure_ascii=False), positions), None
    except _UnreadError as error:
        return {}, str(error)


def _given(file: GgufFile, positions: int) -> dict[str, str]:
    """Return the files of a ``tokenizer.json`` that is in a file or beside it."""
    beside = Path(file.path).parent
    content, label = file.metadata.get(_WHOLE), _WHOLE
    settings = None
    if not isinstance(content, str):
        if not (beside / TOKENIZER).is_file():
            raise _UnreadError(f"put the {TOKENIZER} of the model beside the file")
        content, label = read_text(beside / TOKENIZER, VOCABULARY_BYTES), str(beside / TOKENIZER)
        settings = read_text(beside / SETTINGS, CONFIG_BYTES) if (beside / SETTINGS).is_file() else None
    tokens = [] if f"{PREFIX}tokens" not in file.metadata else _texts(file.metadata, "tokens")
    parsed = parse_json(content, label, finite=False, most=JSON_VALUES)
    _check_same(tokens, _kinds(file.metadata, tokens), parsed, label)
    files = _files(file.metadata, tokens, content, positions)
    return files if settings is None else {**files, SETTINGS: settings}


def _check_same(tokens: Sequence[str], kinds: Sequence[int], content: Any, label: str) -> None:
    """Refuse a ``tokenizer.json`` whose tokens are not those of the file, where it has any."""
    try:
        vocabulary = content["model"]["vocab"]
        numbered = (
            [(token, number) for number, (token, _) in enumerate(vocabulary)]
            if isinstance(vocabulary, list)
            else list(vocabulary.items())
        )
        numbered += [(one["content"], one["id"]) for one in content.get("added_tokens") or ()]
        for token, number in numbered if tokens else ():
            own = tokens[number] if type(number) is int and 0 <= number < len(tokens) else None
            same = own is not None and token in (own, own.replace(" ", WORD_START), _piece(own, NORMAL))
            if not same and (own is None or kinds[number] != UNUSED):
                raise _UnreadError(
                    f"{label} is of another model: its token {number} is {shown(token)}, in the file {shown(own)}"
                )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _UnreadError(f"{label} has another shape than that of the package tokenizers") from None


def _files(metadata: Mapping[str, Any], tokens: Sequence[str], content: str, positions: int) -> dict[str, str]:
    special = _special(metadata, tokens)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions, **special}
    files = {TOKENIZER: content, SETTINGS: json.dumps(settings, ensure_ascii=False)}
    template = metadata.get("tokenizer.chat_template")
    return {**files, TEMPLATE: template} if isinstance(template, str) else files


def _kinds(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
    """Return the kinds of tokens; those that the file leaves out are pieces of texts."""
    kinds = metadata.get(f"{PREFIX}token_type", [])
    kinds = kinds[: len(tokens)] if isinstance(kinds, list) else []
    return [*kinds, *[NORMAL] * (len(tokens) - len(kinds))]


def _content(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Return the parts of ``tokenizer.json``."""
    model, kinds, special = metadata[f"{PREFIX}model"], _kinds(metadata, tokens), _special(metadata, tokens)
    if model == "gpt2":
        parts = _pairs(metadata, tokens)
    elif model == "bert":
        parts = _words(metadata, tokens, kinds, special)
    else:
        parts = _pieces(metadata, tokens, kinds, special)
    added = [
        {
            "id": number, "content": _piece(tokens[number], kind) if model == "bert" else tokens[number],
            "single_word": False, **_strips(metadata, tokens[number]), "normalized": False, "special": kind != USER,
        }
        for number, kind in enumerate(kinds)
        if kind in (CONTROL, USER) or (kind == UNKNOWN and model != "gpt2")
    ]  # fmt: skip
    return {"added_tokens": added, **parts}


def _strips(metadata: Mapping[str, Any], token: str) -> dict[str, bool]:
    """Return whether white space beside a special token is left out: files do not say it, but the family does."""
    model, names = metadata[f"{PREFIX}model"], (metadata.get(f"general.{one}") for one in ("architecture", "name"))
    is_phi3 = any(isinstance(name, str) and ("phi3" in name.lower() or "phi-3" in name.lower()) for name in names)
    return {
        "lstrip": model == "t5" and token == "<mask>",
        "rstrip": model == "llama" and is_phi3 and token not in ("<unk>", "<s>", "<|endoftext|>"),
    }


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
        "decoder": bytes_step(splits=True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": splitting.ignores_merges, "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip


def _pieces(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], special: Mapping[str, str]
) -> dict[str, Any]:
    """Pieces of SentencePiece. Scores of joined ones are whole numbers, those of unigrams logarithms."""
    scores = metadata.get(f"{PREFIX}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(map(_is_number, scores)):
        raise _UnreadError(f"{PREFIX}scores has no number for each token")
    of_kind = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    unknown = special.get("unk_token", of_kind)
    if unknown is None:
        raise _UnreadError(f"{PREFIX}{SPECIAL['unk_token']} is missing")
    is_t5 = metadata[f"{PREFIX}model"] == "t5"
    prefix = metadata.get(f"{PREFIX}add_space_prefix", True) is not False
    around = _around(metadata, tokens, begins=not is_t5, ends=is_t5)
    try:
        if not is_t5 and all(score == int(score) for score, kind in zip(scores, kinds, strict=True) if kind == NORMAL):
            return {**joined_pieces(tokens, kinds, scores, unknown, prefix=prefix), "post_processor": around}
        parts = unigrams(
            tokens, kinds, scores, tokens.index(unknown), prefix=prefix,
            squeezes=metadata.get(f"{PREFIX}remove_extra_whitespaces", is_t5) is True,
            characters=metadata.get(f"{PREFIX}precompiled_charsmap"),
        )  # fmt: skip
    except ValueError as error:
        raise _UnreadError(f"{PREFIX}{error}") from None
    return {**parts, "post_processor": around}


def _around(metadata: Mapping[str, Any], tokens: Sequence[str], *, begins: bool, ends: bool = False) -> dict[str, Any]:
    """Return the step that puts the first and the last token around a text; the defaults: where a file is silent."""
    around: list[list[str]] = []
    for name, default in (("bos", begins), ("eos", ends)):
        number = metadata.get(f"{PREFIX}{name}_token_id")
        wanted = metadata.get(f"{PREFIX}add_{name}_token", default) is True and not isinstance(number, bool)
        around.append([tokens[number]] if wanted and isinstance(number, int) and 0 <= number < len(tokens) else [])
    return _template(around[0], around[1], tokens)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _words(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], special: Mapping[str, str]
) -> dict[str, Any]:
    """Pieces of words, as BERT has them; texts lose case and accents where a file does not say otherwise."""
    ends = {"cls_token": special.get("bos_token"), **special}
    missing = next((name for name in ("cls_token", "sep_token", "unk_token") if ends.get(name) is None), None)
    if missing is not None:
        raise _UnreadError(f"{PREFIX}{SPECIAL[missing]} is missing")
    first, last, unknown = (ends[name] or "" for name in ("cls_token", "sep_token", "unk_token"))
    vocabulary = {_piece(token, kind): number for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))}
    if len(vocabulary) != len(tokens):
        raise _UnreadError(f"{PREFIX}tokens has a token twice")
    lowercase = metadata.get(f"{PREFIX}normalizer.lowercase") is not False
    accents = metadata.get(f"{PREFIX}normalizer.strip_accents")
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": accents if isinstance(accents, bool) else None, "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template([first], [last], tokens),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        },
    }  # fmt: skip


def _piece(token: str, kind: int) -> str:
    """Return a piece as WordPiece writes it; files mark those that begin a word, and leave special ones as they are."""
    if kind == CONTROL:
        return token
    if token.startswith(WORD_START) and token != WORD_START:
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
