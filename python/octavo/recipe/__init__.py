"""Recipes: which tensor gets which format, in ordered rules. The grammar is in :mod:`octavo.recipe.text`."""

from octavo.recipe.recipe import Recipe
from octavo.recipe.rule import Rule
from octavo.recipe.selectors import Selector
from octavo.recipe.text import parse_selector

__all__ = ["Recipe", "Rule", "Selector", "parse_selector"]
