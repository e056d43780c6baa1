"""README.md of a packed model of transformers: the model card that a hub shows, with the line that loads the folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.display.numbers import size
from octavo.model_folder.companion_files import README
from octavo.storage import files

if TYPE_CHECKING:
    from torch import nn

    from octavo.quant.coverage_report import Coverage

#: Entries of the head of a float model's card that hold for the packed one.
_KEPT = ("license", "license_name", "license_link", "language", "pipeline_tag", "datasets")
_RELATION = "base_model_relation: quantized"
_TAGS = "tags:\n- octavo\n"
_BASE = "_octavo_base_model"  # attribute of a model: what it was packed of
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


def note_base(model: nn.Module, name: Any) -> None:
    """Write down the repository that a model was packed of; none, where ``name`` is no name of one."""
    vars(model)[_BASE] = name if isinstance(name, str) and _HUB.fullmatch(name) else ""


def base_of(model: nn.Module) -> str | None:
    """Return the repository that a model was packed of: noted, or the one that its configuration was read from."""
    noted = vars(model).get(_BASE)
    if isinstance(noted, str):
        return noted or None
    name = getattr(getattr(model, "config", None), "name_or_path", None)
    if not isinstance(name, str) or not name:
        return None
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)[/\\]snapshots[/\\]", name)
    if cached is not None:
        return f"{cached[1]}/{cached[2]}"
    return name if _HUB.fullmatch(name) and not Path(name).exists() else None


def write_card(model: nn.Module, folder: Path) -> None:
    """Write the card of a packed model into a folder; a card of the float model that is there stays below it.

    A card of ours is replaced.
    """
    from octavo.quant.coverage_report import coverage  # and torch, which remove_card does without
    from octavo.recipe.note import noted_recipe

    file = folder / README
    former = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    head, body = _parted(former)
    if _RELATION in head:
        body = body.partition(_OF_FLOAT)[2].lstrip("\n")
    shares = coverage(model)
    formats = sorted({tensor.format for tensor in shares.tensors if tensor.format})
    recipe = noted_recipe(model) or "; ".join(formats)
    files.write(file, _card(type(model).__name__, base_of(model), recipe, shares, head, body))


def add_measured(folder: Path, lines: Sequence[str]) -> None:
    """Add what was measured of the model to its card in a folder; a card that is none of ours stays as it is."""
    file = folder / README
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if _RELATION in _parted(text)[0]:
        measured = "\n".join(["## Measured", "", "```text", *lines, "```", "", ""])
        files.write(file, text.replace(_LOAD, measured + _LOAD, 1))


def add_tags(folder: Path, tags: Sequence[str]) -> None:
    """Add tags to the card of a packed model in a folder."""
    file = folder / README
    lines = "".join(f"- {tag}\n" for tag in tags)
    files.write(file, file.read_text(encoding="utf-8").replace(_TAGS, _TAGS + lines, 1))


def remove_card(folder: Path) -> None:
    """Take a card of ours out of a folder; that of the float model comes back, where it stands below."""
    file = folder / README
    if not file.is_file():
        return
    head, body = _parted(file.read_text(encoding="utf-8", errors="replace"))
    if _RELATION not in head:
        return
    former = body.partition(_OF_FLOAT)[2].lstrip("\n")
    if not former:
        file.unlink()
        return
    entries = "\n".join(_entries(head))
    files.write(file, f"---\n{entries}\n---\n\n{former}" if entries else former)


_LOAD = "## Load it\n"
_OF_FLOAT = "## Card of the float model\n"


def _card(kind: str, base: str | None, recipe: str, shares: Coverage, head: str, body: str) -> str:
    name = base.rpartition("/")[2] if base else kind
    entries = [f"base_model: {base}"] if base else []
    entries += [_RELATION, "library_name: transformers", *_TAGS.splitlines(), *_entries(head)]
    rows = {
        "formats": f"`{recipe}`",
        "bytes of the weights": f"{size(shares.nbytes)}, {size(shares.nbytes_before)} before packing",
        "bits for each of them": f"{8 * shares.nbytes / max(shares.parameters, 1):.2f}",
        "share of them that is packed": f"{shares.share:.1%}",
    }
    table = "\n".join(f"| {words} | {value} |" for words, value in rows.items())
    origin = f" of [{base}](https://huggingface.co/{base})" if base else ""
    text = f"""---
{chr(10).join(entries)}
---

# {name}, packed by Octavo

The weights{origin} are held as codes of few bits and multiplied as they are.

| | |
| --- | --- |
{table}

{_LOAD}
`pip install "octavo[transformers]"`, then:

```python
import octavo.transformers  # without this line transformers finds no weights that it knows
from transformers import {kind}

model = {kind}.from_pretrained("THIS FOLDER OR REPOSITORY")
```

Classes such as `AutoModel` and `pipeline` open the folder as well, after the same import. `octavo.load_model(FOLDER)`
gives the same model.
"""
    return f"{text}\n{_OF_FLOAT}\n{body}" if body.strip() else text


def _parted(text: str) -> tuple[str, str]:
    """Return the head of a card, between two lines of dashes, and the rest."""
    match = re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", text, re.DOTALL)
    return ("", text) if match is None else (match[1], text[match.end() :].lstrip("\n"))


def _entries(head: str) -> list[str]:
    """Return the lines of the entries of a head that hold for the packed model, too."""
    lines: list[str] = []
    is_kept = False
    for line in head.splitlines():
        if re.match(r"[\w-]+:", line):
            is_kept = line.partition(":")[0] in _KEPT
        if is_kept:
            lines.append(line)
    return lines
