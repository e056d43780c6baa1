"""Tokenizers that the package ``tokenizers`` runs: ids are those of transformers, pieces are the whole text."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from octavo import DataError, DTypeError
from octavo.data import BytePairTokenizer
from octavo.data.foreign_tokenizer import ForeignTokenizer, load_tokenizer

tokenizers = pytest.importorskip("tokenizers")
from helpers.foreign_tokenizers import KINDS, SPECIAL, TEXT  # noqa: E402
from tokenizers import processors  # noqa: E402

TEXTS = [
    "the cat", " the  cat \n\n sat", "", "caf\u00e9 \N{CAT FACE}\N{ZERO WIDTH JOINER}\u4f60\u597d", "a\tb\r\nc", "<s> the </s> dog<|end|>",
    "<<s>>", "\ufeff\u0000x",
]  # fmt: skip


WHOLE = ["SentencePiece", "SentencePiece, prefix", "Unigram", "another split"]
"""Kinds whose texts do not depend on the token behind a text."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind, with ``<s>`` before a text."""
    paths = {}
    for kind, make in KINDS.items():
        built = make()
        built.add_special_tokens(SPECIAL)
        built.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", built.token_to_id("<s>"))]
        )
        paths[kind] = tmp_path_factory.mktemp("tokenizer")
        built.save(str(paths[kind] / "tokenizer.json"))
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_transformers(folders, kind):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folders[kind] / "tokenizer.json"))
    ours = load_tokenizer(folders[kind])
    assert isinstance(ours, ForeignTokenizer)
    assert ours.size == max(theirs.get_vocab().values()) + 1
    assert ours.special == {token: theirs.convert_tokens_to_ids(token) for token in SPECIAL}
    assert ours.around == ([ours.special["<s>"]], []) and ours.id("<s>") == ours.special["<s>"]
    for text in TEXTS:
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        ids = ours.encode(text, special="allow")
        assert ids.tolist() == wanted
        split = theirs.backend_tokenizer
        split.encode_special_tokens = True
        assert ours.encode(text, special="split").tolist() == split.encode(text, add_special_tokens=False).ids
        split.encode_special_tokens = False
        assert ours.decode(ids) == theirs.decode(wanted, clean_up_tokenization_spaces=False)


def test_padding_and_truncation_of_a_file_are_left_out(folders, tmp_path):
    built = tokenizers.Tokenizer.from_file(str(folders["Unigram"] / "tokenizer.json"))
    built.enable_padding(length=64)
    built.enable_truncation(4)
    built.save(str(tmp_path / "tokenizer.json"))
    text = "the cat sat on the mat"
    assert load_tokenizer(tmp_path).encode(text).tolist() == load_tokenizer(folders["Unigram"]).encode(text).tolist()


@pytest.mark.parametrize("kind", WHOLE)
def test_pieces_are_the_text_wherever_it_is_cut(folders, kind):
    ours = load_tokenizer(folders[kind])
    for text in TEXTS:
        ids = ours.encode(text, special="allow").tolist()
        whole = ours.decode(ids)
        pieces = list(ours.decode_stream(ids))
        assert "".join(pieces) == whole
        assert "\ufffd" in whole or not any("\ufffd" in piece for piece in pieces)
        for cut in range(len(ids)):
            before = ours.decode(ids[:cut])
            if "\ufffd" not in before:
                assert before + "".join(ours.decode_stream(ids[cut:], after=ids[:cut])) == whole


def test_pieces_come_as_soon_as_they_are_characters(folders):
    ours = load_tokenizer(folders["SentencePiece, prefix"])
    ids = ours.encode("the cat \N{CAT FACE} sat").tolist()
    emitted = []
    for count in range(1, len(ids) + 1):
        stream, taken = ours.decode_stream(iter(ids[:count])), []
        for piece in stream:
            taken.append(piece)
        emitted.append("".join(taken).rstrip("\ufffd"))
    assert all(later.startswith(earlier) for earlier, later in pairwise(emitted))


