"""``octavo tokenize``: learns vocabularies of byte pairs, writes shards of tokens, counts and shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import ForceOption, JsonOption, OutOption
from octavo.cli._stage_bar import stage_bar

if TYPE_CHECKING:
    from octavo.data import BytePairTokenizer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Text with <|endoftext|> between documents, *.jsonl, .xz, .gz, or folders."),
]
TokenizerOption = Annotated[
    Path,
    typer.Option(
        "--tokenizer", "-t", metavar="PATH", help="tokenizer.json or its folder, a .tiktoken file, or vocab.bpe."
    ),
]
PatternOption = Annotated[
    str, typer.Option(metavar="NAME", help="How texts are cut: gpt2, smollm, cl100k, llama3 or qwen2.")
]
ShowOption = Annotated[int, typer.Option(metavar="N", min=0, help="Tokens to show.")]


@app.callback()
def _tokenize() -> None:
    """Learn vocabularies of byte pairs, and write shards of tokens.

    \b
    Start here:
      octavo tokenize train books.txt -o vocabulary/ --size 10240
      octavo tokenize encode books.txt -o shards/ -t vocabulary/
      octavo tokenize inspect shards/
    """


@app.command("train")
def train(
    files: FilesArgument,
    out: OutOption,
    size: Annotated[int, typer.Option(metavar="IDS", help="Ids, 256 bytes and special tokens included.")] = 10240,
    pattern: PatternOption = "gpt2",
    special: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN", help="Special tokens, repeatable.  [default: <|endoftext|>]")
    ] = None,
    least: Annotated[int, typer.Option(metavar="N", min=1, help="How often a pair has to occur to be a token.")] = 2,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Learn a vocabulary of byte pairs from files.

    The most frequent pair of tokens becomes a token, again and again.

    Writes tokenizer.json, which the package tokenizers reads, too, to a folder or under a name that ends with .json.
    The result is the same on any machine. A run that was killed goes on where it was: the counts are kept beside the
    output.

    \b
    Examples:
      octavo tokenize train books.txt -o vocabulary/ --size 10240
      octavo tokenize train corpus/ -o llama.json --size 32000 --pattern llama3 --special '<|end|>'
    """
    from octavo.data import BytePairTokenizer
    from octavo.display.console import console, print_json
    from octavo.errors import DataError

    target = out if out.suffix == ".json" else out / "tokenizer.json"
    if target.exists() and not force:
        raise DataError(f"{target}: exists; give --force to replace it, or another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    with stage_bar() as tell:
        tokenizer = BytePairTokenizer.train_files(
            files, size, pattern=pattern, special=special or ["<|endoftext|>"], least=least,
            journal=target.with_name(f".{target.name}.counts"), tell=tell,
        )  # fmt: skip
    tokenizer.save(target)
    if json:
        print_json({"path": str(target), "ids": tokenizer.size, "pattern": tokenizer.pattern})
        return
    console().print(f"{tokenizer.size:,} ids: {target}")
    if tokenizer.size < size:
        console().print(f"fewer than {size:,}, since no other pair occurs {least} times; give more text or --least 1")


@app.command("encode")
def encode(
    files: FilesArgument,
    out: OutOption,
    tokenizer: TokenizerOption,
    shard: Annotated[int, typer.Option(metavar="IDS", min=1, help="Ids of a shard.")] = 100_000_000,
    validation: Annotated[
        int,
        typer.Option(
            metavar="IDS", min=0, help="Ids of a first shard for validation, of whole documents up to twice as many."
        ),
    ] = 0,
    end: Annotated[
        str, typer.Option(metavar="TOKEN", help="The special token before every document.")
    ] = "<|endoftext|>",
    name: Annotated[str, typer.Option(metavar="NAME", help="How names of shards begin.")] = "tokens",
    pattern: PatternOption = "gpt2",
    json: JsonOption = False,
) -> None:
    """Write files of documents as shards of tokens.

    A shard is a header of 1024 bytes, then ids of 16 bits.

    The output is a folder with NAME_train_000001.bin and so on, NAME_val_000000.bin, tokenizer.json, and shards.json
    with the hash of each shard. Shards appear whole; a run that was killed goes on behind the last one.

    \b
    Examples:
      octavo tokenize encode corpus.jsonl -o shards/ -t vocabulary/ --validation 1000000
      octavo tokenize encode books.txt -o shards/ -t gpt2.tiktoken --name fineweb
    """
    from dataclasses import asdict

    from octavo.data import write_shards
    from octavo.display.console import console, print_json

    found = _open(tokenizer, pattern)
    with stage_bar() as tell:
        index = write_shards(files, out, found, end=end, shard=shard, validation=validation, name=name, tell=tell)
    if json:
        print_json(asdict(index))
        return
    shown = console()
    shown.print(f"{index.tokens:,} ids of {index.documents:,} documents in {len(index.shards)} shards: {out}")
    shown.print(f"{index.nbytes / max(1, index.tokens - index.documents):.2f} bytes an id")


@app.command("count")
def count(
    files: FilesArgument, tokenizer: TokenizerOption, pattern: PatternOption = "gpt2", json: JsonOption = False
) -> None:
    """Count the ids and documents of files, without writing them.

    \b
    Examples:
      octavo tokenize count books.txt -t vocabulary/
      octavo tokenize count corpus.jsonl.xz -t gpt2.tiktoken --json
    """
    from dataclasses import asdict

    from octavo.data import count_tokens
    from octavo.display.console import console, print_json

    found = _open(tokenizer, pattern)
    with stage_bar() as tell:
        counted = count_tokens(files, found, tell=tell)
    if json:
        print_json(asdict(counted))
        return
    console().print(
        f"{counted.tokens:,} ids of {counted.documents:,} documents; "
        f"{counted.nbytes / max(1, counted.tokens - counted.documents):.2f} bytes an id"
    )


@app.command("inspect")
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A shard, a folder of shards, or a tokenizer.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", "-t", metavar="PATH", help="Of a shard.  [default: the one beside it]")
    ] = None,
    show: ShowOption = 32,
    pattern: PatternOption = "gpt2",
    json: JsonOption = False,
) -> None:
    """Check and show shards, or a tokenizer.

    Every header and every id is checked. Of a tokenizer: ids, pattern, special tokens, the last tokens.

    \b
    Examples:
      octavo tokenize inspect shards/
      octavo tokenize inspect shards/tokens_val_000000.bin -t gpt2.tiktoken --show 100
      octavo tokenize inspect gpt2.tiktoken
    """
    from octavo.display.console import console, print_json

    is_shards = path.suffix == ".bin" or (path.is_dir() and any(file.suffix == ".bin" for file in path.iterdir()))
    facts = _shards(path, tokenizer, pattern, show) if is_shards else [_vocabulary(_open(path, pattern), show)]
    if json:
        print_json(facts)
        return
    shown = console()
    for entry in facts:
        for name, value in entry.items():
            text = (
                ", ".join(map(str, value))
                if isinstance(value, list)
                else f"{value:,}"
                if isinstance(value, int)
                else value
            )
            shown.print(f"{name:12} {text}", soft_wrap=True)
        shown.print()


