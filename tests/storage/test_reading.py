"""Small files of a folder are regular, bounded and of known shape, whoever reads them (octavo.storage.reading)."""

import ast
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import octavo
import pytest
from octavo import ContainerError, DataError, FormatError, OctavoError, Recipe
from octavo.data import BytePairTokenizer, CharTokenizer
from octavo.errors import CheckpointError
from octavo.lab.classifiers import kinds
from octavo.lab.polynomials import export
from octavo.lab.polynomials.shipped import is_polynomial
from octavo.model_folder.weight_files import INDEX_NAME, Checkpoint
from octavo.search.journal import NAME, Journal, identity
from octavo.storage.reading import DEPTH, VALUES, parse_json, read_bytes, read_head, read_json, read_text
from octavo.train import read_metrics
from octavo.train.metric_files import METRICS, RUN
from train import tiny

SOURCES = sorted(Path(octavo.__file__).parent.rglob("*.py"))


def _open_journal(folder):
    with Journal(folder):
        pass


# Every reader of small files: the file that it reads in a folder, and the call that reads it.
READERS = {
    "index": (INDEX_NAME, Checkpoint.open),
    "seq2seq config": ("config.json", export.load_model),
    "classifier": (kinds.INFO, kinds.load),
    "recipe": ("recipe.toml", lambda folder: Recipe.from_toml(folder / "recipe.toml")),
    "characters": ("tokenizer.json", lambda folder: CharTokenizer.load(folder / "tokenizer.json")),
    "byte pairs": ("tokenizer.json", BytePairTokenizer.load),
    "ranks": ("x.tiktoken", lambda folder: BytePairTokenizer.from_tiktoken(folder / "x.tiktoken")),
    "journal": (NAME, _open_journal),
    "metrics": ("metrics.jsonl", read_metrics),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "gigabytes", "deep", "long", "twice", "latin", "list"])
def test_every_reader_refuses_what_is_no_small_file_of_its_kind(tmp_path, monkeypatch, reader, kind):
    name, read = READERS[reader]
    file = tmp_path / name
    if kind == "pipe":
        os.mkfifo(file)  # opening it would wait for a writer
    elif kind == "socket":
        held = socket.socket(socket.AF_UNIX)
        monkeypatch.chdir(tmp_path)  # paths of sockets are short
        held.bind(name)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "gigabytes":
        with open(file, "wb") as opened:
            opened.truncate(3 << 30)
    else:
        text = {"deep": "[" * 100_000, "long": "[" + "[]," * (VALUES + 1) + "[]]", "twice": '{"a":1,"a":2}'}
        file.write_bytes({"latin": b"\xff\xfe{}\n", "list": b"[1]\n"}.get(kind) or text[kind].encode() + b"\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((OctavoError, OSError)):
        read(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_the_value_is_that_of_json(tmp_path):
    value = {"a": [1, 2.5, None, True, "é\n"], "b": {"c": {}}}
    (tmp_path / "x").write_text(json.dumps(value))
    assert read_json(tmp_path / "x") == value
    assert read_json(tmp_path / "x") == parse_json(json.dumps(value, ensure_ascii=False), "x")
    assert parse_json("[" * DEPTH + "]" * DEPTH, "x", kind=list)
    assert parse_json(json.dumps("[" * 1000), "x", kind=str) == "[" * 1000  # brackets in a text are no levels
    assert parse_json("[Infinity]", "x", kind=list, finite=False) == [float("inf")]


@pytest.mark.parametrize("text", ["[" * 70 + '"\\' * 10**6, "[" * 70 + '"' * 10**6, "[" * 70 + '"' + "x" * 10**6])
def test_texts_without_an_end_cost_no_more_than_their_length(text):
    begin = time.perf_counter()
    for read in (lambda: parse_json(text, "x"), lambda: Recipe.from_toml(text)):
        with pytest.raises(OctavoError):
            read()
    assert time.perf_counter() - begin < 20  # the square of the length takes hours


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "a": 1}', "'a' appears twice"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "-Infinity is no number"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), f"{DEPTH} levels"),
        ("[" + "1," * VALUES + "1]", f"{VALUES} values"),
        ("9" * 5000, "not JSON"),
        ("", "not JSON"),
        ("[]", "accepted is an object"),
        ("null", "accepted is an object"),
    ],
)
def test_other_json_is_refused_by_name(text, told):
    with pytest.raises(ContainerError, match=told) as error:
        parse_json(text, "the file")
    assert str(error.value).startswith("the file: ")
    assert len(str(error.value)) < 300
    with pytest.raises(FormatError):
        parse_json(text, "the file", error=FormatError)


