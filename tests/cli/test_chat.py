"""``octavo chat`` in a terminal and in a pipe, and ``octavo generate --chat``."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from helpers.chat_models import chat_model
from helpers.processes import octavo_command
from octavo import TextGenerator

pty = pytest.importorskip("pty")
QUIET = ["--temperature", "0", "--tokens", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "m"
    chat_model(path)
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that goes on for a long time."""
    path = tmp_path_factory.mktemp("chat") / "slow"
    chat_model(path, positions=200_000)
    (path / "generation_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    (path / "tokenizer_config.json").write_text("{}")
    return path


class Terminal:
    """A conversation in a terminal."""

    def __init__(self, *arguments):
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "chat", *map(str, arguments)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "dumb"},
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""

    def until(self, pattern, seconds=60):
        """Read up to a pattern; return what was read."""
        deadline, new = time.monotonic() + seconds, b""
        while not (match := re.search(pattern.encode(), new)):
            if not select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {pattern!r} in {new!r}")
            try:
                new += os.read(self._ours, 1 << 12)
            except OSError:
                raise AssertionError(f"ended before {pattern!r}: {new!r}") from None
        self.shown += new
        return new[: match.end()].decode("utf-8", "replace")

    def type(self, text):
        os.write(self._ours, text.encode())

    def end(self):
        """The exit code."""
        try:
            while os.read(self._ours, 1 << 12):
                pass
        except OSError:
            pass
        os.close(self._ours)
        return self._process.wait(60)


def test_answers_stream_and_the_conversation_is_kept_until_it_is_reset(folder):
    first, second = octavo_lines(folder, "the cat", "the dog")
    fresh, _ = octavo_lines(folder, "the dog", "the dog")
    system = octavo_lines(folder, "the dog", "x", "--system", "sit")[0]
    assert len({shown(one) for one in (second, fresh, system)}) == 3
    terminal = Terminal(folder, *QUIET)
    terminal.until("> ")
    for typed, answer in (("the cat", first), ("the dog", second)):
        terminal.type(f"{typed}\r")
        screen = terminal.until(r"\d+ tokens, [\d.]+ a second[^\n]*\n(?s:.*)> ")
        assert shown(answer) in shown(screen)
    terminal.type("/reset\r")
    terminal.until("forgotten(?s:.*)> ")
    terminal.type("the dog\r")
    assert shown(fresh) in shown(terminal.until("a second(?s:.*)> "))
    for typed, reply in (
        ("/reset", "forgotten"),
        ("/system sit", "is set"),
        ("/help", "/exit"),
        ("/no", "no command /no"),
    ):
        terminal.type(f"{typed}\r")
        terminal.until(f"{reply}(?s:.*)> ")
    terminal.type("the dog\r")
    assert shown(system) in shown(terminal.until("a second(?s:.*)> "))
    terminal.type("\x04")
    assert terminal.end() == 0
    assert b"\x1b[3" not in terminal.shown.replace(b"\x1b[2m", b"").replace(b"\x1b[0m", b"")


def shown(text):
    """Letters of a text as a terminal shows it: control characters are replaced, line ends doubled."""
    return "".join(re.findall(r"[a-zA-Z0-9 .]", text))