def test_broken_bytes_and_ids_without_token_are_shown(folders):
    ours = load_tokenizer(folders["SentencePiece"])
    byte = [ours.id(f"<0x{value:02X}>") for value in (0xF0, 0x9F)]
    the = ours.encode("the").tolist()
    assert "".join(ours.decode_stream([*the, *byte])) == "the\ufffd\ufffd"
    assert "".join(ours.decode_stream([*byte, *the])) == "\ufffd\ufffdthe"
    assert "".join(ours.decode_stream([*the, 9999, *the], replace=True)) == "the\ufffdthe"
    with pytest.raises(DataError, match="id 9999; accepted are ids"):
        list(ours.decode_stream([9999]))
    many = "".join(ours.decode_stream(byte[:1] * 100))
    assert set(many) == {"\ufffd"}


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_refused_unless_allowed(folders, kind):
    ours = load_tokenizer(folders[kind])
    with pytest.raises(DataError, match="special token '<s>'"):
        ours.encode("the <s> cat")
    assert ours.special["<s>"] in ours.encode("the <s> cat", special="allow")
    if kind != "Unigram":  # whose pieces have that text
        assert ours.special["<s>"] not in ours.encode("the <s> cat", special="split")
    assert ours.encode("the \u4f60 cat").size  # an unknown character is no special token
    for wrong, error in ((5, DTypeError), ("\ud800", DataError)):
        with pytest.raises(error):
            ours.encode(wrong)
    with pytest.raises(DataError, match="special 'maybe'"):
        ours.encode("the", special="maybe")


def test_byte_pairs_stay_with_the_core_and_need_no_other_package(tmp_path):
    BytePairTokenizer.train(TEXT, 280).save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), BytePairTokenizer)
    ids = load_tokenizer(tmp_path).encode("the \N{CAT FACE}").tolist()
    assert "".join(load_tokenizer(tmp_path).decode_stream(ids, after=ids)) == "the \N{CAT FACE}"
    assert "".join(load_tokenizer(tmp_path).decode_stream([*ids, 5000], replace=True)) == "the \N{CAT FACE}\ufffd"


def test_what_cannot_be_read_is_said(tmp_path, folders):
    for content in ("{", "{}", '{"model": {"type": "Other"}}', "[" * 100_000):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json: no tokenizer: "):
            load_tokenizer(tmp_path)
    code = (
        "import sys; sys.modules['tokenizers'] = None\nfrom pathlib import Path\n"
        "from octavo.data.foreign_tokenizer import load_tokenizer\nload_tokenizer(Path(sys.argv[1]))"
    )
    failed = subprocess.run([sys.executable, "-c", code, folders["Unigram"]], capture_output=True, text=True)
    assert "DataError" in failed.stderr and "pip install tokenizers" in failed.stderr


def test_threads_share_one(folders):
    from concurrent.futures import ThreadPoolExecutor

    ours = load_tokenizer(folders["Unigram"])
    text = "the <s> cat"
    wanted = {how: ours.encode(text, special=how) for how in ("allow", "split")}
    with ThreadPoolExecutor(4) as pool:
        encoded = list(pool.map(lambda how: (how, ours.encode(text, special=how)), ["allow", "split"] * 50))
    assert all(np.array_equal(ids, wanted[how]) for how, ids in encoded)


def written(path, tokenizer, **fields):
    tokenizer.save(str(path / "tokenizer.json"))
    values = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**values, **fields}))
    return load_tokenizer(path)


def test_what_the_package_raises_is_an_error_of_ours_that_names_the_file(tmp_path, capfd):
    """Bare Exceptions of texts without ids, and panics, which are no Exceptions."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0}, unk_token="[UNK]"))
    tokenizer = written(tmp_path, words)
    with pytest.raises(DataError, match=r"tokenizer.json: it does not read this text: WordLevel .*; write it anew"):
        tokenizer.encode("cat")
    with pytest.raises(DataError, match=r"tokenizer.json: it reads no text: WordLevel"):
        tokenizer.around  # noqa: B018 # a property
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    letters.decoder = tokenizers.decoders.Strip("a", 10, 10)
    with pytest.raises(DataError, match=r"tokenizer.json: it does not write these ids: .*index"):
        written(tmp_path, letters).decode([0, 1])
    with pytest.raises(DataError, match=r"tokenizer.json: no tokenizer: .*x\.\.\.; write it anew") as caught:
        written(tmp_path, letters, added_tokens="x" * 9999).encode("a")
    assert len(str(caught.value)) < 500 + len(str(tmp_path))
