"""Files of labelled texts as people have them."""

import gzip
import lzma

import pytest
from octavo.data import labelled_files, read_labelled
from octavo.data.labelled_files import read_text_file
from octavo.errors import DataError

EXPECTED = (("a film", "bad"), (1, 0))
FORMS = {
    "header.tsv": "label\tsentence\n1\ta film\n0\tbad\n",
    "behind.tsv": "sentence\tlabel\na film\t1\nbad\t0\n",
    "plain.tsv": "1\ta film\n\n0\tbad",
    "last.tsv": "a film\t1\nbad\t0\n",
    "names.tsv": "a film\tpos\nbad\tneg\n",
    "windows.tsv": "\ufefflabel\ttext\r\n1\ta film\r\n0\tbad\r\n",
    "objects.jsonl": '{"text": "a film", "label": 1}\n{"sentence": "bad", "label": 0, "id": 7}\n',
    "objects.json": '{"text": "a film", "label": "Pos"}\n{"text": "bad", "label": "neg"}\n',
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_is_the_same_texts(name, packed, tmp_path):
    content = FORMS[name].encode()
    path = tmp_path / (name + ".xz" * packed)
    path.write_bytes(lzma.compress(content) if packed else content)
    found = read_labelled(path, {"neg": 0, "pos": 1} if "objects" in name else None)
    assert (found.texts, found.labels) == EXPECTED


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.tsv", "", "no labelled text"),
        ("a.tsv", "1\tx\ty\n", "line 1 has 3 columns"),
        ("a.tsv", "one\n", "line 1 has 1 columns"),
        ("a.tsv", "0\tx\n\n2\ty\n", "line 3 has the label 2; the model's classes are 0 to 0"),
        ("a.tsv", "-1\tx\n", "line 1 has the label -1; the model's classes are 0 to 0"),
        ("a.tsv", "1000000\tx\n", "line 1 has the label 1000000"),
        ("a.tsv", "x\tSPORT\n", "label 'SPORT'; the model's classes are world"),
        ("a.jsonl", '{"text": "x"}', "line 1 is .*accepted are objects"),
        ("a.jsonl", "[]", "line 1"),
        ("a.tsv", "1\t\udcff", "line 1 is not UTF-8"),
    ],
)
def test_other_files_are_refused_with_their_line(name, content, reason, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=reason):
        read_labelled(path, {"world": 0})


def test_classes_that_are_called_by_numbers_go_by_name(tmp_path):
    (tmp_path / "a.tsv").write_text("5\tx\n1\ty\n")
    assert read_labelled(tmp_path / "a.tsv", {str(stars): stars - 1 for stars in range(1, 6)}).labels == (4, 0)
    assert read_labelled(tmp_path / "a.tsv", {name: str(place) for place, name in enumerate("abcdef")}).labels == (5, 1)


@pytest.mark.parametrize("classes", [None, {"neg": 0, "pos": 1}], ids=["names of the file", "of a model"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "label\ttext\n-1\tunknown\npos\tgood\n"),
        ("a.tsv", "1\tgood\n-1\tunknown\n"),
        ("a.jsonl", '{"text": "good", "label": 1}\n{"text": "unknown", "label": -1}\n'),
        ("a.jsonl", '{"text": "good", "label": "pos"}\n{"text": "unknown", "label": -1}\n'),
    ],
)
def test_a_label_of_no_class_is_refused_with_its_line(name, content, classes, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"line 2 has the label '?-1"):
        read_labelled(tmp_path / name, classes)


def test_a_beginning_is_the_beginning_of_the_whole_and_no_more_is_read(tmp_path):
    """Behind the beginning that is read the file is damaged, which whoever reads on is told."""
    text = "".join(f"zeile {number} äöü 漢字 🙂\r\n" for number in range(20_000))
    whole = lzma.compress(text.encode())
    for name, content in (("a.txt", text.encode() + b"\xff"), ("a.txt.xz", whole[: len(whole) * 3 // 4])):
        path = tmp_path / name
        path.write_bytes(content)
        for wanted in (1, 7, 100, 3000):
            found = read_text_file(path, lambda given, wanted=wanted: len(given) >= wanted, nbytes=wanted)
            assert wanted <= len(found) < 8 * wanted and text.replace("\r\n", "\n").startswith(found.rstrip("\r"))
        with pytest.raises(DataError, match=r"damaged or cut off|is not UTF-8"):
            read_text_file(path)
    (tmp_path / "short.txt").write_text("all of it")
    assert read_text_file(tmp_path / "short.txt", lambda given: False, nbytes=2) == "all of it"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_text_that_is_too_long_is_refused_by_its_decompressed_bytes(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(labelled_files, "TEXT_BYTES", 1000)
    (tmp_path / "a.txt").write_bytes(pack(b"x\t1\n" * 250))
    assert len(read_text_file(tmp_path / "a.txt")) == 1000 and len(read_labelled(tmp_path / "a.txt")) == 250
    (tmp_path / "a.txt").write_bytes(pack(b"x\t1\n" * 100_000))
    for read in (read_text_file, read_labelled):
        with pytest.raises(DataError, match=r"more than 1,000 bytes of text; give a smaller file"):
            read(tmp_path / "a.txt")
    assert len(read_text_file(tmp_path / "a.txt", lambda text: len(text) > 50, nbytes=9)) == 72
    with pytest.raises(DataError, match="more than 1,000 bytes of text; give less"):
        read_text_file(tmp_path / "a.txt", lambda text: False, nbytes=9, way_out="give less")