def octavo_lines(folder, *lines_and_options):
    lines = lines_and_options[:2]
    output = octavo_command("chat", folder, *QUIET, "--json", *lines_and_options[2:], text="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in output.splitlines()]
    assert [one["prompt"] for one in answers] == list(lines)
    assert all(set(one) == {"prompt", "text", "tokens", "seconds"} and one["tokens"] <= 20 for one in answers)
    return [one["text"] for one in answers]


def test_ctrl_c_stops_the_answer_and_not_the_program(slow):
    terminal = Terminal(slow, "--tokens", "100000")
    terminal.until("> ")
    terminal.type("the cat\r")
    terminal.until(r"the cat\r\n(?s:.{40})")
    terminal.type("\x03")
    terminal.until(r"stopped(?s:.*)> ")
    terminal.type("the dog\r")
    terminal.until(r"the dog\r\n(?s:.{40})")
    terminal.type("\x03")
    terminal.until(r"stopped(?s:.*)> ")
    for expected in (r"/exit leaves(?s:.*)> ", None):
        time.sleep(0.3)  # readline notices no signal between its prompt and its wait for input
        terminal.type("\x03")
        if expected:
            terminal.until(expected)
    assert terminal.end() == 0


def test_exit_leaves(folder):
    terminal = Terminal(folder, *QUIET)
    terminal.until("> ")
    terminal.type("/exit\r")
    assert terminal.end() == 0


def test_a_pipe_gets_an_answer_a_line_as_it_asks(folder):
    asked = subprocess.Popen(
        [sys.executable, "-m", "octavo", "chat", folder, *QUIET, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    for line, answer in zip(("the cat", "the dog"), octavo_lines(folder, "the cat", "the dog"), strict=True):
        asked.stdin.write(f"{line}\r\n".encode())
        asked.stdin.flush()
        assert json.loads(asked.stdout.readline())["text"] == answer
    asked.stdin.close()
    assert asked.wait(60) == 0
    asked.stdout.close()
    plain = octavo_command("chat", folder, *QUIET, text="the cat\nthe dog\n")
    assert plain == "".join(f"{answer}\n" for answer in octavo_lines(folder, "the cat", "the dog"))


def asking(folder, data, **options):
    return subprocess.run(
        [sys.executable, "-m", "octavo", "chat", folder, *QUIET, "--json"],
        capture_output=True, **({} if data is None else {"input": data}), **options,
    )  # fmt: skip


def test_lines_of_any_pipe_are_messages(folder):
    """The mark of an editor is none of the first one, and the last one may lack its end."""
    wanted = octavo_lines(folder, "the cat", "the dog")
    for data in (b"the cat\nthe dog\n", b"\xef\xbb\xbfthe cat\r\nthe dog"):
        found = [json.loads(line) for line in asking(folder, data).stdout.splitlines()]
        assert [one["text"] for one in found] == wanted and found[0]["prompt"] == "the cat"
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    program = [sys.executable, "-m", "octavo", "chat", folder, *QUIET, "--json"]
    with subprocess.Popen(program, stdin=reading, stdout=subprocess.PIPE) as asked:
        os.close(reading)
        time.sleep(1)  # until it has read nothing
        for part in (b"the c", b"at\nthe dog\n"):
            os.write(writing, part)
            time.sleep(0.2)
        assert json.loads(asked.stdout.readline())["text"] == wanted[0]
        os.close(writing)
        assert json.loads(asked.stdout.readline())["text"] == wanted[1] and asked.wait(60) == 0


def test_a_standard_input_that_is_closed_is_named(folder):
    ran = asking(folder, None, preexec_fn=lambda: os.close(0))
    assert ran.returncode == 2 and ran.stderr == b"error: standard input: it is closed\n", ran.stderr


def test_generate_answers_messages(folder):
    answer = octavo_lines(folder, "the cat", "x", "--system", "sit")[0]
    options = ["generate", folder, "--chat", "the cat", "--system", "sit", "--tokens", "20"]
    assert octavo_command(*options) == f"{answer}\n"
    (text,) = json.loads(octavo_command(*options, "--json"))["texts"]
    assert text == {"prompt": "the cat", "text": answer}
    assert (
        TextGenerator.load(folder).chat(
            [{"role": "system", "content": "sit"}, {"role": "user", "content": "the cat"}], tokens=20
        )
        == answer
    )
    for wrong, named in ((["--system", "sit"], "add --chat"), (["--set", "x=1"], "add --chat")):
        assert named in octavo_command("generate", folder, "the cat", *wrong, code=2)


@pytest.mark.parametrize("how", ["refuse", "split"])
def test_readings_of_special_tokens_that_no_message_has_are_refused(folder, how):
    refused = octavo_command("generate", folder, "--chat", "the <|im_end|> cat", "--special", how, code=2)
    assert f"--special is '{how}' with --chat" in refused


def test_variables_of_the_template_are_set(tmp_path):
    chat_model(
        tmp_path / "m", template="{{ name }} {{ flag }} {{ messages[0].content }}{{ raise_exception(name ~ flag) }}"
    )
    refused = octavo_command("chat", tmp_path / "m", "--set", "name=a b", "--set", "flag=false", code=2, text="x\n")
    assert "the template refuses this conversation: a bFalse" in refused
    assert "NAME=VALUE" in octavo_command("chat", tmp_path / "m", "--set", "flag", code=2, text="x\n")


def test_a_missing_template_and_a_long_conversation_are_said(tmp_path):
    chat_model(tmp_path / "none", template=None)
    for command in (["chat", tmp_path / "none"], ["generate", tmp_path / "none", "--chat", "the cat"]):
        assert "chat_template.jinja" in octavo_command(*command, code=2, text="the cat\n")
    chat_model(tmp_path / "short", positions=120)
    lines = "the cat sat on the mat\n" * 6
    assert "turn was dropped" in octavo_command("chat", tmp_path / "short", *QUIET, text=lines)


def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path):
    chat_model(tmp_path / "m")
    terminal = Terminal(tmp_path / "m", "--temperature", "9", "--tokens", "300")
    terminal.until("> ")
    terminal.type("the cat\r")
    terminal.until("a second(?s:.*)> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert not set(re.findall(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]", terminal.shown))


def test_help_teaches():
    text = octavo_command("chat", "--help")
    for line in ("octavo chat model --system", "/reset", "Ctrl-C", "questions.txt"):
        assert line in text
    assert signal.SIGINT and "--chat" in octavo_command("generate", "--help")
