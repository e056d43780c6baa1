"""A page of HTML that shows a tree of costs: one file, nothing loaded from elsewhere, from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.report.html_page import html_page


def tree_page(data: Mapping[str, Any]) -> str:
    """Return the page.

    ``data``: ``title``; ``facts`` and ``notes``, lines of text; ``totals``, each ``label``, ``value`` and ``told``;
    ``measures``, each ``key``, ``label``, ``unit`` (``B``, ``bits`` or none) and, of a ratio, ``over``: the keys of two
    values; ``tree``: a row. A row has ``name``, ``class``, ``kind`` (``module``, ``group``, ``operator`` or
    ``weight``), ``count``, ``told`` (a text of several lines), ``values`` by key, those of one of its ``count`` equals,
    and ``children``. Texts are shown as they are, markup included.
    """
    return html_page("tree_page.html", str(data["title"]), data)
