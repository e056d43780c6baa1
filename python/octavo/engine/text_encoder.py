"""Text encoders that run natively, without torch: one vector a text, from a model folder whose weights stay packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import _core
from octavo.engine.native_folder import native_folder
from octavo.errors import DataError, DTypeError, ModelError, SettingError
from octavo.storage.reading import shown

if TYPE_CHECKING:
    import numpy as np

MAX_TOKENS = 256  # what all-MiniLM-L6-v2 was trained to read
_BLOCK, _TOKEN = 1 << 15, 8  # characters that are read between two looks at signals; most of them in one token


class TextEncoder:
    """A loaded encoder of the family of BERT, which runs without torch. Threads may share one.

    Its linear layers multiply the codes of the file, with inputs rounded as the recipe asked; memory is the file and
    the activations. Vectors agree with those of the packed model in PyTorch to about 1e-4. Source: Devlin et al. 2019,
    BERT; mean pooling: Reimers and Gurevych 2019, Sentence-BERT.

    Args:
        core: a loaded encoder; :meth:`load` makes one.
        path: its folder.

    Raises:
        DTypeError: for another object than a loaded encoder.

    Example:
        >>> encoder = octavo.TextEncoder.load("minilm")  # the folder of all-MiniLM-L6-v2
        >>> cat, kitten, tax = encoder.embed(["a cat on a sofa", "a kitten sleeps on the couch", "tax law"])
        >>> print(f"{cat @ kitten:.1f} {cat @ tax:.1f}")  # cosines: vectors have length 1
        0.7 0.1
    """

    def __init__(self, core: _core._Encoder, path: Path) -> None:
        """Wrap a loaded encoder; :meth:`load` makes one. Raises DTypeError for other objects."""
        if not isinstance(core, _core._Encoder):
            raise DTypeError(f"core is a {type(core).__name__}; use TextEncoder.load")
        self._core, self._path = core, path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TextEncoder:
        """Load a model folder of :func:`octavo.save_model`, ``octavo pack`` or transformers, or another package's file.

        It holds ``config.json`` of a ``bert`` model, ``tokenizer.json`` (WordPiece) and ``model.octavo.safetensors``,
        ``model.safetensors`` or shards with their index. Heads and neurons may have been taken out.
        A GGUF file, and a folder that another package packed, are read through torch; what is decoded is warned of.

        Args:
            path: the folder or file; ``"minilm"`` and ``"smollm2"`` are models that packages carry.

        Returns:
            The encoder.

        Raises:
            ContainerError: for another architecture, simulated layers that are not packed, and a folder with the
                weights of two models; names the file and the field, layer or tensor.
            OctavoError: for a name whose package is missing.
            OSError: as the system gives it.
        """
        with native_folder(path) as folder:
            core = _core._Encoder.load(folder)
        return cls(core, Path(path))

    @property
    def width(self) -> int:
        """Length of a vector."""
        return self._core.width

    @property
    def positions(self) -> int:
        """Most tokens of a text that the model can read."""
        return self._core.positions

    def ids(self, text: str, *, limit: int = MAX_TOKENS) -> list[int]:
        """Return the ids of a text as the model reads them, with ``[CLS]`` and ``[SEP]``.

        Args:
            text: the text.
            limit: most tokens, ``[CLS]`` and ``[SEP]`` included; the rest is cut off.

        Returns:
            The ids.

        Raises:
            DTypeError: as :meth:`embed`.
            DataError: as :meth:`embed`.
            SettingError: as :meth:`embed`.

        Example:
            >>> octavo.TextEncoder.load("minilm").ids("a cat")
            [101, 1037, 4937, 102]
        """
        return self._core.ids(_checked([text], limit)[0], limit)

    def embed(self, texts: Iterable[str], *, limit: int = MAX_TOKENS) -> np.ndarray:
        """Return one vector of length 1 a text, the mean over its tokens.

        Ctrl-C is heard between blocks of texts.

        Args:
            texts: the texts.
            limit: most tokens of a text, ``[CLS]`` and ``[SEP]`` included; the rest is cut off.

        Returns:
            float32, ``[texts, width]``.

        Raises:
            DTypeError: for anything else than a list of strings.
            DataError: for half of a surrogate pair and for a text without tokens; names the text.
            SettingError: for a limit below 1.
            ModelError: for weights that make no finite vector.

        Example:
            >>> octavo.TextEncoder.load("minilm").embed(["a cat on a sofa", "tax law"]).shape
            (2, 384)
        """
        import numpy as np

        checked = _checked(texts, limit)
        vectors = np.empty((len(checked), self.width), np.float32)
        for block in _blocks(checked, limit):
            numbers = np.frombuffer(self._core.embed(checked[block], limit), np.dtype("<f4"))
            vectors[block] = numbers.reshape(-1, self.width)
            finite = np.isfinite(vectors[block]).all(axis=1)
            if not finite.all():
                self._refuse(block.start + int(finite.argmin()), checked, limit)
        return vectors

    def _refuse(self, at: int, texts: list[str], limit: int) -> None:
        """Say why a text has no vector."""
        if not self._core.ids(texts[at], limit):
            raise DataError(f"text {at} has no tokens, and the tokenizer puts none around it; leave the text out")
        raise ModelError(f"{self._path}: the vector of text {at} is not finite; the weights are too large for float32")

    def __repr__(self) -> str:
        """Tell the folder and the width."""
        return f"TextEncoder({str(self._path)!r}, width={self.width})"


def _blocks(texts: list[str], limit: int) -> Iterator[slice]:
    """Cut texts into runs of about as many characters that are read."""
    first = size = 0
    for at, text in enumerate(texts):
        size += 2 + min(len(text), _TOKEN * limit)
        if size >= _BLOCK or at + 1 == len(texts):
            yield slice(first, at + 1)
            first, size = at + 1, 0


def _checked(texts: Iterable[str], limit: int) -> list[str]:
    if type(limit) is not int or not 1 <= limit < 2**31:
        raise SettingError(f"limit is {shown(limit)}; accepted is a whole number of tokens from 1")
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise DTypeError(f"texts is one {type(texts).__name__}; accepted is a list of strings")
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
