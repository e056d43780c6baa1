"""Prose is short: no sentence of a document, or of the help of a command, has more than 40 words.

A sentence ends with ``.``, ``!`` or ``?``, a blank and a capital letter (or code); a colon or a semicolon does not end
one. An item of a list, a cell of a table and a heading count alone. Inline code is one word, and so is a run of codes
with nothing but blanks between them; a link is its text. Blocks of code and HTML comments are left out.
``python tests/test_prose.py [WORDS]`` lists all sentences over that many words, 40 unless told.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
MOST_WORDS = 40
FOLDERS = ("docs", "benches", "conformance", "examples", "fuzz", "python", "rust", "tests")  # of Markdown of ours

MARKDOWN = MarkdownIt("commonmark").enable("table")
CODE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for inline code
ABBREVIATIONS = ("e.g.", "i.e.", "cf.", "vs.", "al.", "Fig.", "Eq.", "Sec.", "No.", "approx.")
END = re.compile(rf"""[.!?]["'”’)\]]*(\s+)(?=["'“‘(\[]*[A-Z{CODE}])""")
RELEASE = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True)
class Sentence:
    line: int
    text: str  # as people read it: codes and text of links included
    words: int


def inline_tokens(markdown: str) -> list[tuple[int, Token]]:
    """Headings, paragraphs and cells, each with its line."""
    found, row = [], 0
    for token in MARKDOWN.parse(markdown):
        if token.type == "tr_open":
            row = token.map[0]
        elif token.type == "inline":
            found.append(((token.map or (row,))[0] + 1, token))
    return found


def pieces(token: Token) -> list[tuple[str, str]]:
    """What is read of a paragraph, and what is counted of it: the same but for code."""
    found = []
    for child in token.children or ():
        if child.type in {"text", "image"}:
            found.append((child.content, child.content))
        elif child.type == "code_inline":
            found.append((f"`{child.content}`", CODE))
        elif child.type in {"softbreak", "hardbreak"}:
            found.append(("\n", "\n"))
    return found


def sentences(markdown: str) -> list[Sentence]:
    """All sentences of a document, in order."""
    found = []
    for line, token in inline_tokens(markdown):
        codes = iter([read for read, counted in pieces(token) if counted == CODE])
        text = "".join(counted for _, counted in pieces(token))
        ends = [match.start(1) for match in END.finditer(text) if not text[: match.start(1)].endswith(ABBREVIATIONS)]
        for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
            part = text[start:end]
            if not part.strip():
                continue
            first = line + text[: start + len(part) - len(part.lstrip())].count("\n")
            found.append(Sentence(first, with_codes(part, codes), count_words(part)))
    return found


def with_codes(part: str, codes: Iterator[str]) -> str:
    start, *others = " ".join(part.split()).split(CODE)
    return start + "".join(next(codes) + other for other in others)


def count_words(part: str) -> int:
    one = re.sub(rf"{CODE}(\s+{CODE})+", CODE, part)  # a cell that lists formats is no long sentence
    return sum(any(c.isalnum() or c == CODE for c in word) for word in one.split())


def held_text(path: Path) -> str:
    """The text of a document that the rule holds for: of the changelog without older releases, which stay as published."""
    text = path.read_text(encoding="utf-8")
    if path.name != "CHANGELOG.md":
        return text
    releases = [match.start() for match in RELEASE.finditer(text)]
    return text[: releases[1]] if len(releases) > 1 else text


def documents() -> list[Path]:
    """All Markdown of the sources, without build outputs, which have folders of their own."""
    found = {*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))}
    ignored = {".venv", "target", "node_modules", "__pycache__", ".pytest_cache"}
    return sorted(path for path in found if not ignored & set(path.relative_to(ROOT).parts))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_sentences(path: Path, most: int = MOST_WORDS) -> list[str]:
    found = [sentence for sentence in sentences(held_text(path)) if sentence.words > most]
    return [f"{name(path)}:{sentence.line}: {sentence.words} words: {sentence.text}" for sentence in found]


@pytest.mark.parametrize("path", documents(), ids=name)
def test_no_sentence_has_more_than_40_words(path):
    found = long_sentences(path)
    assert not found, "\n".join(found)


# --- help of the command line ---------------------------------------------------------------------------------------


def commands() -> dict[str, typer.core.TyperCommand]:
    """All commands by their full names, hidden ones left out."""
    from octavo.cli import app

    found = {"octavo": typer.main.get_command(app)}
    for above, command in list_of_commands("octavo", found["octavo"]):
        found[above] = command
    return found