def _shards(path: Path, tokenizer: Path | None, pattern: str, show: int) -> list[dict[str, Any]]:
    from octavo.data.shards import document_starts, find_shards, read_shard

    folder = path if path.is_dir() else path.parent
    given = tokenizer if tokenizer is not None else folder / "tokenizer.json"
    found = _open(given, pattern) if tokenizer is not None or given.exists() else None
    facts: list[dict[str, Any]] = []
    for file in find_shards(path):
        ids = read_shard(file, vocabulary=None if found is None else found.size)
        entry: dict[str, Any] = {"shard": str(file), "ids": len(ids), "largest": int(ids.max()) if len(ids) else 0}
        if found is not None and (end := found.special.get("<|endoftext|>")) is not None:
            starts = document_starts(ids, end)
            entry |= {"documents": len(starts), "first is end": bool(len(ids) and ids[0] == end)}
        if show:
            entry["begins with"] = repr(found.decode(ids[:show])) if found is not None else ids[:show].tolist()
        facts.append(entry)
    return facts


def _vocabulary(found: BytePairTokenizer, show: int) -> dict[str, Any]:
    plain = [number for number in range(found.size) if found._core.token(number) is not None]
    plain = [number for number in plain if number not in set(found.special.values())]
    lengths = [len(found.token(number)) for number in plain]
    return {
        "ids": found.size,
        "tokens": len(plain),
        "pattern": found.pattern,
        "special": [f"{content} = {number}" for content, number in found.special.items()],
        "longest": f"{max(lengths)} bytes",
        "last": [repr(found.token(number).decode("utf-8", "backslashreplace")) for number in plain[-show:]]
        if show
        else [],
    }


def _open(path: Path, pattern: str) -> BytePairTokenizer:
    """Return the tokenizer of a file, by its name, or of a folder."""
    from octavo.data import BytePairTokenizer
    from octavo.errors import DataError

    if path.suffix == ".tiktoken":
        return BytePairTokenizer.from_tiktoken(path, pattern=pattern)
    if path.suffix in (".bpe", ".txt"):
        beside = [path.with_name(name) for name in ("encoder.json", "vocab.json")]
        found = next((file for file in beside if file.exists()), None)
        if found is None:
            raise DataError(f"{path}: merges without their ids; put encoder.json or vocab.json beside it")
        return BytePairTokenizer.from_merges(path, found, pattern=pattern)
    return BytePairTokenizer.load(path)
