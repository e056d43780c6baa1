"""The exceptions of Octavo. A leaf module: Rust and Python raise the same classes."""


class OctavoError(Exception):
    """Base of everything that Octavo raises on purpose.

    Most subclasses are also the built-in exception that fits: :class:`FormatError` is a ``ValueError``.

    Example:
        >>> try:
        ...     octavo.Format("mxfp6e3m3")
        ... except octavo.OctavoError as error:
        ...     print(f"{type(error).__name__}: {error}")
        FormatError: unknown format 'mxfp6e3m3'; did you mean 'mxfp6e3m2'?
    """


class FormatError(OctavoError, ValueError):
    """A format text, scale rule or option that is unknown, contradicts itself or does not fit the format.

    Example:
        >>> octavo.quantize(torch.ones(4), "int99")
        Traceback (most recent call last):
        octavo.errors.FormatError: format 'int99': width 99 is outside 2..16
    """


class ShapeError(OctavoError, ValueError):
    """A shape, axis or buffer that does not fit.

    Example:
        >>> octavo.encode(torch.ones(3), "int8:g32", axis=2)
        Traceback (most recent call last):
        octavo.errors.ShapeError: axis 2 is outside shape [3]: accepted are -1..0
    """


class RangeError(OctavoError, IndexError):
    """An index or id outside its range.

    Example:
        >>> generator = octavo.TextGenerator.load("gpt-small")
        >>> list(generator.generate_ids([[97]], tokens=5000))
        Traceback (most recent call last):
        octavo.errors.RangeError: a prompt of 1 tokens and 5000 generated ones pass the model's 1024 positions;
        generate up to 1024
    """


class DTypeError(OctavoError, TypeError):
    """A dtype, device or kind of object that is not accepted.

    Example:
        >>> octavo.encode(torch.tensor([1, 2]), "int8")
        Traceback (most recent call last):
        octavo.errors.DTypeError: encode to 'int8': x has dtype torch.int64; accepted are float32, float16, bfloat16
    """


class NonFiniteError(OctavoError, ValueError):
    """NaN or infinity where only finite values are accepted.

    Example:
        >>> octavo.encode(torch.tensor([1.0, float("nan")]), "int8")
        Traceback (most recent call last):
        octavo.errors.NonFiniteError: 'int8': value NaN at flat position 1; encode takes finite values only
        (nonfinite="saturate" maps inf to the largest value and NaN to 0)
    """


class ContainerError(OctavoError, ValueError):
    """A file that is not a valid container, or one this version refuses.

    Example:
        >>> _ = Path("model.safetensors").write_text("hello")
        >>> octavo.load("model.safetensors")
        Traceback (most recent call last):
        octavo.errors.ContainerError: model.safetensors: 5 bytes; a safetensors file has at least 8
    """


class ModelError(OctavoError, ValueError):
    """A module, layer or option of a model that does not fit what is asked of it.

    Example:
        >>> octavo.pack_model(nn.Linear(2, 2))
        Traceback (most recent call last):
        octavo.errors.ModelError: Linear: no simulated layer with a quantized weight; octavo.quantize_model makes them
    """


class ContractError(ModelError):
    """A language model that breaks a contract of its evaluation, which the message names first."""


class KernelError(OctavoError, RuntimeError):
    """A product that no kernel of this version computes on packed codes, where :func:`octavo.strict` asks for one.

    Example:
        >>> convolution = octavo.pack_model(octavo.quantize_model(nn.Conv1d(4, 4, 3), "int8"))
        >>> with octavo.strict():
        ...     convolution(torch.ones(1, 4, 8))
        Traceback (most recent call last):
        octavo.errors.KernelError: PackedConv1d: there is no kernel for packed convolutions; leave octavo.strict()
    """


class DataError(OctavoError, ValueError):
    """Text, tokens or a file of them that do not obey the rules of their kind.

    Example:
        >>> octavo.data.CharTokenizer("abc").encode(["abd"])
        Traceback (most recent call last):
        octavo.errors.DataError: line 1, column 3: character 'd' is not in the vocabulary; allowed are "abc"
    """


class SettingError(OctavoError, ValueError):
    """An option, SIMD level or number of threads that this machine or build cannot honour.

    Example:
        >>> octavo.Sampling(temperature=-1.0)
        Traceback (most recent call last):
        octavo.errors.SettingError: temperature is -1.0; accepted are numbers from 0 to 10000
    """


class CalibrationError(OctavoError, ValueError):
    """Scales that need data which is missing, or which never reached the layer they are for.

    Example:
        >>> octavo.quantize_model(nn.Sequential(nn.Linear(8, 8)), "int8 input=int8@mse")
        Traceback (most recent call last):
        octavo.errors.CalibrationError: 0: input: 'int8@mse' is calibrated from data; give quantize_model
        calibration=batches, or write 'int8' to choose scales at run time
    """


class CudaError(OctavoError, RuntimeError):
    """A kernel that failed, could not be launched, or is not loaded while a graph is captured.

    Base of the two errors of GPUs; ``except octavo.CudaError`` covers a machine without one, too.

    Example:
        >>> try:
        ...     octavo.cuda.warmup("int8", "cuda:999")
        ... except octavo.CudaError as error:
        ...     print(type(error).__name__)
        CudaUnavailableError
    """


