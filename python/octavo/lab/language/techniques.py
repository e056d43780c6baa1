"""The registry of techniques: parts of a language model under a kind and a name.

A technique is registered with its configuration and with what the contract tests need to know of it, so that it is
tested by being named::

    @register("ffn", "gelu", GeluMLP, examples=(GeluMLP(),))
    class GeluFeedForward(nn.Module): ...

A configuration is a frozen dataclass that checks itself; its type says which technique it is of. Written down it is a
dict of its fields and of ``name``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from octavo.errors import SettingError

KINDS = ("embedding", "mixer", "ffn", "head", "objective")

Builder = TypeVar("Builder", bound=Callable[..., Any])


@dataclass(frozen=True)
class Technique:
    """One registered technique.

    ``config``: the class of its configurations. ``build``: makes it from one, with the sizes that its kind is given.
    ``examples``: small configurations on which the contract tests run. ``off``: pairs of configurations, the technique
    at strength 0 and a plain one that it must equal bit for bit. ``lags``: of a mixer; a change of the token that many
    positions earlier must change the output. ``beside``: kinds and configurations of the other parts that it needs.
    """

    kind: str
    name: str
    config: type
    build: Callable[..., Any]
    examples: tuple[Any, ...]
    off: tuple[tuple[Any, Any], ...] = ()
    lags: tuple[int, ...] = ()
    beside: tuple[tuple[str, Any], ...] = ()


_techniques: dict[tuple[str, str], Technique] = {}


def register(
    kind: str,
    name: str,
    config: type,
    *,
    examples: tuple[Any, ...],
    off: tuple[tuple[Any, Any], ...] = (),
    lags: tuple[int, ...] = (),
    beside: tuple[tuple[str, Any], ...] = (),
) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a class or function as the technique ``name`` of ``kind``.

    Raises SettingError for an unknown kind, a name or configuration that is taken, no example, or an example of
    another class.
    """
    if kind not in KINDS:
        raise SettingError(f"kind is {kind!r}; accepted are {', '.join(KINDS)}")
    if (kind, name) in _techniques:
        raise SettingError(f"{kind} {name!r} is registered already; choose another name")
    if taken := [other.name for other in _techniques.values() if other.config is config]:
        raise SettingError(f"{config.__name__} configures {taken[0]!r} already; a technique has a configuration class")
    if not examples or any(type(example) is not config for example in examples):
        raise SettingError(f"{kind} {name!r}: examples are one {config.__name__} or more, on which its contracts run")

    def registered(build: Builder) -> Builder:
        _techniques[kind, name] = Technique(kind, name, config, build, examples, off, lags, beside)
        return build

    return registered


def unregister(kind: str, name: str) -> None:
    """Take a technique out again, as a test does with its own. Raises SettingError for an unknown one."""
    technique(kind, name)
    del _techniques[kind, name]


def technique(kind: str, name: str) -> Technique:
    """Return the technique of a name. Raises SettingError for an unknown one, with the names that there are."""
    if (found := _techniques.get((kind, name))) is not None:
        return found
    raise SettingError(f"{kind} is {name!r}; accepted are {', '.join(names(kind))}")


def techniques(kind: str | None = None) -> list[Technique]:
    """Return the registered techniques, or those of one kind, by name."""
    found = [one for one in _techniques.values() if kind in (None, one.kind)]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.name))


def names(kind: str) -> list[str]:
    """Return the names of one kind, sorted."""
    return [one.name for one in techniques(kind)]


def technique_of(kind: str, config: Any) -> Technique:
    """Return the technique that ``config`` is of. Raises SettingError for anything else."""
    for one in _techniques.values():
        if one.kind == kind and one.config is type(config):
            return one
    raise SettingError(
        f"{kind} is configured by a {type(config).__name__}; accepted are "
        f"{', '.join(one.config.__name__ for one in techniques(kind))}"
    )


def configured(kind: str, written: Mapping[str, Any]) -> Any:
    """Return the configuration that :func:`written_down` wrote. Raises SettingError for unknown names and fields."""
    if "name" not in written:
        raise SettingError(f"a {kind} has no name; accepted are {', '.join(names(kind))}")
    found = technique(kind, str(written["name"]))
    given = {name: value for name, value in written.items() if name != "name"}
    known = [field.name for field in fields(found.config)]
    if unknown := sorted(given.keys() - set(known)):
        raise SettingError(f"{unknown[0]} is no field of {kind} {found.name!r}; accepted: {', '.join(known) or 'none'}")
    return found.config(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})


def later(default: Any) -> Any:
    """Return a field that a configuration got after records of it were written.

    At its default it is not written down, so that configurations keep the records and hashes that they had.
    """
    return field(default=default, metadata={"later": True})


def written_down(kind: str, config: Any) -> dict[str, Any]:
    """Return a configuration as a dict for JSON: its name and its fields, tuples as lists."""
    plain = {
        one.name for one in fields(config) if one.metadata.get("later") and getattr(config, one.name) == one.default
    }
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(config).items() if name not in plain}
    return {"name": technique_of(kind, config).name, **values}


def whole(owner: Any, name: str, *, least: int, most: int = 1 << 24) -> None:
    """Check a field that is a whole number. Raises SettingError with field, value and range."""
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingError(f"{name} is {value!r}; accepted are whole numbers from {least} to {most}")


def number(owner: Any, name: str, *, least: float, most: float) -> None:
    """Check a field that is a number. Raises SettingError with field, value and range."""
    value = getattr(owner, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise SettingError(f"{name} is {value!r}; accepted are numbers from {least:g} to {most:g}")


def choice(owner: Any, name: str, accepted: tuple[Any, ...]) -> None:
    """Check a field that is one of a few values. Raises SettingError with field, value and what is accepted."""
    if getattr(owner, name) not in accepted:
        raise SettingError(f"{name} is {getattr(owner, name)!r}; accepted are {', '.join(map(repr, accepted))}")
