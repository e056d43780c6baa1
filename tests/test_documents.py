"""README and manual are true: their Python runs, their commands print what is shown, names, options and links exist.

Blocks of one document run in order, in one namespace and one folder. An HTML comment on the line before a block says
what else holds: ``<!-- slow -->``, it runs under ``pytest -m slow`` alone; ``<!-- needs NAME -->``, it and its output
are left out where that package is missing; ``<!-- slow needs NAME -->``, both. In output ``...`` stands for any lines,
and ``…`` for any characters of one, such as digits that depend on the processor. Commands in ``sh`` blocks take minutes or train: they are parsed, not run.
"""

import contextlib
import csv
import functools
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MANUAL = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [README, *MANUAL]
OTHERS = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SECURITY")]  # named, not run
MOST_README_LINES = 150
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
TIMES = re.compile(r"[\d.]+\s+[\d.]+$")  # GB/s at the end of a row of `compare`
INSTALLS = {  # what .ci/run does on a fresh machine, and what no test can
    "pip install . && octavo compress",
    'pip install ".[test]" && pytest',
}


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    note: str

    @property
    def is_slow(self) -> bool:
        return "slow" in self.note.split()

    @property
    def needed(self) -> list[str]:
        return self.note.partition("needs ")[2].split()


def blocks(document: Path) -> list[Block]:
    found = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [Block(kind, body, note) for note, kind, body in found]


def prose(document: Path) -> str:
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def printed(text: str) -> list[str]:
    """Lines without trailing blanks and without times."""
    return [TIMES.sub("", line.rstrip()).rstrip() for line in text.splitlines() if line.strip()]


def assert_shows(document: str, shown: str, real: str) -> None:
    """Every line of the document, in order; ``...`` stands for any number of lines, ``…`` for any characters."""
    lines = iter(printed(real))
    skipping = False
    for wanted in printed(shown):
        if wanted == "...":
            skipping = True
            continue
        for line in lines:
            if re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), line):
                break
            assert skipping, f"{document} shows {wanted!r}, but the real output is {line!r}"
        else:
            pytest.fail(f"{document} shows {wanted!r}, which is not in the output:\n{real}")
        skipping = False


def run_command(command: str, monkeypatch) -> str:
    from octavo.cli import main

    raw = io.BytesIO()  # some commands write bytes
    captured = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured), pytest.raises(SystemExit):
        monkeypatch.setattr("sys.argv", shlex.split(command))
        main()
    return raw.getvalue().decode()


def run_blocks(document: Path, monkeypatch, *, slow: bool) -> tuple[int, set[str]]:
    """Run a document. Return how many blocks ran, and the packages that are missing for the others."""
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's module of that name
    names: dict = {}
    output: str | None = None
    ran, missing = 0, set()
    for block in blocks(document):
        lacking = {package for package in block.needed if find_spec(package) is None}
        missing |= lacking
        if lacking or (block.is_slow and not slow):
            output = None
        elif block.kind == "python":
            captured = io.StringIO()
            with contextlib.redirect_stdout(captured):
                exec(compile(block.body, name(document), "exec"), names)
            output = captured.getvalue()
            ran += 1
        elif block.kind == "console" and block.body.startswith("$ "):
            command, _, shown = block.body.removeprefix("$ ").partition("\n")
            output = run_command(command, monkeypatch)
            assert_shows(name(document), shown, output)
            ran += 1
        elif block.kind == "text" and output is not None:
            assert_shows(name(document), block.body, output)
    return ran, missing


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.kind != "sh" for b in blocks(d))], ids=name)
def test_blocks_run_as_printed(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, missing = run_blocks(document, monkeypatch, slow=False)
    if missing:
        pytest.skip(f"the other blocks hold; left out are those that need {', '.join(sorted(missing))}")


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.is_slow for b in blocks(d))], ids=name)
def test_slow_blocks_run_as_printed(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(document, monkeypatch, slow=True)


def test_every_block_is_of_a_kind_that_is_checked():
    for document in DOCUMENTS:
        for block in blocks(document):
            kinds = {"python", "text", "console", "sh", "rust", "toml", "cpp"}
            assert block.kind in kinds, f"{name(document)}: {block.kind}"
            if block.kind == "console" and not block.body.startswith("$ "):
                assert block.body.strip() in INSTALLS, f"{name(document)}: {block.body}"
        text = document.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(blocks(document)), f"{name(document)}: a fence that no block explains"


def test_rust_stands_in_an_example_and_dependencies_are_those_of_the_workspace():
    """Cargo compiles and tests the examples; a block of Cargo.toml names crates, versions and features that exist."""
    examples = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "rust").glob("*/examples/*.rs"))]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["dependencies"]
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.kind == "rust":
                assert any(block.body in example for example in examples), f"{name(document)}: {block.body}"
            elif block.kind == "toml":
                for crate, wanted in tomllib.loads(block.body)["dependencies"].items():
                    if "path" not in wanted:
                        assert wanted == workspace[crate], f"{name(document)}: {crate}"
                        continue
                    folder = ROOT / Path(wanted["path"]).relative_to("octavo")
                    manifest = tomllib.loads((folder / "Cargo.toml").read_text(encoding="utf-8"))
                    assert manifest["package"]["name"] == crate, f"{name(document)}: {crate}"
                    assert set(wanted["features"]) <= set(manifest["features"]), f"{name(document)}: {crate}"


