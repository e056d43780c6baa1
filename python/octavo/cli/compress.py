"""``octavo compress`` chooses a format per layer so that the model fits a size budget."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli._app import ForceOption, JsonOption, read_recipe, tell_left_behind
from octavo.cli._foreign_files import folder_of
from octavo.errors import OctavoError, SettingError
from octavo.lab.polynomials.shipped import NAME as POLYNOMIALS
from octavo.storage.outputs import check_output


def run(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="polynomials (the shipped model), minilm, smollm2, the folder of a model, a GGUF file, or "
            "package.module:function, which returns a model and its batches, and may add a function that evaluates "
            "and one that tests.",
        ),
    ] = POLYNOMIALS,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="BITS", help="Bits of the file of weights for each parameter; it is never larger.  [default: 4.5]"
        ),
    ] = None,
    nbytes: Annotated[
        int | None, typer.Option("--bytes", metavar="N", help="Bytes of the file of weights instead.")
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Loss of quality instead: 0.01 is a point of accuracy; of perplexity nats a token."
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Milliseconds of a call on this machine, beside a budget or alone."),
    ] = None,
    latency_batch: Annotated[int, typer.Option(metavar="N", help="Samples of that call.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled texts for a classifier, a text for a language model, lines for an encoder; .jsonl: objects "
            "with text, or chat messages, for any of them.",
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Reported at the end.  [default: a part of --data]")
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of the text in .jsonl.  [default: text]")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", help="Texts, or windows of a language model, that calibrate.  [default: 128]"),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a window, and of a text at most.  [default: 64]")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(metavar="FORMATS", help="Candidates, separated by commas, nf4@gptq too.  [default: 8 to 2 bits]"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Pack by this recipe, or .toml, and measure it: no search.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="SELECTOR", help="Layers that stay as they are; may be repeated.")
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="SELECTOR", help="Layers that get one format together; may be repeated."),
    ] = None,
    untie: Annotated[
        bool, typer.Option("--untie", help="Give a head that has the embedding's table a weight of its own.")
    ] = False,
    prune: Annotated[
        float | None, typer.Option(metavar="SHARE", help="First set this share of the weights to 0, by magnitude.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="One backward pass, the chosen point alone, and fewer tokens.")
    ] = False,
    sensitivity: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="divergence (one layer in one format at a time), fisher (one backward pass), or auto: the first "
            "unless it takes too long.",
        ),
    ] = "auto",
    train: Annotated[
        bool, typer.Option("--train", help="Train the best model through its formats for a short time.")
    ] = False,
    train_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Updates of --train.  [default: what the model takes]")
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes that measure, with one thread each.")] = 1,
    peers: Annotated[
        bool, typer.Option("--peers", help="Evaluate formats of ggml and torchao of the same bytes, too.")
    ] = False,
    lines: Annotated[int, typer.Option(help="polynomials: test lines.")] = 20_000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PATH", help="Folder.  [default: octavo-MODEL]")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Choose a format for every layer within a budget, and pack.

    \b
    1. Every layer is tried in every format, one at a time.
    2. The formats of least total loss are found, for every budget.
    3. Some of these choices are packed and measured on validation data, beside single formats of the same size.
    4. The best one is tuned by GPTQ, HQQ and corrected biases, each where it helps.
    5. --train trains it through its formats.
    6. Test data is read once, for the report.

    --train takes new lines for polynomials, the labelled texts for classifiers and the text for language models.
    Encoders are trained to agree with the original. Without labelled texts the agreement with the original is measured.

    The folder holds the packed model, recipe.toml (edit it, and give it to --recipe), report.html and report.json. A
    run that was stopped, by Ctrl-C or kill, goes on with the same command.

    \b
    Examples:
      octavo compress
      octavo compress --budget 4 --peers -o tiny
      octavo compress --train
      octavo compress --model minilm
      octavo compress --model sentiment/ --data sst2_train.tsv --test sst2_dev.tsv --max-loss 0.005
      octavo compress --model minilm --budget 5 --latency 6 --latency-batch 8
      octavo compress --model gpt2/ --data wikitext2_valid.txt --budget 5
      octavo compress --model smollm2/ --data chats.jsonl --samples 64 --tokens 256
      octavo compress --model mine:make --exclude "last:Linear" --fast
      octavo compress --recipe octavo-polynomials/recipe.toml -o again
    """
    from octavo.compress.compress_model import run_job
    from octavo.compress.compression_options import Goal, Options
    from octavo.compress.named_jobs import named_job
    from octavo.compress.text_compression import Reading
    from octavo.display.console import console
    from octavo.display.progress import paced_milestones
    from octavo.recipe.rule import read_spec, spec_text
    from octavo.search.peer_formats import peers as peer_formats
    from octavo.tensors.formats import parse_formats

    for file in (data, test):
        if file is not None and not file.is_file():
            raise FileNotFoundError(2, "No such file", str(file))
    if train_steps is not None and not train:
        raise SettingError("--train-steps without --train; give both")
    out = out or Path(f"octavo-{Path(model.rpartition(':')[2]).resolve().name.removesuffix('.gguf')}")
    journal = out.resolve().parent / f".{out.resolve().name}.compress"
    others, absent = peer_formats() if peers else ([], [])
    options = Options(
        goal=Goal.of(
            budget,
            nbytes,
            max_loss,
            None if latency is None else latency / 1000,
            latency_batch,
            searched=recipe is None,
        ),
        formats=None if formats is None else tuple(map(spec_text, parse_formats(formats, read_spec))),
        recipe=None if recipe is None else read_recipe(recipe),
        fast=fast,
        sensitivity=sensitivity,
        share=tuple(share or ()),
        exclude=tuple(exclude or ()),
        prune=prune,
        train=train,
        train_steps=train_steps,
        workers=workers,
        peers=tuple(others),
        notes=tuple(absent),
        journal=journal,
    )
    _check_out(model, out, force=force)
    reading = Reading(field, samples, tokens, short=fast)
    with folder_of(model, packed=False) as folder, paced_milestones(console(stderr=True)) as tell:
        job = named_job(folder, data, test, lines=lines, reading=reading, untie=untie)
        decoded = None if folder == model else _decoded(model)
        if decoded is not None:  # the folder is a temporary one
            job = replace(job, name=model, notes=(*job.notes, decoded))
        result = run_job(job, options, tell=tell, command=_command())
        result.save(out, overwrite=force)
    shutil.rmtree(journal, ignore_errors=True)
    _show(result.report, model, out, decoded, json)


