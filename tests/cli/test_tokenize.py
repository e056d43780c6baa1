import json

import pytest
from data.byte_pair_texts import END, corpus
from octavo.data import BytePairTokenizer, read_shard


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "books.txt"
    path.write_text(END.join(corpus(3000, seed) for seed in range(5)))
    return path


def test_a_vocabulary_is_learned_and_a_corpus_is_encoded(octavo, tmp_path, text):
    told = octavo("tokenize", "train", text, "-o", tmp_path / "v", "--size", 400)
    assert f"400 ids: {tmp_path / 'v' / 'tokenizer.json'}" in told.output.replace("\n", "")
    assert sorted(file.name for file in (tmp_path / "v").iterdir()) == ["tokenizer.json"]
    tokenizer = BytePairTokenizer.load(tmp_path / "v")
    assert tokenizer == BytePairTokenizer.train_files([text], 400)
    encoded = json.loads(
        octavo("tokenize", "encode", text, "-o", tmp_path / "s", "-t", tmp_path / "v", "--shard", 1000, "--json").stdout
    )
    counted = json.loads(octavo("tokenize", "count", text, "-t", tmp_path / "v", "--json").stdout)
    assert counted["tokens"] == encoded["tokens"] and counted["documents"] == encoded["documents"] == 5
    facts = json.loads(octavo("tokenize", "inspect", tmp_path / "s", "--json").stdout)
    assert sum(entry["ids"] for entry in facts) == encoded["tokens"] and facts[0]["first is end"]
    shown = octavo("tokenize", "inspect", tmp_path / "s", "--show", 5).output
    first = read_shard(tmp_path / "s" / "tokens_train_000001.bin")
    assert repr(tokenizer.decode(first[:5])) in shown and "documents" in shown
    assert "bytes an id" in octavo("tokenize", "count", text, "-t", tmp_path / "v").output


def test_a_tokenizer_is_shown(octavo, tmp_path, text):
    octavo(
        "tokenize",
        "train",
        text,
        "-o",
        tmp_path / "x.json",
        "--size",
        300,
        "--pattern",
        "llama3",
        "--special",
        "<a>",
        "--special",
        "<b>",
    )
    facts = json.loads(octavo("tokenize", "inspect", tmp_path / "x.json", "--show", 3, "--json").stdout)
    assert facts[0]["ids"] == 300 and facts[0]["special"] == ["<a> = 298", "<b> = 299"]
    assert facts[0]["pattern"] == "llama3" and len(facts[0]["last"]) == 3
    assert "pattern" in octavo("tokenize", "inspect", tmp_path / "x.json").output


def test_mistakes_are_told_in_a_line(octavo, tmp_path, text):
    octavo("tokenize", "train", text, "-o", tmp_path / "v", "--size", 300)
    assert "--force" in octavo("tokenize", "train", text, "-o", tmp_path / "v", code=2).output
    octavo("tokenize", "train", text, "-o", tmp_path / "v", "--size", 301, "--force")
    assert "accepted are 257" in octavo("tokenize", "train", text, "-o", tmp_path / "w", "--size", 10, code=2).output
    few = octavo("tokenize", "train", text, "-o", tmp_path / "few", "--least", 100000)
    assert "fewer than 10,240" in few.output
    merges = tmp_path / "vocab.bpe"
    merges.write_text("a b\n")
    assert "encoder.json" in octavo("tokenize", "count", text, "-t", merges, code=2).output
    (tmp_path / "x.bin").write_bytes(b"\0" * 2000)
    assert "magic number 0" in octavo("tokenize", "inspect", tmp_path / "x.bin", code=2).output
    octavo("tokenize", "count", tmp_path / "none.txt", "-t", tmp_path / "v", code=2)


@pytest.mark.parametrize("command", ["train", "encode", "count", "inspect"])
def test_help_teaches_with_examples(octavo, command):
    output = octavo("tokenize", command, "--help").output
    assert "Examples:" in output and f"octavo tokenize {command}" in output
