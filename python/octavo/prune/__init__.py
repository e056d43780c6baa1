"""Pruning: masks on a model's weights by a criterion, and removal of parts by dependency groups.

``prune_model`` adds masks, ``callback`` grows them in training, ``report`` counts them, ``fold_model`` turns them into
plain zeros. ``groups`` returns the heads, neurons and layers of a model, and ``compact_model`` removes those that are
zero.
"""

from octavo.prune.activation_pruning import activation_report, prune_activations, restore_activations
from octavo.prune.compact_model import CompactReport, compact_model
from octavo.prune.fold_model import fold_model
from octavo.prune.groups import Group, Place, Slice, Structure, Unit, groups, structure
from octavo.prune.prune_model import Pruning, callback, prune_model
from octavo.prune.prune_report import PrunedTensor, PruneReport, report
from octavo.prune.sparsity_schedule import Cubic, Iterative

__all__ = [
    "CompactReport",
    "Cubic",
    "Group",
    "Iterative",
    "Place",
    "PruneReport",
    "PrunedTensor",
    "Pruning",
    "Slice",
    "Structure",
    "Unit",
    "activation_report",
    "callback",
    "compact_model",
    "fold_model",
    "groups",
    "prune_activations",
    "prune_model",
    "report",
    "restore_activations",
    "structure",
]
