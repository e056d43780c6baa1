"""What the tests of studies share: a subject that is trained in no time, and an open laboratory."""

import pytest
import torch
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers.kinds import tiny_classifier, vocabulary_of
from octavo.lab.classifiers.training_run import Hyperparameters
from octavo.lab.polynomials.data import signs
from octavo.lab.studies.measured_points import Laboratory
from octavo.lab.studies.subject import ClassifierSubject
from octavo.search.journal import Journal
from octavo.train import seed_all

RECIPE = Hyperparameters(epochs=1, batch_size=8, learning_rate=1e-3, precision="fp32")


@pytest.fixture(scope="session")
def split():
    return signs.load(64, validation=24, test=40)


@pytest.fixture
def subject(split):
    """One layer of width 16 with fresh weights: studies do not ask how good a model is."""
    seed_all(0)
    vocabulary = vocabulary_of(split.train.texts)
    config = ClassifierConfig(
        vocabulary=vocabulary.size, classes=3, width=16, layers=1, heads=2, feed_forward=32, positions=64
    )
    model = Classifier(config)
    with torch.no_grad():
        model.classifier.weight.mul_(30)  # answers that differ from text to text
        model.encoder[0].feed_forward.down.weight.mul_(30)
    return ClassifierSubject("tiny", tiny_classifier(vocabulary, model), split, RECIPE, steps=40, judged=16)


@pytest.fixture
def laboratory(subject, tmp_path):
    with Journal(tmp_path) as journal:
        yield Laboratory(subject, journal, tmp_path)
