"""The process that renders chat templates: a template is a stranger's program, and gets little of everything.

It reads requests from standard input, a line of JSON each, and answers each with a line ``KIND BYTES`` and as many
bytes of UTF-8. KIND is ``text``, ``refused`` (the template called ``raise_exception``) or ``failed``. Rendering
keeps to the rules of transformers, with which templates are written and tested. Source: ``apply_chat_template`` of
transformers 5; Jinja 3.1, its sandbox.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo.engine.chat_template_limits import MEMORY, MESSAGE, SECONDS, TEXT_BYTES
from octavo.storage import system
from octavo.storage.process_memory import bound_growth

_LAZY = ("jinja2.debug", "jinja2.constants", "pprint", "encodings.unicode_escape")  # no files, no imports


class Refusal(TemplateError):
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}``, which marks what the model said; a text is the same with and without it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the block as a call, whose variables end with it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict(...)``, without the class, whose attributes lead to Python."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """``namespace(...)``, without names that begin with an underscore, as those of Python's own."""

    def __init__(*arguments: Any, **named: Any) -> None:  # so that self may be a name
        self, *pairs = arguments
        values = dict(*pairs, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no name {name!r}; names begin with a letter")


def _refuse(message: object) -> None:
    raise Refusal(str(message))


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is: Jinja's own filter escapes the characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def compiled(template: str) -> Template:
    """Return a template, ready to render. Raises jinja2.TemplateSyntaxError, and what compiling raises."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {
        "raise_exception": _refuse, "strftime_now": _now, "dict": _Dict(), "namespace": _Namespace,
    }  # fmt: skip
    return environment.from_string(template)


def rendered(template: str, variables: dict[str, Any]) -> bytes:
    """Return the text of a template in UTF-8. Raises what the template raises; MemoryError for a long text."""
    pieces, nbytes = [], 0
    for piece in compiled(template).generate(variables):
        pieces.append(piece.encode())
        nbytes += len(pieces[-1])
        if nbytes > TEXT_BYTES:
            raise MemoryError(f"a text of more than {TEXT_BYTES >> 20} MB")
    return b"".join(pieces)


def _answer(template: str, variables: dict[str, Any]) -> tuple[str, bytes]:
    try:
        return "text", rendered(template, variables)
    except Refusal as error:
        kind, text = "refused", str(error)
    except MemoryError as error:
        kind, text = "failed", str(error) or f"it needs more than {MEMORY >> 20} MB"
    except RecursionError:
        kind, text = "failed", "it calls itself too deeply"
    except Exception as error:  # whatever a stranger's program raises
        line = getattr(error, "lineno", None)
        kind, text = "failed", f"{f'line {line}: ' if line else ''}{error or type(error).__name__}"
    return kind, text[:MESSAGE].encode("utf-8", "replace")


def _confine() -> None:
    """Take away what rendering does not need: memory, files, core dumps. Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LAZY:
        importlib.import_module(name)
    _now("%c")  # reads the zone of time
    bound_growth(MEMORY)
    resource = system.optional("resource")
    for name in ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (0, 0))


def _allow_seconds() -> None:
    """Let the system end this process where one rendering takes longer than ``SECONDS``."""
    resource = system.optional("resource")
    with contextlib.suppress(AttributeError, OSError, ValueError):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        most = int(usage.ru_utime + usage.ru_stime) + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _main() -> None:
    """Answer requests until standard input ends."""
    _confine()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _allow_seconds()
        kind, text = _answer(request["template"], request["variables"])
        sys.stdout.buffer.write(b"%s %d\n%s" % (kind.encode(), len(text), text))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
