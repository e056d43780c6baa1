"""Tokenizers of model folders as the metadata of GGUF files: the inverse of :mod:`gguf_tokenizer`.

What was made is read again, and compared with the tokenizer that it was made of. Source: llama.cpp,
``src/llama-vocab.cpp`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import ContainerError
from octavo.interchange.gguf_metadata import Typed, f32s, flag, i32s, text, texts, u32
from octavo.interchange.gguf_pieces import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER, WORD_START
from octavo.interchange.gguf_splits import SPLITS
from octavo.interchange.gguf_tokenizer import JSON_VALUES, PREFIX, SETTINGS, SPECIAL, TEMPLATE, TOKENIZER, texts_of
from octavo.storage.reading import CONFIG_BYTES, VOCABULARY_BYTES, parse_json, read_text, shown

CHAT_TEMPLATE = "tokenizer.chat_template"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NO_SCORE = -1e9  # of pieces that no pair is joined to


class _UnwrittenError(Exception):
    """Why a tokenizer is not written."""


def tokenizer_keys(folder: Path, rows: int, config: Mapping[str, Any]) -> tuple[dict[str, Typed], str | None]:
    """Return the metadata of a folder's tokenizer, or those of none and why it is not written.

    ``rows``: of the table of the model; tokens that the tokenizer lacks are unused ones. ``config``: numbers of special
    tokens that the tokenizer does not name.
    """
    template = _template(folder)
    shared = {} if template is None else {CHAT_TEMPLATE: text(template)}
    try:
        return {**_keys(folder, rows, config), **shared}, None
    except (_UnwrittenError, ContainerError) as error:
        return {f"{PREFIX}model": text("none"), **shared}, str(error)


def same_tokenizer(folder: Path, metadata: Mapping[str, Typed], positions: int) -> bool:
    """Whether metadata are those that the tokenizer and the chat template of a folder were made of."""
    files, _ = texts_of({key: one.value for key, one in metadata.items()}, positions)
    template = metadata.get(CHAT_TEMPLATE)
    if _template(folder) != (None if template is None or not files else template.value):
        return False
    if not files:
        return not (folder / TOKENIZER).exists()
    try:
        return (folder / TOKENIZER).exists() and _json(folder, TOKENIZER) == _parsed(files[TOKENIZER])
    except ContainerError:
        return False


def _json(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = parse_json(
        read_text(folder / name, VOCABULARY_BYTES), str(folder / name), finite=False, most=JSON_VALUES
    )
    return content


def _template(folder: Path) -> str | None:
    if (folder / TEMPLATE).exists():
        return read_text(folder / TEMPLATE, CONFIG_BYTES)
    setting = _json(folder, SETTINGS).get("chat_template") if (folder / SETTINGS).exists() else None
    return setting if isinstance(setting, str) else None


def _keys(folder: Path, rows: int, config: Mapping[str, Any]) -> dict[str, Typed]:
    if not (folder / TOKENIZER).exists():
        raise _UnwrittenError(f"the folder has no {TOKENIZER}")
    tokenizer = _json(folder, TOKENIZER)
    settings = _json(folder, SETTINGS) if (folder / SETTINGS).exists() else {}
    try:
        keys = _of_json(tokenizer, settings, rows, config)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _UnwrittenError(f"{TOKENIZER} has another shape than that of tokenizers: {error!r}") from None
    _compare(tokenizer, keys, config)
    return keys


def _of_json(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], rows: int, config: Mapping[str, Any]
) -> dict[str, Typed]:
    model = tokenizer["model"]
    kind = _kind(tokenizer)
    added = {entry["content"]: (entry["id"], entry["special"]) for entry in tokenizer.get("added_tokens") or ()}
    tokens = _tokens({**model["vocab"], **{token: number for token, (number, _) in added.items()}}, rows)
    kinds = [UNUSED if token is None else NORMAL for token in tokens]
    for number, is_special in added.values():
        kinds[number] = CONTROL if is_special else USER
    named = [f"[PAD{number}]" if token is None else token for number, token in enumerate(tokens)]
    special = _special(settings, named, config)
    keys = {f"{PREFIX}model": text(kind)}
    if kind == "gpt2":
        keys[f"{PREFIX}pre"] = text(_split_name(tokenizer))
    elif kind == "bert":
        named = [name if kinds[number] == UNUSED else _mark(name) for number, name in enumerate(named)]
        special = {"bos_token_id": special["cls_token_id"], **special} if "cls_token_id" in special else special
    keys[f"{PREFIX}tokens"] = texts(named)
    if kind == "llama":
        keys[f"{PREFIX}scores"] = f32s(_scores(named, model["merges"]))
        kinds = [BYTE if _BYTE.fullmatch(token) else one for token, one in zip(named, kinds, strict=True)]
        if "unknown_token_id" in special:
            kinds[special["unknown_token_id"]] = UNKNOWN
    keys[f"{PREFIX}token_type"] = i32s(kinds)
    if kind == "gpt2":
        keys[f"{PREFIX}merges"] = texts([" ".join(pair) for pair in _pairs(model["merges"])])
    keys |= {f"{PREFIX}{key}": u32(number) for key, number in special.items()}
    keys |= _around(tokenizer.get("post_processor"), kind, named, special)
    return {**keys, f"{PREFIX}add_space_prefix": flag(_has_prefix(tokenizer))} if kind == "llama" else keys


def _kind(tokenizer: Mapping[str, Any]) -> str:
    """Return the name of a kind of tokenizers in GGUF files."""
    model, splits = tokenizer["model"], tokenizer.get("pre_tokenizer")
    if model["type"] == "WordPiece":
        normalizer = tokenizer.get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer" or normalizer.get("lowercase") is not True:
            raise _UnwrittenError("its texts keep their case, which llama.cpp takes from all such files")
        return "bert"
    if model["type"] != "BPE":
        raise _UnwrittenError(f"its model is {shown(model['type'])}; written are BPE and WordPiece")
    if model.get("byte_fallback"):
        return "llama"
    if "ByteLevel" not in json.dumps(splits):
        raise _UnwrittenError("its pairs are of characters; written are those of bytes, and pieces with bytes")
    return "gpt2"


def _tokens(vocabulary: Mapping[str, int], rows: int) -> list[str | None]:
    """Return the tokens by their numbers, None for numbers without one."""
    tokens: list[str | None] = [None] * rows
    for token, number in vocabulary.items():
        if not 0 <= number < rows:
            raise _UnwrittenError(f"token {shown(token)} is number {number}; the model has {rows}")
        if tokens[number] is not None:
            raise _UnwrittenError(f"tokens {shown(tokens[number])} and {shown(token)} are both number {number}")
        tokens[number] = token
    return tokens


def _special(settings: Mapping[str, Any], tokens: Sequence[str], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of special tokens by their keys."""
    places = {token: number for number, token in enumerate(tokens)}
    numbers: dict[str, int] = {}
    for name, key in SPECIAL.items():
        setting = settings.get(name)
        content = setting.get("content") if isinstance(setting, dict) else setting
        number = places.get(content) if isinstance(content, str) else config.get(f"{name}_id")
        number = number[0] if isinstance(number, list) and number else number
        if type(number) is int and 0 <= number < len(tokens):
            numbers[key] = number
    return numbers


