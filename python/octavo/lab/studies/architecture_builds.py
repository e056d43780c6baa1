"""What a point of an architecture search is: a network from fresh weights, trained, compressed and trained again.

All measures are of validation texts. The test texts are read by :meth:`ArchitectureBuilds.test_accuracy`, after the
choice.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import octavo
from octavo.data import CharTokenizer
from octavo.data.labelled import Sentences, Split
from octavo.errors import DataError
from octavo.lab.architectures import bert_spaces
from octavo.lab.architectures.search_loop import Build
from octavo.lab.architectures.space import Space
from octavo.lab.classifiers import Classifier, ClassifierConfig, kinds
from octavo.lab.classifiers.text_classifier import LONGEST, TextClassifier
from octavo.lab.classifiers.texts import ClassifierTask, Texts, scores
from octavo.lab.classifiers.training_run import train_config
from octavo.lab.studies.measured_points import SAMPLES, trained
from octavo.lab.studies.subject import digest, elsewhere, placed
from octavo.tensors import container
from octavo.train import TrainConfig, seed_all

LAST = "last.safetensors"
_CPU = torch.device("cpu")
_REPORTS = 4  # looks at validation texts during training, by which bad trials are stopped


@dataclass(frozen=True)
class Compression:
    """What is done to a trained network: ``recipe`` quantizes it, ``sparsity`` of its Linear layers but the head goes.

    ``epochs``: of training afterwards, at a tenth of the learning rate, with masks kept.
    """

    recipe: str | None = None
    sparsity: float = 0.0
    epochs: float = 1.0

    def facts(self) -> dict[str, Any]:
        """Return plain values."""
        return {"recipe": self.recipe, "sparsity": self.sparsity, "epochs": self.epochs}


class ArchitectureBuilds:
    """Builds and measures the points of a search on one set of texts.

    ``compression``: what every network is measured after, too, before and after training again. ``warm``: a trained
    model whose weights are taken where name and shape are equal. ``device``: where networks are trained and measured.
    """

    def __init__(
        self,
        split: Split,
        *,
        length: int = LONGEST,
        compression: Compression | None = None,
        warm: Path | None = None,
        changes: Mapping[str, Any] | None = None,
        device: torch.device = _CPU,
    ) -> None:
        """Take the texts; ``changes``: fields of TrainConfig that differ. Raises DataError for another vocabulary."""
        self.device = device
        self.compression, self._changes = compression, dict(changes or {})
        parts = (split.train, split.validation, split.test)
        vocabulary = kinds.vocabulary_of(split.train.texts)
        if isinstance(vocabulary, CharTokenizer):  # it has no id for others, and a few texts lack some
            vocabulary = kinds.vocabulary_of([text for part in parts for text in part.texts])
        classes = max(max(part.labels) for part in parts if part.labels) + 1
        config = ClassifierConfig(vocabulary=kinds.vocabulary_size(vocabulary), classes=classes, positions=length)
        reader = kinds.tiny_classifier(
            vocabulary, Classifier(replace(config, layers=1, width=8, feed_forward=8, heads=1))
        )
        self._texts: Callable[[Sentences], Texts] = reader.texts
        self._split, self._train, self._validation = split, reader.texts(split.train), reader.texts(split.validation)
        self.fixed = {"vocabulary": config.vocabulary, "classes": config.classes, "positions": length}
        self.majority = max(split.validation.labels.count(label) for label in range(config.classes)) / len(
            self._validation
        )
        self._warm = None
        if warm is not None:
            made, _ = kinds.load(warm / "model" if (warm / "model").is_dir() else warm)
            if not _reads_alike(made, reader, split.train.texts[:64]):
                raise DataError(f"{warm}: its model reads texts as other ids; give one that was trained on these texts")
            self._warm = made.model

    def context(self) -> dict[str, Any]:
        """Return everything but the specification that decides the measures."""
        return {
            "texts": self._split.digest(),
            "training": self.config(1.0, 0).binding(),
            "compression": None if self.compression is None else self.compression.facts(),
            "warm": None if self._warm is None else digest(self._warm),
            **elsewhere(self.device),
        }

    def space(self, preset: str, scale: str, epochs: float, seed: int = 0) -> Space:
        """Return the space of a preset; a specification has the network, the epochs and the seed of its training."""
        networks = bert_spaces.bert_space(preset, scale, **self.fixed)

        def realise(point: Mapping[str, Any]) -> dict[str, Any]:
            return {"network": networks.spec(point), "epochs": epochs, "seed": seed}

        return replace(networks, realise=realise)

    def config(self, epochs: float, seed: int) -> TrainConfig:
        """Return the training of a network."""
        given = {"checkpoint_every": 50, "evaluate_every": None, "device": self.device.type, **self._changes}
        return train_config(kinds.TINY, len(self._train), epochs=epochs, seed=seed, **given)

    def evaluate(self, build: Build) -> dict[str, Any]:
        """Train the network of a build in its folder, and return its measures.

        ``accuracy``, and with a compression ``compressed`` and ``tuned``, on validation texts; ``parameters``, and
        ``inherited``, the share of them that began at trained weights; ``device``: where it was trained.
        """
        assert build.folder is not None
        model, inherited = self.trained(build.spec, build.folder, build.report)
        facts: dict[str, Any] = {
            "accuracy": self.accuracy(model),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "device": self.device.type,
        }
        if self._warm is not None:
            facts["inherited"] = inherited
        if self.compression is not None:
            facts |= self._compressed(model, build)
        _tidy(build.folder)
        return facts

    def trained(
        self, spec: Mapping[str, Any], folder: Path, report: Callable[[int, float], None] = lambda step, value: None
    ) -> tuple[nn.Module, float]:
        """Return the network of a specification with its trained weights, and the share that was inherited.

        Training goes on where it stopped in ``folder``; where it has ended, its weights are read.
        """
        config = self.config(spec["epochs"], spec["seed"])
        seed_all(config.seed)
        model = network(spec["network"])
        inherited = 0.0 if self._warm is None else inherit(model, self._warm)
        if (folder / LAST).exists():
            model.load_state_dict(container.load(folder / LAST))
            return model.to(self.device).eval(), inherited
        every = max(1, config.steps // _REPORTS)

        def look(model: nn.Module, step: int) -> None:
            if step and step % every == 0 and step < config.steps:
                report(step // every, self.accuracy(model))

        task = ClassifierTask(self._train, self._validation, config.batch_size, seed=config.seed)
        trained(model, task, config, folder, [look])
        return model.eval(), inherited

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of validation texts whose label has the highest score."""
        return float((scores(model, self._validation).argmax(-1) == self._validation.labels).double().mean())

    def test_accuracy(self, model: nn.Module) -> dict[str, Any]:
        """Return ``right`` and ``texts`` of the test part."""
        texts = self._texts(self._split.test)
        return {"right": int((scores(model, texts).argmax(-1) == texts.labels).sum()), "texts": len(texts)}

    def _compressed(self, model: nn.Module, build: Build) -> dict[str, Any]:
        assert self.compression is not None and build.folder is not None
        given, seed = self.compression, build.spec["seed"]
        small = deepcopy(model)
        if given.recipe is not None:
            batches = placed(self._train.sample(SAMPLES, seed).batches(32), self.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", octavo.CoverageWarning)  # embeddings are most of a tiny network
                small = octavo.quantize_model(
                    small, given.recipe, calibration=batches, samples=SAMPLES, inplace=True, progress=False
                )
        if given.sparsity:
            shares = {"type:Linear": given.sparsity, "name:classifier": 0.0}
            small = octavo.prune_model(small, shares, criterion="magnitude", inplace=True, progress=False)
        facts = {"compressed": self.accuracy(small)}
        if given.epochs:
            whole = self.config(given.epochs, seed)
            config = replace(whole, learning_rate=whole.learning_rate / 10, schedule="cosine")
            task = ClassifierTask(self._train, self._validation, config.batch_size, seed=seed + 1)
            trained(small, task, config, build.folder / "tuning")
            facts["tuned"] = self.accuracy(small.eval())
        return facts


def network(spec: Mapping[str, Any]) -> Classifier:
    """Return the network of a specification with fresh weights of torch's global generator."""
    return Classifier(ClassifierConfig.from_dict({name: value for name, value in spec.items() if name != "class"}))


def inherit(model: nn.Module, trained: nn.Module) -> float:
    """Copy the weights of equal name and shape into ``model``, and return their share of its parameters."""
    held, total = dict(trained.named_parameters()), 0
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in own.items():
            other = held.get(name)
            if other is not None and other.shape == parameter.shape:
                parameter.copy_(other)
                total += parameter.numel()
    return total / sum(parameter.numel() for parameter in own.values())


def _reads_alike(one: TextClassifier, other: TextClassifier, texts: Sequence[str]) -> bool:
    try:
        return one.encode(texts) == other.encode(texts)
    except DataError:  # a sign that its vocabulary lacks
        return False


def _tidy(folder: Path) -> None:
    """Drop checkpoints and the weights of training after compression; the trained network and the logs stay."""
    for path in [*folder.glob("checkpoint*"), *folder.glob("best*"), *folder.glob("tuning/*.safetensors"),
                 *folder.glob("tuning/checkpoint*")]:  # fmt: skip
        shutil.rmtree(path) if path.is_dir() else path.unlink()
