"""Recipe: ordered rules that give every tensor of a model its format."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import FormatError
from octavo.recipe.rule import RULE_KEYS, Rule
from octavo.recipe.text import parse_rules
from octavo.recipe.toml import read_toml, write_toml
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import parse_json, read_text, shown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from octavo.recipe.explanation import Explanation
    from octavo.recipe.spec import LayerPlan, Spec
    from octavo.tensors.packed_tensor import PackedTensor

# Bytes of a recipe's file: a rule for each of ten thousand layers.
_MOST = 1 << 20


class Recipe:
    """Ordered rules: selector and role to format and calibration. For each tensor the last rule that matches decides.

    Immutable, comparable and hashable; a recipe without rules changes nothing. A tensor that no rule matches stays as
    it is. One grammar, :mod:`octavo.recipe.text`, whether it is written as text, TOML, JSON or a dictionary.

    Args:
        rules: rules in order.

    Raises:
        FormatError: for anything else than rules.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> recipe = octavo.Recipe.parse("int4:g32; last:Linear int8:channel input=int8@mse")
        >>> print(recipe.explain(model))
        layer  role       shape  format        bits  scales  rule                                            overrode
        ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
        0      weight  128 x 64  int4:g32       4.5          int4:g32
        2      weight  10 x 128  int8:channel  8.25          last:Linear weight=int8:channel input=int8@mse  int4:g32
        2      input             int8             8  mse     last:Linear weight=int8:channel input=int8@mse
        ...
        bytes            38.44 kB -> 6.48 kB
        ...
    """

    __slots__ = ("rules",)

    rules: tuple[Rule, ...]

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        """Take rules in order."""
        ordered = tuple(rules) if isinstance(rules, Iterable) else (rules,)
        for rule in ordered:
            if not isinstance(rule, Rule):
                raise FormatError(f"a recipe is made of Rule(...), got {shown(rule)}; a text is read by Recipe.parse")
        object.__setattr__(self, "rules", ordered)

    # --- written forms ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_arguments
    def of(cls, given: Recipe | str | Mapping[str, Any] | os.PathLike[str]) -> Recipe:
        """Return the recipe of any of its written forms.

        Args:
            given: a Recipe, its short text, its dictionary, or the path of its TOML file.

        Returns:
            The recipe.

        Raises:
            FormatError: names the rule that is wrong.
            DTypeError: for another kind of object.
            OSError: for a file that cannot be read.

        Example:
            >>> octavo.Recipe.of("int4:g32") == octavo.Recipe.of({"rules": [{"weight": "int4:g32"}]})
            True
        """
        if isinstance(given, Recipe):
            return given
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        return cls.from_toml(given) if isinstance(given, os.PathLike) else cls.parse(given)

    @classmethod
    @checks_arguments
    def parse(cls, text: str) -> Recipe:
        """Read the short text.

        Args:
            text: rules, separated by semicolons; the grammar is in :mod:`octavo.recipe.text`.

        Returns:
            The recipe; ``Recipe.parse(str(recipe)) == recipe``.

        Raises:
            FormatError: names the rule that is wrong.

        Example:
            >>> recipe = octavo.Recipe.parse("int4:g32; encoder.**.query weight=mxint8 input=mxint8; last:Linear keep")
            >>> [str(rule) for rule in recipe]
            ['int4:g32', 'encoder.**.query weight=mxint8 input=mxint8', 'last:Linear keep']
        """
        return cls(parse_rules(text))

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Recipe:
        """Read plain values, as :meth:`as_dict` returns them.

        Args:
            given: ``{"rules": [...]}``, each rule a dictionary of the arguments of :class:`Rule`; it is not changed.

        Returns:
            The recipe.

        Raises:
            FormatError: names the rule and the key that are wrong.
        """
        rules = given.get("rules") if isinstance(given, Mapping) else None
        if not isinstance(rules, list | tuple) or len(given) != 1:
            raise FormatError("a recipe is {'rules': [...]}, each rule like {'type': 'Linear', 'weight': 'int8'}")
        return cls(_rule(number, table) for number, table in enumerate(rules, 1))

    @classmethod
    @checks_arguments
    def from_json(cls, text: str) -> Recipe:
        """Read the text that :meth:`to_json` returns.

        Args:
            text: JSON.

        Returns:
            The recipe.

        Raises:
            FormatError: names the place, or the rule that is wrong.
        """
        if not isinstance(text, str):
            raise FormatError(f"recipe: JSON is a text, got {type(text).__name__}")
        return cls.from_dict(parse_json(text, "recipe", error=FormatError))

    @classmethod
    @checks_arguments
    def from_toml(cls, given: str | os.PathLike[str]) -> Recipe:
        """Read TOML: one ``[[rules]]`` table a rule.

        Args:
            given: a text, or the path of a file.

        Returns:
            The recipe.

        Raises:
            FormatError: names the place, or the rule that is wrong.
            OSError: for a file that cannot be read.
        """
        text = read_text(given, _MOST, error=FormatError) if isinstance(given, os.PathLike) else given
        return cls.from_dict(read_toml(text))

    def __str__(self) -> str:
        """Return the short text: ``Recipe.parse(str(recipe)) == recipe``."""
        return "; ".join(map(str, self.rules))

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values for JSON.

        Returns:
            A dictionary; ``Recipe.from_dict(recipe.as_dict()) == recipe``.
        """
        return {"rules": [rule.as_dict() for rule in self.rules]}

    def to_json(self) -> str:
        """Return the recipe as JSON.

        Returns:
            A text; ``Recipe.from_json(recipe.to_json()) == recipe``.
        """
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def to_toml(self) -> str:
        """Return the recipe as TOML.

        Returns:
            A text; ``Recipe.from_toml(recipe.to_toml()) == recipe``.

        Example:
            >>> print(octavo.Recipe.parse("int4:g32; last:Linear keep").to_toml())
            [[rules]]
            weight = "int4:g32"
            <BLANKLINE>
            [[rules]]
            type = "Linear"
            pick = "last"
            keep = true
            <BLANKLINE>
        """
        return write_toml("rules", self.as_dict()["rules"])

    # --- what it decides --------------------------------------------------------------------------------------------

    @checks_arguments
    def plan(self, model: nn.Module) -> dict[str, LayerPlan]:
        """Return what each layer of a model gets.

        Layers: Linear, convolutions and transposed ones, Embedding, EmbeddingBag, their subclasses, Conv1D of
        transformers (whose weight is ``[in, out]``), and modules that declare ``quant_roles``. A rule gives formats to
        the layers it selects that have the role. A parameter of several layers gets one decision: rules about one of
        them hold for all.

        Args:
            model: the model; it is not changed.

        Returns:
            A :class:`~octavo.recipe.spec.LayerPlan` by path, in the order of ``named_modules()``; layers that are kept
            are left out.

        Raises:
            FormatError: for a rule that matches nothing (names the nearest layer), a format that cannot hold a role,
                and rules that contradict each other about a shared parameter; names rule, layer and the way out.

        Example:
            >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
            >>> octavo.Recipe.parse("int4:g32; last:Linear keep").plan(model)
            {'0': LayerPlan(weight=Spec(format=Format('int4:g32'), calibration=None, scale='floor'), input=None,
            output=None, bias=None)}
        """
        from octavo.recipe.model_decisions import decide_model, layer_plans

        return layer_plans(decide_model(self.rules, model))

    @checks_arguments
    def explain(self, model: nn.Module) -> Explanation:
        """Return who got what from which rule, parameters that no rule reached, and the bytes.

        Args:
            model: the model; it is not changed.

        Returns:
            An :class:`~octavo.recipe.explanation.Explanation`, which prints as a table.

        Raises:
            FormatError: as :meth:`plan`.
        """
        from octavo.recipe.explanation import explain

        return explain(self.rules, model)

    @checks_arguments
    def assign(self, tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Spec | None]:
        """Return what each tensor of a checkpoint gets; names stand for the model.

        ``a.b.weight`` is the weight of the layer ``a.b``. The default selection is the 2-D float weights, since names
        do not tell types; vectors that are no biases count only where a rule names them in full.

        Args:
            tensors: tensors by name.

        Returns:
            A :class:`~octavo.recipe.spec.Spec` by name, in the order of ``tensors``; None where the tensor is kept.

        Raises:
            FormatError: as :meth:`plan`; and for types, ``first`` and ``last``, activations and calibrations, which
                need a model.
            DTypeError: for anything else than a mapping from texts to tensors.

        Example:
            >>> tensors = {"head.weight": torch.ones(8, 64), "head.bias": torch.ones(8)}
            >>> {name: str(spec) for name, spec in octavo.Recipe.parse("nf4").assign(tensors).items()}
            {'head.weight': 'nf4', 'head.bias': 'None'}
        """
        from octavo.recipe.tensor_decisions import assigned

        return assigned(self.rules, tensors)

    # --- a value ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return the call that makes this recipe."""
        return f"Recipe.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        """Compare rules, in order."""
        return isinstance(other, Recipe) and other.rules == self.rules

    def __hash__(self) -> int:
        """Hash the rules."""
        return hash(self.rules)

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        """Iterate over the rules."""
        return iter(self.rules)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: recipes are immutable."""
        raise AttributeError(f"Recipe is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[type[Recipe], tuple[tuple[Rule, ...]]]:
        """Pickle as the rules."""
        return Recipe, (self.rules,)


def _rule(number: int, table: object) -> Rule:
    if not isinstance(table, Mapping):
        raise FormatError(
            f"rule {number} is {shown(table)}; accepted is a table like {{'type': 'Linear', 'weight': 'int8'}}"
        )
    unknown = sorted(set(table) - set(RULE_KEYS))
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), RULE_KEYS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; accepted are {', '.join(RULE_KEYS)}"
        raise FormatError(f"rule {number}: unknown key {shown(unknown[0])}{hint}")
    try:
        return Rule(**table)
    except FormatError as error:
        raise FormatError(f"rule {number}: {error}") from None
