"""Damaged folders: one file mutated, or something in a file's place that is no file; and how they are written out.

A folder is a dictionary of names to contents: bytes, or a :class:`Special` that is no regular file.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks import mutate

Folder = dict[str, Any]

PYTHON = f"open({mutate.SENTINEL!r}, 'w').close()\nclass Evil:\n    pass\n"


@dataclass(frozen=True)
class Special:
    """What is no regular file: ``fifo``, ``socket``, ``dir``, ``link`` to ``target``, or ``sparse`` of so many bytes."""

    kind: str
    target: str = ""
    nbytes: int = 0


OUTSIDE = ["/proc/self/environ", "/dev/zero", "/etc/hostname", "/", "..", ".", "nowhere", "self"]


def mutate_file(rng: random.Random, name: str, data: bytes) -> bytes:
    suffix = Path(name).suffix
    kinds = {".json": mutate.mutate_json, ".jsonl": mutate.mutate_lines, ".safetensors": mutate.mutate_safetensors, ".pt": mutate.mutate_checkpoint, ".toml": mutate.mutate_text, ".txt": mutate.mutate_text}  # fmt: skip
    return kinds.get(suffix, mutate.mutate_bytes)(rng, data)


def mutate_folder(rng: random.Random, folder: Folder) -> Folder:
    """The folder with one thing changed, seldom more."""
    folder = dict(folder)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        regular = [name for name, content in folder.items() if isinstance(content, bytes)]
        if not regular:
            break
        name = rng.choice(regular)
        action = rng.random()
        if action < 0.78:
            folder[name] = mutate_file(rng, name, folder[name])
        elif action < 0.88:
            folder[rng.choice([name, "env.json", "sub/notes.txt", "tokenizer.json", "config.json"])] = special(
                rng, name
            )
        elif action < 0.91:
            del folder[name]
        elif action < 0.94:
            folder[name] = folder[rng.choice(regular)]
        else:
            evil(rng, folder)
    return folder


def special(rng: random.Random, name: str) -> Special:
    kind = rng.choice(["fifo", "socket", "dir", "link", "link", "sparse"])
    target = rng.choice([*OUTSIDE, name])
    return Special(kind, target, rng.choice([1 << 20, 3 << 30, 1 << 40]))


def evil(rng: random.Random, folder: Folder) -> None:
    """Code and pickles that nobody may touch, and a configuration that asks for them."""
    folder["evil.py"] = folder["__init__.py"] = PYTHON.encode()
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "optimizer.pt"):
        folder[name] = pickle.dumps(mutate.Evil())
    folder["adapter_config.json"] = json.dumps({"base_model_name_or_path": os.getcwd(), "peft_type": "LORA"}).encode()
    for name in ("config.json", "tokenizer_config.json"):
        with_code = json.loads(folder[name]) if isinstance(folder.get(name), bytes) and _is_json(folder[name]) else {}
        if isinstance(with_code, dict):
            with_code["auto_map"] = copy.deepcopy(mutate.EVIL)
            if rng.random() < 0.5:
                with_code["model_type"] = "evil"
            folder[name] = json.dumps(with_code).encode()
    if rng.random() < 0.5:
        for name in [name for name in folder if name.endswith(".safetensors")]:
            del folder[name]


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def write(folder: Folder, top: Path) -> int:
    """Write a folder and return its bytes, holes not counted."""
    nbytes = 0
    for name, content in folder.items():
        place = top / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
            nbytes += len(content)
        elif content.kind == "fifo":
            os.mkfifo(place)
        elif content.kind == "dir":
            place.mkdir()
        elif content.kind == "link":
            place.symlink_to(content.target)
        elif content.kind == "sparse":
            with open(place, "wb") as opened:
                opened.truncate(content.nbytes)
        else:
            with socket.socket(socket.AF_UNIX) as held:
                held.bind(str(place))
    return nbytes


def read(top: Path) -> Folder:
    """The files of a folder."""
    return {str(file.relative_to(top)): file.read_bytes() for file in sorted(top.rglob("*")) if file.is_file()}
