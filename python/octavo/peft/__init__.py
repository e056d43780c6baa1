"""Adapters of PEFT on packed and simulated layers: LoRA, rank-stabilised LoRA, DoRA.

``prepare`` tells a configuration of PEFT which layers of Octavo take adapters, ``target_modules`` lists those of a
model, ``merge`` adds adapters to packed weights and tells what rounding lost. The packages ``peft`` and
``transformers`` are needed; ``octavo.lora`` needs neither.
Source: Hu et al., LoRA, 2021 (https://arxiv.org/abs/2106.09685); Liu et al., DoRA, 2024
(https://arxiv.org/abs/2402.09353); Dettmers et al., QLoRA, 2023 (https://arxiv.org/abs/2305.14314).
"""

from octavo.peft.merge_adapters import merge
from octavo.peft.prepare_config import prepare, target_modules

__all__ = ["merge", "prepare", "target_modules"]
