"""The exceptions of Octavo. A leaf module: Rust and Python raise the same classes."""


class OctavoError(Exception):
    """Base of everything that Octavo raises on purpose."""


class FormatError(OctavoError, ValueError):
    """A format text, scale rule or option that is unknown, contradicts itself or does not fit the format."""


class ShapeError(OctavoError, ValueError):
    """A shape, axis or buffer that does not fit."""


class RangeError(OctavoError, IndexError):
    """An index or id outside its range."""


class DTypeError(OctavoError, TypeError):
    """A dtype, device or kind of object that is not accepted."""


class NonFiniteError(OctavoError, ValueError):
    """NaN or infinity where only finite values are accepted."""


class ContainerError(OctavoError, ValueError):
    """A file that is not a valid container, or one this version refuses."""


class ModelError(OctavoError, ValueError):
    """A module, layer or option of a model that does not fit what is asked of it."""


class ContractError(ModelError):
    """A language model that breaks a contract of its evaluation, which the message names first."""


class KernelError(OctavoError, RuntimeError):
    """A product that no kernel of this version computes on packed codes, where :func:`octavo.strict` asks for one."""


class DataError(OctavoError, ValueError):
    """Text, tokens or a file of them that do not obey the rules of their kind."""


class SettingError(OctavoError, ValueError):
    """A SIMD level or number of threads that this machine or build cannot honour."""


class CalibrationError(OctavoError, ValueError):
    """Scales that need data which is missing, or which never reached the layer they are for."""


class CudaError(OctavoError, RuntimeError):
    """A kernel that failed, could not be launched, or is not loaded while a graph is captured."""


class CudaUnavailableError(CudaError):
    """A driver, device or compiler that this machine lacks; the message says what was looked for."""


class KernelCompileError(CudaError):
    """A kernel that NVRTC refused, a defect of Octavo. ``log`` is what the compiler printed."""

    def __init__(self, message: str = "", log: str = "") -> None:
        """Keep the message and the log."""
        super().__init__(message, log)
        self.log = log

    def __str__(self) -> str:
        """Return the message, which ends in the log."""
        return str(self.args[0])


class LockedError(OctavoError, RuntimeError):
    """A folder that another process is at work in; the message names it and who that is."""


class WorkerError(OctavoError, RuntimeError):
    """A worker process was killed: by the system for want of memory, or by hand."""


class InterruptedRun(OctavoError):
    """A signal ended the work, and what was done is saved: the same call goes on. ``signal`` is its number.

    ``told``: whether a line on stderr has said so already.
    """

    def __init__(self, message: str = "", signal: int = 2, told: bool = False) -> None:
        """Keep message, signal, and whether it was told."""
        super().__init__(message, signal, told)
        self.signal, self.told = signal, told

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0])


class InternalError(OctavoError, RuntimeError):
    """A defect of Octavo itself; please report it."""


class OctavoWarning(UserWarning):
    """Base of what Octavo warns of: a result that is right, but may not be what was meant."""


class IdentityWarning(OctavoWarning):
    """Something whose content a journal cannot read, so that it does not answer from what was measured before."""


class UnusedLayerWarning(OctavoWarning):
    """Quantized layers that a forward pass did not use, or whose activations it did not round.

    ``layers``: their paths. ``rule``: what a recipe says at its end to keep them as they are.
    """

    def __init__(self, message: str = "", layers: tuple[str, ...] = (), rule: str = "") -> None:
        """Keep the message, the paths and the rule."""
        super().__init__(message)
        self.layers, self.rule = layers, rule


class CoverageWarning(OctavoWarning):
    """A recipe that leaves more than half of a model's parameters as they are."""


class CalibrationWarning(OctavoWarning):
    """Layers of which calibration saw nothing but zeros, or weights that a format makes 0 altogether.

    ``layers``: their paths.
    """

    def __init__(self, message: str = "", layers: tuple[str, ...] = ()) -> None:
        """Keep the message and the paths."""
        super().__init__(message)
        self.layers = layers


class PackageError(OctavoError, ImportError):
    """An optional package that was asked for and is not installed."""


class ConfigError(OctavoError, ValueError):
    """A field of a configuration that is out of range, contradicts another, or does not fit the task or the machine."""


class CheckpointError(OctavoError, ValueError):
    """A checkpoint that cannot be read, or that belongs to another run."""


class OptimizerError(OctavoError, ValueError):
    """An optimizer that does not hold every trained parameter exactly once."""


class TaskError(OctavoError, ValueError):
    """A task that returned what the loop cannot use."""
