"""Where generated texts begin and end: ids that a model folder names, and texts that a caller gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from octavo.errors import SettingError
from octavo.storage.reading import read_json, shown

_GENERATION = "generation_config.json"


def borders(folder: Path, vocabulary: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the id that begins a text and those that end one, of ``config.json`` and ``generation_config.json``.

    Where they name none that begins, as a folder of :mod:`octavo.lab.language.gpt` never does, documents begin with
    their end.
    """
    settings = [read_json(folder / "config.json", finite=False)]
    if (folder / _GENERATION).exists():
        settings.append(read_json(folder / _GENERATION, finite=False))

    def named(*names: str) -> tuple[int, ...]:
        numbers: list[object] = []
        for values in settings:
            value = next((values[name] for name in names if name in values), None)
            numbers += value if isinstance(value, list) else [value]
        # A dictionary keeps the order: the first one begins an empty prompt.
        return tuple(dict.fromkeys(one for one in numbers if type(one) is int and 0 <= one < vocabulary))

    ends = named("end_of_text", "eos_token_id")
    begins = (*named("bos_token_id"), *ends)
    return begins[0] if begins else None, ends


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts before which a continuation ends. Raises SettingError for what is no text."""
    stops = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if isinstance(stops, bytes) or not isinstance(stops, Sequence) or not all(isinstance(s, str) and s for s in stops):
        raise SettingError(f"stop is {shown(stop)}; accepted are a text and a list of texts, none of them empty")
    return tuple(stops)


def until(pieces: Iterable[str], stop: tuple[str, ...]) -> Iterator[str]:
    """Yield pieces up to the first of the texts ``stop``, keeping back what may be the begin of one.

    First is the one that ends first, so that what is yielded does not depend on where pieces end.
    """
    pending = ""
    longest = max(map(len, stop), default=0)
    for piece in pieces:
        pending += piece
        ends = [(place + len(one), place) for one in stop if (place := pending.find(one)) >= 0]
        if ends:
            _, place = min(ends)
            if place:
                yield pending[:place]
            return
        back = next(
            (n for n in range(min(longest - 1, len(pending)), 0, -1) if any(s.startswith(pending[-n:]) for s in stop)),
            0,
        )
        if len(pending) > back:
            yield pending[: len(pending) - back]
            pending = pending[len(pending) - back :]
    if pending:
        yield pending
