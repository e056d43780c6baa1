"""Shards of tokens, the loader that accounts for them, and files of documents written as shards."""

import gzip
import hashlib
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import octavo
import pytest
from data.byte_pair_texts import END, corpus
from octavo import DataError, DTypeError, ShapeError
from octavo.data import BytePairTokenizer, TokenLoader, count_tokens, read_shard, write_shard, write_shards
from octavo.data.document_files import files_below, pieces
from octavo.data.shards import find_shards


@pytest.fixture(scope="module")
def tokenizer():
    return BytePairTokenizer.train([corpus(30_000)], 400, special=[END])


def documents(count=40, seed=3):
    text = corpus(count * 700, seed)
    return [text[at * 700 : at * 700 + 50 + 16 * at] for at in range(count)]


def wanted_ids(tokenizer, texts):
    end = tokenizer.special[END]
    return np.concatenate([np.r_[end, tokenizer.encode(text, special="split").astype(int)] for text in texts])


# --- shards -----------------------------------------------------------------------------------------------------------


def test_shards_are_the_header_of_the_benchmark_and_ids(tmp_path):
    ids = np.arange(1000) % 50257
    write_shard(tmp_path / "a.bin", ids)
    data = (tmp_path / "a.bin").read_bytes()
    header = np.frombuffer(data[:1024], "<i4")
    assert header[:3].tolist() == [20240520, 1, 1000] and not header[3:].any()
    assert data[1024:] == ids.astype("<u2").tobytes()
    assert np.array_equal(read_shard(tmp_path / "a.bin", vocabulary=50257), ids)
    write_shard(tmp_path / "a.bin", [])
    assert read_shard(tmp_path / "a.bin", vocabulary=1).size == 0


def test_broken_shards_are_refused_by_name(tmp_path):
    path = tmp_path / "a.bin"
    write_shard(path, [5, 7, 9])
    good = path.read_bytes()
    cases = {
        "magic number": b"\0" * 4 + good[4:],
        "version 2": good[:4] + b"\2\0\0\0" + good[8:],
        "1024 \\+ 2 \\* 4": good[:8] + b"\4\0\0\0" + good[12:],
        "1024 \\+ 2 \\* -1": good[:8] + b"\xff" * 4 + good[12:],
        "cut off": good[:-1],
        "a header of 1024": good[:1000],
        "header\\[3:\\]": good[:1020] + b"\1\0\0\0" + good[1024:],
        "damaged": good + b"\0",
    }
    for told, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"a\.bin: .*{told}"):
            read_shard(path)
    path.write_bytes(good)
    with pytest.raises(DataError, match="id 7 at place 1; accepted are ids below 6"):
        read_shard(path, vocabulary=6)
    for wrong, error in (([-1], DataError), ([1 << 16], DataError), ([0.5], DTypeError), ([[1]], ShapeError)):
        with pytest.raises(error):
            write_shard(path, wrong)
    assert path.read_bytes() == good
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no shards"):
        find_shards(tmp_path / "none")


# --- loader -----------------------------------------------------------------------------------------------------------


def reference(shards, size):
    """The loader of the benchmark, as its rules say."""
    while True:
        for ids in shards:
            at = 0
            while len(ids) - at >= size + 1:
                yield ids[at : at + size + 1]
                at += size


def make(tmp_path, lengths=(100, 5, 57, 64), end=9):
    draw = np.random.default_rng(0)
    shards = []
    for number, length in enumerate(lengths):
        ids = draw.integers(0, 9, length)
        ids[draw.random(length) < 0.1] = end
        ids[0] = end
        write_shard(tmp_path / f"x_train_{number:06}.bin", ids)
        shards.append(ids)
    return shards


def test_the_reference_order_is_that_of_the_benchmark(tmp_path):
    shards = make(tmp_path)
    loader = TokenLoader(tmp_path, batch=3, context=5, vocabulary=10, end=9)
    for _, window in zip(range(30), reference(shards, 15), strict=False):
        batch = next(loader)
        assert np.array_equal(batch.inputs.ravel(), window[:-1]) and np.array_equal(batch.targets.ravel(), window[1:])
        assert batch.inputs.shape == (3, 5) and batch.inputs.dtype == np.int64
        for row, numbers in zip(batch.inputs, batch.documents, strict=True):
            assert numbers[0] == 0 and np.array_equal(np.diff(numbers), row[1:] == 9)
    assert loader.account.tokens == 30 * 15


