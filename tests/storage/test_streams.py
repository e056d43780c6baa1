"""No answer is lost: whatever standard input and output are, all of it arrives, or the exit code and a message say not."""

import contextlib
import fcntl
import io
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.quick import spread
from octavo.errors import DTypeError
from octavo.lab.polynomials.native_engine import Engine
from octavo.storage.streams import read_some, write_all

MAIN = "from octavo.cli import main; main()"
LINES = 6000  # their answers are more than a pipe or a socket holds
LIMIT = 70_000  # bytes of a file

INPUTS = ("file", "pipe", "late", "socket", "late socket", "terminal")
OUTPUTS = ("file", "pipe", "slow", "socket", "slow socket", "full", "limited", "closed", "gone")
WHOLE = OUTPUTS[:5]


@pytest.fixture(scope="module")
def text():
    return "".join(f"{i % 31}*x*(x-{i % 17})\n" for i in range(LINES)).encode()


@pytest.fixture(scope="module")
def answers(exported, text):
    found = Engine.load(exported).expand(text.decode().splitlines())
    return "".join(f"{answer}\n" for answer in found).encode()


# --- the process ---------------------------------------------------------------------------------------------------


class Source:
    """Standard input of a kind: ``descriptor``, and a thread that feeds it."""

    def __init__(self, kind: str, text: bytes, folder: Path) -> None:
        self.kind, self.text, self.ours, self.thread = kind, text, None, None
        if kind == "file":
            (folder / "in.txt").write_bytes(text)
            self.descriptor = os.open(folder / "in.txt", os.O_RDONLY)
            return
        if kind == "terminal":
            self.ours, self.descriptor = os.openpty()
        elif "socket" in kind:
            ours, theirs = socket.socketpair()
            self.ours, self.descriptor = ours.detach(), theirs.detach()
        else:
            self.descriptor, self.ours = os.pipe()
        os.set_blocking(self.descriptor, "late" not in kind)

    def start(self) -> None:
        if self.ours is not None:
            self.thread = threading.Thread(target=self._feed)
            self.thread.start()

    def _feed(self) -> None:
        pieces = [self.text]
        if "late" in self.kind:
            third = len(self.text) // 3
            pieces = [self.text[:5], self.text[5:third], self.text[third:]]
        try:
            for piece in pieces:
                if "late" in self.kind:
                    time.sleep(0.15)
                if self.kind == "terminal":  # its line buffer is short, and it wants an end of its own
                    for line in piece.splitlines(keepends=True):
                        os.write(self.ours, line)
                    os.write(self.ours, b"\x04")
                while piece and self.kind != "terminal":
                    piece = piece[os.write(self.ours, piece) :]
        except OSError:
            pass
        if self.kind != "terminal":  # closing it would hang up
            os.close(self.ours)


