"""The chat template of a model folder: messages become the text that the model was trained on.

A template is a program in Jinja that comes with the weights, from whoever made them. It runs in a process of its own
(:mod:`octavo.engine.chat_template_worker`) with bounded time and memory, in Jinja's sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.engine.chat_template_limits import SECONDS, TEXT_BYTES, WAIT_S
from octavo.errors import DataError, DTypeError, SettingError
from octavo.storage import children
from octavo.storage.reading import INDEX_BYTES, parse_json, read_json, read_text, shown

Message = Mapping[str, str]
"""A role, such as ``user``, and the content."""
_FILE, _SETTINGS, _MAP = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_KEYS = ("role", "content")
_OURS = ("messages", "tools", "documents", "add_generation_prompt")
_SOURCE_BYTES = 1 << 20
_KINDS = ("text", "refused", "failed")
_SPENT = getattr(signal, "SIGXCPU", None)  # by which the system ends a process whose time is over


class ChatTemplate:
    """The template of a model, with the process that renders it. Threads may share one.

    The process starts with the first rendering and ends with this object, or with :meth:`close`.

    Args:
        source: the template, in Jinja.
        label: file that it is from, for errors.
        tokens: special tokens by the names that templates have for them, such as ``bos_token``.
    """

    def __init__(self, source: str, label: str, tokens: Mapping[str, str]) -> None:
        """Keep a template; nothing of it runs yet."""
        self._source, self.label, self._tokens = source, label, dict(tokens)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., ChatTemplate] | None = None

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Read ``chat_template.jinja`` of a model folder, or the ``chat_template`` of ``tokenizer_config.json``.

        Args:
            folder: the model folder.

        Returns:
            The template.

        Raises:
            DataError: for a folder without a template; names the file and the field.
            OSError: as the system gives it.
        """
        file, settings = folder / _FILE, _settings(folder)
        if file.exists():
            return cls(read_text(file, _SOURCE_BYTES, error=DataError), str(file), special_tokens(folder))
        source = settings.get("chat_template")
        if isinstance(source, list):
            named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
            source = named.get("default")
            if source is None:
                raise DataError(
                    f"{folder / _SETTINGS}: chat_template has no template named default; copy one of them into {file}"
                )
        if source is None:
            way_out = f", or put the template of the model into {file}" if folder.is_dir() else ""
            raise DataError(
                f"{folder}: no chat template, so that messages have no text; continue a text with generate, without "
                f"--chat{way_out}"
            )
        if not isinstance(source, str) or len(source) > _SOURCE_BYTES:
            raise DataError(
                f"{folder / _SETTINGS}: chat_template is {shown(source)}; accepted is a text of up to "
                f"{_SOURCE_BYTES} characters"
            )
        return cls(source, f"{folder / _SETTINGS}: chat_template", special_tokens(folder))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation, as ``apply_chat_template`` of transformers.

        Args:
            messages: what was said, a ``role`` and a ``content`` each.
            add_generation_prompt: end with what an answer begins with.
            variables: further variables of the template, such as ``{"enable_thinking": False}``: values of JSON.

        Returns:
            The text, special tokens included.

        Raises:
            DTypeError: for other objects than messages and booleans.
            DataError: for no messages, and where the template refuses them, fails, or takes too much time or memory.
            SettingError: for variables that are no values of JSON or that the template gets anyway.
        """
        if not isinstance(add_generation_prompt, bool):
            kind = type(add_generation_prompt).__name__
            raise DTypeError(f"add_generation_prompt is a {kind}; accepted are True and False")
        every = {
            **self._tokens,
            **_checked_variables(variables),
            "messages": checked_messages(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        request = json.dumps({"template": self._source, "variables": every}).encode() + b"\n"
        with self._lock:
            kind, text = self._asked(request)
        if kind == "refused":
            raise DataError(f"{self.label}: the template refuses this conversation: {text}")
        if kind != "text":
            raise DataError(f"{self.label}: the template fails: {text}; replace it by one that renders messages")
        return text

    def close(self) -> None:
        """End the process. The next rendering starts another one."""
        with self._lock:
            self._end()

    def _asked(self, request: bytes) -> tuple[str, str]:
        """Return the kind and the text of an answer."""
        fresh = self._child is None
        answer = self._exchange(request)
        if answer is None and not fresh:
            # A process that waited may be gone: Linux ends it with the thread that started it.
            answer = self._exchange(request)
        return ("failed", "its process ended without an answer") if answer is None else answer

    def _exchange(self, request: bytes) -> tuple[str, str] | None:
        """Send a request and read the answer; None where the process ended before it."""
        child = self._started()
        assert child.stdin is not None and child.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(WAIT_S, stop)
        timer.daemon = True
        timer.start()
        try:
            child.stdin.write(request)
            child.stdin.flush()
            kind, _, length = child.stdout.readline(64).decode("ascii", "replace").strip().partition(" ")
            nbytes = int(length) if kind in _KINDS and length.isdecimal() else -1
            if 0 <= nbytes <= TEXT_BYTES and len(text := child.stdout.read(nbytes)) == nbytes:
                return kind, text.decode("utf-8", "replace")
        except OSError:
            pass  # it has ended
        except BaseException:
            self._end()  # Ctrl-C: an answer that nobody reads is still to come
            raise
        finally:
            timer.cancel()
        code = self._end()
        if late.is_set() or (_SPENT is not None and code == -_SPENT):
            return "failed", f"it takes too long; accepted are {SECONDS} seconds"
        return None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        # The package that runs here, wherever it was imported from, and nothing of the current folder.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._child = subprocess.Popen(
            children.command(["-m", "octavo.engine.chat_template_worker"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
        )
        self._finalizer = weakref.finalize(self, _finish, self._child)
        return self._child

    def _end(self) -> int | None:
        """End the process, if there is one; its exit code."""
        if self._child is None or self._finalizer is None:
            return None
        child, self._child = self._child, None
        self._finalizer()
        return child.returncode


def _finish(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):  # what is left to write
            if stream is not None:
                stream.close()
    child.wait()


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens of a model folder by their names, such as ``eos_token``.

    Raises DataError for files that are no JSON, OSErrors.
    """
    values = _settings(folder)
    # Older writers have a file of their own for them, which transformers reads where the settings name no tokens.
    if "added_tokens_decoder" not in values and (folder / _MAP).exists():
        values = values | read_json(folder / _MAP, error=DataError)
    contents = {name: values.get(name) for name in _TOKENS}
    tokens = {name: one.get("content") if isinstance(one, dict) else one for name, one in contents.items()}
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / _SETTINGS
    return read_json(file, INDEX_BYTES, error=DataError) if file.exists() else {}


def checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages as dictionaries. Raises DTypeError and DataError, which name the message and the field."""
    from octavo.data._arguments import check_text, listed

    accepted = "a list of messages, each with a role and a content"
    checked = []
    for at, message in enumerate(listed("messages", messages, accepted)):
        if not isinstance(message, Mapping):
            raise DTypeError(f"message {at} is a {type(message).__name__}; accepted is {accepted}")
        if sorted(map(str, message)) != sorted(_KEYS):
            raise DataError(f"message {at} has the fields {shown(list(message))}; accepted are role and content")
        for key in _KEYS:
            check_text(f"message {at}: {key}", message[key])
        if not message["role"]:
            raise DataError(f"message {at} has an empty role; accepted are roles such as user, assistant and system")
        checked.append({key: message[key] for key in _KEYS})
    if not checked:
        raise DataError(f"messages is empty; accepted is {accepted}")
    return checked


def _checked_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return variables as values of JSON. Raises SettingError for others, and for names of the template's own."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise SettingError(f"variables is {shown(variables)}; accepted are names and values of JSON")
    for name in variables:
        if name in _OURS:
            raise SettingError(f"variables has {name}, which every template gets; accepted are other names")
    try:
        text = json.dumps(dict(variables))
    except (TypeError, ValueError, RecursionError):
        raise SettingError(f"variables is {shown(variables)}; accepted are names and values of JSON") from None
    return parse_json(text, "variables", finite=False, error=SettingError)
