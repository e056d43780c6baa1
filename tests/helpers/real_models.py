"""Real models that packages carry; a test of one is skipped where its package is missing."""

from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo.storage.named_models import carried


def real_model(name: str) -> Path:
    """The file or folder of a model by its name, such as ``smollm2``; the package is not imported."""
    try:
        return carried(name)
    except OctavoError as error:
        pytest.skip(str(error))