@pytest.mark.parametrize("order", ["reference", "documents", "easy_first"])
def test_every_token_is_accounted_for(tmp_path, order):
    shards = make(tmp_path)
    loader = TokenLoader(tmp_path, batch=2, context=4, vocabulary=10, end=9, order=order)
    for _ in range(200):
        next(loader)
        account = loader.account
        inside = sum(len(ids) for ids in shards[: loader.state()["shard"]]) + loader.state()["at"]
        assert account.tokens + account.dropped == account.epoch * loader.total + inside
    assert loader.account.epoch > 3


def test_documents_come_whole_in_a_new_order_each_epoch(tmp_path):
    shards = make(tmp_path)
    loader = TokenLoader(tmp_path, batch=1, context=15, vocabulary=10, end=9, order="documents", seed=4)
    whole = sorted(tuple(part) for ids in shards for part in np.split(ids, np.flatnonzero(ids == 9)) if len(part))
    epochs = []
    for number in range(3):
        tokens = []
        while loader.account.epoch <= number and loader.total - loader.state()["at"] >= 16:
            tokens.append(next(loader).inputs.ravel())
        stream = np.concatenate(tokens)
        parts = [tuple(part) for part in np.split(stream, np.flatnonzero(stream == 9)) if len(part)][:-1]
        assert all(part in whole for part in parts) and len(parts) > 0.8 * len(whole) - 3
        epochs.append(stream.tolist())
        next(loader)
        loader.restore({**loader.state(), "at": 0})
    assert epochs[0] != epochs[1] != epochs[2]
    again = TokenLoader(tmp_path, batch=1, context=15, vocabulary=10, end=9, order="documents", seed=4)
    assert np.concatenate([next(again).inputs.ravel() for _ in range(5)]).tolist() == epochs[0][:75]


def test_easy_documents_come_first_and_every_epoch_is_alike(tmp_path):
    """By the mean surprise of a document's tokens under the frequencies of all that are read."""
    shards = make(tmp_path)
    for tokens in (None, 2 * len(shards[0])):
        read = np.concatenate(shards)[:tokens]
        surprise = -np.log(np.maximum(np.bincount(read, minlength=10), 1) / len(read))
        borders = np.flatnonzero(np.concatenate([shard == 9 for shard in shards])[:tokens])[1:]
        starts = np.cumsum([0, *map(len, shards)])
        borders = np.union1d(borders, starts[(starts > 0) & (starts < len(read))])
        documents = sorted(np.split(read, borders), key=lambda ids: surprise[ids].mean())
        wanted = np.concatenate(documents)
        loader = TokenLoader(tmp_path, batch=1, context=15, vocabulary=10, end=9, order="easy_first", tokens=tokens)
        assert loader.total == len(read)
        windows = (len(read) - 1) // 15
        for _ in range(2):
            found = np.concatenate([next(loader).inputs.ravel() for _ in range(windows)])
            assert np.array_equal(found, wanted[: len(found)])


@pytest.mark.parametrize("order", ["reference", "documents", "easy_first"])
def test_a_restored_loader_goes_on_as_the_first(tmp_path, order):
    make(tmp_path)
    arguments = {"batch": 2, "context": 3, "vocabulary": 10, "end": 9, "order": order, "seed": 2}
    first, other = TokenLoader(tmp_path, **arguments), TokenLoader(tmp_path, **arguments)
    for stop in range(1, 60, 7):
        for _ in range(stop):
            next(first)
        other.restore(json.loads(json.dumps(first.state())))
        one, two = next(first), next(other)
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True)) and first.account == other.account
    with pytest.raises(DataError, match="window"):
        TokenLoader(tmp_path, **{**arguments, "context": 4}).restore(first.state())
    with pytest.raises(DataError, match="shard"):
        other.restore({**first.state(), "shard": 99})


@pytest.mark.parametrize("order", ["reference", "documents", "easy_first"])
def test_ranks_together_read_what_one_process_reads(tmp_path, order):
    make(tmp_path)
    common = {"context": 4, "vocabulary": 10, "end": 9, "order": order}
    one = TokenLoader(tmp_path, batch=6, **common)
    ranks = [TokenLoader(tmp_path, batch=2, rank=rank, ranks=3, **common) for rank in range(3)]
    for _ in range(40):
        whole, parts = next(one), [next(loader) for loader in ranks]
        assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)
        assert {loader.account for loader in ranks} == {one.account}


