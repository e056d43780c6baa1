"""Text classifiers: a tiny BERT trained from scratch, and MiniLM with a head; what studies of formats measure."""

from octavo.systems.sentences.classifier.classifier_config import ClassifierConfig
from octavo.systems.sentences.classifier.network import Classifier

__all__ = ["Classifier", "ClassifierConfig"]
