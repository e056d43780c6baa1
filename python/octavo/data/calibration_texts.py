"""Texts that calibrate and measure models: files of lines, JSON objects and chat messages, and windows of their tokens.

A text of a file is a line, the text field of a JSON object, or a conversation, which the chat template of the model's
tokenizer renders. Windows of tokens are full: no position is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.data.byte_pairs import BytePairTokenizer
from octavo.data.labelled_files import TEXT_FIELDS, is_json_lines, is_table, read_labelled, text_lines
from octavo.errors import DataError, DTypeError, SettingError
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import parse_json, shown

if TYPE_CHECKING:
    from torch import Tensor

#: Field of a JSON object that holds a conversation.
MESSAGES = "messages"
_END = "<|endoftext|>"
_TOKENS, _ROWS = 256, 8


@checks_arguments
def read_texts(path: Path | str, *, field: str | None = None, tokenizer: Any = None) -> list[str]:
    r"""Return the texts of a file, compressed (``.xz``, ``.gz``) or plain, in UTF-8.

    A name that ends in ``.jsonl`` or ``.json`` holds JSON objects, one a line. Each has its text under ``text`` (or
    ``sentence``, ``content``, ``review``), or chat messages under ``messages``: objects with ``role`` and ``content``,
    rendered by the tokenizer's chat template. ``.tsv`` is a table of labelled texts. Any other file has a text a line.
    Empty lines are skipped.

    Args:
        path: file to read.
        field: field of the text, or of the chat messages, in place of those names.
        tokenizer: of transformers, with a chat template; needed for chat messages alone.

    Returns:
        Texts.

    Raises:
        DataError: has the file, the line, the field and what is accepted there; for chat messages without a template,
            too.
        OSError: where the file cannot be read.

    Example:
        >>> _ = Path("texts.jsonl").write_text('{"text": "a fine film"}\n{"text": "a dull one"}\n')
        >>> octavo.data.read_texts("texts.jsonl")
        ['a fine film', 'a dull one']
    """
    path = Path(path)
    if is_json_lines(path):
        texts = list(_objects(path, field, tokenizer))
    elif field is not None:
        raise DataError(f"{path}: the field {field!r} is of JSON objects, one a line; give a path that ends in .jsonl")
    elif is_table(path):
        return list(read_labelled(path).texts)
    else:
        texts = [line for _, line in text_lines(path, "texts in UTF-8, one a line") if line.strip()]
    if not texts:
        raise DataError(f"{path}: no text in it; accepted are texts in UTF-8, one a line, and JSON objects (.jsonl)")
    return texts


@checks_arguments
def text_windows(
    texts: Iterable[str], tokenizer: Any, *, tokens: int = _TOKENS, windows: int | None = None
) -> list[dict[str, Tensor]]:
    """Return full windows of the tokens of texts, as batches of a language model; no token is padding.

    A text is cut to as many whole windows as it holds. What remains of the texts, each with the end-of-text token of
    the tokenizer behind it, shares windows. The last short window is dropped. Special tokens of a beginning are not
    added.

    Args:
        texts: the texts, such as those of :func:`octavo.data.read_texts`.
        tokenizer: of transformers, or a :class:`octavo.data.BytePairTokenizer`.
        tokens: tokens of a window.
        windows: most windows; later texts are not read then.

    Returns:
        Batches of 8 windows, ``{"input_ids": int64 [windows, tokens]}``.

    Raises:
        DataError: for texts without a whole window, and for a tokenizer that gives no ids.
        SettingError: for sizes below 1.
        DTypeError: for another kind of object.

    Example:
        >>> tokenizer = octavo.data.BytePairTokenizer.train("the cat sat on the mat " * 9, 270)
        >>> batches = octavo.data.text_windows(["the cat sat"] * 40, tokenizer, tokens=16)
        >>> [tuple(batch["input_ids"].shape) for batch in batches]
        [(8, 16), (2, 16)]
    """
    for name, value in (("tokens", tokens), ("windows", windows)):
        if value is not None and value < 1:
            raise SettingError(f"text_windows: {name} is {value}; accepted are whole numbers from 1 on")
    if isinstance(tokenizer, str | type) or not (callable(tokenizer) or hasattr(tokenizer, "encode")):
        raise DTypeError(
            f"tokenizer is a {type(tokenizer).__name__}; accepted are those of transformers and octavo.data"
        )
    end = end_of_text(tokenizer)
    cut = cut_windows((text_ids(tokenizer, text) for text in texts), tokens, end, most=windows)
    return window_batches(cut, tokens, "input_ids", _ROWS)


def window_batches(windows: Sequence[Sequence[int]], tokens: int, argument: str, size: int) -> list[dict[str, Tensor]]:
    """Return windows of ``tokens`` ids as batches of ``size``. Raises DataError where there is none."""
    if not windows:
        raise DataError(f"the texts do not fill one window of {tokens} tokens; give more text, or fewer tokens")
    import torch  # other readers of this room do without

    return [{argument: part} for part in torch.tensor(windows).split(size)]


def cut_windows(
    documents: Iterable[Sequence[int]], tokens: int, end: Sequence[int], *, most: int | None = None
) -> list[list[int]]:
    """Return windows of ``tokens`` ids: whole ones of each document, then those that the rests of documents fill.

    A document's rest has ``end`` behind it. What fills no window is dropped. ``most``: windows after which no further
    document is read.
    """
    whole: list[list[int]] = []
    rest: list[int] = []
    for ids in documents:
        cut = len(ids) // tokens * tokens
        whole += [list(ids[start : start + tokens]) for start in range(0, cut, tokens)]
        if cut < len(ids):
            rest += [*ids[cut:], *end]
        if most is not None and len(whole) + len(rest) // tokens >= most:
            break
    shared = [rest[start : start + tokens] for start in range(0, len(rest) // tokens * tokens, tokens)]
    return [*whole, *shared][:most]


def end_of_text(tokenizer: Any) -> list[int]:
    """Return the ids that stand between two texts: the end-of-text token, else that of sentences, else a line feed."""
    if isinstance(tokenizer, BytePairTokenizer):
        end = tokenizer.id(_END)
    else:
        end = getattr(tokenizer, "eos_token_id", None)
        end = getattr(tokenizer, "sep_token_id", None) if end is None else end
    return text_ids(tokenizer, "\n") if end is None else [int(end)]


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text, without the special tokens that a tokenizer of transformers would add."""
    if isinstance(tokenizer, BytePairTokenizer):  # ends of documents are special tokens, as in its training
        return tokenizer.encode(text, special="allow").tolist()
    try:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    except TypeError:  # a tokenizer of another library
        ids = tokenizer.encode(text)
    except KeyError:
        raise DataError(
            f"the tokenizer, a {type(tokenizer).__name__}, gives no input_ids of a text; give that of the model"
        ) from None
    ids = getattr(ids, "ids", ids)
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def has_labels(path: Path) -> bool:
    """Whether a file holds labelled texts: a table, or JSON objects of which the first has a label."""
    if not is_json_lines(path):
        return is_table(path)
    line = next((line for _, line in text_lines(path, "JSON objects, one a line") if line.strip()), "{}")
    record = parse_json(line, str(path), error=DataError)
    return any(name in record for name in ("label", "labels", "class"))