def test_loaders_refuse_what_they_cannot_read(tmp_path):
    make(tmp_path)
    good = {"batch": 2, "context": 4, "vocabulary": 10, "end": 9}
    for change, told in [
        ({"order": "random"}, "accepted are 'reference', 'documents', 'easy_first'"),
        ({"batch": 0}, "batch 0"),
        ({"context": -1}, "context -1"),
        ({"rank": 1}, "rank 1 of 1"),
        ({"end": 10}, "end 10; accepted are ids below the vocabulary, 10"),
        ({"end": -1}, "end -1"),
        ({"vocabulary": 0}, "vocabulary 0"),
        ({"context": 5000}, "take 10001"),
    ]:
        with pytest.raises(DataError, match=told):
            TokenLoader(tmp_path, **{**good, **change})
    with pytest.raises(DataError, match="id 9 at place 0; accepted are ids below 9"):
        next(TokenLoader(tmp_path, **{**good, "vocabulary": 9, "end": 8}))
    with pytest.raises(DataError, match="split 'val'"):
        TokenLoader(tmp_path, split="val", **good)
    with pytest.raises(FileNotFoundError):
        TokenLoader(tmp_path / "none", **good)


# --- files of documents -----------------------------------------------------------------------------------------------


def write_corpus(folder, texts, kind):
    folder.mkdir(exist_ok=True)
    if kind.startswith("jsonl"):
        data = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    else:
        data = END.join(texts).encode()
    packed = {"xz": lzma.compress, "gz": gzip.compress}.get(kind.split(".")[-1], bytes)(data)
    path = folder / f"corpus.{kind}"
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize("kind", ["txt", "jsonl", "txt.xz", "jsonl.gz"])
def test_documents_become_the_same_ids_from_every_file(tmp_path, tokenizer, kind):
    texts = documents()
    path = write_corpus(tmp_path / "in", texts, kind)
    index = write_shards([path.parent], tmp_path / "out", tokenizer, shard=1000, validation=500)
    shards = [read_shard(tmp_path / "out" / entry["name"]) for entry in index.shards]
    assert np.array_equal(np.concatenate(shards), wanted_ids(tokenizer, texts))
    assert index.documents == len(texts) and index.nbytes == sum(len(text.encode()) for text in texts)
    end = tokenizer.special[END]
    assert len(shards[0]) >= 500 and shards[1][0] == end and all(len(ids) == 1000 for ids in shards[1:-1])
    assert index.shards[0]["name"] == "tokens_val_000000.bin" and index.shards[1]["name"] == "tokens_train_000001.bin"
    for entry in index.shards:
        assert hashlib.sha256((tmp_path / "out" / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]
    assert BytePairTokenizer.load(tmp_path / "out") == tokenizer
    assert json.loads((tmp_path / "out" / "shards.json").read_text())["tokens"] == index.tokens
    counted = count_tokens([path], tokenizer)
    assert (counted.tokens, counted.documents, counted.nbytes) == (index.tokens, index.documents, index.nbytes)
    with pytest.raises(DataError, match="already; name another folder"):
        write_shards([path], tmp_path / "out", tokenizer)
    loader = TokenLoader(tmp_path / "out", split="train", batch=2, context=16, vocabulary=tokenizer.size, end=end)
    assert loader.total == index.tokens - len(shards[0]) and next(loader).inputs[0, 0] == end


def test_a_text_that_is_one_document_leaves_ids_to_train_on(tmp_path, tokenizer):
    """The document is cut at twice the number of ids for validation; documents that are shorter stay whole."""
    text = "".join(documents())
    index = write_shards([write_corpus(tmp_path / "in", [text], "txt")], tmp_path / "out", tokenizer, validation=100)
    shards = [read_shard(tmp_path / "out" / entry["name"]) for entry in index.shards]
    assert [len(ids) for ids in shards] == [200, index.tokens - 200]
    assert np.array_equal(np.concatenate(shards), wanted_ids(tokenizer, [text]))


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_run_goes_on_behind_any_shard(tmp_path, tokenizer, monkeypatch, kind):
    texts = documents(25)
    sources = [write_corpus(tmp_path / f"in{number}", texts[number::2], kind) for number in range(2)]
    options = {"shard": 700, "validation": 300}
    whole = write_shards(sources, tmp_path / "whole", tokenizer, **options)
    for stop in range(len(whole.shards)):
        out = tmp_path / f"stopped{stop}"
        from octavo.data import tokenize_files

        calls = []

        def stopping(path, ids, calls=calls, stop=stop):
            if len(calls) == stop:
                raise KeyboardInterrupt
            calls.append(path)
            write_shard(path, ids)

        monkeypatch.setattr(tokenize_files, "write_shard", stopping)
        with pytest.raises(KeyboardInterrupt):
            write_shards(sources, out, tokenizer, **options)
        monkeypatch.setattr(tokenize_files, "write_shard", write_shard)
        if stop > 1:
            with pytest.raises(DataError, match="unfinished run on other files or options"):
                write_shards(sources, out, tokenizer, **{**options, "shard": 701})
        again = write_shards(sources, out, tokenizer, **options)
        assert again == whole and sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "whole"))


