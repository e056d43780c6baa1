"""The description of the machine: packages, processor, driver, GPUs, NVRTC, cache of kernels."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.display.numbers import size
from octavo.storage.system import cores

if TYPE_CHECKING:
    import torch

    from octavo.cuda.device import Info

INSTRUCTIONS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_vbmi", "avx512_bf16", "amx_int8", "amx_bf16")
"""Instruction sets that kernels use, by the names of ``/proc/cpuinfo``."""
PACKAGES = ("torch", "numpy", "transformers", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")

Section = tuple[str, list[tuple[str, str]]]


def cpu() -> dict[str, Any]:
    """Return name, cores, instructions, and the SIMD level and number of threads that kernels use."""
    from octavo import _core

    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # not Linux: Python's platform module is used
    flags = set(facts.get("flags", "").split())
    return {
        "name": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "simd_level": _core.simd_level(),
        "threads": _core.num_threads(),
    }


def computer(device: torch.device) -> dict[str, Any]:
    """Return the hardware of a run on ``device``: system, cores, threads, instructions, GPU."""
    import torch

    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def versions() -> dict[str, str | None]:
    """Return the versions of the software that affects results."""
    import numpy as np
    import torch

    from octavo import __version__

    return {
        "octavo": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a subclass of str, which weights_only refuses
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }


def packages() -> dict[str, str]:
    """Return the versions of Octavo, Python and relevant installed packages, without importing them."""
    from octavo import __version__

    versions = {"octavo": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def software_section() -> Section:
    """Versions, as lines of a report."""
    return "software", list(packages().items())


def cpu_section() -> Section:
    """The processor, as lines of a report."""
    facts = cpu()
    return "processor", [
        ("name", facts["name"]),
        ("instructions", " ".join(facts["instructions"]) or "unknown"),
        ("kernels use", f"{facts['simd_level']}, {facts['threads']} of {facts['cores']} cores"),
    ]


def cuda_section(devices_info: Info) -> Section:
    """The parts of CUDA, as lines of a report; missing parts with the reason."""
    lines = []
    if devices_info.driver is not None:
        release = f"{devices_info.driver.release}, " if devices_info.driver.release else ""
        lines.append(("driver", f"{release}CUDA {_version(devices_info.driver.cuda)}"))
    for device in devices_info.devices:
        facts = f"{device.name}, {device.arch}, {size(device.memory)}, {device.multiprocessors} multiprocessors"
        lines.append((f"device {device.ordinal}", facts))
    if devices_info.compiler is not None:
        lines.append(("nvrtc", f"{_version(devices_info.compiler.version)} at {devices_info.compiler.path}"))
    if devices_info.cache is not None:
        content = f"{devices_info.cache.kernels:,} kernels, {size(devices_info.cache.nbytes)}"
        lines.append(("cache", f"{devices_info.cache.folder}: {content}"))
    lines += [(name, f"missing: {why}") for name, why in devices_info.missing.items()]
    return "CUDA", lines


def cuda_dict(devices_info: Info) -> dict[str, Any]:
    """Return plain values for JSON."""
    return asdict(devices_info)


def print_sections(sections: list[Section]) -> None:
    """Print sections under their titles, names aligned; further lines of a value below its first."""
    from octavo.display.console import console

    out = console()
    width = max(len(name) for _, lines in sections for name, _ in lines)
    for position, (title, lines) in enumerate(sections):
        if position:
            out.print()
        out.print(title, style="bold")
        for name, value in lines:
            first, *more = value.splitlines() or [""]
            out.print(f"  {name:{width}}  {first}")
            for line in more:
                out.print(f"  {'':{width}}  {line}")


def _version(parts: tuple[int, int]) -> str:
    return ".".join(map(str, parts))