def test_quoted_lines_of_kernels_stand_in_the_kernels():
    """``tests/lab/test_questions.py`` looks each up in the file that its page names."""
    lines = {line.strip() for path in (ROOT / "rust").rglob("*.cu") for line in path.read_text("utf-8").splitlines()}
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.kind == "cpp":
                assert {line.strip() for line in block.body.strip().splitlines()} <= lines, (
                    f"{name(document)}: {block.body}"
                )


def test_the_manual_has_its_blocks():
    assert sum(block.kind in {"python", "console"} for d in DOCUMENTS for block in blocks(d)) >= 25


def test_the_readme_is_short_and_has_the_two_commands():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES
    commands = [block.body.strip() for block in blocks(README) if block.kind == "console"]
    assert commands[:2] == ["pip install . && octavo compress", 'pip install ".[test]" && pytest']


# --- figures --------------------------------------------------------------------------------------------------------

FIGURES = runpy.run_path(str(ROOT / "docs" / "figures.py"))
MEASURED = re.compile(
    r"\d[\d,.]*(?: ?%| [kM]B\b| [GT]B/s| ms\b| us\b| s\b| tokens/s| tokens a second| points\b| nats\b| times\b|x\b)"
)
SOURCES = re.compile(r"<!-- figures: ([^>]+?) -->")
DEFINITIONS = {  # numbers with a unit that nothing measured: bounds, shares and levels by definition
    "95 %", "99.5 %", "0.1 %", "31 %", "13 %", "26 %", "0.001 nats", "0.1 nats",
}  # fmt: skip


