"""What tests of other packages' files share."""

import pytest


@pytest.fixture
def file(tmp_path):
    """A function that writes bytes to a GGUF file and returns its path."""

    def written(data):
        (tmp_path / "x.gguf").write_bytes(data)
        return tmp_path / "x.gguf"

    return written
