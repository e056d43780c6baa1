"""What tests of the bench share."""

import pytest
from lab.language.language_worker import TINY
from octavo.lab.language import language_bench


@pytest.fixture
def micro_scale(monkeypatch):
    """A scale of the bench that trains in a second."""
    monkeypatch.setitem(language_bench.SCALES, "micro", TINY)
