"""The linter: opens a checkpoint, runs every family of rules, and returns what they found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.interchange.check import (
    base_rules,
    code_rules,
    config_rules,
    factor_rules,
    ggml_scale_rules,
    index_rules,
    scale_rules,
    shape_rules,
)
from octavo.interchange.check.base_rules import Agreement
from octavo.interchange.check.findings import Findings, all_rules
from octavo.interchange.check.reader_routes import Route, routes
from octavo.interchange.check.source import open_source
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import GGML, OCTAVO, Model, float_experts, linear_weights, sorted_tensors

Progress = Callable[[str, int], None]


@dataclass
class Checked:
    """What the linter found.

    ``coverage``: share of the parameters of linear layers that are quantised. ``bits``: a parameter of quantised
    layers, scales and zero points included. ``agreements``: with the original. ``routes``: of the named reader.
    """

    model: Model
    settings: Settings
    findings: Findings
    coverage: float
    bits: float
    agreements: list[Agreement] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What the checkpoint is, in a few words."""
        source = self.model.source
        if source.gguf is not None:
            return f"GGUF, version {source.gguf.version}"
        if self.settings.method:
            return self.settings.method
        return "octavo" if OCTAVO in self.model.kinds else "safetensors"

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        source = self.model.source
        return {
            "path": str(source.path),
            "kind": self.kind,
            "files": [file.name for file in source.files or [source.path]],
            "tensors": len(source.tensors),
            "bytes": source.nbytes,
            "layouts": self.model.kinds,
            "coverage": self.coverage,
            "bits_per_element": self.bits,
            "findings": [finding.as_dict() for finding in self.findings],
            **({"layers": [one.as_dict() for one in self.agreements]} if self.agreements else {}),
            **({"routes": [vars(one) for one in self.routes]} if self.routes else {}),
        }


def check_path(
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    reader: str | None = None,
    progress: Progress = lambda name, nbytes: None,
) -> Checked:
    """Check a checkpoint: a GGUF file, a safetensors file, or a folder of them.

    Args:
        path: to check.
        base: folder or file of the float original, tensors of the same names.
        reader: of whom ``routes`` tells which layers it takes; one of ``READERS``.
        progress: called with the name of each tensor and its bytes.

    Returns:
        The findings, and facts about the checkpoint.

    Raises:
        ContainerError: for files that cannot be read.
        ConfigError: for an unknown reader.
        FileNotFoundError: for a path that is not there.
    """
    source = open_source(path)
    settings = Settings.of(source)
    model = sorted_tensors(source)
    original = None if base is None else sorted_tensors(open_source(base))
    findings = Findings()
    index_rules.check_files(model, findings)
    shape_rules.measure(model, settings, findings)
    config_rules.check_config(model, settings, findings)
    for layer in model.layers:
        progress(layer.name, layer.nbytes)
        if not layer.broken:
            scale_rules.check_scales(layer, model, settings, findings)
            if layer.layout == GGML:
                ggml_scale_rules.check_blocks(layer, findings)
            factor_rules.check_factor(layer, findings)
            code_rules.check_codes(layer, settings, findings)
        layer.unpacked.clear()
    factor_rules.check_fused(model, findings)
    factor_rules.check_exponents(model, settings, findings)
    for raw in model.plain.values():
        progress(raw.name, raw.nbytes)
        code_rules.check_plain(raw, findings)
    agreements = [] if original is None else base_rules.compare_with_base(model, original, settings, findings, progress)
    quantised = sum(layer.elements for layer in model.layers)
    plain = _gguf_matrices(model)
    if source.gguf is None:
        plain = sum(raw.elements for tensors in (linear_weights, float_experts) for _, raw in tensors(model))
    coverage = quantised / (quantised + plain) if quantised else 0.0
    return Checked(
        model,
        settings,
        findings,
        coverage,
        config_rules.delivered_bits(model),
        agreements,
        [] if reader is None else routes(model, settings, reader),
    )


def _gguf_matrices(model: Model) -> int:
    return sum(raw.elements for raw in model.plain.values() if len(raw.shape) >= 2)


def rules() -> list[dict[str, str]]:
    """Return all rules.

    Returns:
        Of each its id, severity, what is wrong, what readers do with it, and the repair.
    """
    return [vars(one) for one in all_rules()]
