"""Training: one loop for every model. A run that was stopped and resumed ends with the same bits as one that was not.

::

    class Copy:
        # A sequence is a function of its position in the stream, so batches can be made in any order.

        metric, goal = "exact", "max"

        def batch(self, step, micro, start, size):
            return sequences(range(step * BATCH_SIZE + start, step * BATCH_SIZE + start + size))

        def loss(self, model, batch):
            nll = cross_entropy(model(batch).flatten(0, 1), batch.flatten(), reduction="sum")
            return nll, batch.numel(), {}  # the sum, the tokens, other counts

        def evaluate(self, model, rank=0, world=1):
            held_out = sequences(range(10**9 + rank, 10**9 + 1000, world))
            return {"exact": ((model(held_out).argmax(-1) == held_out).all(1).sum(), len(held_out))}

    train(model, Copy(), TrainConfig(steps=2000, batch_size=BATCH_SIZE, learning_rate=1e-3), "runs/copy")

The same call resumes a run that was stopped. :mod:`octavo.train.task` lists the optional members of a task;
:mod:`octavo.train.distributed` describes runs in several processes, which torchrun starts.
"""

from octavo.errors import CheckpointError, ConfigError, OptimizerError, PackageError, TaskError
from octavo.train.exact_nll import ValLoss, exact_nll
from octavo.train.likelihood_bound import Bound, likelihood_bound
from octavo.train.loop import TrainResult, train
from octavo.train.measurement import Measurement
from octavo.train.metric_files import read_metrics, strip_timings
from octavo.train.optimizer import adamw
from octavo.train.parameter_groups import ParameterGroup, grouped, language_groups
from octavo.train.randomness import seed_all
from octavo.train.stages import Stage
from octavo.train.task import Task
from octavo.train.train_config import TrainConfig

__all__ = [
    "Bound",
    "CheckpointError",
    "ConfigError",
    "Measurement",
    "OptimizerError",
    "PackageError",
    "ParameterGroup",
    "Stage",
    "Task",
    "TaskError",
    "TrainConfig",
    "TrainResult",
    "ValLoss",
    "adamw",
    "exact_nll",
    "grouped",
    "language_groups",
    "likelihood_bound",
    "read_metrics",
    "seed_all",
    "strip_timings",
    "train",
]
