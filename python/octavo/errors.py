"""The exceptions of Octavo. A leaf module: Rust and Python raise the same classes."""


class OctavoError(Exception):
    """Base of everything that Octavo raises on purpose."""


class FormatError(OctavoError, ValueError):
    """A format text, scale rule or option that is unknown, contradicts itself or does not fit the format."""


class ShapeError(OctavoError, ValueError):
    """A shape, axis or buffer that does not fit."""


class DTypeError(OctavoError, TypeError):
    """A dtype, device or kind of object that is not accepted."""


class NonFiniteError(OctavoError, ValueError):
    """NaN or infinity where only finite values are accepted."""


class ContainerError(OctavoError, ValueError):
    """A file that is not a valid container, or one this version refuses."""


class DataError(OctavoError, ValueError):
    """Text, tokens or a file of them that do not obey the rules of their kind."""


class SettingError(OctavoError, ValueError):
    """A SIMD level or number of threads that this machine or build cannot honour."""


class CalibrationError(OctavoError, ValueError):
    """Scales that need data which is missing, or which never reached the layer they are for."""


class InternalError(OctavoError, RuntimeError):
    """A defect of Octavo itself; please report it."""
