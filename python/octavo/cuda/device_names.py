"""Names of devices: ``cpu``, ``cuda`` and ``cuda:N``, parsed in one place and checked against torch's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import CudaUnavailableError, SettingError
from octavo.storage.reading import shown

if TYPE_CHECKING:
    import torch


def parse_device(name: object) -> tuple[str, int | None]:
    """Return kind and number of a device, a text or a ``torch.device``. Raises SettingError for another value."""
    text = name if isinstance(name, str) else str(name) if type(name).__module__ == "torch" else ""
    kind, colon, number = text.partition(":")
    numbered = number.isascii() and number.isdigit() and len(number) < 4
    if (kind, colon) == ("cpu", "") or (kind == "cuda" and bool(colon) == numbered):
        return kind, int(number) if colon else None
    raise SettingError(f"device is {shown(name)}; accepted are 'cpu', 'cuda' and 'cuda:N'")


def torch_device(name: object) -> torch.device:
    """Return the device of a name; ``cuda`` is torch's current one.

    Raises SettingError for an invalid name, CudaUnavailableError for a GPU that torch does not find.
    """
    import torch

    kind, number = parse_device(name)
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            f"device is {str(name)!r}, but PyTorch {torch.__version__} finds no GPU; octavo doctor shows what this "
            "machine lacks; use device='cpu'"
        )
    ordinal = torch.cuda.current_device() if number is None else number
    if ordinal >= (count := torch.cuda.device_count()):
        raise CudaUnavailableError(f"device is {str(name)!r}; there are {count}, counted from 0")
    return torch.device("cuda", ordinal)


def best_device() -> torch.device:
    """Return torch's current GPU if there is one, else the CPU."""
    import torch

    return torch_device("cuda" if torch.cuda.is_available() else "cpu")
