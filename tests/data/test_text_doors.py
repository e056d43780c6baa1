"""Whoever reads texts refuses a file that is none, by what it is and before work starts."""

import gzip
import json
import lzma

import numpy as np
import pytest
from data.text_files import NO_TEXTS, TEXTS
from octavo import DataError
from octavo.cli import app
from octavo.compress.readers import read_jsonl, read_tsv
from octavo.data import BytePairTokenizer, count_tokens, read_labelled, write_shard, write_shards
from octavo.data.calibration_texts import read_texts
from octavo.data.document_files import files_below, pieces
from octavo.data.labelled_files import read_text_file
from octavo.lab.language.token_data import prepare
from octavo.storage import file_kinds
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def tokenizer():
    return BytePairTokenizer.train("the cat sat on the mat " * 9, 270)


DOORS = {
    "pieces": lambda path, *_: list(pieces(path)),
    "files_below": lambda path, *_: files_below([path]),
    "train_files": lambda path, *_: BytePairTokenizer.train_files(path, 300),
    "write_shards": lambda path, out, tokenizer: write_shards(path, out, tokenizer),
    "count_tokens": lambda path, _, tokenizer: count_tokens(path, tokenizer),
    "prepare": lambda path, out, _: prepare(path, out, vocabulary=300, validation_tokens=10),
    "read_labelled": lambda path, *_: read_labelled(path),
    "read_text_file": lambda path, *_: read_text_file(path),
    "read_texts": lambda path, *_: read_texts(path),
    "read_tsv": lambda path, *_: read_tsv(path),
    "read_jsonl": lambda path, *_: read_jsonl(path),
}
COMMANDS = {
    "train gpt": ["train", "gpt", "--data", "FILE", "-o", "OUT"],
    "tokenize train": ["tokenize", "train", "FILE", "-o", "OUT"],
    "tokenize encode": ["tokenize", "encode", "FILE", "-o", "OUT", "-t", "TOKENIZER"],
    "tokenize count": ["tokenize", "count", "FILE", "-t", "TOKENIZER"],
}


@pytest.mark.parametrize("name", ["x.txt", "x.bin", "x.tsv", "x.jsonl", "x.txt.gz", "x.txt.xz"])
@pytest.mark.parametrize("door", DOORS)
def test_a_file_that_is_no_text_is_refused_by_what_it_is(tmp_path, tokenizer, door, name):
    path, out = tmp_path / name, tmp_path / "out"
    pack = {"gz": gzip.compress, "xz": lzma.compress}.get(name[-2:], bytes)
    for kind, content in NO_TEXTS.items():
        path.write_bytes(pack(content))
        with pytest.raises(DataError) as error:
            DOORS[door](path, out, tokenizer)
        assert str(error.value).startswith(f"{path}: {kind}"), kind
        assert "accepted are texts" in str(error.value)
        assert not out.exists(), kind


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_end_with_an_error_and_write_nothing(tmp_path, tokenizer, command):
    path, out = tmp_path / "shard.bin", tmp_path / "out"
    write_shard(path, np.arange(1, 5000) % 250)
    tokenizer.save(tmp_path / "tokenizer.json")
    named = {"FILE": path, "OUT": out, "TOKENIZER": tmp_path / "tokenizer.json"}
    result = CliRunner().invoke(app, [str(named.get(word, word)) for word in COMMANDS[command]])
    told = f"{result.output} {result.exception}"
    assert result.exit_code != 0 and "a shard of tokens" in told
    assert not [file for file in out.rglob("*") if file.is_file()] if out.exists() else True


def test_what_only_begins_as_such_a_file_is_a_text(tmp_path, tokenizer):
    path = tmp_path / "x.txt"
    for content in TEXTS:
        assert file_kinds.kind_of_binary(content[: file_kinds.HEAD]) is None, content
        path.write_bytes(content)
        assert b"".join(piece.text for piece in pieces(path)) == content
        assert count_tokens([path], tokenizer).nbytes == len(content)
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a\0b"}) + "\n")  # written with an escape
    assert [piece.text for piece in pieces(tmp_path / "x.jsonl")] == [b"a\0b"]


def test_a_damaged_file_is_told_as_before(tmp_path):
    path = tmp_path / "x.txt.xz"
    path.write_bytes(lzma.compress(b"text " * 1000)[:30])
    assert files_below(path) == [path]
    with pytest.raises(DataError, match="damaged or cut off"):
        list(pieces(path))
