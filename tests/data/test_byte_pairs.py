"""Byte pair tokenizers: ids of tiktoken and tokenizers, recorded vectors, streams, files, special tokens."""

import base64
import json
import lzma
import pickle
import random
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from data.byte_pair_texts import END, corpus
from helpers.quick import spread
from hypothesis import given
from hypothesis import strategies as st
from octavo import DataError, DTypeError, ShapeError, _core
from octavo.data import BytePairTokenizer

PATTERNS = ["gpt2", "smollm", "cl100k", "llama3", "qwen2"]
EXPRESSIONS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def ranks_of(tokenizer):
    return {tokenizer.token(number): number for number in range(tokenizer.size - len(tokenizer.special))}


@pytest.fixture(scope="module")
def learned():
    """Small vocabularies, one a pattern."""
    text = corpus()
    return {name: BytePairTokenizer.train([text], 700, pattern=name, special=[END]) for name in PATTERNS}


@pytest.fixture(scope="module")
def gpt2(shared, tmp_path_factory):
    """GPT-2's tokenizer, read from both kinds of files."""
    folder = tmp_path_factory.mktemp("gpt2")
    for name in ("gpt2_vocab.bpe", "gpt2_encoder.json", "gpt2.tiktoken"):
        if not (shared / "data" / f"{name}.xz").exists():
            pytest.skip(f"no {name}.xz in {shared / 'data'}")
        (folder / name).write_bytes(lzma.decompress((shared / "data" / f"{name}.xz").read_bytes()))
    by_merges = BytePairTokenizer.from_merges(folder / "gpt2_vocab.bpe", folder / "gpt2_encoder.json")
    by_ranks = BytePairTokenizer.from_tiktoken(folder / "gpt2.tiktoken")
    return folder, by_merges, by_ranks


def data(shared, name):
    path = shared / "data" / f"{name}.xz"
    if not path.exists():
        pytest.skip(f"no {path}")
    return lzma.decompress(path.read_bytes())


# --- recorded ---------------------------------------------------------------------------------------------------------


def test_hard_strings_have_their_recorded_ids(shared, gpt2):
    texts = data(shared, "gpt2_vectors.inp").decode().split("\n__ggml_vocab_test__\n")
    lines = data(shared, "gpt2_vectors.out").decode().split("\n")
    wanted = [[int(word) for word in line.split()] for line in lines[: len(texts)]]
    assert len(texts) >= 40
    for tokenizer in gpt2[1:]:
        assert [tokenizer.encode(text).tolist() for text in texts] == wanted


def test_openwebtext_has_its_recorded_ids(shared, gpt2):
    wanted = np.frombuffer(data(shared, "owt_val_gpt2_uint16.bin"), "<u2")
    text = gpt2[1].decode_bytes(wanted)
    for tokenizer in gpt2[1:]:
        ids = tokenizer.encode(text, special="allow")
        assert ids.dtype == np.uint16 and np.array_equal(ids, wanted)
    assert wanted.size == 1_203_184


def test_files_of_gpt2_say_the_same(gpt2):
    folder, by_merges, by_ranks = gpt2
    assert by_merges.size == by_ranks.size == 50257
    assert by_merges.special == by_ranks.special == {END: 50256}
    assert all(by_merges.token(number) == by_ranks.token(number) for number in range(50257))
    for name, tokenizer in (("merges", by_merges), ("ranks", by_ranks)):
        tokenizer.save(folder / f"{name}.json")
        again = BytePairTokenizer.load(folder / f"{name}.json")
        text = corpus(20_000, 5)
        assert np.array_equal(again.encode(text), tokenizer.encode(text)) and again.special == tokenizer.special


# --- side by side -----------------------------------------------------------------------------------------------------

