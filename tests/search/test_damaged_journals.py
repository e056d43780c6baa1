"""Journals with damage: what a kill left at the end is dropped, any other damage is refused with file and line."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo.errors import DataError
from octavo.search.journal import NAME, Journal

# What a kill, a full disk or a power failure leaves behind the last record.
TORN = [
    b"\n", b"\n\n\n", b"  \n", b"\r\n", b"\0\0\0", b"\0\0\0\n", b"{", b'{"op_code": 1', b'{"id": "a", "settings": {}', b"42",
    b"null", b"[]", b"\xff\xfe", b" ",
]  # fmt: skip
# Whole lines that are no records of either journal.
WRONG = [
    b"42", b"null", b"[]", b"true", b'"text"', b"{}", b"no json", b'{"op_code": 1', b'{"op_code": "a"}',
    b'{"op_code": null, "worker_id": "w"}', b'{"op_code": 99, "worker_id": "w"}', b'{"op_code": 0}',
    b'{"op_code": 0, "worker_id": 3, "study_name": "a", "directions": "abc"}',
    b'{"op_code": 4, "worker_id": "w", "study_id": []}', b'{"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr": 5}',
    b'{"op_code": 5, "worker_id": "w", "trial_id": 0}', b'{"op_code": 6, "worker_id": "w", "trial_id": 0, "state": 77}',
    b"\xff\xfe\xfd", b'{"op_code": "\xff"}', b"\0\0\0\0{}", b'{"a": ' + b"[" * 3000, b'{"id": "a", "settings": {}}', b"{} {}",
    b"9" * 5000,
]  # fmt: skip


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """The bytes of a journal of trials, and the function that opens it and returns what it holds."""
    pytest.importorskip("optuna")
    from lab.architectures.search_worker import SPACE, measured
    from octavo.lab.architectures import trial_storage
    from octavo.lab.architectures.search_loop import run_search

    def found(folder):
        storage = trial_storage.open_storage(folder)
        return [trial.values for trial in storage.get_all_trials(0)]

    def more(folder):
        run_search(SPACE, lambda build: measured(build.spec), storage=folder, name="study", sampler="random", trials=4)

    folder = tmp_path_factory.mktemp("trials")
    run_search(SPACE, lambda build: measured(build.spec), storage=folder, name="study", sampler="random", trials=3)
    return (folder / trial_storage.NAME).read_bytes(), trial_storage.NAME, found, more


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """The same of a journal of points."""

    def found(folder):
        with Journal(folder) as journal:
            return list(journal)

    def more(folder):
        with Journal(folder) as journal:
            journal.add({"point": "more"}, result=1)

    folder = tmp_path_factory.mktemp("points")
    with Journal(folder) as journal:
        for number in range(4):
            journal.add({"point": number}, result=number, text="é" * number)
    return (folder / NAME).read_bytes(), NAME, found, more


@pytest.fixture(params=["points", "trials"])
def kept(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("tail", TORN, ids=repr)
def test_what_a_kill_left_at_the_end_is_dropped(kept, tail, tmp_path):
    content, name, found, more = kept
    (tmp_path / name).write_bytes(content)
    wanted = found(tmp_path)
    (tmp_path / name).write_bytes(content + tail)
    assert found(tmp_path) == wanted
    more(tmp_path)
    assert (tmp_path / name).read_bytes().startswith(content) and len(found(tmp_path)) == len(wanted) + 1


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("line", WRONG, ids=lambda line: repr(line[:40]))
def test_damage_inside_is_refused_with_file_and_line_and_nothing_is_changed(kept, line, place, tmp_path):
    content, name, found, _ = kept
    lines = content.splitlines(keepends=True)
    number = {"first": 0, "middle": len(lines) // 2, "last": len(lines)}[place]
    damaged = b"".join([*lines[:number], line + b"\n", *lines[number:]]) + b'{"torn": '
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(DataError, match=rf"{name}: line {number + 1} is no record"):
        found(tmp_path)
    assert (tmp_path / name).read_bytes() == damaged


def test_a_blank_line_inside_is_refused(kept, tmp_path):
    content, name, found, _ = kept
    lines = content.splitlines(keepends=True)
    (tmp_path / name).write_bytes(b"".join([*lines[:2], b"\n", *lines[2:]]))
    with pytest.raises(DataError, match=rf"{name}: line 3 is no record"):
        found(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damaged_byte_is_survived_or_refused(kept, tmp_path, data):
    content, name, found, _ = kept
    start = data.draw(st.integers(0, len(content)))
    damaged = content[:start] + data.draw(st.binary(max_size=12)) + content[start + data.draw(st.integers(0, 30)) :]
    (tmp_path / name).write_bytes(damaged)
    try:
        found(tmp_path)
    except DataError as error:
        assert f"{name}: line " in str(error)
        assert (tmp_path / name).read_bytes() == damaged


def test_a_trial_with_an_attribute_of_another_kind_is_named(trials, tmp_path):
    content, name, _, more = trials
    lines = [json.loads(line) for line in content.splitlines()]
    created = next(line for line in lines if "octavo" in line.get("user_attrs", ()))
    for wrong in (3, {}, {**created["user_attrs"]["octavo"], "ask": "a"}):
        changed = [line if line is not created else {**line, "user_attrs": {"octavo": wrong}} for line in lines]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in changed))
        with pytest.raises(DataError, match="study 'study', trial 0"):
            more(tmp_path)