def _command() -> str:
    """Return the command line for the report; of a caller in Python the command alone."""
    words = sys.argv[1:] if sys.argv[1:2] == ["compress"] else ["compress"]
    return " ".join(map(shlex.quote, ["octavo", *words]))


def _decoded(model: str) -> str:
    """Return what the bytes before are, for a model of another package's file."""
    from octavo.display.numbers import size
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.storage.named_models import resolved

    return (
        f"{model} has {size(Checkpoint.open(resolved(model)).nbytes)}: values before are those of its decoded weights"
    )


def _check_out(model: str, out: Path, *, force: bool) -> None:
    """Refuse an output that is there, or that lies in the input, before the work begins."""
    from octavo.interchange.foreign_readers import reader_of

    if Path(model).is_file() and reader_of(model) is None:
        raise OctavoError(f"{model}: a folder with configuration, tokenizer and weights is needed, this is a file")
    check_output(Path(model), out, is_folder=True, overwrite=force)


def _show(report: dict[str, Any], model: str, out: Path, decoded: str | None, json: bool) -> None:
    from octavo.display.console import console, print_json
    from octavo.model_folder.weight_files import Checkpoint
    from octavo.report.value_texts import summary_lines

    if json:
        print_json(report)
        return
    stdout = console()
    for line in summary_lines(report):
        stdout.print(line)
    if decoded is not None:
        stdout.print(decoded)
    stdout.print(f"{'written':30} {out}: model, recipe.toml, report.html, report.json")
    if Path(model).is_dir():
        tell_left_behind(Checkpoint.open(Path(model)), stdout)