odd = st.text(
    st.one_of(
        st.sampled_from(" \n\r\t'sSdDtTmMlLrReEvVſab1２½.!\u00a0\u3000\u2028\x85\u200d\u0301中🙂"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


def tiktoken_of(tokenizer):
    tiktoken = pytest.importorskip("tiktoken")
    return tiktoken.Encoding(
        "x",
        pat_str=EXPRESSIONS[tokenizer.pattern],
        mergeable_ranks=ranks_of(tokenizer),
        special_tokens=tokenizer.special,
    )


def every_code_point():
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    # Between letters, numbers and signs, so that a wrong class moves a border.
    return [
        "".join(f"a{chr(code)}1 {chr(code)}" for code in codes[at : at + 4096]) for at in range(0, len(codes), 4096)
    ]


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_tiktoken_gives_the_same_ids(learned, tmp_path, name):
    peer = tiktoken_of(learned[name])
    path = tmp_path / "x.tiktoken"
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks_of(learned[name]).items()]
    path.write_bytes(b"".join(lines))
    tokenizer = BytePairTokenizer.from_tiktoken(path, pattern=name, special=learned[name].special)

    @given(odd)
    def same(text):
        assert tokenizer.encode(text, special="split").tolist() == peer.encode(text, disallowed_special=())

    same()
    for text in (corpus(100_000, 2), "a" * 3000, " " * 999 + "x", "\n" * 200, "-" * 500 + "=" * 500):
        assert tokenizer.encode(text).tolist() == peer.encode_ordinary(text)
    with_end = f"a{END}b {END}{END}\n<|endoftext|"
    assert tokenizer.encode(with_end, special="allow").tolist() == peer.encode(with_end, allowed_special="all")


@pytest.mark.parametrize("name", PATTERNS)
def test_tokenizers_gives_the_same_ids(learned, tmp_path, name):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = learned[name]
    tokenizer.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    @given(odd)
    def same(text):
        assert tokenizer.encode(text, special="allow").tolist() == peer.encode(text).ids

    same()
    for text in (corpus(100_000, 3), f"a{END}b", "a" * 3000, "\n \n" * 30):
        ids = tokenizer.encode(text, special="allow")
        assert ids.tolist() == peer.encode(text).ids
        assert peer.decode(ids.tolist(), skip_special_tokens=False) == text == tokenizer.decode(ids)


@pytest.mark.parametrize("name", spread(["llama3", "gpt2"], 2))
def test_every_code_point_has_the_class_of_tiktoken(learned, name):
    peer = tiktoken_of(learned[name])
    texts = every_code_point()
    ids, offsets = learned[name].encode_batch(texts, special="split")
    wanted = peer.encode_ordinary_batch(texts)
    assert ids.tolist() == [number for row in wanted for number in row] and len(offsets) == len(texts) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "smollm"])
def test_every_code_point_has_the_class_of_tokenizers(learned, tmp_path, name):
    tokenizers = pytest.importorskip("tokenizers")
    learned[name].save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = every_code_point()[:: 1 if name == "gpt2" else 6]
    assert [learned[name].encode(text).tolist() for text in texts] == [row.ids for row in peer.encode_batch(texts)]


