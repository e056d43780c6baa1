"""NVIDIA GPUs: what there is, kernels compiled ahead, and the machine as ``octavo doctor`` tells it."""

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
