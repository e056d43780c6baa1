"""The files of a model folder that travel with its weights: regular ones, of the folder itself, of bounded size."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from octavo.errors import ContainerError
from octavo.model_folder.model_config import CONFIG as CONFIG
from octavo.model_folder.model_config import drop_variants, own_model
from octavo.storage import system

# Files that hold weights, in whatever form, or that only a pickle reader opens: nothing of them travels.
WEIGHTS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".gguf", ".tflite",
    ".pkl", ".pickle", ".joblib",
}  # fmt: skip
ACCURACY, REPORTS, README = "accuracy.json", ("report.json", "report.html", "report.md"), "README.md"
MEASURED = (ACCURACY, *REPORTS, README)
"""Files that state what was measured with the weights beside them: accuracies, and reports of ``octavo compress``."""
TOKENIZER_TEXTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
VOCABULARIES = (
    "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "spm_char.model", "source.spm", "target.spm",
    "bpe.codes", "byte_maps.json", "dict.txt", "emoji.json", "entity_vocab.json", "normalizer.json",
    "prophetnet.tokenizer", "target_vocab.json", "vocab-src.json", "vocab-tgt.json", "word_pronunciation.json",
    "word_shape.json",
)  # fmt: skip
"""Files that tokenizers of transformers are made of."""
#: The template by which a tokenizer renders chat messages.
CHAT_TEMPLATE = "chat_template.jinja"
_TEMPLATES = "additional_chat_templates"
_BELONGING = (
    *TOKENIZER_TEXTS, *VOCABULARIES, "*.tiktoken", "tekken.json",
    CHAT_TEMPLATE, "chat_template.json", f"{_TEMPLATES}/*.jinja",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "audio_tokenizer_config.json",
    "gguf.json", "compressed_tensors.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "[0-9]_*/config.json",
    "LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "USE_POLICY*",
)  # fmt: skip
"""Places, in a model's folder, of files that belong to the model: tokenizer, chat templates, processors of images and
sounds, metadata of a GGUF file or of a folder of compressed-tensors, modules of sentence-transformers, licenses."""
#: Bytes of one file and of all, how many there may be, and how deep their folders: configurations, tokenizers, a page.
MOST_BYTES, MOST_TOGETHER, MOST_FILES, DEPTH = 1 << 28, 1 << 30, 10_000, 16


def belongs(place: Path) -> bool:
    """Whether a file belongs to a model, beside weights and configuration, by its place in the model's folder.

    Every writer of a model takes those along; what copies a folder takes :func:`companions`, other files too.
    """
    patterns = (pattern.split("/") for pattern in _BELONGING)
    return any(len(pattern) == len(place.parts) and all(map(fnmatchcase, place.parts, pattern)) for pattern in patterns)


def belonging(folder: Path) -> list[str]:
    """Return the places of the files of a folder that belong to its model, in order; none where there is no folder."""
    found = []
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            inside = (Path(name, other) for other in sorted(os.listdir(folder / name)))
            found += [place.as_posix() for place in inside if belongs(place)]
        elif belongs(Path(name)):
            found.append(name)
    return found


def companions(folder: Path, skip: Collection[str] = WEIGHTS) -> dict[Path, Path]:
    """Return configuration, tokenizer and the like of a folder: their places in it, and the files that they are.

    Left out are hidden files, weights (``skip``, by suffix), links to them, and indices of shards. A link may lead
    to a file of the folder, or, in the Hub's cache, to one of its blobs. Raises ContainerError naming any other link
    and its target, what is no regular file, and files that are too large, too many or too deep; OSErrors.
    """
    found: dict[Path, Path] = {}
    together = 0
    for file in _walk(folder, folder, 0):
        place = file.relative_to(folder)
        if file.suffix in skip or file.name.endswith(".index.json"):
            continue
        real = regular_member(file, folder)
        if real.suffix in skip:
            continue
        nbytes = real.stat().st_size
        together += nbytes
        if nbytes > MOST_BYTES:
            raise ContainerError(
                f"{file}: {nbytes} bytes; files beside the weights are up to {MOST_BYTES}, move it out of the folder"
            )
        if together > MOST_TOGETHER:
            raise ContainerError(
                f"{folder}: the files beside the weights have more than {MOST_TOGETHER} bytes; move some out of it"
            )
        found[place] = real
        if len(found) > MOST_FILES:
            raise ContainerError(f"{folder}: more than {MOST_FILES} files beside the weights; move some out of it")
    return found


def measurements(folder: Path) -> tuple[str, ...]:
    """Return which files of a folder state what was measured with its weights, and hold for no others.

    The page of a network of ours is one, which gives its accuracy; that of another model may hold its license.
    """
    names = tuple(name for name in MEASURED if os.path.lexists(folder / name))
    return names if README not in names or _is_ours(folder) else tuple(name for name in names if name != README)


def _is_ours(folder: Path) -> bool:
    try:
        return own_model(folder) is not None
    except (ContainerError, OSError):  # a configuration that nobody reads
        return False


def copy_companions(source: Path, target: Path) -> None:
    """Copy what :func:`companions` finds in ``source`` into ``target``, where a configuration names no variants.

    ``target`` is to hold other weights: :func:`measurements` stay behind. Raises as :func:`companions` does.
    """
    left = set(map(Path, measurements(source)))
    for place, real in companions(source).items():
        if place in left:
            continue
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        _copy(real, target / place)
    drop_variants(target)


def _walk(folder: Path, top: Path, depth: int) -> Iterator[Path]:
    """Give the files below a folder that are not hidden, in order; links to folders are not followed."""
    if depth > DEPTH:
        raise ContainerError(f"{folder}: folders more than {DEPTH} deep in {top}; move some out of it")
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        file = Path(entry.path)
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(file, top, depth + 1)
        else:
            yield file


def regular_member(file: Path, folder: Path) -> Path:
    """Return the regular file that a member of a folder is or links to. Raises ContainerError for any other."""
    try:
        real = file.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a link to itself
        raise ContainerError(f"{file}: a link to {_target(file)}, which is not there; remove it") from None
    if file.is_symlink() and not _is_inside(real, folder):
        raise ContainerError(
            f"{file}: a link to {_target(file)}, outside {folder}; only links inside the folder are followed, put the "
            "file there"
        )
    if not stat.S_ISREG(real.stat().st_mode):
        raise ContainerError(f"{file}: {'a folder' if real.is_dir() else 'no regular file'}; remove it from the folder")
    return real


def _is_inside(real: Path, folder: Path) -> bool:
    """Whether a file lies in the folder, or among the blobs of the Hub's cache that the folder is a snapshot of."""
    top = folder.resolve()
    if real.is_relative_to(top):
        return True
    return top.parent.name == "snapshots" and real.parent == top.parent.parent / "blobs"


def _target(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:
        return "nowhere"


def _copy(real: Path, place: Path) -> None:
    """Copy a file, if it still is the one that was looked at."""
    seen = os.lstat(real)
    with open(os.open(real, system.READ_ITSELF), "rb") as reader:
        now = os.fstat(reader.fileno())
        if (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino) or not stat.S_ISREG(now.st_mode):
            raise ContainerError(f"{real}: changed while it was copied; try again")
        with open(place, "wb") as writer:
            shutil.copyfileobj(_Limited(reader), writer)


class _Limited:
    """A file of which no more is read than one may have."""

    def __init__(self, reader: BinaryIO) -> None:
        self._reader, self._left = reader, MOST_BYTES

    def read(self, count: int = 1 << 16, /) -> bytes:
        data = self._reader.read(min(count, self._left))
        self._left -= len(data)
        return data
