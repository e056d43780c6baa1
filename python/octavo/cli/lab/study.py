"""``octavo lab study``: runs a study."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab import (
    study_attention,
    study_dequantize,
    study_language,
    study_lora,
    study_memory,
    study_mixed,
    study_nas,
    study_prune,
    study_search,
    study_speed,
)
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, numbers, run, with_subject, words
from octavo.errors import SettingError

_WIDTH_SEEDS, _FORMAT_SEEDS = Usual(3, 2), Usual(3, 1)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _study() -> None:
    """Study formats, pruning, adapters or speed.

    Each study leaves a table, a picture and a journal.

    Every finished point is written to study.jsonl at once; the same command goes on after Ctrl-C or kill -9 and
    measures nothing twice. Scales are calibrated on training texts, configurations are chosen on validation texts cut
    from training, and test texts are touched once a reported point.

    \b
    Start here:
      octavo lab study ptq-qat                      accuracy against width, on a model trained in a minute
      octavo lab study formats --quick              every family of formats at its best
      octavo lab study memory                       bytes in a file, and in a running process
      octavo lab study prune                        accuracy, bytes and time against sparsity
      octavo lab study nas                          a space of models, searched in four ways
      octavo lab study mixed                        the labs' mixed-precision search beside one pass of sensitivities
      octavo lab study lora                         full fine-tuning against adapters: accuracy, memory, time
      octavo lab study language BENCH               the bench of language models as one page
      octavo lab study sensitivity                  what every format costs every group of layers
      octavo lab study combined                     the best recipe, then pruning, with and without training
      octavo lab study compile                      torch.compile against eager: first call, later ones, graph breaks
      octavo lab study dequantize                   decoding on a CPU and a GPU, by size and group
      octavo lab study attention                    naive attention against the fused one; --kinds: others by context
    """


@app.command("ptq-qat")
@with_subject
def ptq_qat(
    subject: SubjectOptions,
    out: OutOption = None,
    families: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="fixed, int, mxint, bfp, int-weights, or 'WEIGHT+INPUT' with {w}.  [default: fixed,int,mxint]",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="mase, mase-b: width w with w/2 fraction bits by hand; mase-a: max(4, w-2)."),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(metavar="BITS", help="Widths of an element.  [default: 2,3,4,6,8,16,32]")
    ] = None,
    seeds: Annotated[int | None, _WIDTH_SEEDS.seeds()] = None,
    qat: Annotated[bool, typer.Option("--qat/--no-qat", help="Train through every format, too.")] = True,
    qat_share: Annotated[
        float | None,
        typer.Option(
            help="Updates of that training, as a share of those of the model's.  [default: 0.1, 1000 updates at most]"
        ),
    ] = None,
    qat_rate: Annotated[
        float | None,
        typer.Option(help="Its learning rate, as a share of the model's.  [default: 0.1; with --epochs 1]"),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the training texts in that training, at the full rate, as the labs retrain: 1."),
    ] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Accuracy against width, after rounding and after training.

    Models are quantized after training (PTQ), and trained through the format (QAT).

    Weights and inputs of all Linear layers have the format, embeddings and norms stay float32. Both methods begin at
    the same calibrated scales. ± is the 95 % interval over seeds; differences are points of percent to fp32.

    \b
    Examples:
      octavo lab study ptq-qat
      octavo lab study ptq-qat --baseline mase --widths 4,8,16
      octavo lab study ptq-qat --baseline mase-a --widths 4,8,16,32 --epochs 1      # the labs' retraining
      octavo lab study ptq-qat --families 'int{w}:g32' --widths 2,3,4 --no-qat
      octavo lab train classifier --model minilm --data data/ -o minilm
      octavo lab study ptq-qat --model minilm --data data/ --trained minilm --baseline mase
    """
    from octavo.lab.studies import result_files as studies
    from octavo.lab.studies.measured_points import Training
    from octavo.lab.studies.ptq_qat import BASELINES, PtqQat
    from octavo.report.study_plots import width_figure

    if baseline is not None and baseline not in BASELINES:
        raise SettingError(f"unknown baseline {baseline!r}; accepted are {', '.join(BASELINES)}")
    for option, value in (("--qat-share", qat_share), ("--qat-rate", qat_rate), ("--epochs", epochs)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise SettingError(f"{option} is {value}; accepted are numbers above 0")
        if value is not None and not qat:
            raise SettingError(f"{option} is of training, and --no-qat leaves it out; give one of them")
    if epochs is not None and qat_share is not None:
        raise SettingError("--epochs and --qat-share both say how long training is; give one of them")
    for option, text in (("--families", families), ("--widths", widths)):
        if text is not None and not words(text):
            raise SettingError(f"{option} is empty; accepted is one of them, at least")
    names = words(families or ("int" if quick else "fixed,int,mxint")) + ([baseline] if baseline else [])
    widths = widths or ("4,8" if quick else "2,3,4,6,8,16,32")
    most = Training.most if qat_share is None else None
    rate = qat_rate or (Training.rate if epochs is None else 1.0)
    training = Training(qat_share or Training.share, rate, most, epochs) if qat else None
    study = PtqQat(tuple(names), numbers("--widths", widths), _WIDTH_SEEDS.of(seeds, quick=quick), training)
    run(
        "ptq-qat", study.run, studies.width_table, studies.width_notes, width_figure,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip


@app.command("formats")
@with_subject
def formats(
    subject: SubjectOptions,
    out: OutOption = None,
    families: Annotated[str | None, typer.Option(metavar="NAMES", help="Families to compare.  [default: all]")] = None,
    widths: Annotated[
        str | None, typer.Option(metavar="BITS", help="Widths of an element.  [default: 2,3,4,6,8]")
    ] = None,
    modes: Annotated[
        str, typer.Option(metavar="NAMES", help="weights: weights alone; both: weights and inputs of layers.")
    ] = "weights,both",
    seeds: Annotated[int | None, _FORMAT_SEEDS.seeds()] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:
    """Accuracy against bits, of every family at its best.

    For each family and width, block sizes, scale rules, biases and calibrations are compared on validation texts by
    relative entropy to the float32 model; the closest is measured on test texts. Nothing is trained.

    \b
    Examples:
      octavo lab study formats --quick
      octavo lab study formats --families int,mxint,mxfp,nf --widths 4
      octavo lab study formats --model polynomials --modes weights
    """
    from octavo.lab.studies import candidates
    from octavo.lab.studies import result_files as studies
    from octavo.lab.studies.format_families import Formats
    from octavo.report.study_plots import format_figure

    chosen = numbers("--widths", widths or ("4" if quick else "2,3,4,6,8"))
    every = [name for name in candidates.FAMILIES if any(candidates.weights(name, width) for width in chosen)]
    names = every if families is None else words(families)
    study = Formats(tuple(names), chosen, tuple(words(modes)), _FORMAT_SEEDS.of(seeds, quick=quick), quick)
    run(
        "formats", study.run, studies.format_table, studies.accuracy_notes, format_figure,
        subject=subject, out=out, quick=quick, json=json,
    )  # fmt: skip


app.command("memory")(study_memory.memory)
app.command("prune")(study_prune.prune)
app.command("language")(study_language.language)
app.command("lora")(study_lora.lora)
app.command("sensitivity")(study_search.sensitivity)
app.command("combined")(study_search.combined)
app.command("nas")(study_nas.nas)
app.command("mixed")(study_mixed.mixed)
app.command("compile")(study_speed.compile_)
app.command("attention")(study_attention.attention)
app.command("dequantize")(study_dequantize.dequantize)
