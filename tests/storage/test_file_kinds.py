"""A file of another kind is named as what it is, and what the message says makes safetensors of it does."""

import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import octavo
import pytest
import torch
from helpers.files import tar
from octavo import ContainerError
from octavo.data import BytePairTokenizer, write_shards
from octavo.storage import file_kinds

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}


def saved(write, *given, **options) -> bytes:
    file = io.BytesIO()
    write(*given, file, **options)
    return file.getvalue()


def archive(names) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in names:
            made.writestr(name, "x")
    return file.getvalue()


def arrays() -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: tensor.numpy() for name, tensor in WEIGHTS.items()})
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, WEIGHTS["b"].numpy())
    return file.getvalue()


FILES = {
    "a GGUF file": b"GGUF\3\0\0\0" + bytes(16),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(16),
    "a zip archive with a pickle, as torch.save writes": saved(torch.save, WEIGHTS),
    "a pickle": saved(torch.save, WEIGHTS, _use_new_zipfile_serialization=False),
    "a zip archive of NumPy arrays (.npz)": arrays(),
    "a NumPy array (.npy)": array(),
    "a zip archive": archive(["readme.txt"]),
    "a tar archive": tar(),
    "a gzip file": gzip.compress(b"text"),
    "an xz file": lzma.compress(b"text"),
    "a JSON text": json.dumps({"weight_map": {}, "metadata": {"total_size": 1}}).encode(),
    "an HTML page": b"<!DOCTYPE html><title>Not found</title>",
    "a pointer of Git LFS, whose file was not downloaded": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind_is_named(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FILES[kind])
    reads = [octavo.load, octavo.inspect, lambda file: octavo.load(file, mmap=True)]
    for read in reads if "GGUF" in kind else [*reads, octavo.load_model]:  # which reads GGUF
        with pytest.raises(ContainerError, match="expected is a safetensors file") as error:
            read(path)
        assert f"{path}: {kind}; " in str(error.value)
    with pytest.raises(ContainerError) as error:
        octavo.tensors.container.loads(FILES[kind])
    assert str(error.value).startswith(f"{kind}; ")


@pytest.mark.parametrize("kind", [kind for kind in FILES if "pickle" in kind or "NumPy" in kind])
def test_the_line_of_python_that_is_advised_makes_safetensors(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.bin").write_bytes(FILES[kind])
    with pytest.raises(ContainerError) as error:
        octavo.load("given.bin")
    line = str(error.value).split("in Python, ")[1].split(" writes")[0]
    exec(line, {"octavo": octavo, "torch": torch, "numpy": np})
    made = octavo.load("NAME.safetensors")
    expected = {"x": WEIGHTS["b"]} if "(.npy)" in kind else WEIGHTS
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in made)


def test_safetensors_shards_and_texts_are_told_apart(tmp_path):
    octavo.save(WEIGHTS, tmp_path / "w.safetensors")
    assert file_kinds.kind_of_file(tmp_path / "w.safetensors") == file_kinds.SAFETENSORS
    texts = [f"the cat and the {n} other cats" for n in range(20)]
    (tmp_path / "text").write_text("<|endoftext|>".join(texts))
    write_shards([tmp_path / "text"], tmp_path / "shards", BytePairTokenizer.train(texts, 300), validation=10)
    shard = next((tmp_path / "shards").glob("tokens_train*.bin"))
    assert file_kinds.kind_of_file(shard) == file_kinds.SHARD
    for text in ("", "a", "Once upon a time", "[sic] he said", "{curly} words", "<b>bold</b>", "PK", "7 dwarfs"):
        assert file_kinds.kind_of(text.encode()) is None, text
    assert file_kinds.kind_of_file(tmp_path) is None


@pytest.mark.parametrize("length", range(20))
def test_a_beginning_that_is_cut_is_no_error(length):
    for data in FILES.values():
        file_kinds.kind_of(data[:length])
