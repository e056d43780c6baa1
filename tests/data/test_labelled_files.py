"""Files of labelled texts as people have them."""

import lzma

import pytest
from octavo.data import read_labelled
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