class Sink:
    """Standard output of a kind: ``descriptor``, and a thread that takes what comes out."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.path, self.received, self.ours, self.thread = kind, folder / "out.txt", b"", None, None
        if kind in ("file", "limited"):
            self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        elif kind in ("full", "closed"):
            self.descriptor = os.open("/dev/full", os.O_WRONLY)
        elif "socket" in kind:
            ours, theirs = socket.socketpair()
            self.ours, self.descriptor = ours.detach(), theirs.detach()
        else:
            self.ours, self.descriptor = os.pipe()
        os.set_blocking(self.descriptor, "slow" not in kind)
        if kind == "gone":
            os.close(self.ours)
            self.ours = None

    def start(self) -> None:
        if self.ours is not None:
            self.thread = threading.Thread(target=self._take)
            self.thread.start()

    def _take(self) -> None:
        if "slow" in self.kind:
            time.sleep(0.6)
        while piece := os.read(self.ours, 8192):
            self.received += piece
            if "slow" in self.kind:
                time.sleep(0.001)
        os.close(self.ours)

    def end(self) -> bytes:
        if self.thread is not None:
            self.thread.join(60)
        return self.path.read_bytes() if self.path.exists() else self.received


def octavo(args, source, sink, *, unbuffered=False, errors=subprocess.PIPE):
    """Run the command line between two streams; returns exit code, stderr and what came out."""

    def prepare() -> None:
        if sink.kind == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
        if sink.kind == "closed":
            os.close(1)
        if source is None:
            os.close(0)

    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, args)],
        stdin=source.descriptor if source else None,
        stdout=sink.descriptor,
        stderr=errors,
        env=environment,
        preexec_fn=prepare,
    )
    os.close(sink.descriptor)
    if source is not None:
        os.close(source.descriptor)
        source.start()
    sink.start()
    _, told = child.communicate(timeout=120)
    if source is not None and source.kind == "terminal":
        os.close(source.ours)
    return child.returncode, (told or b"").decode(), sink.end()


def check(kind: str, code: int, told: str, received: bytes, answers: bytes) -> None:
    if kind in WHOLE:
        assert (code, told) == (0, "")
        assert received == answers
        return
    assert code == 2
    assert answers.startswith(received)
    if kind == "gone":
        assert not told  # as `octavo formats | head`
        return
    reason = {"closed": "it is closed", "full": "no space left", "limited": "file too large"}[kind]
    assert told.startswith(f"error: standard output: {reason}") and told.count("\n") == 1
    assert "could not be written" in told


NORMAL = [("file", sink) for sink in OUTPUTS] + [(source, "pipe") for source in INPUTS if source != "file"]
REST = [(source, sink) for source in INPUTS for sink in OUTPUTS if (source, sink) not in NORMAL]


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("source", "sink"), spread(NORMAL, 4) + [pytest.param(*pair, marks=pytest.mark.slow) for pair in REST]
)
def test_all_answers_arrive_or_the_exit_code_says_not(exported, text, answers, tmp_path, source, sink, unbuffered):
    if source == "terminal":
        rows = 40
        text, answers = (b"".join(part.splitlines(keepends=True)[:rows]) for part in (text, answers))
        if sink in ("limited", "slow", "slow socket"):
            pytest.skip("too few answers")
    args = ("expand", "--model", exported)
    code, told, received = octavo(args, Source(source, text, tmp_path), Sink(sink, tmp_path), unbuffered=unbuffered)
    check(sink, code, told, received, answers)


@pytest.mark.parametrize(
    "unbuffered", [pytest.param(False, id="buffered", marks=pytest.mark.slow), pytest.param(True, id="unbuffered")]
)
def test_a_closed_descriptor_matters_where_it_is_needed(exported, tmp_path, unbuffered):
    model = ("--model", exported)
    code, told, _ = octavo(("expand", *model), None, Sink("pipe", tmp_path), unbuffered=unbuffered)
    assert (code, told) == (2, "error: standard input: it is closed\n")
    code, told, out = octavo(("expand", "x", *model), None, Sink("pipe", tmp_path), unbuffered=unbuffered)
    assert (code, told) == (0, "") and out == Engine.load(exported).expand(["x"])[0].encode() + b"\n"
    target = tmp_path / "answers.txt"
    args = ("expand", "x", *model, "-o", target)
    assert octavo(args, None, Sink("closed", tmp_path), unbuffered=unbuffered)[:2] == (0, "")
    assert target.read_bytes() == out


@pytest.mark.parametrize("kind", ["closed", "full"])
def test_messages_that_cannot_be_written_change_no_exit_code(exported, kind):
    code = f"import os, sys; os.close(2) if {kind!r} == 'closed' else os.dup2(os.open('/dev/full', os.O_WRONLY), 2); "
    code += (
        f"os.execv(sys.executable, [sys.executable, '-c', {MAIN!r}, 'expand', 'x', 'Q', '--model', {str(exported)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == Engine.load(exported).expand(["x"])[0].encode() + b"\n\n"


COMMANDS = ("formats --json", "recipe int4", "--help", "--version")
OFTEN = [(command, kind) for command in COMMANDS for kind in ("full", "closed")]
SELDOM = [(command, kind) for command in COMMANDS for kind in ("gone", "slow")]


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("command", "kind"),
    spread(OFTEN) + SELDOM[:2] + [pytest.param(*pair, marks=pytest.mark.slow) for pair in SELDOM[2:]],
)
def test_no_command_loses_output_in_silence(tmp_path, command, kind, unbuffered):
    args = command.split()
    code, told, received = octavo(args, None, Sink(kind, tmp_path), unbuffered=unbuffered)
    if kind == "slow":
        _, _, expected = octavo(args, None, Sink("pipe", tmp_path))
        assert (code, told, received) == (0, "", expected)
    else:
        assert code == 2 and "Traceback" not in told
        assert told.startswith("error: standard output: ") if kind != "gone" else not told


def test_a_limit_in_the_middle_of_a_print_is_an_error(tmp_path):
    """Unbuffered, Python's own stream writes what fits and forgets the rest."""
    sink = Sink("limited", tmp_path)
    code = f"import sys; from octavo.cli import _process; _process.run(lambda: print('x' * {LIMIT - 1}, 'y' * 99))"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    child = subprocess.run(
        [sys.executable, "-c", code],
        stdout=sink.descriptor,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
        check=False,
    )
    assert child.returncode == 2
    assert child.stderr == b"error: standard output: file too large\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_long_print_to_a_slow_reader_arrives(tmp_path, unbuffered):
    sink = Sink("slow", tmp_path)
    code = "import sys; from octavo.cli import _process; "
    code += "_process.run(lambda: [print(number, 'x' * 3000) for number in range(150)] and sys.exit(7))"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=sink.descriptor, env=environment)
    os.close(sink.descriptor)
    sink.start()
    assert child.wait(60) == 7
    assert sink.end().decode() == "".join(f"{number} {'x' * 3000}\n" for number in range(150))


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_file_may_be_both_input_and_output(exported, text, answers, tmp_path):
    file = tmp_path / "both.txt"
    for how in ("-f", "<"):
        file.write_bytes(text)
        file.chmod(0o640)
        args = ["expand", "--model", exported, "-o", file, *(["-f", file] if how == "-f" else [])]
        with open(file if how == "<" else os.devnull, "rb") as stdin:
            command = [sys.executable, "-c", MAIN, *map(str, args)]
            subprocess.run(command, stdin=stdin, check=True, timeout=60)
        assert file.read_bytes() == answers
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_does_not_fit_leaves_the_old_one(exported, text, tmp_path):
    (tmp_path / "in.txt").write_bytes(text)
    target = tmp_path / "answers.txt"
    target.write_text("before")
    for source in (["-f", tmp_path / "in.txt"], []):
        args = [sys.executable, "-c", MAIN, "expand", "--model", exported, "-o", target, *source]
        with open(tmp_path / "in.txt", "rb") as stdin:
            done = subprocess.run(
                [str(arg) for arg in args],
                stdin=stdin,
                capture_output=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)),
                check=False,
            )
        assert (done.returncode, done.stdout) == (2, b"")
        told = done.stderr.decode()
        assert told.startswith(f"error: {target}: file too large; answers from line ") and told.count("\n") == 1
        assert target.read_text() == "before" and len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_and_its_target_is_replaced(exported, tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "answers.txt", tmp_path / "link.txt"
    target.write_text("before")
    link.symlink_to("there/answers.txt")
    args = ["expand", "x", "--model", exported, "-o", link]
    subprocess.run([sys.executable, "-c", MAIN, *map(str, args)], check=True, timeout=60)
    assert link.is_symlink() and target.read_text() == Engine.load(exported).expand(["x"])[0] + "\n"


@pytest.mark.parametrize("where", ["/dev/stdout", "fifo"])
def test_devices_and_pipes_are_written_directly(exported, tmp_path, where):
    expected = Engine.load(exported).expand(["x"])[0].encode() + b"\n"
    path = where
    if where == "fifo":
        os.mkfifo(path := tmp_path / "fifo")
    args = [sys.executable, "-c", MAIN, "expand", "x", "--model", str(exported), "-o", str(path)]
    child = subprocess.Popen(args, stdout=subprocess.PIPE)
    out = Path(path).read_bytes() if where == "fifo" else b""
    assert out + child.communicate(timeout=60)[0] == expected and child.returncode == 0
    if where == "fifo":
        assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_killed_run_leaves_the_old_file(exported, text, answers, tmp_path):
    target = tmp_path / "answers.txt"
    target.write_text("before")
    args = [sys.executable, "-c", MAIN, "expand", "--model", str(exported), "-o", str(target)]
    child = subprocess.Popen(args, stdin=subprocess.PIPE)
    child.stdin.write(text)
    child.stdin.flush()
    time.sleep(1)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert target.read_text() == "before"
    subprocess.run(args, input=text, check=True, timeout=60)
    assert target.read_bytes() == answers
    assert list(tmp_path.iterdir()) == [target]  # what the killed run left is gone


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_mark_of_utf8_and_ends_of_lines_are_no_text(exported, mark, end):
    engine, out = Engine.load(exported), io.BytesIO()

    class Bytewise(io.RawIOBase):
        text = mark + b"x" + end + b"3*x" + end

        def read(self, _):
            piece, self.text = self.text[:1], self.text[1:]
            return piece

    assert engine.expand_stream(Bytewise(), out).failed == 0
    assert out.getvalue().decode().splitlines() == engine.expand(["x", "3*x"])
    for short in (mark, mark[:2]):
        engine.expand_stream(io.BytesIO(short), io.BytesIO())


# --- streams of one's own ------------------------------------------------------------------------------------------


class Reluctant(io.RawIOBase):
    """Takes some of the bytes, none, or says that it would block, at random."""

    def __init__(self, seed):
        self.random, self.taken = random.Random(seed), b""

    def writable(self):
        return True

    def write(self, data):
        if self.random.random() < 0.3:
            return None
        size = self.random.randint(1, len(data))
        self.taken += bytes(data[:size])
        return size


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("buffer", [0, 100, 1 << 16])
def test_everything_is_written_however_little_is_taken(seed, buffer, monkeypatch):
    monkeypatch.setattr("octavo.storage.streams._PAUSE", 0)
    raw, data = Reluctant(seed), random.Random(seed).randbytes(5000)
    writer = io.BufferedWriter(raw, buffer) if buffer else raw
    for start in range(0, 5000, 700):
        write_all(writer, data[start : start + 700])
        assert raw.taken == data[: start + 700]  # flushed, too


@pytest.mark.parametrize("buffering", [0, -1])
@pytest.mark.parametrize("family", ["pipe", "socket"])
def test_non_blocking_streams_lose_nothing_in_either_direction(family, buffering):
    data = random.Random(0).randbytes(600_000)
    if family == "pipe":
        (out, into) = os.pipe()
        reader, writer = os.fdopen(out, "rb", buffering), os.fdopen(into, "wb", buffering)
    else:
        one, two = socket.socketpair()
        one.setblocking(False), two.setblocking(False)
        reader, writer = one.makefile("rb", buffering), two.makefile("wb", buffering)
        one.close(), two.close()
    for stream in (reader, writer):
        os.set_blocking(stream.fileno(), False)

    def send() -> None:
        for start in range(0, len(data), 90_000):
            time.sleep(0.01)
            write_all(writer, data[start : start + 90_000])
        writer.close()

    sender = threading.Thread(target=send)
    sender.start()
    received = b""
    while piece := read_some(reader, 10_000):
        received += piece
    sender.join(30)
    reader.close()
    assert received == data


def test_the_engine_takes_raw_files_and_sockets(exported, text, answers):
    engine = Engine.load(exported)
    one, two = socket.socketpair()
    three, four = socket.socketpair()
    for end in (one, two, three, four):
        end.setblocking(False)

    def ask() -> None:
        with two.makefile("wb", 0) as asking:
            write_all(asking, text)
        two.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with one.makefile("rb", 0) as reader, three.makefile("wb", 0) as writer:
            engine.expand_stream(reader, writer)
        three.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=work) for work in (ask, serve)]
    for thread in threads:
        thread.start()
    received = b""
    with four.makefile("rb", 0) as hearing:
        while piece := read_some(hearing, 4096):
            received += piece
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    for end in (one, two, three, four):
        end.close()
    assert received == answers


