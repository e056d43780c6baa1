"""Checks that a role can take a format with a calibration."""

from __future__ import annotations

from octavo.recipe.spec import INT32, Spec

_LEARNABLE = ("int", "fixed")
_INTEGER_WIDTHS = range(2, 9)


def misfit(role: str, spec: Spec) -> str | None:
    """Return why a tensor of this role cannot have this spec, with what to write instead; None where it can."""
    fmt, method = spec.format, spec.calibration.method if spec.calibration else None
    if fmt == INT32:
        if role != "bias":
            return f"'int32' is a format of biases; the {role} takes int2 to int16"
        return (
            None
            if method is None
            else f"'int32' takes no calibration, its scale is that of the products: drop @{method}"
        )
    if fmt.core.instead is not None:
        return (
            f"'{fmt}' holds blocks of GGUF files as they are, and nothing is quantized to it: take '{fmt.core.instead}'"
        )
    if method is None:
        return None
    if spec.scale != "floor":
        return f"'{fmt}' has the block-scale rule '{spec.scale}' and the calibration '{method}': give one of them"
    if role == "bias":
        return f"a bias is quantized from its own values: drop @{spec.calibration}"
    if method in ("gptq", "hqq"):
        if role != "weight":
            return f"'{method}' is for weights: give the {role} minmax, quantile, mse, kl or lsq"
        if fmt.family == "native":
            return f"'{fmt}' is a cast: drop @{method}"
        if method == "hqq" and fmt.scale_type is None:
            return f"'hqq' fits scales and zero points, '{fmt}' has none: take a format with scales, or gptq"
        return None
    return _static_misfit(role, spec, method)


def _static_misfit(role: str, spec: Spec, method: str) -> str | None:
    fmt = spec.format
    if fmt.is_block:
        return f"'{fmt}' chooses block scales anew each time: drop @{method}, or take @floor, @ceil or @mse"
    if fmt.scale_type is None:
        return f"'{fmt}' has no scale to calibrate: drop @{method}"
    if role != "weight" and fmt.granularity != "tensor":
        unit = "row" if fmt.granularity == "channel" else "group"
        return (
            f"'{fmt}' has a scale for each {unit} of the {role}, which is known at run time only: "
            f"drop @{method}, or take a format with one scale a tensor"
        )
    if method == "lsq" and fmt.family not in _LEARNABLE:
        return f"'lsq' learns scales of int and fixed formats: take one, or another calibration than '{fmt}@lsq'"
    return None


def integer_misfit(weight: Spec | None, input_spec: Spec | None) -> str | None:
    """Return why weight and input are not on the integer path that a bias 'int32' asks for; None where they are."""
    for role, spec in (("weight", weight), ("input", input_spec)):
        fmt = spec.format if spec else None
        if fmt is None or fmt.family != "int" or fmt.width not in _INTEGER_WIDTHS or fmt.granularity == "block":
            choice = f"'{fmt}'" if fmt else "kept"
            return (
                f"a bias 'int32' has the scale of integer products, and the {role} is {choice}: "
                f"give weight and input int2 to int8, or take another format for the bias"
            )
    if input_spec is not None and input_spec.calibration is None:
        advice = f"calibrate the input, as '{input_spec.format}@minmax' does"
        return f"a bias 'int32' needs an input scale that is fixed: {advice}"
    return None
