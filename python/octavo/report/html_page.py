"""Pages of HTML that load nothing from elsewhere: a template of this folder, the parts it includes, and plain data."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"@INCLUDE ([a-z_]+\.(?:css|js))@\n?")


def html_page(template: str, title: str, data: Mapping[str, Any]) -> str:
    """Return the page that ``template``, a file of this folder, makes of ``data``, which its script reads as JSON.

    ``@INCLUDE name@`` in a template is the text of that file. ``data``: plain values, finite numbers alone. Texts are
    shown as they are, markup included.
    """
    # A "<" inside the data would end the script element that holds it.
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    content = content.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair is no UTF-8
    page = _INCLUDE.sub(lambda match: _text(match[1]), _text(template))
    before, _, after = page.partition("@DATA@")
    escaped = html.escape(title).encode("utf-8", "replace").decode()
    return before.replace("@TITLE@", escaped) + content + after


def language_page(study: Mapping[str, Any]) -> str:
    """Return the page of what every technique of a language model is worth.

    ``study``: ``title``; ``facts`` and ``notes``, lines of text; ``baseline``, the name of an arm; ``budgets``, each
    ``name`` and ``told``; ``arms``, each ``arm``, ``told``, ``expected``, ``parameters``, ``tokens_per_s``,
    ``sentence``, ``command`` and ``cells`` by budget (``loss``, ``half``, ``seeds``, ``difference``, ``low``, ``high``,
    ``verdict``, ``told``, ``reported``); ``claims``, each ``list``, ``technique``, ``claimed``, ``arm``, ``verdict``,
    ``command`` and the cells ``at_tokens`` and ``at_time``; ``bounds``; ``curves``, each ``arm`` and ``points``, pairs
    of tokens and loss; ``fidelity``, each ``fact`` and ``state``. Texts are shown as they are, markup included.
    """
    return html_page("language_page.html", str(study["title"]), study)


def check_page(checked: Mapping[str, Any]) -> str:
    """Return the page of what is wrong in a checkpoint.

    ``checked``: what ``octavo check --json`` prints: ``path``, ``kind``, ``tensors``, ``bytes``, ``layouts``,
    ``coverage``, ``bits_per_element``, ``findings``, and perhaps ``layers`` and ``routes``. Texts are shown as they
    are, markup included.
    """
    return html_page("check_page.html", f"octavo check {checked['path']}", checked)


def tree_page(data: Mapping[str, Any]) -> str:
    """Return the page that shows a tree of costs.

    ``data``: ``title``; ``facts`` and ``notes``, lines of text; ``totals``, each ``label``, ``value`` and ``told``;
    ``measures``, each ``key``, ``label``, ``unit`` (``B``, ``bits`` or none) and, of a ratio, ``over``: the keys of two
    values; ``tree``: a row. A row has ``name``, ``class``, ``kind`` (``module``, ``group``, ``operator`` or
    ``weight``), ``count``, ``told`` (a text of several lines), ``values`` by key, those of one of its ``count`` equals,
    and ``children``. Texts are shown as they are, markup included.
    """
    return html_page("tree_page.html", str(data["title"]), data)


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
