"""NVIDIA GPUs: devices and libraries of this machine, kernels compiled ahead of use, ``octavo doctor``."""

from octavo.cuda.device import (
    COMMON_ARCHS,
    Cache,
    Compiler,
    Device,
    Driver,
    Info,
    Prebuilt,
    info,
    is_available,
    prebuild,
    warmup,
)

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
