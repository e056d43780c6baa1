"""Lines that other packages log when transformers imports them, which tell a user of ``octavo`` nothing to act on."""

from __future__ import annotations

import logging

# Loggers, and a part of the text: torchao registers its enums with torch and says which of its kernels it skips.
_LINES = (
    ("torch.utils._pytree", "is an Enum subclass and is now natively supported"),
    ("torchao", "Skipping import of cpp extensions"),
    ("torchao", "Failed to load"),
)


def quiet() -> None:
    """Leave these lines out of the log of this process; every other line stays."""
    for logger, part in _LINES:
        logging.getLogger(logger).addFilter(_Without(part))


class _Without(logging.Filter):
    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        return self._part not in str(record.msg)
