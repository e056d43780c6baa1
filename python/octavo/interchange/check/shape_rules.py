"""Rules of sizes: parts that belong to no layer, and layers that contradict the configuration."""

from __future__ import annotations

import re

from octavo.interchange.check.findings import Findings, JsonEdit, rule
from octavo.interchange.check.layer_sizes import MISSING, measure_layer
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import AWQ, GPTQ, Layer, Model

ORPHAN = rule(
    "part-orphan", "error",
    "scales or zero points belong to a weight that is missing or float",
    "transformers lists them as unexpected and ignores them; vLLM stops with a KeyError",
    "remove them, or export the layer again",
)  # fmt: skip
SETTINGS = rule(
    "config-bits", "error",
    "the configuration states other widths, groups or formats than the tensors have",
    "readers trust the configuration: they refuse the shapes, or decode other numbers",
    "correct the configuration; --fix does it where the tensors decide",
)  # fmt: skip

_SHARD = re.compile(r"-\d{5}-of-\d{5}")


def measure(model: Model, settings: Settings, findings: Findings) -> None:
    """Set the sizes of all layers and report what contradicts; layers that cannot be read are marked broken."""
    for layer in model.layers:
        measure_layer(layer, model, settings, findings)
    _check_groups(model, settings, findings)
    if model.source.path.is_file() and _SHARD.search(model.source.path.name):
        findings.listed = [one for one in findings.listed if one.rule is not MISSING]
        return  # other parts are in other files
    for raw in model.orphans:
        findings.add(
            ORPHAN, raw.name, f"{raw.dtype} {list(raw.shape)} belongs to no quantised weight", file=raw.file.name
        )


def _check_groups(model: Model, settings: Settings, findings: Findings) -> None:
    """Compare the facts of layers with the configuration; a value that all layers of a group have is the repair."""
    differing: dict[tuple[tuple[str, ...], str], list[tuple[Layer, object, object]]] = {}
    agreeing = set()
    for layer in model.layers:
        if not layer.facts:
            continue
        keys, table = settings.keys, settings.table
        if layer.layout not in (GPTQ, AWQ):
            group = settings.group_of(layer.module)
            if group is None:
                continue
            keys, table = (*keys, "config_groups", group.name, "weights"), group.weights
        for key, value in layer.facts.items():
            stated = table.get(key)
            if stated is not None and value is not None and stated != value:
                differing.setdefault((keys, key), []).append((layer, stated, value))
            else:
                agreeing.add((keys, key))
    for (keys, key), rows in differing.items():
        edits: tuple[JsonEdit, ...] = ()
        if (keys, key) not in agreeing and len({str(value) for _, _, value in rows}) == 1:
            edits = (JsonEdit(model.source.folder / settings.file, (*keys, key), rows[0][2]),)
        for layer, stated, value in rows:
            text = f"{settings.file} states {key} {stated!r}, the tensors have {value!r}"
            findings.add(SETTINGS, layer.name, text, file=settings.file, edits=edits)
