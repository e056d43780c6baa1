"""The manual answers the questions of a new reader.

Each file of ``tests/manual`` has the questions of a page, with the right answer to each and ``shown``: texts without which
the page does not give that answer. ``kind`` says how an answer is checked: a ``command`` is one that the command line
takes, names of a ``python`` expression exist, a ``recipe`` is read, and a ``value`` is as its page shows it.
"""

import ast
import shlex
import tomllib
from pathlib import Path

import pytest
from test_documents import ROOT, check_octavo, commands_of, resolve

FILES = sorted((ROOT / "tests" / "manual").glob("*.toml"))
LEAST = 20
KINDS = {"command", "python", "recipe", "value"}


def questions(file: Path) -> tuple[Path, list[dict]]:
    """Return the page of a file and its questions."""
    record = tomllib.loads(file.read_text(encoding="utf-8"))
    return ROOT / record["page"], record["questions"]


EVERY = [(file, question) for file in FILES for question in questions(file)[1]]


def answers(kind: str) -> list[str]:
    return [question["answer"] for _, question in EVERY if question["kind"] == kind]


def test_three_pages_have_twenty_questions_each():
    assert [file.stem for file in FILES] == ["compress", "language-lab", "quantize"]
    for file in FILES:
        page, asked = questions(file)
        assert page.is_file(), file.name
        assert len({question["ask"] for question in asked}) >= LEAST, file.name
        for question in asked:
            assert question.keys() == {"ask", "kind", "answer", "shown"}, question["ask"]
            assert question["kind"] in KINDS and question["answer"] and question["shown"], question["ask"]


@pytest.mark.parametrize(("file", "question"), EVERY, ids=[f"{file.stem}: {one['ask']}" for file, one in EVERY])
def test_the_page_shows_the_answer(file, question):
    text = questions(file)[0].read_text(encoding="utf-8")
    assert [shown for shown in question["shown"] if shown not in text] == []


@pytest.mark.parametrize("answer", answers("command"))
def test_a_command_is_one_that_the_command_line_takes(answer):
    for words in commands_of(answer):
        assert words[0] == "octavo", answer
        command, rest = check_octavo(words[1:])
        command.make_context(command.name, rest)  # reads the values of its options


@pytest.mark.parametrize("answer", answers("python"))
def test_names_of_an_expression_exist(answer):
    for node in ast.walk(ast.parse(answer)):
        if isinstance(node, ast.Attribute) and (path := ast.unparse(node)).startswith("octavo.") and "(" not in path:
            resolve(path)


@pytest.mark.parametrize("answer", answers("recipe"))
def test_a_recipe_is_read_and_written_alike(answer):
    from octavo import Recipe

    assert Recipe.parse(str(recipe := Recipe.parse(answer))) == recipe
    assert len(recipe) >= 1


def test_a_command_that_is_not_there_is_found():
    for wrong in ("octavo compress --nbytes 3", "octavo lab train gptt"):
        with pytest.raises(AssertionError):
            check_octavo(shlex.split(wrong)[1:])
