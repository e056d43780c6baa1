"""Content digests of models, data and functions, by which a journal finds a measurement again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import IdentityWarning
from octavo.search.object_digest import digest_objects


@dataclass(frozen=True)
class Identity:
    """``digests``: a SHA-256 for each subject by its name.

    ``unknown``: parts of the subjects that cannot be digested, each with the reason. The digests then match no journal,
    and everything that depends on the subject is measured again.
    """

    digests: dict[str, str]
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the digests as a text."""
        return " ".join(f"{name} {digest}" for name, digest in self.digests.items())


def identity_of(**subjects: Any) -> Identity:
    """Return the identity of models, data and functions by their names: :func:`.object_digest.digest_objects`."""
    return Identity(*digest_objects(subjects))


def warn_of_unknown(unknown: Sequence[str]) -> None:
    """Warn about parts that cannot be digested, when a journal is in use."""
    if unknown:
        shown = "; ".join(unknown[:5]) + (f"; and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        warnings.warn(
            f"the journal cannot tell whether these are what they were, and answers nothing that depends on them: "
            f"{shown}. Give numbers, texts, lists, tensors, arrays or files in their place",
            IdentityWarning,
            stacklevel=3,
        )
