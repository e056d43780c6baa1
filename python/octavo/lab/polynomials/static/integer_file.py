"""The file of an integer model: the variant ``integer`` of a model folder."""

from __future__ import annotations

import os

from octavo.errors import ContainerError
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig
from octavo.lab.polynomials.static.static_seq2seq import StaticInt8Seq2Seq
from octavo.tensors import container


def save(model: StaticInt8Seq2Seq, path: str | os.PathLike[str]) -> None:
    """Write the tensors of an integer model; the file appears complete or not at all. Raises OSErrors."""
    container.save(model.tensors, path)


def load(path: str | os.PathLike[str], config: Seq2SeqConfig) -> StaticInt8Seq2Seq:
    """Return the integer model of ``config`` whose tensors a file holds.

    Raises ContainerError for a file that is none or holds other tensors, OSErrors.
    """
    tensors = container.load(path)
    try:
        return StaticInt8Seq2Seq(config, tensors)
    except ContainerError as error:
        raise ContainerError(f"{os.fspath(path)}: {error}") from None