class CudaUnavailableError(CudaError):
    """A driver, device or compiler that this machine lacks; the message names what was looked for, and where.

    Example:
        >>> octavo.cuda.warmup("int8", "cuda:999")
        Traceback (most recent call last):
        octavo.errors.CudaUnavailableError: ...
    """


class KernelCompileError(CudaError):
    """A kernel that NVRTC refused, a defect of Octavo.

    Args:
        message: names the kernel, and ends in the log.
        log: output of the compiler, also an attribute.

    Example:
        >>> raise octavo.KernelCompileError("quantize_mxint8: line 3: expected a ';'", log="line 3: expected a ';'")
        Traceback (most recent call last):
        octavo.errors.KernelCompileError: quantize_mxint8: line 3: expected a ';'
    """

    def __init__(self, message: str = "", log: str = "") -> None:
        """Keep the message and the log."""
        super().__init__(message, log)
        self.log = log

    def __str__(self) -> str:
        """Return the message, which ends in the log."""
        return str(self.args[0])


class LockedError(OctavoError, RuntimeError):
    """A folder that another process is at work in; the message names the folder and the process.

    Training, studies and compressions with a journal lock their folder. A lock ends with its process.

    Example:
        >>> from octavo.storage.locks import FolderLock
        >>> with FolderLock("runs"), FolderLock("runs"):
        ...     pass
        Traceback (most recent call last):
        octavo.errors.LockedError: runs: another process is at work on this run (process ... on ..., since ...);
        wait for it, end it, or give another folder
    """


class WorkerError(OctavoError, RuntimeError):
    """A worker process was killed: by the system for want of memory, or by hand."""


class InterruptedRun(OctavoError):
    """A signal ended the work, and its state is saved: the same call goes on.

    Args:
        message: names the folder that holds the state.
        signal: number of the signal, 2 for Ctrl-C; also an attribute.
        told: whether a line on stderr has said so already; also an attribute.

    Example:
        >>> try:
        ...     raise octavo.InterruptedRun("interrupted: the same command goes on from runs/copy", signal=15)
        ... except octavo.InterruptedRun as error:
        ...     print(error, "| exit code", 128 + error.signal)
        interrupted: the same command goes on from runs/copy | exit code 143
    """

    def __init__(self, message: str = "", signal: int = 2, told: bool = False) -> None:
        """Keep message, signal, and whether it was told."""
        super().__init__(message, signal, told)
        self.signal, self.told = signal, told

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0])


class InternalError(OctavoError, RuntimeError):
    """A defect of Octavo itself; please report it.

    Example:
        A panic in Rust arrives as this error, with its message and place; the process goes on.

        >>> raise octavo.InternalError("index out of bounds; please report this")
        Traceback (most recent call last):
        octavo.errors.InternalError: index out of bounds; please report this
    """


class OctavoWarning(UserWarning):
    """Base of the warnings: the result is right, but may not be what was meant.

    Example:
        One line makes all of them errors.

        >>> warnings.simplefilter("error", octavo.OctavoWarning)
        >>> octavo.quantize_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 64)), "0 int8")
        Traceback (most recent call last):
        octavo.errors.CoverageWarning: Sequential: 9.9% of the parameters (64 of 648) ...
    """


class IdentityWarning(OctavoWarning):
    """A part of a model, data or a function that a journal cannot read, so that it answers nothing from before.

    Example:
        >>> model, scale = nn.Sequential(nn.Linear(8, 8)), (2.0 for _ in range(9))
        >>> def output(scores, batch):
        ...     return scores * next(scale)
        >>> warnings.simplefilter("error", octavo.IdentityWarning)
        >>> octavo.search.measure_sensitivity(model, [torch.ones(2, 8)], ["int8"], output=output, journal="found")
        Traceback (most recent call last):
        octavo.errors.IdentityWarning: the journal cannot tell whether these are what they were, and answers nothing
        that depends on them: output global 'scale', a generator: cannot pickle 'generator' object. Give numbers, ...
    """


class UnusedLayerWarning(OctavoWarning):
    """Quantized layers that a forward pass did not use, or whose activations it did not round.

    Args:
        message: names the layers and the rule.
        layers: their paths; also an attribute.
        rule: the end of a recipe that keeps them as they are; also an attribute.

    Example:
        >>> class Spare(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
        ...     def forward(self, x):
        ...         return self.used(x)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     _ = octavo.quantize_model(Spare(), "int8")(torch.ones(1, 4))
        >>> caught[0].message.layers, caught[0].message.rule
        (('spare',), 'name:spare keep')
    """

    def __init__(self, message: str = "", layers: tuple[str, ...] = (), rule: str = "") -> None:
        """Keep the message, the paths and the rule."""
        super().__init__(message)
        self.layers, self.rule = layers, rule


class CoverageWarning(OctavoWarning):
    """A recipe that leaves more than half of a model's parameters as they are.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 64))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     _ = octavo.quantize_model(model, "0 int8")
        >>> print(caught[0].message)
        Sequential: 9.9% of the parameters (64 of 648) and 9.9% of the bytes are quantized; float: 90.1% ...
    """


class CalibrationWarning(OctavoWarning):
    """Layers of which calibration saw nothing but zeros, or weights that a format makes 0 altogether.

    Args:
        message: names the layers, and the rule that keeps them.
        layers: their paths; also an attribute.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     _ = octavo.quantize_model(model, "int8 input=int8@mse", calibration=[torch.zeros(2, 8)])
        >>> print(caught[0].message)
        0: input: nothing but zeros in the calibration data, ...
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
