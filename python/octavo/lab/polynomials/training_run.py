"""The job of ``octavo lab train polynomials``: train, test, export."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from octavo.data import CharTokenizer
from octavo.lab.polynomials.accuracy import Accuracy, expander, measure
from octavo.lab.polynomials.data import Passes, Splits, Stream, splits
from octavo.lab.polynomials.export import export_model
from octavo.lab.polynomials.line_task import PolynomialTask
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq import Seq2Seq, build
from octavo.lab.polynomials.static import StaticInt8Seq2Seq, calibrate, costly, damages, equalize, quantize_static
from octavo.lab.polynomials.train_configs import SPLIT_SEED, TEST, VALIDATION, model_config, train_config
from octavo.storage import files, locks
from octavo.tensors import container
from octavo.tensors.formats import Format
from octavo.train import TrainResult, checkpoint, seed_all, train

# Validation lines of the evaluations during training; the 20,000 test lines are for the end.
WATCHED = 2000
# Training lines that static INT8 is calibrated on, and where in the stream they begin.
CALIBRATION, CALIBRATION_START = 2048, 1 << 62
# How far the ranges of channels are made alike, and the share of the damage of 8-bit inputs that is left. Of 110,429
# lines that occur neither in training nor in test, 0.49 % are lost with 8 bits everywhere, 0.11 % with these, which
# give 16 bits to 7 of 13 inputs, and 0.07 % with 16 bits everywhere. On a sample, strength 0.25 loses 0.12 %, and 1
# loses 0.19 %.
STRENGTH, LEFT = 0.5, 0.1
# Wrong answers up to which SymPy is asked whether they are equivalent: it takes milliseconds for each.
COMPARED = 1000
CONFIG, REPORT, MODEL = "model.json", "report.json", "model"


@dataclass(frozen=True)
class PolynomialReport:
    """A finished run: how it ended, and the accuracy of the exported model on test lines that it never saw.

    ``part``: ``test``, or ``validation`` where those lines are what is reported. ``evaluated``: accuracy on the lines
    of ``file``, which training may have seen; None without a file.
    """

    result: TrainResult
    parameters: int
    accuracy: Accuracy
    folder: Path
    device: str = "cpu"
    part: str = "test"
    evaluated: Accuracy | None = None
    file: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "reason": self.result.reason,
            "steps": self.result.step,
            "parameters": self.parameters,
            "seconds": self.result.seconds,
            "device": self.device,
            self.part: self.accuracy.as_dict(),
            **({} if self.evaluated is None else {"evaluated": {"file": self.file, **self.evaluated.as_dict()}}),
            "model": str(self.folder / MODEL),
        }

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for the terminal."""
        accuracy = self.accuracy
        kinds = [f"  {name}" for name in accuracy.by_kind]
        shares = [f"{exact / total:.2%} of {total:,}" for exact, total in accuracy.by_kind.values()]
        exact = f"{accuracy.share:.3%} of {accuracy.lines:,} {self.part} lines that do not occur in training"
        own = self.evaluated
        return [
            ("trained", f"{self.parameters:,} parameters, {self.result.step:,} steps, on {self.device}"),
            ("exact match", exact if accuracy.lines else "not measured: there are no test lines"),
            *zip(kinds, shares, strict=True),
            *([] if own is None else [("own lines", f"{own.share:.3%} of {own.lines:,} lines of {self.file}")]),
            ("written", f"{self.folder / MODEL}: try octavo lab expand --model {self.folder / MODEL} '(x+1)*(x-2)'"),
        ]


