"""Random number generators: seeds, and their state as plain tensors and numbers for checkpoints.

Nothing here runs on import. A run owns its process: :func:`octavo.train.train` seeds the global generators of Python,
numpy and torch, and does not restore them at its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from octavo.errors import SettingError
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from numpy.typing import NDArray


@checks_arguments
def seed_all(seed: int, rank: int = 0) -> None:
    """Seed the global generators of Python, numpy and torch (CPU and CUDA).

    Different ranks draw different, reproducible numbers. Call it before a model is built to fix its first weights.

    Args:
        seed: the same in every process.
        rank: of this process.
    """
    for name, value in (("seed", seed), ("rank", rank)):
        if value < 0:
            raise SettingError(f"{name} is {value}; accepted are whole numbers of at least 0")
    words = np.random.SeedSequence((seed, rank)).generate_state(4, np.uint32).tolist()
    random.seed(words[0])
    np.random.seed(words[1])
    torch.manual_seed((words[2] << 31) ^ words[3])  # below 2**63


def random_state() -> dict[str, Any]:
    """Return the state of all global generators: tensors, numbers and lists only."""
    version, words, gauss = random.getstate()
    legacy = cast("tuple[str, NDArray[np.uint32], int, int, float]", np.random.get_state())  # not a dict by default
    _, keys, position, has_gauss, cached = legacy
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set all global generators to a result of :func:`random_state`; CUDA's is not changed if it was not saved."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the generators after a block, such as an evaluation, that must not advance them."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)
