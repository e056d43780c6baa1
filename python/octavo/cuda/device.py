"""NVIDIA GPUs of this machine, and compilation or loading of kernels before their first use.

Kernels are CUDA C++. NVRTC compiles each at its first use, for the present GPU; a cache folder stores the result. This
needs NVIDIA's driver and NVRTC, which is part of PyTorch for CUDA (otherwise ``pip install nvidia-cuda-nvrtc``). It
needs no toolkit and no other compiler. Importing this module needs neither driver nor NVRTC nor torch.

NVRTC is searched in this order: ``OCTAVO_NVRTC``; a library that another package has loaded; NVIDIA's wheels beside the
installed packages; ``CUDA_HOME``; the loader's path. Its major version is at most the driver's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo import _core
from octavo.cuda._prebuild import Prebuilt, compile_all
from octavo.cuda.device_names import parse_device
from octavo.errors import CudaUnavailableError, DTypeError, FormatError, SettingError
from octavo.tensors.formats import Format, formats

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "COMMON_ARCHS",
    "Cache",
    "Compiler",
    "Device",
    "Driver",
    "Info",
    "Prebuilt",
    "info",
    "is_available",
    "prebuild",
    "warmup",
]

COMMON_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""Targets of :func:`prebuild` on a machine without a GPU: A100, RTX 30, RTX 40 and L4, H100, B200, RTX 50."""


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: the newest version of CUDA that it supports, and its own version if the system reports it."""

    cuda: tuple[int, int]
    release: str | None


@dataclass(frozen=True)
class Compiler:
    """NVRTC: its file, its version, and the compute capabilities that it compiles for (90 is 9.0)."""

    path: str
    version: tuple[int, int]
    capabilities: list[int]


@dataclass(frozen=True)
class Device:
    """A GPU: kernels are compiled for ``arch``; ``memory``, ``shared_per_block`` and ``cache`` (L2) in bytes."""

    ordinal: int
    name: str
    arch: str
    multiprocessors: int
    memory: int
    shared_per_block: int
    cache: int


@dataclass(frozen=True)
class Cache:
    """The folder of compiled kernels, with their number and bytes."""

    folder: str
    kernels: int
    nbytes: int


@dataclass(frozen=True)
class Info:
    """CUDA parts of this machine; ``missing`` has the reason for each part that is None and each broken device."""

    driver: Driver | None
    compiler: Compiler | None
    devices: tuple[Device, ...]
    cache: Cache | None
    missing: dict[str, str]


def info() -> Info:
    """Return driver, devices, NVRTC and the folder of compiled kernels. Missing parts raise no error.

    Returns:
        The parts; ``missing`` has the reasons.
    """
    facts = _core._cuda_info()
    return Info(
        driver=Driver(**facts["driver"]) if "driver" in facts else None,
        compiler=Compiler(**facts["nvrtc"]) if "nvrtc" in facts else None,
        devices=tuple(Device(**device) for device in facts["devices"]),
        cache=Cache(**facts["cache"]) if "cache" in facts else None,
        missing=facts["missing"],
    )


def is_available() -> bool:
    """Return whether kernels can run here: there are a driver, a device and NVRTC.

    Returns:
        True or False; :func:`info` has the missing parts.
    """
    device_info = info()
    return device_info.compiler is not None and bool(device_info.devices)


def warmup(
    what: nn.Module | Format | str | Iterable[Format | str], device: torch.device | str | int | None = None
) -> int:
    """Compile and load every kernel of some formats on a device, so that later calls need not.

    Call it before a capture into a CUDA graph, which does not allow loading.

    Args:
        what: formats, or a model with formats of its layers.
        device: default: the model's, else the current one.

    Returns:
        The number of programs.

    Raises:
        CudaUnavailableError: if the device or NVRTC is missing.
        KernelCompileError: for a kernel that NVRTC refuses.
        FormatError: for an unknown format.
        DTypeError: for anything else than a model or formats.
    """
    named = _formats(what)
    return _core._cuda_warmup([fmt.core for fmt in named], _ordinal(device, what))


def prebuild(
    archs: Iterable[str] | None = None,
    formats: Iterable[Format | str] | None = None,
    *,
    processes: int | None = None,
    progress: Callable[[int, int, str], object] | None = None,
) -> Prebuilt:
    """Compile kernels into the folder of compiled kernels, in several processes.

    Needs NVRTC and no GPU. Kernels in the folder are not compiled again, also if another process or machine wrote them.

    Args:
        archs: such as ``"sm_90a"``; default: those of the GPUs of this machine, or :data:`COMMON_ARCHS` without a GPU.
        formats: default: all of :func:`octavo.formats`.
        processes: default: one per core.
        progress: called with the finished kernels, the number of kernels, and the name of the last one.

    Returns:
        Numbers of kernels, architectures and seconds.

    Raises:
        CudaUnavailableError: without NVRTC.
        KernelCompileError: for a kernel that NVRTC refuses.
        FormatError: for an unknown format.
        SettingError: for an unknown architecture or without a folder of compiled kernels.
    """
    known = _core._cuda_archs()
    names = [archs] if isinstance(archs, str | int) else archs
    chosen = list(dict.fromkeys(names)) if names is not None else _default_archs(known)
    for arch in chosen:
        if not isinstance(arch, str) or arch.rstrip("af") not in {name.rstrip("af") for name in known}:
            raise SettingError(f"architecture {arch!r} is none that this NVRTC compiles for: {', '.join(known)}")
    named = _formats(_all_formats() if formats is None else formats)
    return compile_all(chosen, named, processes, progress)


def _all_formats() -> list[Format]:
    return formats()


def _default_archs(known: list[str]) -> list[str]:
    here = [device.arch for device in info().devices]
    return [arch for arch in dict.fromkeys(here or COMMON_ARCHS) if arch in known]


def _formats(source: Any) -> list[Format]:
    """Return formats without repetition. Raises FormatError."""
    if isinstance(source, Format | str):
        source = [source]
    elif hasattr(source, "modules"):
        layers = [layer for layer in source.modules() if isinstance(getattr(layer, "format", None), Format)]
        if not layers:
            raise FormatError(f"{type(source).__name__}: none of its layers has a format; pack or quantize it first")
        source = [layer.format for layer in layers]
    elif not isinstance(source, Iterable):
        raise DTypeError(f"expected a model or formats, got {type(source).__name__}")
    return list(dict.fromkeys(Format.parse(fmt) for fmt in source))


def _ordinal(device: torch.device | str | int | None, source: object) -> int:
    """Return the number of a CUDA device. Raises CudaUnavailableError for another device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if device is None and hasattr(source, "buffers"):
        device = next((buffer.device for buffer in source.buffers() if buffer.device.type == "cuda"), None)
    try:
        kind, number = parse_device("cuda" if device is None else device)
    except SettingError:
        kind, number = "", None
    if kind != "cuda":
        raise CudaUnavailableError(f"'{device}' is no CUDA device; accepted are a number, 'cuda' and 'cuda:N'")
    if number is not None:
        return number
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
