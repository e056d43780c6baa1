"""Text classifiers: a BERT of any size with a pooler and a linear head, to be trained from fresh weights."""

from octavo.lab.classifiers.classifier_config import ClassifierConfig
from octavo.lab.classifiers.network import Classifier

__all__ = ["Classifier", "ClassifierConfig", "network"]


def network(config: ClassifierConfig) -> type[Classifier]:
    """Return the class of the model that a configuration is of."""
    return Classifier
