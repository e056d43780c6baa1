"""Texts that calibrate: lines, JSON objects and chat messages, in full windows."""

import gzip
import json
from itertools import pairwise

import pytest
import torch
from helpers.text_folders import text_folder
from hypothesis import given
from hypothesis import strategies as st
from octavo import CalibrationError, DataError
from octavo.data import BytePairTokenizer, read_texts, text_windows
from octavo.data.batches import Batches
from octavo.data.calibration_texts import cut_windows
from octavo.errors import SettingError

TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
CHAT = [{"role": "user", "content": "good film"}, {"role": "assistant", "content": "bad"}]


class Templated:
    """Stands for a tokenizer of transformers with a chat template."""

    chat_template = TEMPLATE

    def apply_chat_template(self, messages, tokenize):
        assert tokenize is False
        return "".join(f"{message['role']} {message['content']} " for message in messages)


def written(path, *objects):
    path.write_text("\n".join(map(json.dumps, objects)))
    return path


@pytest.mark.parametrize(
    ("objects", "options", "texts"),
    [
        ([{"text": "a", "id": 1}, {"sentence": "b"}, {"text": "c", "label": 3}], {}, ["a", "b", "c"]),
        ([{"text": "a", "body": "b"}], {"field": "body"}, ["b"]),
        ([{"messages": CHAT}, {"text": "b"}], {"tokenizer": Templated()}, ["user good film assistant bad ", "b"]),
        ([{"turns": CHAT}], {"field": "turns", "tokenizer": Templated()}, ["user good film assistant bad "]),
        ([{"text": " "}, {"text": "b"}], {}, ["b"]),
    ],
)
def test_objects_have_texts_or_chat_messages(tmp_path, objects, options, texts):
    assert read_texts(written(tmp_path / "a.jsonl", *objects), **options) == texts


def test_other_files_have_a_text_a_line(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n\ntwo\n"))
    (tmp_path / "a.tsv").write_text("1\tone\n0\ttwo\n")
    assert read_texts(tmp_path / "a.txt.gz") == read_texts(tmp_path / "a.tsv") == ["one", "two"]


@pytest.mark.parametrize(
    ("record", "options", "told"),
    [
        ({"body": "x"}, {}, r"line 2 has no such field: it has .body.; accepted are objects with a text under 'text'"),
        ({"text": "x"}, {"field": "body"}, r"line 2 has no such field: it has .text.; accepted are .*'body'"),
        ({"text": 3}, {}, "line 2: 'text' is a int; accepted are a text, and chat messages"),
        ({"messages": []}, {}, "line 2: 'messages' holds no message"),
        ({"messages": ["x"]}, {}, r"line 2: 'messages'\[0\] is a str; accepted are objects with 'role'"),
        ({"messages": [{"content": "x"}]}, {}, r"line 2: 'messages'\[0\]: 'role' is missing; accepted is a text"),
        ({"messages": [CHAT[0], {"role": "user", "content": 1}]}, {}, r"'messages'\[1\]: 'content' is 1; accepted"),
        ({"messages": CHAT}, {}, "line 2: 'messages': chat messages need a chat template, and no tokenizer was given"),
        ({"messages": CHAT}, {"tokenizer": object()}, "the tokenizer, a object, has none; give plain texts under"),
    ],
)
def test_lines_that_hold_no_text_are_refused_by_number_and_field(tmp_path, record, options, told):
    field = options.get("field", "text")
    with pytest.raises(DataError, match=told):
        read_texts(written(tmp_path / "a.jsonl", {field: "fine"}, record), **options)


def test_a_field_is_of_objects_and_a_template_may_refuse(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"the field 'body' is of JSON objects.*\.jsonl"):
        read_texts(tmp_path / "a.txt", field="body")

    class Refusing(Templated):
        def apply_chat_template(self, messages, tokenize):
            raise ValueError("roles must alternate")

    with pytest.raises(
        DataError, match="line 1: 'messages': the chat template refuses the messages: ValueError: roles"
    ):
        read_texts(written(tmp_path / "b.jsonl", {"messages": CHAT}), tokenizer=Refusing())


@given(
    lengths=st.lists(st.integers(0, 40), max_size=8),
    tokens=st.integers(1, 12),
    most=st.none() | st.integers(1, 9),
)
def test_windows_are_full_and_cross_no_text_that_fills_them(lengths, tokens, most):
    documents = [[place + 1] * length for place, length in enumerate(lengths)]
    windows = cut_windows(documents, tokens, [0], most=most)
    assert all(len(window) == tokens for window in windows) and (most is None or len(windows) <= most)
    whole = sum(length // tokens for length in lengths)
    rests = [length % tokens for length in lengths if length % tokens]
    if most is None:
        assert len(windows) == whole + (sum(rests) + len(rests)) // tokens  # less than a window is dropped
        assert all(len(set(window)) == 1 for window in windows[:whole])
    for window in windows:  # two texts have the end of the first between them
        for one, other in pairwise(window):
            assert one == other or 0 in (one, other)


def test_windows_are_batches_of_a_language_model():
    tokenizer = BytePairTokenizer.train("the cat sat on the mat " * 9, 270)
    end = tokenizer.id("<|endoftext|>")
    batches = text_windows(["the cat sat"] * 40, tokenizer, tokens=16, windows=10)
    assert [batch["input_ids"].shape for batch in batches] == [(8, 16), (2, 16)]
    assert batches[0]["input_ids"].dtype == torch.int64 and (batches[0]["input_ids"] == end).any()
    with pytest.raises(DataError, match="do not fill one window of 999 tokens"):
        text_windows(["the cat"], tokenizer, tokens=999)
    with pytest.raises(SettingError, match="windows is 0"):
        text_windows(["the cat"], tokenizer, windows=0)


def test_texts_of_a_caller_may_be_objects_and_conversations(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_folder(tmp_path / "model"))
    tokenizer.chat_template = TEMPLATE
    texts = ["good film", {"text": "good film"}, {"messages": [{"role": "the", "content": "film"}]}]
    (batch,) = Batches(texts, tokenizer=tokenizer)
    assert batch["input_ids"].tolist()[0] == batch["input_ids"].tolist()[1]
    assert tokenizer.decode(batch["input_ids"][2], skip_special_tokens=True).split() == ["the", "film"]
    with pytest.raises(DataError, match=r"calibration text 0\[0\]: 'role' is missing"):
        Batches([{"messages": [{"content": "film"}]}], tokenizer=tokenizer)
    with pytest.raises(CalibrationError, match="give the tokenizer"):
        Batches([{"text": "good film"}])
