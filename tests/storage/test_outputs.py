"""Places of outputs are refused before any work, and left as they are."""

import pytest
from octavo.errors import ContainerError
from octavo.storage.outputs import check_output


@pytest.fixture
def places(tmp_path):
    for name in ("in", "full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "file").write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "out", "is_folder", "overwrite"),
    [
        ("in", "new", True, False),
        ("in", "new", False, False),
        ("in", "empty", True, False),
        ("in", "full", True, True),
        ("in", "file", False, True),
        ("no path", "no path/out", True, False),
    ],
)
def test_places_that_can_be_written_pass(places, source, out, is_folder, overwrite):
    check_output(places / source, places / out, is_folder=is_folder, overwrite=overwrite)


@pytest.mark.parametrize(
    ("source", "out", "is_folder", "overwrite", "told"),
    [
        ("in", "in", True, True, "would lie in the input"),
        ("in", "in/deep/out", True, True, "would lie in the input"),
        ("file", "file", False, True, "would lie in the input"),
        ("in", "full/../in/out", False, True, "would lie in the input"),
        ("in", "file", True, True, "a file; the output is a folder"),
        ("in", "empty", False, True, "a folder; the output is a file"),
    ],
)
def test_places_that_no_overwriting_makes_right_are_refused(places, source, out, is_folder, overwrite, told):
    with pytest.raises(ContainerError, match=told):
        check_output(places / source, places / out, is_folder=is_folder, overwrite=overwrite)


@pytest.mark.parametrize(("out", "is_folder"), [("full", True), ("file", False)])
def test_what_is_there_is_replaced_only_when_asked(places, out, is_folder):
    with pytest.raises(FileExistsError, match=f"{out} exists; give --force"):
        check_output(places / "in", places / out, is_folder=is_folder, overwrite=False)