def train_polynomials(
    architecture: str,
    folder: Path,
    changes: dict[str, Any],
    *,
    export_format: str = "mxint8",
    tensorboard: bool = False,
    data: Splits[Stream] | Splits[list[str]] | None = None,
    origin: str = "",
    part: Literal["test", "validation"] = "test",
    evaluate: tuple[str, Sequence[str]] | None = None,
) -> PolynomialReport | None:
    """Train, test and export a model of ``architecture`` in ``folder``, going on with the run that is there, if any.

    ``changes``: fields of :class:`TrainConfig` that differ from the recipe. ``export_format``: of the exported weights.
    ``data``: lines of one's own, such as :func:`octavo.lab.polynomials.data.own_lines` reads; None is the generated
    ones. ``origin``: what the command says of them, for the report. ``part``: the lines that the exported model is
    measured on. ``evaluate``: the name of a file and its lines, which it is measured on besides.
    Returns None in every process but the first. Raises InterruptedRun if a signal ended the training, LockedError if
    another process trains in ``folder``.
    """
    Format(export_format)  # refuse it now, not after the training
    shape, config = model_config(architecture), train_config(**changes)
    data = splits(SPLIT_SEED, VALIDATION, TEST) if data is None else data
    task = PolynomialTask(data, config.batch_size, seed=config.seed, limit=WATCHED)
    seed_all(config.seed)
    model = build(shape)
    first = os.environ.get("RANK", "0") == "0"
    with locks.hold(folder) if first else nullcontext():
        if first and not checkpoint.available(folder):
            files.write(folder / CONFIG, json.dumps(shape.as_dict(), indent=2) + "\n")
        result = train(model, task, config, folder, tensorboard=tensorboard)
        if result.reason == "interrupted":
            raise result.interruption(told=True)
        made = {"command": command(architecture, changes, export_format) + origin, "seed": config.seed}
        if not first:
            return None
        report = _finish(model, task, data, result, folder, export_format, made, part)
        if evaluate is not None:
            file, lines = evaluate
            report = replace(report, evaluated=measure(expander(model, task.tokenizer), lines), file=file)
        files.write(folder / REPORT, json.dumps(report.as_dict(), indent=2) + "\n")
        return report


def _finish(
    model: Seq2Seq,
    task: PolynomialTask,
    data: Splits[Stream] | Splits[list[str]],
    result: TrainResult,
    folder: Path,
    export_format: str,
    made: dict[str, Any],
    part: str,
) -> PolynomialReport:
    """Test the last weights, export them, and return the report; ``made``: by which command and seed."""
    model.load_state_dict(container.load(folder / "last.safetensors"))
    integer = integer_form(model, task.stream, task.tokenizer)
    lines = data.validation if part == "validation" else data.test
    accuracy = measure(expander(model, task.tokenizer), lines)
    if len(accuracy.wrong) <= COMPARED and find_spec("sympy") is not None:
        accuracy = accuracy.symbolic()
    made |= {
        "steps": result.step,
        "parameters": model.parameter_count,
        **accuracy.as_dict(),
    }

    def export() -> Path:
        return export_model(
            model, task.tokenizer, folder / MODEL, overwrite=True, format=export_format, integer=integer, metadata=made
        )

    exported = export()
    if integer is not None:
        engine = Engine.load(exported, precision="integer")
        made |= {"integer_exact": measure(engine.expand, lines).exact, "integer_wide": integer.wide}
        export()
    device = str(next(model.parameters()).device)
    return PolynomialReport(result, model.parameter_count, accuracy, folder, device, part)


def command(architecture: str, changes: dict[str, Any], export_format: str) -> str:
    """Return the command that trains the same model on the same kind of machine."""
    options = {"steps": "steps", "batch_size": "batch", "learning_rate": "lr", "compile": None}
    words = [f"octavo lab train polynomials --arch {architecture} --format {export_format}"]
    for name, value in changes.items():
        option = options.get(name, name)
        words.append(f"--{option} {value}" if option else "--compile")
    return " ".join(words)


def integer_form(model: Seq2Seq, stream: Stream | Passes, tokenizer: CharTokenizer) -> StaticInt8Seq2Seq | None:
    """Return the static INT8 form of a hybrid model, calibrated on training lines; None for other architectures.

    Inputs whose rounding to 8 bits does the most damage get 16; :func:`octavo.lab.polynomials.static.costly`
    chooses them.
    """
    if model.config.architecture != "hybrid":
        return None
    source, _ = stream.batch(CALIBRATION_START, CALIBRATION, tokenizer)
    batches = [torch.from_numpy(source)]
    equal = equalize(model.eval(), batches, strength=STRENGTH)
    scales = calibrate(equal, batches)
    return quantize_static(equal, scales, costly(damages(equal, batches, scales), LEFT))