def list_of_commands(name, command):
    for key, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield f"{name} {key}", below
            yield from list_of_commands(f"{name} {key}", below)


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_sentence_of_help_has_more_than_40_words(name):
    """Lists that keep their lines, such as the examples, are no sentences."""
    command = COMMANDS[name]
    assert "\\b" not in (command.help or ""), "the mark of a list that keeps its lines, escaped twice"
    kept = [part for part in inspect.cleandoc(command.help or "").split("\n\n") if not part.startswith("\b")]
    helps = [getattr(parameter, "help", None) or "" for parameter in command.params]
    # as Markdown: an option is code, which may begin a sentence; other marks are letters
    texts = [re.sub(r"([*_<\[\\])", r"\\\1", re.sub(r"--[a-z][\w-]*", r"`\g<0>`", text)) for text in kept + helps]
    found = [f"{one.words} words: {one.text}" for text in texts for one in sentences(text) if one.words > MOST_WORDS]
    assert not found, f"{name} --help: " + "\n".join(found)


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(COMMANDS[name], "commands")])
def test_the_list_of_commands_cuts_no_line(name):
    from octavo.cli import app

    shown = CliRunner().invoke(app, [*name.split()[1:], "--help"], terminal_width=80).stdout
    listed = shown.partition("\nCommands:\n")[2]
    assert listed and "..." not in listed, listed


# --- the rule itself ------------------------------------------------------------------------------------------------

WORD = st.text("abcxyz", min_size=1, max_size=6)


def counts(markdown: str) -> list[int]:
    return [sentence.words for sentence in sentences(markdown)]


@given(st.lists(st.lists(WORD, min_size=1, max_size=60), min_size=1, max_size=5), st.sampled_from(".!?"))
def test_sentences_of_a_paragraph_are_those_that_were_joined(parts, end):
    """However the lines of the paragraph are broken."""
    written = [" ".join([f"T{words[0]}", *words[1:]]) + end for words in parts]
    for blank in (" ", "\n"):
        found = sentences(blank.join(written))
        assert [(sentence.text, sentence.words) for sentence in found] == list(
            zip(written, map(len, parts), strict=True)
        )


@given(st.lists(WORD, min_size=1, max_size=50), st.sampled_from([";", ":", ","]))
def test_what_does_not_end_a_sentence(words, mark):
    assert counts(f"{mark} ".join(words)) == [len(words)]


@pytest.mark.parametrize(
    "markdown, wanted",
    [
        ("Use `octavo pack a -o b` now.", [3]),  # code is one word
        ("Formats: `int8` `int4:g32`\n`nf4` and `e4m3`", [4]),  # and so is a run of codes
        ("See [the page of formats](formats.md) first.", [6]),  # a link is its text
        ("An error ends it. `octavo` prints one line.", [4, 4]),  # a sentence may begin with code
        ("It is 4.5 bits, e.g. Octavo's own, of 1.5 MB.", [10]),
        ("Does it?\nYes! (No.)", [2, 1, 1]),
        ("99.0 %<!-- figure: a / b --> of it - so.\n\n<!-- slow -->\n```sh\none two three\n```\n", [4]),
        ("- One two\n- Three.\n  - Four five six\n", [2, 1, 3]),  # items count alone
        ("| a b | c |\n| --- | --- |\n| One. Two three | `x` |\n", [2, 1, 1, 2, 1]),  # and so do cells
        ("# Some heading\n\n> A quotation counts.\n\n    a block of code\n", [2, 3]),
    ],
)  # fmt: skip
def test_how_words_are_counted(markdown, wanted):
    assert counts(markdown) == wanted


def test_a_long_sentence_is_named_with_its_line(tmp_path, monkeypatch):
    words = " ".join(["word"] * 41)
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nShort.\nLonger {words}.\n\n| a |\n| --- |\n| short |\n| {words} |\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert long_sentences(page) == [f"page.md:4: 42 words: Longer {words}.", f"page.md:9: 41 words: {words}"]


def test_older_releases_of_the_changelog_are_left_as_they_are(tmp_path):
    page = tmp_path / "CHANGELOG.md"
    page.write_text("# Changelog\n\n## 0.2.0\n\nNew.\n\n## 0.1.0\n\nOld.\n")
    assert held_text(page) == "# Changelog\n\n## 0.2.0\n\nNew.\n\n"


if __name__ == "__main__":
    print("\n".join(line for path in documents() for line in long_sentences(path, *map(int, sys.argv[1:]))))
