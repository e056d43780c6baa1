"""Recipes: which tensor gets which format, in ordered rules. The grammar is in :mod:`octavo.quant.recipe.text`."""

from octavo.quant.recipe.recipe import Recipe
from octavo.quant.recipe.rule import Rule
from octavo.quant.recipe.selectors import Selector

__all__ = ["Recipe", "Rule", "Selector"]
