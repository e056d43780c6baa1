"""Text encoders that run natively, without torch: one vector a text, from a model folder whose weights stay packed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import _core
from octavo.errors import DataError, DTypeError, SettingError

if TYPE_CHECKING:
    import numpy as np

MAX_TOKENS = 256  # what all-MiniLM-L6-v2 was trained to read


class Encoder:
    """A loaded encoder of the family of BERT. Threads may share one.

    Its linear layers multiply the codes of the file, with inputs rounded as the recipe asked; memory is the file and
    the activations. Vectors agree with those of the packed model in PyTorch to about 1e-4.
    """

    def __init__(self, core: _core._Encoder, path: Path) -> None:
        """Wrap a loaded encoder; :meth:`load` makes one. Raises DTypeError for other objects."""
        if not isinstance(core, _core._Encoder):
            raise DTypeError(f"core is a {type(core).__name__}; use Encoder.load")
        self._core, self._path = core, path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Encoder:
        """Load a model folder: what :func:`octavo.save_model`, ``octavo pack`` or transformers wrote.

        It holds ``config.json`` of a ``bert`` model, ``tokenizer.json`` (WordPiece) and ``model.octavo.safetensors`` or
        ``model.safetensors``. Raises ContainerError naming the file and the field, layer or tensor for another
        architecture and for layers that are simulated and not packed; OSErrors.
        """
        folder = Path(os.fspath(path))
        return cls(_core._Encoder.load(folder), folder)

    @property
    def width(self) -> int:
        """Numbers in one vector."""
        return self._core.width

    @property
    def positions(self) -> int:
        """Most tokens of a text that the model can read."""
        return self._core.positions

    def ids(self, text: str, *, limit: int = MAX_TOKENS) -> list[int]:
        """Return the ids of a text as the model reads them, with ``[CLS]`` and ``[SEP]``. Raises as :meth:`embed`."""
        return self._core.ids(_checked([text], limit)[0], limit)

    def embed(self, texts: Sequence[str], *, limit: int = MAX_TOKENS) -> np.ndarray:
        """Return one vector of length 1 a text, the mean over its tokens: float32, ``[texts, width]``.

        ``limit``: tokens of a text that are read, ``[CLS]`` and ``[SEP]`` included; the rest is cut off.
        Raises DTypeError for what is no list of strings, DataError for half of a surrogate pair, naming the text,
        SettingError for a limit below 1.
        """
        import numpy as np

        if isinstance(texts, str):
            raise DTypeError("texts is one str; accepted is a list of them")
        vectors = self._core.embed(_checked(texts, limit), limit)
        return np.frombuffer(vectors, np.dtype("<f4")).reshape(len(texts), self.width).copy()

    def __repr__(self) -> str:
        """Tell the folder and the width."""
        return f"Encoder({str(self._path)!r}, width={self.width})"


def _checked(texts: Sequence[str], limit: int) -> list[str]:
    if type(limit) is not int or not 1 <= limit < 2**31:
        raise SettingError(f"limit is {limit!r}; accepted is a whole number of tokens from 1")
    checked = list(texts)
    for at, text in enumerate(checked):
        if not isinstance(text, str):
            raise DTypeError(f"text {at} is a {type(text).__name__}; accepted are strings")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"text {at}: character {error.start} is half of a surrogate pair, which no text in UTF-8 holds"
            ) from None
    return checked