def _split_name(tokenizer: Mapping[str, Any]) -> str:
    """Return the name by which llama.cpp knows how a tokenizer splits texts."""
    normalizer = tokenizer.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        raise _UnwrittenError("it changes texts before they are split, which llama.cpp does not")
    own, ignores = _plain_splits(tokenizer.get("pre_tokenizer")), bool(tokenizer["model"].get("ignore_merges"))
    for name, splitting in SPLITS.items():
        same = (splitting.ignores_merges, splitting.composes) == (ignores, normalizer is not None)
        if same and _plain_splits(splitting.steps) == own:
            return name
    raise _UnwrittenError(f"llama.cpp has no name for how it splits texts; written are {', '.join(SPLITS)}")


def _plain_splits(splits: Any) -> Any:
    """Return a way of splitting without what changes no tokens."""
    if isinstance(splits, Mapping):
        return {key: _plain_splits(value) for key, value in splits.items() if key != "trim_offsets"}
    return [_plain_splits(one) for one in splits] if isinstance(splits, list) else splits


def _pairs(merges: Sequence[Any]) -> list[list[str]]:
    return [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in merges]


def _mark(piece: str) -> str:
    """Return a piece of WordPiece as files have it."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece[2:] if piece.startswith("##") else f"{WORD_START}{piece}"


def _scores(tokens: Sequence[str], merges: Sequence[Any]) -> list[float]:
    """Return the scores by which pairs are joined in the order of ``merges``: the later, the less."""
    ranks: dict[str, int] = {}
    for pair in _pairs(merges):
        ranks.setdefault("".join(pair), len(ranks))
    return [
        -float(ranks[token]) if token in ranks else 0.0 if token.startswith("<") and token.endswith(">") else _NO_SCORE
        for token in tokens
    ]


def _has_prefix(tokenizer: Mapping[str, Any]) -> bool:
    """Whether texts get a space before them, where a tokenizer of pieces splits no words."""
    splits, normalizer = tokenizer.get("pre_tokenizer"), tokenizer.get("normalizer")
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": WORD_START}
    if splits is None and steps == [{"type": "Prepend", "prepend": WORD_START}, replace]:
        return True
    if splits is None and steps == [replace]:
        return False
    if not steps and splits is not None and splits["type"] == "Metaspace" and splits["replacement"] == WORD_START:
        scheme = splits.get("prepend_scheme", "always")
        if splits.get("split") is False and scheme in ("always", "first", "never"):
            return bool(scheme != "never")
    raise _UnwrittenError("it changes texts otherwise than SentencePiece does")


def _around(processor: Any, kind: str, tokens: Sequence[str], special: Mapping[str, int]) -> dict[str, Typed]:
    """Return which tokens are put around a text."""
    before, after = _ends(processor)
    if kind == "bert":
        expected = [[tokens[special[f"{name}_token_id"]]] for name in ("cls", "seperator")]
        if [before, after] != expected:
            raise _UnwrittenError(
                f"it puts {shown(before)} and {shown(after)} around a text; written are those of BERT"
            )
        return {}
    keys = {}
    for name, ends in (("bos", before), ("eos", after)):
        number = special.get(f"{name}_token_id")
        if ends and ends != ([] if number is None else [tokens[number]]):
            raise _UnwrittenError(f"it puts {shown(ends)} around a text, which is no {name}_token")
        keys[f"{PREFIX}add_{name}_token"] = flag(bool(ends))
    return keys


def _ends(processor: Any) -> tuple[list[str], list[str]]:
    """Return the tokens that are put before and behind a text."""
    steps = [] if processor is None else processor.get("processors", [processor])
    ends: tuple[list[str], list[str]] = [], []
    for step in steps:
        if step["type"] in ("BertProcessing", "RobertaProcessing"):
            ends = [step["cls"][0]], [step["sep"][0]]
        elif step["type"] == "TemplateProcessing":
            parts = [one["SpecialToken"]["id"] if "SpecialToken" in one else None for one in step["single"]]
            at = parts.index(None)
            ends = [one for one in parts[:at] if one], [one for one in parts[at + 1 :] if one]
        elif step["type"] != "ByteLevel":
            raise _UnwrittenError(f"it changes tokens by {shown(step['type'])}")
    return ends


def _parsed(content: str) -> dict[str, Any]:
    """Return the JSON of a tokenizer that was made here."""
    return parse_json(content, TOKENIZER, most=len(content))


def _compare(tokenizer: Mapping[str, Any], keys: Mapping[str, Typed], config: Mapping[str, Any]) -> None:
    """Refuse metadata that are read as another tokenizer; the family of the model says more than they do."""
    metadata = {key: one.value for key, one in keys.items()}
    files, problem = texts_of({**metadata, "general.architecture": config.get("model_type")}, 0)
    if problem is not None:
        raise _UnwrittenError(problem)
    read = _parsed(files[TOKENIZER])
    _compare_strips(tokenizer, read)
    ours, theirs = read["model"], tokenizer["model"]
    same = theirs["vocab"].items() <= ours["vocab"].items()
    if same and ours["type"] == "BPE":
        pairs = _pairs(theirs["merges"])
        same = ours["merges"] == pairs or (
            bool(theirs.get("byte_fallback"))
            and _ranked(ours["merges"]) == _ranked(_of_texts(pairs, metadata[f"{PREFIX}tokens"], keys))
        )
    if not same:
        raise _UnwrittenError("a GGUF file would give it other tokens")


def _compare_strips(tokenizer: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Refuse special tokens that are found otherwise than a file has them."""
    names = ("lstrip", "rstrip", "single_word")
    by_id = {one["id"]: one for one in read["added_tokens"]}
    for one in tokenizer.get("added_tokens") or ():
        other = by_id.get(one["id"], {})
        wrong = next((name for name in names if bool(one.get(name)) != bool(other.get(name))), None)
        if wrong is not None:
            raise _UnwrittenError(
                f"{wrong} of its token {shown(one['content'])} is {bool(one.get(wrong))}, which no file says"
            )


def _of_texts(pairs: Sequence[Sequence[str]], tokens: Sequence[str], keys: Mapping[str, Typed]) -> list[Sequence[str]]:
    """Return pairs without those of special tokens and bytes: these are found in a text before pairs are joined."""
    kinds = keys[f"{PREFIX}token_type"].value
    special = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (UNKNOWN, CONTROL, BYTE)}
    return [pair for pair in pairs if not special.intersection((*pair, "".join(pair)))]


def _ranked(merges: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Return pairs in their order; between those of one token, which have one score, it means nothing."""
    ranked: list[list[list[str]]] = []
    for pair in merges:
        if not ranked or "".join(ranked[-1][0]) != "".join(pair):
            ranked.append([])
        ranked[-1].append(list(pair))
    return [sorted(group) for group in ranked]