def test_errors_name_the_stream_and_the_first_line_that_is_lost(exported, text, tmp_path):
    engine = Engine.load(exported)
    for buffering in (0, -1):
        lost = r"answers from line 1 on could not be written: '/dev/full'"
        with contextlib.suppress(OSError), open("/dev/full", "wb", buffering) as full:  # noqa: SIM117 - closing fails, too
            with pytest.raises(OSError, match=lost):
                engine.expand_stream(io.BytesIO(text), full)
    (tmp_path / "in.txt").write_bytes(text)
    with open(tmp_path / "in.txt", "rb") as reader, pytest.raises(DTypeError, match="a stream of text"):
        engine.expand_stream(reader, io.StringIO())
    with open(tmp_path / "in.txt") as reader, pytest.raises(DTypeError, match=r"in\.txt: read gives a str"):
        engine.expand_stream(reader, io.BytesIO())
    with socket.socket() as plain:
        with pytest.raises(DTypeError, match="a socket has no read; a socket gives a stream with makefile"):
            engine.expand_stream(plain, io.BytesIO())
        with pytest.raises(DTypeError, match="a socket has no write"):
            engine.expand_stream(io.BytesIO(b"x"), plain)
    with open("/proc/self/mem", "rb") as broken, pytest.raises(OSError, match=r"/proc/self/mem"):
        engine.expand_stream(broken, io.BytesIO())


def test_a_stream_that_takes_nothing_is_an_error_not_a_loop():
    class Nothing(io.RawIOBase):
        def write(self, data):
            return 0

    with pytest.raises(OSError, match="took 0 of 3 bytes"):
        write_all(Nothing(), b"abc")


def test_a_pipe_made_smaller_than_an_answer_is_enough(exported):
    """A pipe of one page, non-blocking, whose reader takes a byte at a time."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(into, False)
    data = bytes(range(256)) * 40

    def send() -> None:
        with open(into, "wb", 0) as writer:
            write_all(writer, data)

    sender = threading.Thread(target=send)
    sender.start()
    received = b""
    while piece := os.read(out, 1):
        received += piece
    sender.join(30)
    os.close(out)
    assert received == data


def test_a_closed_stream_is_an_error_with_its_name():
    closed = io.BytesIO(b"x")
    closed.close()
    for call in (lambda: read_some(closed, 5), lambda: write_all(closed, b"x")):
        with pytest.raises(OSError, match="it is closed: 'a BytesIO'"):
            call()
