"""Which numbers drop-out keeps, as a function of a seed, the row and the column: nothing is stored for a backward pass.

Source: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 2**32 - 1
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)


def drawn_seed(device: torch.device) -> Tensor:
    """Return a seed from torch's generator of the device, int64 ``[1]``."""
    return torch.randint(2**63 - 1, (1,), device=device)


def kept_numbers(seed: Tensor, rows: int, width: int, p: float) -> Tensor:
    """Return which numbers stay where each is 0 with chance ``p``: bool ``[rows, width]``.

    ``seed``: int64 ``[1]``, the key of Philox4x32-10. Column c of row r has word ``c % 64 // 16`` of the counter
    ``c // 64 * 16 + c % 16`` below ``r << 32``. It stays where the word is at least ``p * 2**32``, rounded. The native
    operation has the same mask on every device.
    """
    columns = torch.arange(width, device=seed.device)
    words = [
        (columns // 64 * 16 + columns % 16).expand(rows, width),
        torch.arange(rows, device=seed.device)[:, None].expand(rows, width),
        torch.zeros((), dtype=torch.int64, device=seed.device),
        torch.zeros((), dtype=torch.int64, device=seed.device),
    ]
    keys = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(10):
        # int64 wraps, and the halves of a product are right all the same.
        even, odd = words[0] * _FACTORS[0], words[2] * _FACTORS[1]
        words = [odd >> 32 & _LOW ^ words[1] ^ keys[0], odd & _LOW, even >> 32 & _LOW ^ words[3] ^ keys[1], even & _LOW]
        keys = [(key + step) & _LOW for key, step in zip(keys, _STEPS, strict=True)]
    word = torch.stack([word.expand(rows, width) for word in words])
    chosen = word.gather(0, (columns % 64 // 16).expand(1, rows, width))[0]
    return chosen >= threshold(p)


def threshold(p: float) -> int:
    """Return the least word of what stays."""
    return min(round(p * 2**32), _LOW) if p > 0 else 0
