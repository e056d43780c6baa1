"""Spaces of models: axes with choices, conditions and constraints; each point realised into a complete specification.

The identity of a point is the hash of its specification and not of its choices, so that two points which build the same
model are one, and an axis that changes nothing is found before anything is built.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import SettingError
from octavo.search.journal import identity
from octavo.storage.arguments import check_fields, checks_arguments
from octavo.storage.reading import shown

#: The choices of a point by the names of their axes; axes that do not exist at the point are absent.
Point = dict[str, Any]

_DRAWS = 64  # points at which an axis is varied before it is said to change nothing
_RARE = 4000  # further points that are drawn for axes which none of them has
_TRIES = 1000  # random draws that constraints may refuse, or that are known, before all points are gone through


@dataclass(frozen=True)
class Axis:
    """A choice: one of ``choices`` (texts, numbers, booleans or None), at points for which ``when`` is true.

    ``when``: called with the choices of the axes before this one; None: the axis always exists.
    Raises SettingError for an axis without choices, with two equal ones, or with one that is no plain value.
    """

    name: str
    choices: tuple[Any, ...]
    when: Callable[[Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        """Check the choices."""
        check_fields(self)
        object.__setattr__(self, "choices", tuple(self.choices))
        if not self.choices:
            raise SettingError(f"axis {self.name!r} has no choices; accepted is one at least")
        seen = set()
        for choice in self.choices:
            if choice is not None and type(choice) not in (str, int, float, bool):
                raise SettingError(
                    f"axis {self.name!r}: {choice!r} is a {type(choice).__name__}; accepted are texts, numbers, "
                    "booleans and None (name a larger thing by a text, and let realise look it up)"
                )
            if (type(choice), choice) in seen:
                raise SettingError(f"axis {self.name!r}: the choice {choice!r} is there twice; leave one out")
            seen.add((type(choice), choice))


@dataclass(frozen=True)
class Constraint:
    """What points must obey: ``holds`` is called with all choices of a point; ``says`` completes "points where ..."."""

    says: str
    holds: Callable[[Mapping[str, Any]], bool]

    def __post_init__(self) -> None:
        """Check the kinds."""
        check_fields(self)


@dataclass(frozen=True)
class Space:
    """``axes`` in order, and ``realise``, which makes the complete specification of a point's model: plain JSON values.

    ``constraints`` leave points out. ``name`` names the space in errors. Raises SettingError for two axes of one name.
    """

    axes: Sequence[Axis]
    realise: Callable[[Mapping[str, Any]], dict[str, Any]]
    constraints: Sequence[Constraint] = field(default=())
    name: str = "space"

    def __post_init__(self) -> None:
        """Check the names of the axes."""
        check_fields(self)
        names = [axis.name for axis in self.axes]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"{self.name}: two axes are called {name!r}; give each its own name")
        if not names:
            raise SettingError(f"{self.name} has no axes; accepted is one at least")

    @checks_arguments
    def choose(self, pick: Callable[[Axis], Any]) -> Point:
        """Return the point that ``pick`` makes, called for each axis that exists; constraints are not looked at."""
        point: Point = {}
        for axis in self.axes:
            if axis.when is None or axis.when(point):
                point[axis.name] = pick(axis)
        return point

    @checks_arguments
    def allows(self, point: Mapping[str, Any]) -> bool:
        """Tell whether all constraints hold at a point."""
        return all(constraint.holds(point) for constraint in self.constraints)

    @checks_arguments
    def checked(self, point: Mapping[str, Any]) -> Point:
        """Return a point in the order of the axes. Raises SettingError for one that is not of this space."""
        left = dict(point)

        def pick(axis: Axis) -> Any:
            if axis.name not in left:
                unknown = [str(name) for name in left if name not in {other.name for other in self.axes}]
                near = difflib.get_close_matches(axis.name, unknown, n=1)
                hint = f"; did you mean {axis.name!r} by {near[0]!r}?" if near else ""
                raise SettingError(f"{self.name}: the point {shown(dict(point))} has no {axis.name!r}{hint}")
            choice = left.pop(axis.name)
            if choice not in axis.choices:
                raise SettingError(f"{axis.name} is {choice!r}; accepted are {', '.join(map(repr, axis.choices))}")
            return choice

        found = self.choose(pick)
        if left:
            raise SettingError(f"{self.name}: the point has {next(iter(left))!r}, an axis that is not there")
        for constraint in self.constraints:
            if not constraint.holds(found):
                raise SettingError(f"{self.name}: {found} is left out; accepted are points where {constraint.says}")
        return found

    def points(self) -> Iterator[Point]:
        """Yield all points that the constraints allow, the last axis fastest."""
        for point in self._continued({}, 0):
            if self.allows(point):
                yield point

    @checks_arguments
    def draw(self, generator: random.Random) -> Point:
        """Return a point whose choices are drawn one after the other, each with equal probability.

        Raises SettingError where the constraints refused 1000 of them.
        """
        for _ in range(_TRIES):
            point = self.choose(lambda axis: generator.choice(axis.choices))
            if self.allows(point):
                return point
        raise SettingError(f"{self.name}: no point in {_TRIES} draws keeps to the constraints; loosen them")

    @checks_arguments
    def unseen(self, generator: random.Random, known: Collection[str], context: Mapping[str, Any]) -> Point | None:
        """Return a random point whose :meth:`identity` is not ``known``; None where all points are."""
        for _ in range(_TRIES):
            point = self.draw(generator)
            if self.identity(point, context) not in known:
                return point
        left, count = None, 0
        for point in self.points():
            if self.identity(point, context) not in known:
                count += 1
                if generator.randrange(count) == 0:
                    left = point
        return left

    @checks_arguments
    def spec(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete specification of a point's model."""
        return self.realise(point)

    @checks_arguments
    def identity(self, point: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> str:
        """Return the SHA-256 of a point's specification, and of the ``context`` that its model is measured in.

        Raises DataError for a specification that is not plain JSON.
        """
        return settings_identity(self.spec(point), context or {})

    def noop_axes(self) -> dict[str, str]:
        """Return the axes that change no specification, with what was seen; axes of one choice are constants.

        Each axis is varied from the first point and from 64 random ones: it moves a specification at one of them, or
        is named here.
        """
        generator = random.Random(0)
        bases = [self.draw(generator) for _ in range(_DRAWS)]
        if (first := next(self.points(), None)) is not None:
            bases.insert(0, first)
        missing = {axis.name for axis in self.axes} - {name for base in bases for name in base}
        for _ in range(_RARE if missing else 0):  # axes that few points have
            base = self.draw(generator)
            if missing & base.keys():
                bases.append(base)
                missing -= base.keys()
            if not missing:
                break
        varied = [axis for axis in self.axes if len(axis.choices) > 1]
        return {axis.name: reason for axis in varied if (reason := self._stands_still(axis, bases))}

    @checks_arguments
    def check_axes(self, allow_noop: Collection[str] = ()) -> None:
        """Refuse a space with axes that change nothing, but for those in ``allow_noop``.

        Raises SettingError naming them all, and one for a name in ``allow_noop`` that is no axis.
        """
        names = {axis.name for axis in self.axes}
        for name in allow_noop:
            if name not in names:
                raise SettingError(f"allow_noop names {name!r}; the axes are {', '.join(sorted(names))}")
        found = {name: reason for name, reason in self.noop_axes().items() if name not in allow_noop}
        if found:
            lines = "; ".join(f"{name!r}: {reason}" for name, reason in found.items())
            raise SettingError(f"{self.name} has axes without effect: {lines}; take them out, or name them: allow_noop")

    def _continued(self, before: Point, start: int) -> Iterator[Point]:
        for number in range(start, len(self.axes)):
            axis = self.axes[number]
            if axis.when is None or axis.when(before):
                for choice in axis.choices:
                    yield from self._continued({**before, axis.name: choice}, number + 1)
                return
        yield before

    def _stands_still(self, axis: Axis, bases: list[Point]) -> str:
        """Return why an axis has no effect at any of the points; nothing where it has one."""
        varied = [base for base in bases if axis.name in base]
        if not varied:
            return "no point that was tried has it"
        for base in varied:
            points = [self._changed(base, axis.name, choice) for choice in axis.choices]
            if len({self.identity(point) for point in points if self.allows(point)}) > 1:
                return ""
        return f"all its {len(axis.choices)} choices build the same model from {varied[0]}"

    def _changed(self, base: Point, name: str, choice: Any) -> Point:
        return self.choose(lambda axis: choice if axis.name == name else base.get(axis.name, axis.choices[0]))


def settings_identity(spec: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """Return the identity of a specification measured in a context: the one of a journal's settings."""
    return identity({"spec": dict(spec), "context": dict(context)})