def paragraphs(document: Path) -> list[str]:
    """Paragraphs, tables and items of lists, without blocks of code."""
    return [piece for part in re.split(r"\n\n+", prose(document)) for piece in re.split(r"\n(?=- )", part)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_marked_figures_are_those_of_the_file(document):
    text = document.read_text(encoding="utf-8")
    assert FIGURES["with_figures"](text, FIGURES["figures"]()) == text, "run: python docs/figures.py"
    assert FIGURES["with_tables"](text) == text, "run: python docs/figures.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_figure_says_where_it_comes_from(document):
    known = FIGURES["figures"]()
    for paragraph in paragraphs(document):
        groups = [group for found in SOURCES.findall(paragraph) for group in found.split(", ")]
        assert [group for group in groups if group not in known] == [], f"{name(document)}: {paragraph[:80]}"
        rest = FIGURES["MARKED"].sub("", paragraph)
        found = [figure for figure in MEASURED.findall(rest) if figure not in DEFINITIONS]
        assert groups or not found, f"{name(document)}: {found} of '{paragraph[:80]}' have no <!-- figure: ... -->"
        values = [figure for group in groups for figure in known[group].get("figures", {}).values()]
        for shown in re.findall(r"(\d[\d,]*\.\d+) %", rest) if values else ():
            written = {FIGURES["written"](it["value"], shown, "%") for it in values if it["unit"] == "share"}
            points = {f"{it['value']:.{len(shown.partition('.')[2])}f}" for it in values if it["unit"] == "points"}
            assert shown in written | points, f"{name(document)}: {shown} % is no figure of {', '.join(groups)}"


def test_every_group_of_figures_has_its_command_and_its_processor():
    for group, facts in FIGURES["figures"]().items():
        assert facts["command"] and facts["processor"], group
        assert (ROOT / facts.get("source", "README.md")).is_file(), group
        assert "date" in facts or "source" in facts, group


def test_slow_blocks_show_no_figure_that_depends_on_the_processor():
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.is_slow and block.kind == "console":
                shown = block.body.partition("\n")[2]
                assert MEASURED.findall(shown) == [], f"{name(document)}: {shown}"


def test_a_figure_that_changed_is_rewritten_with_its_decimals_and_unit():
    known = {"run": {"figures": {"share": {"value": 0.98765}, "size": {"value": 317_380}, "change": {"value": -0.184}}}}
    text = "a 99.05 %<!-- figure: run / share --> 2.1 kB<!-- figure: run / size --> +0.10<!-- figure: run / change -->"
    assert FIGURES["with_figures"](text, known) == (
        "a 98.77 %<!-- figure: run / share --> 317.4 kB<!-- figure: run / size --> -0.18<!-- figure: run / change -->"
    )
    with pytest.raises(KeyError):
        FIGURES["with_figures"]("1<!-- figure: run / other -->", known)


def test_a_table_has_every_row_of_its_file_and_the_readme_has_one_beside_other_programs():
    rows = [
        {"program": "a", "mb_per_token": 1.5, "tokens_per_s": 99.6},
        {"program": "b", "mb_per_token": 2, "tokens_per_s": 7.1},
    ]
    assert FIGURES["table"](rows) == (
        "|  | MB read a token | tokens a second |\n| --- | ---: | ---: |\n| a | 1.5 | **100** |\n| b | 2 | 7 |\n"
    )
    (file,) = FIGURES["TABLE"].findall(README.read_text(encoding="utf-8"))
    recorded = json.loads((ROOT / "benches" / "results" / file).read_text(encoding="utf-8"))
    assert recorded["busy"] is False and recorded["command"].startswith("python benches/generate.py --peers")
    assert {row["program"] for row in recorded["results"]} == {"octavo", "llama.cpp", "transformers"}


def test_the_picture_shows_the_recorded_figures():
    drawing = runpy.run_path(str(ROOT / "docs" / "accuracy.py"))
    with drawing["FIGURES"].open(newline="") as file:
        drawn = drawing["picture"](list(csv.DictReader(file)))
    assert drawing["PICTURE"].read_text() == drawn, "run: python docs/accuracy.py"


# --- names ----------------------------------------------------------------------------------------------------------


def shell_lines(document: Path) -> list[str]:
    """Commands that are named and not run: those of ``sh`` blocks, and those in the middle of a sentence."""
    written = [line for block in blocks(document) if block.kind == "sh" for line in block.body.splitlines()]
    inline = [code for code in INLINE.findall(prose(document)) if re.match(r"(octavo|python|pytest|cargo) ", code)]
    return [line for line in written + inline if line.strip() and not line.startswith("#")]


@functools.cache
def command_line() -> typer.core.TyperGroup:
    """The commands and their options: the same tree for every line."""
    from octavo.cli import app

    return typer.main.get_command(app)


def check_octavo(words: list[str]) -> tuple[typer.core.TyperCommand, list[str]]:
    """Return the command of a line, and the words after its name. Fail for a command or option that is not there."""
    command = command_line()
    words = list(words)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    for word in words:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known, f"{command.name} has no option {word}"
    return command, words


def commands_of(line: str) -> list[list[str]]:
    """Return the words of each command in a line of shell."""
    found: list[list[str]] = [[]]
    for word in shlex.split(line, comments=True):
        if word in {"&&", "|", "<", ">", ";"}:
            found.append([])
        else:
            found[-1].append(word)
    return found


@pytest.mark.parametrize("document", DOCUMENTS + OTHERS, ids=name)
def test_commands_and_options_exist(document):
    for line in shell_lines(document):
        for words in commands_of(line):
            if words[:1] == ["octavo"]:
                check_octavo(words[1:])
            elif words[:1] in (["python"], ["pytest"]):
                for word in words[1:]:
                    assert not word.endswith(".py") or (ROOT / word).is_file(), f"{name(document)}: {word}"


def resolve(path: str) -> object:
    """Return what a dotted name stands for; modules are imported on the way, plug-ins where their package is."""
    plug_in = path.split(".")[1] if "." in path else ""
    if plug_in in ("transformers", "peft") and importlib.util.find_spec(plug_in) is None:
        return None
    found: object = importlib.import_module("octavo")
    walked = "octavo"
    for part in path.split(".")[1:]:
        walked += f".{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(walked)
    return found


@pytest.mark.parametrize("document", DOCUMENTS + OTHERS, ids=name)
def test_names_of_the_package_exist(document):
    for code in INLINE.findall(prose(document)):
        match = re.match(r"octavo(?:\.[A-Za-z_]\w*)+", code)
        if match and not code.endswith((".safetensors", ".toml", ".json", "octavo.subjects")):
            resolve(match.group())


def test_references_in_docstrings_exist():
    """``:func:`octavo.encode``` and the like, in all of the package."""
    reference = re.compile(r":(?:mod|func|class|attr|data|meth):`(?:[^<`]*<)?(octavo[\w.]*)>?`")
    found = {name for file in (ROOT / "python").rglob("*.py") for name in reference.findall(file.read_text("utf-8"))}
    assert len(found) > 30
    for path in sorted(found):
        resolve(path)


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", sorted({*ROOT.glob("*.md"), *MANUAL}), ids=name)
def test_links_lead_somewhere(document):
    for link in LINK.findall(prose(document)):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), f"{name(document)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(document)}: {link}"


