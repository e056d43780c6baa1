"""NVIDIA GPUs: devices and libraries of this machine, kernels compiled ahead of use, ``octavo doctor``."""

from octavo.cuda.device import *  # noqa: F403 - the list of public names is there
from octavo.cuda.device import __all__ as __all__
