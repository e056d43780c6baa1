"""Files that are no texts, by the name of what they are."""

import gzip
import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import safetensors.numpy
from helpers.files import tar


def archive(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(name, content)
    return file.getvalue()


def array(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays) if arrays else np.save(file, np.arange(4.0))
    return file.getvalue()


def picture():
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def shard(ids):
    return np.array([20240520, 1, len(ids), *[0] * 253], "<i4").tobytes() + np.asarray(ids, "<u2").tobytes()


NO_TEXTS = {
    "a shard of tokens": shard(range(1, 2000)),
    "a GGUF file": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    "a safetensors file": safetensors.numpy.save({"x": np.ones(3, np.float32)}),
    "a zip archive": archive("readme.txt", "x"),
    "a zip archive of NumPy arrays (.npz)": array(x=np.ones(3)),
    "a zip archive with a pickle, as torch.save writes": archive("archive/data.pkl", pickle.dumps({})),
    "a pickle": pickle.dumps({"x": [1.0] * 9}),
    "a NumPy array (.npy)": array(),
    "a PNG picture": picture(),
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "a Parquet file": b"PAR1\x15\x04\x15\x10",
    "a bzip2 file": b"BZh91AY&SY\x94$|\x0e",
    "a Zstandard file": b"(\xb5/\xfd\x04X\x01",
    "a program (ELF)": b"\x7fELF\x02\x01\x01" + bytes(9),
    "a tar archive": tar(),
    "a gzip file": gzip.compress(gzip.compress(b"twice")),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "a text in UTF-16": "the cat".encode("utf-16"),
    "binary data": np.arange(300, dtype="<u2").tobytes(),
}
"""What each is called, and its bytes. The gzip file has another one inside."""

TEXTS = [
    b"GGUF is a format of files", b"PAR1 was the first", b"BZh is no word", b"{curly}", b"\xff\xfa any bytes", "PK é".encode(), b"\x1b[1mbold",
    b"7 dwarfs", b"<!doctype of sorts", b"", "\ufeffwith a mark".encode(), ("é" * 400).encode()[:511],
]  # fmt: skip
"""Texts that begin as such files do, or with bytes that are no character."""
