"""Low-rank adapters on float, quantized and packed linear layers: y = W x + b + s B A dropout(x), W and b frozen.

``insert`` adds adapters to a model, ``activate`` chooses one of several. ``fuse`` adds the active one to the weights,
``unfuse`` undoes that, ``commit`` makes it final. ``save_adapters`` and ``load_adapters`` write and read a file.
Source: Hu et al., LoRA, 2021 (https://arxiv.org/abs/2106.09685), section 4.1.
"""

from octavo.lora.adapter import adapters
from octavo.lora.adapter_file import base_hash, load_adapters, save_adapters
from octavo.lora.fuse import FusedLayer, FuseReport, commit, fuse, unfuse
from octavo.lora.insert import activate, insert
from octavo.lora.lora_config import LoraConfig

__all__ = [
    "FuseReport",
    "FusedLayer",
    "LoraConfig",
    "activate",
    "adapters",
    "base_hash",
    "commit",
    "fuse",
    "insert",
    "load_adapters",
    "save_adapters",
    "unfuse",
]