def test_pieces_are_the_documents_of_a_file(tmp_path, monkeypatch):
    from octavo.data import document_files

    monkeypatch.setattr(document_files, "_BLOCK", 7)
    texts = ["a" * 20, "<|endof", "b", "text|> <|endoftext|", "x" * 14 + "<|e"]
    path = write_corpus(tmp_path / "in", texts, "txt")
    found, parts, places = [], [], [0]
    for piece in pieces(path):
        parts.append(piece.text)
        if piece.is_last:
            found.append(b"".join(parts).decode())
            parts = []
            places.append(piece.end)
    assert found == texts and not parts
    for number, place in enumerate(places[:-1]):
        assert b"".join(piece.text for piece in pieces(path, place)) == "".join(texts[number:]).encode()
    path.write_text(END * 3)
    assert list(pieces(path)) == []


def test_broken_files_are_refused_by_name(tmp_path, tokenizer):
    path = tmp_path / "x.jsonl"
    for content in ("{}", "[1]", '{"text": 5}', "nonsense", '{"text": "\\ud800"}'):
        path.write_text('{"text": "good"}\n' + content)
        with pytest.raises(DataError, match=r"x\.jsonl: the line before byte .*; accepted is an object"):
            count_tokens([path], tokenizer)
    damaged = tmp_path / "x.txt.xz"
    damaged.write_bytes(lzma.compress(corpus().encode())[:-40])
    with pytest.raises(DataError, match="damaged or cut off"):
        count_tokens([damaged], tokenizer)
    (tmp_path / "empty").mkdir()
    for nothing in ([tmp_path / "empty"], []):
        with pytest.raises(DataError, match="no files"):
            files_below(nothing)
    (tmp_path / "empty" / "x.txt").write_text("")
    with pytest.raises(DataError, match="no document"):
        write_shards([tmp_path / "empty"], tmp_path / "out", tokenizer)
    with pytest.raises(DataError, match=r"'<\|eot\|>' is no special token"):
        write_shards([tmp_path / "empty"], tmp_path / "out2", tokenizer, end="<|eot|>")


# --- learning from files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["txt", "jsonl.xz"])
def test_files_and_texts_teach_the_same(tmp_path, kind):
    texts = documents()
    path = write_corpus(tmp_path / "in", texts, kind)
    by_files = BytePairTokenizer.train_files([path], 500, pattern="llama3")
    assert by_files == BytePairTokenizer.train(texts, 500, pattern="llama3")
    assert by_files == BytePairTokenizer.train(reversed(texts), 500, pattern="llama3")


def test_the_reference_trainer_finds_the_same_merges(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    texts = documents(60)
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    peer.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=1000, min_frequency=2, initial_alphabet=alphabet, show_progress=False
        ),
    )
    mine = BytePairTokenizer.train(texts, 1000, special=[])
    mine.save(tmp_path)
    written = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    assert written["merges"] == json.loads(peer.to_str())["model"]["merges"]
    assert written["vocab"] == peer.get_vocab()


