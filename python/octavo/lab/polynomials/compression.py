"""The job of compressing a polynomial model: calibrated on training lines, measured through the native engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.compress.compression_job import DataFacts, Examples, Job
from octavo.data import CharTokenizer
from octavo.data.batches import Batches
from octavo.errors import OctavoError
from octavo.lab.polynomials.accuracy import EncodedLines, measure
from octavo.lab.polynomials.data import Splits, Stream, splits
from octavo.lab.polynomials.engine_costs import engine_costs
from octavo.lab.polynomials.export import WEIGHTS, load_model, packed_parts
from octavo.lab.polynomials.line_task import PolynomialTask
from octavo.lab.polynomials.matrix_view import matrix_view, view_tensors
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq import PAD, Seq2Seq
from octavo.lab.polynomials.train_configs import SPLIT_SEED, TEST, VALIDATION
from octavo.search.fingerprints import identity_of
from octavo.search.short_training import Training, distillation, short_config
from octavo.storage import folders
from octavo.tensors.packed_tensor import PackedTensor
from octavo.train.measurement import Measurement, digest_of, share_of

#: Validation lines that each candidate answers, and training lines that calibrate.
TRIED, CALIBRATED = 4000, 512
#: Candidates, measured as GPTQ makes them, which takes little time for a model of this size; without it where rows are
#: looked up.
FORMATS = (
    "mxint8", "int6:g64@gptq", "int5:g64@gptq", "nf4/32@gptq", "nf4@gptq", "nf3/32@gptq", "nf3@gptq", "int2:g32@gptq",
    "int6:g64", "int5:g64", "nf4", "nf3",
)  # fmt: skip
_BATCH = 256
_TIMED = 1000  # lines that speeds are measured on
#: A short training: updates, lines in each, and a tenth of the rate that the model was trained with.
UPDATES, TRAINED, RATE = 600, 256, 4e-4
_FRESH = 1  # seed of the place in the stream of lines: the shipped model read from that of 0


def polynomial_job(name: str, folder: Path, *, lines: int = TEST) -> Job:
    """Return the job of a model folder that ``octavo lab train polynomials`` wrote, tested on ``lines`` test lines.

    Validation and test lines occur in no training. Raises OctavoError for a number of lines that is not there, and as
    ``octavo.lab.polynomials.export.load_model``.
    """
    if not 1 <= lines <= TEST:
        raise OctavoError(f"{lines:,} test lines; accepted are 1 to {TEST:,}")
    network, tokenizer = load_model(folder)
    data = splits(SPLIT_SEED, VALIDATION, TEST)
    validation, test = data.validation[:TRIED], data.test[:lines]
    batches = _batches(EncodedLines.of(data.train.lines(0, CALIBRATED), tokenizer), CALIBRATED)
    writer = _Writer(network, tokenizer)
    view = matrix_view(network)
    known = identity_of(model=network, data=[batches, validation], tokenizer=tokenizer)
    return Job(
        name=name,
        model=view,
        batches=Batches(batches),
        evaluate=lambda model: writer.exact(model, validation),
        test=lambda model: writer.exact(model, test),
        examples=Examples(
            [line.partition("=")[0] for line in test],
            lambda model, places: writer.answers(model, [test[place] for place in places]),
            [line.partition("=")[2] for line in test],
        ),
        measures="exact match: every character of the answer, by the native engine",
        task="expanding polynomials that do not occur in training",
        write=writer.write,
        identity={**known.digests},
        unknown=known.unknown,
        file_bytes=sum(4 * parameter.numel() for parameter in network.parameters()),
        data=(
            DataFacts("calibration", "training lines of the generator", CALIBRATED),
            DataFacts("validation", "lines that do not occur in training", len(validation)),
            DataFacts("test", "other lines that do not occur in training", len(test)),
        ),
        samples=CALIBRATED,
        unseen=_batches(EncodedLines.of(validation[:_BATCH], tokenizer), _BATCH),
        unseen_source=f"{_BATCH} of the validation lines",
        half_vectors=True,
        formats=FORMATS,
        output=_answered,
        divergence="kl",
        costs=lambda before, after: writer.costs(before, after, test),
        training=lambda steps: _training(view, data, steps),
    )


def _batches(lines: EncodedLines, count: int) -> list[dict[str, Tensor]]:
    return [
        {"source_BS": lines.source[start : start + _BATCH], "target_BT": lines.target[start : start + _BATCH]}
        for start in range(0, count, _BATCH)
    ]


def _answered(logits_BTV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the scores of the tokens of answers: what comes behind their ends is of no meaning."""
    return logits_BTV[batch["target_BT"] != PAD]


def _training(view: nn.Module, data: Splits[Stream], steps: int | None) -> Training:
    """Return a short training on lines of the generator that the model has not seen, to agree with its float form."""
    task = PolynomialTask(data, TRAINED, seed=_FRESH, limit=1)
    loss = distillation(view, _answered, "kl")

    class Lines:
        """Batches of the task, without its evaluation."""

        def batch(self, step: int, micro: int, start: int, size: int) -> tuple[Tensor, Tensor]:
            return task.batch(step, micro, start, size)

        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int, dict[str, Any]]:
            model.eval()
            return loss(model, {"source_BS": batch[0], "target_BT": batch[1]}), 1, {}

    config = short_config(
        UPDATES if steps is None else steps, learning_rate=RATE, batch_size=TRAINED, betas=(0.9, 0.98)
    )
    told = "relative entropy of the scores of answers to those of the float model, on lines it was not trained on"
    return Training(Lines(), config, told, {"loss": "distillation", "lines": [SPLIT_SEED, _FRESH, TRAINED]})


class _Writer:
    """Writes the view of a network as a folder of the network, and asks the native engine that reads it."""

    def __init__(self, network: Seq2Seq, tokenizer: CharTokenizer) -> None:
        self.network, self.tokenizer = network, tokenizer

    def write(self, view: nn.Module, folder: Path) -> Path:
        tensors = view_tensors(view, self.network)
        if any(isinstance(tensor, PackedTensor) for tensor in tensors.values()):
            vectors = {
                name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor) and tensor.ndim < 2
            }
            tensors |= {name: tensor.half() for name, tensor in vectors.items()}
        packed_parts(self.network, self.tokenizer, tensors).write(folder)
        return folder / WEIGHTS

    def exact(self, view: nn.Module, lines: Sequence[str]) -> Measurement:
        """Return the share of lines answered to the last character."""
        with folders.scratch() as folder:
            self.write(view, folder)
            found = measure(Engine.load(folder).expand, lines)
        wrong = {left for left, _, _ in found.wrong}
        return share_of("exact match", [line.partition("=")[0] not in wrong for line in lines], digest_of(lines))

    def answers(self, view: nn.Module, lines: Sequence[str]) -> list[str]:
        """Return the answers to the left sides of lines."""
        with folders.scratch() as folder:
            self.write(view, folder)
            return Engine.load(folder).expand([line.partition("=")[0] for line in lines])

    def costs(self, before: nn.Module, after: nn.Module, lines: Sequence[str]) -> list[dict[str, Any]]:
        """Return what both models cost in the engine."""
        lefts = [line.partition("=")[0] for line in lines[:_TIMED]]
        with folders.scratch() as folder:
            for name, view in (("before", before), ("after", after)):
                (folder / name).mkdir()
                self.write(view, folder / name)
            return engine_costs(folder / "before", folder / "after", lefts)
