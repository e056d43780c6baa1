"""What a file is by its first bytes, so that a file given in place of another kind is refused by its name."""

from __future__ import annotations

import codecs
import os
import struct

HEAD = 512
"""Bytes at the beginning of a file that tell its kind."""
SAFETENSORS, SHARD = "a safetensors file", "a shard of tokens"
GGUF, PICKLE, TORCH_ZIP = "a GGUF file", "a pickle", "a zip archive with a pickle, as torch.save writes"
NPY, NPZ = "a NumPy array (.npy)", "a zip archive of NumPy arrays (.npz)"
LFS_POINTER = "a pointer of Git LFS, whose file was not downloaded"
JSON, HTML = "a JSON text", "an HTML page"
"""Some of the names that :func:`kind_of` gives."""

# First bytes, and what a file that begins with them is called. The order decides: a longer beginning comes first.
_BEGINNINGS = (
    (b"GGUF", GGUF),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", NPY),
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\xfd7zXZ\x00", "an xz file"),
    (b"BZh", "a bzip2 file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"version https://git-lfs", LFS_POINTER),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\x7fELF", "a program (ELF)"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (struct.pack("<ii", 20240520, 1), SHARD),
)
_ZIP = b"PK\x03\x04"
_PLAIN = bytes(byte for byte in range(256) if byte >= 32 or byte in b"\t\n\v\f\r\x1b")
_MOST_HEADER = 100_000_000  # bytes of the header of a safetensors file


def kind_of(head: bytes) -> str | None:
    """Return what a file that begins with ``head`` is, such as ``a GGUF file``; None for text and what is not known.

    ``head``: the first :data:`HEAD` bytes, or all of a shorter file. Known: containers of weights (safetensors, GGUF,
    pickles, zip archives with those of torch and NumPy told apart, HDF5), compressed files, shards of tokens, JSON and
    HTML, pointers of Git LFS, and a few others.
    """
    for beginning, name in _BEGINNINGS:
        if head.startswith(beginning):
            return name
    if head.startswith(_ZIP):
        return _kind_of_zip(head)
    if head[:1] == b"\x80" and 2 <= head[1:2].ljust(1, b"\0")[0] <= 5:
        return PICKLE
    if head[257:262] == b"ustar":
        return "a tar archive"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MOST_HEADER:
        return SAFETENSORS
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:9].lower() == b"<!doctype" or start[:5].lower() == b"<html":
        return HTML
    return JSON if _is_json(start) else None


def kind_of_binary(head: bytes) -> str | None:
    """Return what a file that begins with ``head`` is where it is no text in UTF-8, nor in bytes alike; None for text.

    ``head``: as for :func:`kind_of`. A text may begin with the letters by which a kind is known, such as ``GGUF``.
    """
    kind = kind_of(head)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "a text in UTF-16"
    if b"\0" in head:
        return kind or "binary data"
    return None if kind in (JSON, HTML) or (kind != LFS_POINTER and _is_plain(head)) else kind


def kind_of_file(path: str | os.PathLike[str]) -> str | None:
    """Return :func:`kind_of` of a file's beginning; None for what is no regular file. Raises OSError."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return kind_of(file.read(HEAD))


def _kind_of_zip(head: bytes) -> str:
    """Tell archives apart by the name of their first member, whose length stands at byte 26."""
    length = int.from_bytes(head[26:28], "little")
    member = head[30 : 30 + length]
    if member.endswith(b".npy"):
        return NPZ
    if member.endswith((b"data.pkl", b".format_version")):
        return TORCH_ZIP
    return "a zip archive"


def _is_plain(head: bytes) -> bool:
    """Whether it is UTF-8, cut anywhere, without control characters but those of white space and of terminals."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return not head.translate(None, delete=_PLAIN)


def _is_json(start: bytes) -> bool:
    """Whether it begins as an object or an array does: a bracket, then what may follow one."""
    if start[:1] not in (b"{", b"["):
        return False
    after = start[1:].lstrip()[:1]
    return after in (b'"', b"}", b"]", b"{", b"[") or (start[:1] == b"[" and (after.isdigit() or after in (b"-", b"")))