def test_the_index_names_every_page():
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in LINK.findall(prose(index)) if not link.startswith("http")}
    laboratory = ROOT / "docs" / "lab" / "README.md"
    assert laboratory in named
    named |= {(laboratory.parent / link).resolve() for link in LINK.findall(prose(laboratory))}
    assert set(MANUAL) - {index} <= named


# --- nothing is left out ------------------------------------------------------------------------------------------------


def whole_manual() -> str:
    return "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)


def test_the_manual_names_every_command():
    import typer
    from octavo.cli import app

    def paths(command, name: str) -> list[str]:
        below = getattr(command, "commands", None)
        if below is None:
            return [name]
        shown = {key: other for key, other in below.items() if not other.hidden}
        return [path for key, other in shown.items() for path in paths(other, f"{name} {key}")]

    manual = whole_manual()
    assert [path for path in paths(typer.main.get_command(app), "octavo") if path not in manual] == []


def test_the_manual_names_every_setting():
    sources = [ROOT / "python/octavo/settings.py", ROOT / "rust/cuda/src/settings.rs"]
    names = {name for source in sources for name in re.findall(r"OCTAVO_[A-Z_]+", source.read_text(encoding="utf-8"))}
    manual = whole_manual()
    assert sorted(name for name in names if name not in manual) == []


def test_the_manual_names_every_public_function_and_class():
    import octavo

    manual = whole_manual()
    exceptions = {n for n in octavo.__all__ if isinstance(v := getattr(octavo, n), type) and issubclass(v, Exception)}
    names = [n for n in octavo.__all__ if n not in exceptions and not n.startswith("__")]
    assert [n for n in names if not re.search(rf"\b{n}\b", manual)] == []
