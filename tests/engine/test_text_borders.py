"""A continuation ends before the stop that ends first, wherever its pieces end."""

import random

import pytest
from octavo import SettingError
from octavo.engine.text_borders import stop_texts, until


def cut(text, rng):
    pieces = []
    while text:
        size = rng.randrange(1, 5)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def expected(text, stops):
    """The text before the stop that ends first; of several that end there, before the longest."""
    for end in range(1, len(text) + 1):
        places = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if places:
            return text[: min(places)]
    return text


def test_what_is_given_does_not_depend_on_where_pieces_end():
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choices("abc", k=rng.randrange(0, 14)))
        stops = tuple("".join(rng.choices("abc", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4)))
        for pieces in ([text], list(text), cut(text, rng)):
            given = list(until(pieces, stops))
            assert "".join(given) == expected(text, stops) and "" not in given, (pieces, stops)


def test_a_piece_is_given_as_soon_as_no_stop_can_begin_in_it():
    pieces = iter(["ab", "c", "d", "x"])
    given = until(pieces, ("cde",))
    assert next(given) == "ab" and next(given) == "cdx"


@pytest.mark.parametrize("stop", ["", b"a", ["a", ""], ["a", 1], 7, {"a"}])
def test_what_is_no_text_is_refused(stop):
    with pytest.raises(SettingError, match=r"stop is .*; accepted are a text and a list of texts"):
        stop_texts(stop)