def is_text(item: object) -> bool:
    """Whether an item of a caller's list is a text: a string, or an object with ``text`` or ``messages``."""
    if not isinstance(item, Mapping):
        return isinstance(item, str)
    return isinstance(item.get("text"), str) or _is_conversation(item.get(MESSAGES))


def rendered(item: Any, tokenizer: Any, place: str) -> str:
    """Return the text of an item that :func:`is_text` takes. ``place``: names it. Raises DataError."""
    if isinstance(item, str):
        return item
    return item["text"] if isinstance(item.get("text"), str) else _conversation(item[MESSAGES], tokenizer, place)


# --- JSON objects ---------------------------------------------------------------------------------------------------


def _objects(path: Path, field: str | None, tokenizer: Any) -> Iterator[str]:
    names = (*TEXT_FIELDS, MESSAGES) if field is None else (field,)
    for number, line in text_lines(path, "JSON objects, one a line"):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        record = parse_json(line, place, error=DataError)
        name = next((name for name in names if name in record), None)
        if name is None:
            accepted = (
                f"{field!r}, a text or chat messages"
                if field is not None
                else f"a text under {' or '.join(map(repr, TEXT_FIELDS))}, or chat messages under '{MESSAGES}'"
            )
            has = ", ".join(map(shown, list(record)[:6])) or "none"
            raise DataError(f"{place} has no such field: it has {has}; accepted are objects with {accepted}")
        value = record[name]
        if isinstance(value, str):
            if value.strip():
                yield value
        elif isinstance(value, list):
            yield _conversation(value, tokenizer, f"{place}: {name!r}")
        else:
            raise DataError(
                f"{place}: {name!r} is a {type(value).__name__}; accepted are a text, and chat messages, a list of "
                "objects with 'role' and 'content'"
            )


def _conversation(messages: Sequence[Any], tokenizer: Any, place: str) -> str:
    """Return chat messages as the tokenizer's template renders them. Raises DataError naming the message."""
    if not messages:
        raise DataError(f"{place} holds no message; accepted are objects with 'role' and 'content', one at least")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise DataError(
                f"{place}[{number}] is a {type(message).__name__}; accepted are objects with 'role' and 'content'"
            )
        for name, kinds in (("role", str), ("content", (str, list))):
            if not isinstance(message.get(name), kinds):
                value = shown(message[name]) if name in message else "missing"
                raise DataError(f"{place}[{number}]: {name!r} is {value}; accepted is a text")
    render = getattr(tokenizer, "apply_chat_template", None)
    if render is None or not getattr(tokenizer, "chat_template", None):
        kind = (
            "no tokenizer was given" if tokenizer is None else f"the tokenizer, a {type(tokenizer).__name__}, has none"
        )
        raise DataError(f"{place}: chat messages need a chat template, and {kind}; give plain texts under 'text'")
    try:
        text = render([dict(message) for message in messages], tokenize=False)
    except Exception as error:  # a template is a program: it may raise anything
        message = " ".join(str(error).split())[:300]
        raise DataError(f"{place}: the chat template refuses the messages: {type(error).__name__}: {message}") from None
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{place}: the chat template renders no text of the messages")
    return text


def _is_conversation(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)
