"""The exceptions of training. A leaf module."""

from octavo.errors import OctavoError


class ConfigError(OctavoError, ValueError):
    """A field of a configuration that is out of range, contradicts another, or does not fit the task or the machine."""


class CheckpointError(OctavoError, ValueError):
    """A checkpoint that cannot be read, or that belongs to another run."""


class OptimizerError(OctavoError, ValueError):
    """An optimizer that does not hold every trained parameter exactly once."""


class TaskError(OctavoError, ValueError):
    """A task that returned what the loop cannot use."""