def test_sizes_are_stated_and_held(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(DataError, match=r"x: 5 bytes; accepted are up to 4"):
        read_bytes(tmp_path / "x", 4, error=DataError)
    assert read_head(tmp_path / "x", 3) == b"123"
    assert read_head(tmp_path / "absent", 3) == b""
    assert read_head(tmp_path, 3) == b""
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "absent")
    os.mkfifo(tmp_path / "config.json")
    assert not is_polynomial(str(tmp_path))


@pytest.mark.parametrize("name", [RUN, METRICS])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_run_writes_to_no_pipe_and_through_no_link(tmp_path, name, kind):
    (tmp_path / "run").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    place = tmp_path / "run" / name
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to("../mine.txt")}[kind](place)
    with pytest.raises(IsADirectoryError if kind == "folder" else CheckpointError, match=name):
        tiny.run(tmp_path / "run", steps=1, warmup=0, schedule="constant")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_journal_is_of_its_settings(tmp_path):
    for settings, told in ((5, {}), ({"a": 1}, {"a": 2})):
        record = {"id": identity(told), "settings": settings}
        (tmp_path / NAME).write_text(json.dumps(record) + "\n")
        with pytest.raises(DataError, match="line 1 is no record"), Journal(tmp_path):
            pass


@pytest.mark.parametrize(
    ("name", "value"), [("result", 5), ("result", {"right": "x"}), ("row", []), ("rows", {}), ("distance", "x")]
)
def test_facts_of_a_record_are_of_their_kind(tmp_path, name, value):
    with Journal(tmp_path) as journal:
        journal.add({"a": 1}, **{name: value})
        journal.add({"a": 2}, result={"right": 1}, row={}, rows=[], distance=None)
        with pytest.raises(DataError, match=name):
            journal.find({"a": 1}, name)
        assert journal.find({"a": 2}, "result", "row", "rows", "distance")
        assert journal.find({"a": 3}, name) is None


# --- one door each ------------------------------------------------------------------------------------------------------

# Modules that read JSON that this package itself has made in another process, or lines that a stream gave it.
TRUSTED = {
    "reading.py",
    "_prebuild.py",
    "memory.py",
    "memory_probe.py",
    "speed.py",
    "journal.py",
    "chat_template_worker.py",
}


def _calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_nothing_else_reads_json_or_opens_the_door_of_transformers():
    calls = ((path, *call) for path in SOURCES for call in _calls(ast.parse(path.read_text())))
    for path, node, name in calls:
        last = name.rpartition(".")[2]
        where = f"{path}:{node.lineno}: {name}"
        if last in ("from_pretrained", "from_config", "get_class_from_dynamic_module", "hf_hub_download"):
            assert path.name == "hf_loading.py", where
            given = {keyword.arg for keyword in node.keywords}
            assert None in given, where  # **_SAFE
        if name in ("json.loads", "json.load"):
            assert path.name in TRUSTED, where
        if name in ("torch.load", "pickle.load", "pickle.loads", "numpy.load", "np.load", "joblib.load"):
            assert path.parts[-2:] in {("train", "checkpoint.py")}, where
            assert "weights_only=True" in ast.unparse(node), where


def test_the_door_is_locked():
    from octavo.model_folder import hf_loading

    assert hf_loading._SAFE == {"trust_remote_code": False, "local_files_only": True}
    assert "use_safetensors=True" in Path(hf_loading.__file__).read_text()


def test_reading_costs_no_import():
    code = "import sys, octavo.storage.reading; sys.exit('torch' in sys.modules and 'octavo.quant' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