def test_learning_goes_on_after_an_interrupt(tmp_path, monkeypatch):
    from octavo.data import learn_byte_pairs

    monkeypatch.setattr(learn_byte_pairs, "_SECONDS_BETWEEN", 0.0)
    sources = [
        write_corpus(tmp_path / f"in{number}", documents(20, number), kind)
        for number, kind in enumerate(("txt", "jsonl"))
    ]
    whole = BytePairTokenizer.train_files(sources, 450)
    for stop in (1, 7, 25, 45):
        journal, calls = tmp_path / "journal", []

        def stopping(stage, done, total, calls=calls, stop=stop):
            calls.append(stage)
            if len(calls) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            BytePairTokenizer.train_files(sources, 450, journal=journal, tell=stopping)
        if stop > 1:
            with pytest.raises(DataError, match="other files or options"):
                BytePairTokenizer.train_files(sources[:1], 450, journal=journal)
        assert BytePairTokenizer.train_files(sources, 450, journal=journal) == whole and not journal.exists()
    journal.write_text("nonsense")
    with pytest.raises(DataError, match="no journal"):
        BytePairTokenizer.train_files(sources, 450, journal=journal)


def test_wrong_sizes_are_refused():
    for size, told in ((256, "accepted are 257"), (-1, "size -1"), (1 << 30, "2097150")):
        with pytest.raises(DataError, match=told):
            BytePairTokenizer.train(["abc"], size)
    with pytest.raises(DataError, match="there twice"):
        BytePairTokenizer.train(["abc"], 300, special=["<a>", "<a>"])
    assert BytePairTokenizer.train(["abc"], 300).size == 257  # no pair occurs twice
    assert BytePairTokenizer.train(["abab"], 300, least=1).size == 259


@pytest.mark.slow
def test_kills_lose_no_shard(tmp_path, tokenizer):
    """Killed again and again, the run ends with the shards of one that was not."""
    path = write_corpus(tmp_path / "in", documents(300) * 40, "txt")
    tokenizer.save(tmp_path)
    code = (
        "import sys; from octavo.data import BytePairTokenizer, write_shards;"
        "write_shards([sys.argv[1]], sys.argv[2], BytePairTokenizer.load(sys.argv[3]), shard=20_000)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(octavo.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", code, path, tmp_path / "out", tmp_path / "tokenizer.json"]
    for number in range(10):
        with subprocess.Popen(command, env=environment) as run:
            time.sleep(0.3 + 0.1 * number)
            run.send_signal(signal.SIGKILL)
    subprocess.run(command, env=environment, check=not (tmp_path / "out" / "shards.json").exists())
    whole = write_shards([path], tmp_path / "whole", tokenizer, shard=20_000)
    assert json.loads((tmp_path / "out" / "shards.json").read_text())["shards"] == whole.shards


@pytest.mark.parametrize("order", ["reference", "documents"])
@pytest.mark.parametrize(("batch", "context"), [(2, 7), (3, 16), (1, 400)])
def test_batches_that_are_skipped_are_those_that_would_have_been_read(tmp_path, order, batch, context):
    rng = np.random.default_rng(0)
    for number, size in enumerate((1000, 37, 513, 2)):
        ids = rng.integers(1, 300, size)
        ids[::50] = 0
        write_shard(tmp_path / f"a_train_{number}.bin", ids)
    options = {"batch": batch, "context": context, "vocabulary": 300, "end": 0, "order": order, "seed": 3}
    read, accounts = TokenLoader(tmp_path, **options), []
    wanted = []
    for _ in range(120):
        wanted.append(next(read).inputs)
        accounts.append(read.account)
    for skipped in (0, 1, 2, 5, 33, 70, 71, 119):
        loader = TokenLoader(tmp_path, **options)
        for _ in range(skipped % 3):
            next(loader)
        loader.skip(skipped - skipped % 3)
        assert np.array_equal(next(loader).inputs, wanted[skipped]) and loader.account == accounts[skipped]


def test_a_continued_loader_reads_on_in_other_windows(tmp_path):
    ids = np.arange(1, 401)
    write_shard(tmp_path / "a_train_0.bin", ids)
    loader = TokenLoader(tmp_path, batch=2, context=8, vocabulary=500, end=0)
    first = [next(loader).inputs.ravel() for _ in range(3)]
    longer = loader.continued(batch=3, context=16)
    second = [next(longer).inputs.ravel() for _ in range(2)]
    assert np.array_equal(np.concatenate([*first, *second]), ids[: 3 * 16 + 2 * 48])
    assert longer.account.tokens == 3 * 16 + 2 * 48
