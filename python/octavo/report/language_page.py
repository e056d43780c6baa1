"""A page of HTML with what every technique of a language model is worth: one file, from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.report.html_page import html_page


def language_page(study: Mapping[str, Any]) -> str:
    """Return the page.

    ``study``: ``title``; ``facts`` and ``notes``, lines of text; ``baseline``, the name of an arm; ``budgets``, each
    ``name`` and ``told``; ``arms``, each ``arm``, ``told``, ``expected``, ``parameters``, ``tokens_per_s``,
    ``sentence``, ``command`` and ``cells`` by budget (``loss``, ``half``, ``seeds``, ``difference``, ``low``, ``high``,
    ``verdict``, ``told``, ``reported``); ``bounds``; ``curves``, each ``arm`` and ``points``, pairs of tokens and loss;
    ``fidelity``, each ``fact`` and ``state``. Texts are shown as they are, markup included.
    """
    return html_page("language_page.html", str(study["title"]), study)