def test_both_are_right_about_ranks_and_merges(tmp_path):
    """Where merges make a token that ranks would make of other parts, each file has its own ids."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"bc", b"abc", b"cd", b"abcd"]
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    (tmp_path / "x.tiktoken").write_bytes(b"\n".join(lines))
    by_ranks = BytePairTokenizer.from_tiktoken(tmp_path / "x.tiktoken", special={})
    assert by_ranks.encode("abcdx").tolist() == [260, 120]  # ab, then abc, then abcd
    vocabulary = {token.decode("latin-1"): number for number, token in enumerate(tokens) if token.isascii()}
    vocabulary = {key: number for key, number in vocabulary.items() if key.isprintable() and key != " "}
    (tmp_path / "encoder.json").write_text(json.dumps(vocabulary))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\nc d\nab c\n")
    by_merges = BytePairTokenizer.from_merges(tmp_path / "vocab.bpe", tmp_path / "encoder.json")
    assert by_merges.encode("abcd", special="split").tolist() == [256, 259]
    assert by_merges.special == {"bc": 257, "abcd": 260}  # no merge makes them
    with pytest.raises(DataError, match="byte 0x20 has no token"):
        by_merges.encode("a b")


# --- laws -------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=80), st.sampled_from(PATTERNS))
def test_any_bytes_come_back(learned, text, name):
    for kind in (bytes, bytearray, memoryview):
        assert learned[name].decode_bytes(learned[name].encode(kind(text), special="split")) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=8), st.sampled_from(PATTERNS))
def test_a_stream_gives_the_ids_of_the_whole(learned, pieces, name):
    tokenizer = learned[name]
    for special in ("split", "allow"):
        for cut in (
            (lambda text: [text]),
            (lambda text: [text.encode()[at : at + 1] for at in range(len(text.encode()))]),
        ):
            stream = tokenizer.stream(special=special)
            ids = [stream.feed(part) for piece in pieces for part in cut(piece + "<|endoftext|> x")]
            ids.append(stream.finish())
            whole = tokenizer.encode("".join(piece + "<|endoftext|> x" for piece in pieces), special=special)
            assert np.concatenate(ids).tolist() == whole.tolist()


def test_streams_give_ids_as_soon_as_they_are_certain(learned):
    stream = learned["gpt2"].stream()
    given_back = [stream.feed(word + " ").size for word in corpus(3000).split()]
    assert sum(given_back) > 0.9 * (sum(given_back) + stream.finish().size)
    assert stream.feed("next").size == 0 and learned["gpt2"].decode(stream.finish()) == "next"


def test_a_stream_that_refused_a_text_begins_another_one(learned):
    tokenizer = learned["gpt2"]
    stream = tokenizer.stream()
    assert stream.feed(END).size == 0
    with pytest.raises(DataError, match="special token"):
        stream.finish()
    with pytest.raises(DataError, match="special token"):
        stream.feed(f"a {END} and more text")
    with pytest.raises(DTypeError):
        stream.feed(7)
    ids = [stream.feed("an or"), stream.feed("dinary text"), stream.finish()]
    assert np.concatenate(ids).tolist() == tokenizer.encode("an ordinary text").tolist()
    assert stream.finish().size == 0


@given(st.lists(st.integers(-2, 9), max_size=5))
def test_offsets_are_from_0_to_the_end_and_never_fall(learned, offsets):
    ids = learned["gpt2"].encode("12345678")
    texts = learned["gpt2"].decode_batch
    if offsets and offsets[0] == 0 and offsets[-1] == ids.size and all(a <= b for a, b in pairwise(offsets)):
        assert "".join(texts(ids, offsets)) == "12345678"
    else:
        with pytest.raises(ShapeError, match="offsets"):
            texts(ids, offsets)


def test_one_text_is_one_document(tmp_path):
    text = corpus(5000)
    wanted = BytePairTokenizer.train([text], 300)
    for one in (text, text.encode(), bytearray(text.encode()), memoryview(text.encode())):
        assert BytePairTokenizer.train(one, 300) == wanted
    (tmp_path / "a.txt").write_text(text)
    for path in (tmp_path / "a.txt", str(tmp_path / "a.txt")):
        assert BytePairTokenizer.train_files(path, 300) == wanted
    assert BytePairTokenizer.train(text, 300, special="<|endoftext|>") == wanted


def test_ids_do_not_depend_on_threads_or_batches(learned):
    texts = [corpus(size, size) for size in (0, 10, 1000, 200_000, 5)] + [
        "",
        "中国" * 50_000,
        "\n".join("abc" * 3 for _ in range(30_000)),
    ]
    for tokenizer in learned.values():
        wanted = [tokenizer.encode(text).tolist() for text in texts]
        before = _core.num_threads()
        try:
            for threads in (1, 3):
                _core.set_num_threads(threads)
                ids, offsets = tokenizer.encode_batch(texts)
                assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == wanted
                assert tokenizer.decode_batch(ids, offsets) == texts
        finally:
            _core.set_num_threads(before)


def test_a_stream_of_ids_gives_whole_characters(learned):
    text = "中国 é🙂 abc"
    ids = learned["gpt2"].encode(text)
    parts = list(learned["gpt2"].decode_stream(ids.tolist()))
    assert "".join(parts) == text and len(parts) > 3 and "\ufffd" not in text
    assert "".join(learned["gpt2"].decode_stream(ids[:1].tolist())) == learned["gpt2"].decode(ids[:1])


def test_text_without_spaces_takes_no_quadratic_time(learned):
    begin = time.perf_counter()
    for name in PATTERNS:
        for text in ("a" * 1_000_000, "ab" * 300_000, "\n" * 300_000, "中" * 200_000):
            assert learned[name].decode(learned[name].encode(text)) == text
    assert time.perf_counter() - begin < 60  # the square of the length takes hours


def test_special_tokens_are_allowed_refused_or_split(learned):
    tokenizer, text = learned["gpt2"], f"ab{END}"
    assert tokenizer.encode(text, special="allow")[-1] == tokenizer.special[END] == tokenizer.size - 1
    assert tokenizer.size - 1 not in tokenizer.encode(text, special="split")
    with pytest.raises(DataError, match=r"text 1: special token .*endoftext.* at byte 2; allow special tokens"):
        tokenizer.encode_batch(["x", text])
    with pytest.raises(DataError, match="accepted are 'allow', 'refuse' and 'split'"):
        tokenizer.encode(text, special="all")
    assert tokenizer.id(END) == tokenizer.size - 1 and tokenizer.token(tokenizer.size - 1) == END.encode()


def test_wrong_arguments_are_refused_by_name(learned):
    tokenizer = learned["gpt2"]
    with pytest.raises(DataError, match="column 2: half of a surrogate pair"):
        tokenizer.encode("a\ud800")
    for wrong in (5, None, ["a"]):
        with pytest.raises(DTypeError):
            tokenizer.encode(wrong)
    with pytest.raises(DTypeError, match="pass a list of texts"):
        tokenizer.encode_batch("abc")
    with pytest.raises(DTypeError, match="accepted are uint16"):
        tokenizer.encode("a", dtype=np.int32)
    for wrong in (tokenizer.size, -1, 2**40):
        with pytest.raises(DataError, match=rf"column 2: id {wrong}; accepted are 0 to {tokenizer.size - 1}"):
            tokenizer.decode([0, wrong])
        with pytest.raises(DataError, match="accepted are ids"):
            tokenizer.token(wrong)
    with pytest.raises(ShapeError):
        tokenizer.decode([[1, 2]])
    with pytest.raises(DTypeError):
        tokenizer.decode([0.5])
    with pytest.raises(ShapeError):
        tokenizer.decode_batch([1, 2, 3], [0, 2])
    assert tokenizer.decode([]) == "" and tokenizer.encode("").size == 0
    with pytest.raises(DTypeError):
        BytePairTokenizer("x")


def test_ids_of_every_integer_dtype_are_decoded(learned):
    ids = learned["gpt2"].encode("abc def")
    for kind in (np.uint16, np.uint32, np.int64, np.int32, np.int16):
        assert learned["gpt2"].decode(ids.astype(kind)) == "abc def"
        assert learned["gpt2"].decode(np.repeat(ids, 2).astype(kind)[::2]) == "abc def"
    assert learned["gpt2"].encode("abc", dtype=np.int64).dtype == np.int64


# --- files ------------------------------------------------------------------------------------------------------------


def test_equal_tokenizers_are_equal(learned, tmp_path):
    tokenizer = learned["gpt2"]
    tokenizer.save(tmp_path)
    again = BytePairTokenizer.load(tmp_path)
    assert again == tokenizer == pickle.loads(pickle.dumps(tokenizer)) and hash(again) == hash(tokenizer)
    assert tokenizer != learned["qwen2"] and tokenizer != "x" and "700 ids, pattern gpt2" in repr(tokenizer)


def change(content, path, value):
    *way, last = path
    for step in way:
        content = content[step]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["model", "type"], "Unigram", "model.type: Unigram; accepted is BPE"),
        (["model", "dropout"], 0.1, "dropout"),
        (["model", "byte_fallback"], True, "byte_fallback"),
        (["model", "end_of_word_suffix"], "</w>", "prefix or suffix"),
        (["model", "merges", 0], ["never", "there"], 'merge 0 of "never" and "there"'),
        (["model", "merges", 0], "one", "merges"),
        (["model", "vocab"], {}, "merge 0"),
        (["model", "vocab", "a"], 2**31, "accepted are ids below"),
        (["normalizer"], {"type": "Lowercase"}, "normalizer"),
        (["pre_tokenizer"], None, "pre_tokenizer"),
        (["pre_tokenizer"], {"type": "Whitespace"}, "pre_tokenizer"),
        (["pre_tokenizer", "add_prefix_space"], True, "add_prefix_space"),
        (["decoder"], {"type": "WordPiece"}, "decoder"),
        (["post_processor"], {"type": "BertProcessing"}, "post_processor"),
        (["added_tokens", 0, "lstrip"], True, "added_tokens"),
        (["added_tokens", 0, "content"], "", "is empty"),
        (["added_tokens", 0, "id"], 2**31, "accepted are ids below"),
    ],
)
def test_rules_that_are_not_known_are_refused(learned, tmp_path, path, value, told):
    learned["gpt2"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content, path, value)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError) as raised:
        BytePairTokenizer.load(file)
    assert str(raised.value).startswith(f"{file}: ") and told in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_pattern_that_is_not_known_is_refused_by_name(learned, tmp_path):
    learned["llama3"].save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\W"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"pattern .* is not known; accepted are those of gpt2, smollm"):
        BytePairTokenizer.load(file)
    with pytest.raises(DataError, match=r"pattern .gpt5. is not known"):
        BytePairTokenizer.train(["a"], 300, pattern="gpt5")


def test_tokens_around_a_text_and_added_words_are_read(learned, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    learned["llama3"].save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    peer.add_special_tokens(["<|begin|>", "<|begin|>x"])
    peer.add_tokens(["octavo"])
    peer.post_processor = tokenizers.processors.Sequence(
        [
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 700)]),
        ]
    )
    peer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = BytePairTokenizer.load(tmp_path)
    text = f"an octavo, <|begin|>xoctavo{END}"
    assert tokenizer.encode(text, special="allow", around=True).tolist() == peer.encode(text).ids
    assert tokenizer.encode(text, special="allow").tolist() == peer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode("octavo").tolist() == [702] and tokenizer.size == 703
    tokenizer.save(tmp_path)
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == peer.encode(text).ids
    assert BytePairTokenizer.load(tmp_path) == tokenizer


def test_texts_are_composed_where_the_file_says_so(learned, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    learned["qwen2"].save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    peer.normalizer = tokenizers.normalizers.NFC()
    peer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = BytePairTokenizer.load(tmp_path)
    for text in ("e\u0301 \u1112\u1161\u11ab x", "plain", "é e\u0301" * 40_000):
        ids = tokenizer.encode(text)
        assert ids.tolist() == peer.encode(text).ids
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"
    assert tokenizer.decode_bytes(tokenizer.encode(b"\xff e")) == b"\xff e"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"YQ==", "line 257"),
        (b"YQ== x", "line 257"),
        (b"YQ== -1", "line 257"),
        (b"YQ= 300", "line 257"),
        (b"Y!== 300", "line 257"),
        (b"==== 300", "line 257"),
        (b"YWI= 5", "is there twice"),
        (b"YWI= 4294967295", "accepted are ids below"),
        (b"YWI= 99999999999", "line 257"),
        (b" 300", "line 257"),
    ],
)
def test_lines_that_are_no_ranks_are_refused(tmp_path, line, told):
    bytes_alone = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    path = tmp_path / "x.tiktoken"
    path.write_bytes(bytes_alone)
    assert BytePairTokenizer.from_tiktoken(path).size == 257
    assert BytePairTokenizer.from_tiktoken(path, special={"<|x|>": 999}).size == 1000
    path.write_bytes(bytes_alone + line + b"\n")
    with pytest.raises(DataError, match=told):
        BytePairTokenizer.from_tiktoken(path)
    path.write_bytes(bytes_alone[7:])
    with pytest.raises(DataError, match="byte 0x00 has no rank"):
        BytePairTokenizer.from_tiktoken(path)


def test_garbage_to_the_core_raises_an_exception(learned):
    core = learned["gpt2"]._core
    garbage = [None, -1, 2**64, 1.5, "x", b"x", (), (1,), (0, 2**63), (2**64, 1), ["x"], object()]
    calls = {
        core.encode: ([b"a"], 1, False),
        core.settled: (b"a", 1),
        core.decode: ((0, 4), 2),
        core.token: (1,),
        core.id: (b"a",),
        core.from_json: (b"{}",),
        core.from_merges: (b"", b"{}", "gpt2"),
        core.from_ranks: (b"", "gpt2", []),
        core.encode([b"abc"], 1, False).put: ((0, 1), 2),
        _core._PieceCounts: ("gpt2", []),
        _core._PieceCounts("gpt2", []).add: (b"a",),
        _core._PieceCounts("gpt2", []).restore: (b"a",),
        _core._MergeLearner: (_core._PieceCounts("gpt2", []), 300, [], 1),
    }
    for call, good in calls.items():
        for position in range(len(good)):
            for wrong in garbage:
                try:
                    call(*good[:position], wrong, *good[position + 1 :])
                except BaseException as error:
                    assert isinstance(error, Exception) and "panicked" not in str(error), (call, wrong, error)


# --- long -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_random_strings_have_the_ids_of_tiktoken(gpt2):
    peer = tiktoken_of(gpt2[2])
    draw = random.Random(7)
    alphabets = [
        "abcdefgh 'sST\n",
        " \t\n\r\u00a0\u3000",
        "0123456789 .,",
        "中国人民 。，",
        "".join(map(chr, range(32, 1000))),
    ]
    total = 0
    for _ in range(1000):
        texts = []
        for _ in range(1000):
            chars = (
                draw.choice(alphabets)
                if draw.random() < 0.8
                else [chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(20)]
            )
            texts.append("".join(draw.choices(chars, k=draw.randint(0, 40))))
        wanted = [number for row in peer.encode_ordinary_batch(texts) for number in row]
        total += len(wanted)
        for tokenizer in gpt2[1:]:
            ids, _ = tokenizer.encode_batch(texts, special="split")
            assert ids.tolist() == wanted
    assert total > 5_000_000


@pytest.mark.slow
def test_books_have_the_ids_of_tiktoken(shared, gpt2):
    peer = tiktoken_of(gpt2[2])
    text = data(shared, "gutenberg_train.txt").decode()[:42_000_000]
    wanted = peer.encode_to_numpy(text, disallowed_special=())
    assert wanted.size > 10_000_000
    for tokenizer in gpt2[1:]:
        assert np.array_equal(tokenizer.encode(text, special="split"), wanted)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
