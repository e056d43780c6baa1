"""The journal: what is finished is found again, whatever stopped the study."""

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.errors import DataError, OctavoError
from octavo.search.journal import NAME, Journal, identity

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), PLAIN, max_size=4))
def test_equal_settings_have_one_identity_in_any_order(settings):
    turned = dict(reversed(list(settings.items())))
    assert identity(settings) == identity(turned) == identity(json.loads(json.dumps(settings)))
    assert identity({**settings, "one more": 1}) != identity(settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_is_no_json_is_refused_before_it_is_written(tmp_path, value):
    with pytest.raises(DataError, match="plain JSON"):
        identity({"a": value})
    with Journal(tmp_path) as journal, pytest.raises(DataError, match="plain JSON"):
        journal.add({"a": 1}, result=value)
    assert (tmp_path / NAME).read_bytes() == b""


def test_finished_points_are_found_again(tmp_path):
    with Journal(tmp_path) as journal:
        assert journal.find({"width": 4}) is None
        written = [journal.add({"width": width}, result=width / 3, name="café") for width in (4, 8)]
    with Journal(tmp_path) as journal:
        assert list(journal) == written and len(journal) == 2
        assert journal.find({"width": 8})["result"] == 8 / 3


@given(cut=st.integers(1, 40))
def test_a_torn_last_line_is_dropped_and_written_anew(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("torn")
    with Journal(folder) as journal:
        first = journal.add({"width": 4}, result=1)
        whole = (folder / NAME).read_bytes()
        last = journal.add({"width": 8}, result=2, padding="x" * 40)
    content = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(content[:-cut])
    with Journal(folder) as journal:
        assert list(journal) == [first]
        assert (folder / NAME).read_bytes() == whole
        assert journal.add({"width": 8}, result=2, padding="x" * 40) == last
    assert (folder / NAME).read_bytes() == content


@pytest.mark.parametrize(
    "line", ["{}", "[]", "no json", '{"id": 3', '{"id": "a", "settings": {}}', '{"id": ["a"], "settings": 1}']
)
def test_a_line_that_is_no_record_is_refused(tmp_path, line):
    first = json.dumps({"id": identity({}), "settings": {}})
    (tmp_path / NAME).write_text(f"{first}\n{line}\n")
    with pytest.raises(DataError, match="line 2 is no record"), Journal(tmp_path):
        pass


def test_two_processes_do_not_write_one_journal(tmp_path):
    with (
        Journal(tmp_path),
        pytest.raises(OctavoError, match="another process is at work on this study"),
        Journal(tmp_path),
    ):
        pass
    with Journal(tmp_path):
        pass


def test_a_killed_process_loses_no_finished_point(tmp_path):
    """kill -9 while points are being written: every line that was told is there, and the journal opens."""
    code = (
        "import sys\nfrom octavo.search.journal import Journal\n"
        "with Journal(sys.argv[1]) as journal:\n"
        "    for number in range(10**6):\n"
        "        journal.add({'number': number}, result='x' * 200)\n"
        "        print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    told = [int(process.stdout.readline()) for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    told += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    with Journal(tmp_path) as journal:
        for number in told:
            assert journal.find({"number": number})["result"] == "x" * 200
