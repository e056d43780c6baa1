"""``octavo embed``: turns texts into vectors with the native encoder."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli._standard_input import standard_lines

if TYPE_CHECKING:
    import numpy as np

MOST_SHOWN = 100  # texts in a table, which has a column for each


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A model folder of a text encoder, packed or not; or minilm.")
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; without any, the lines of standard input.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.npy", help="Write the vectors as a NumPy array.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Tokens of a text that are read.")] = 256,
    json: JsonOption = False,
) -> None:
    """Turn texts into vectors of length 1, without torch.

    Prints the cosine of every pair of up to 100 texts; --json prints the vectors, -o writes them. Lines end with LF or
    CRLF; an empty one is a text, too.

    \b
    Examples:
      octavo pack bert-folder -o small --recipe mxint8
      octavo embed small "a cat on a sofa" "a kitten on a couch" "tax law"
      octavo embed small -o vectors.npy < lines.txt
    """
    from octavo.display.console import console, print_json, print_table, table
    from octavo.engine.text_encoder import TextEncoder
    from octavo.errors import DataError
    from octavo.storage.files import whole
    from octavo.storage.named_models import resolved

    lines = texts or standard_lines()
    if not lines:
        raise DataError("no text to embed; give some after FOLDER, or lines on standard input")
    if len(lines) > MOST_SHOWN and out is None and not json:
        raise DataError(
            f"{len(lines)} texts; a table shows up to {MOST_SHOWN}: give -o FILE.npy or --json for their vectors"
        )
    encoder = TextEncoder.load(resolved(folder))
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(whole(out))  # before the work: it may be refused
        vectors = encoder.embed(lines, limit=limit)
        if file is not None:
            file.write(_npy(vectors))
    if json:
        print_json([{"text": text, "vector": vector} for text, vector in zip(lines, vectors.tolist(), strict=True)])
        return
    shown = console()
    if out is not None:
        shown.print(f"{len(vectors)} vectors of {vectors.shape[1]} numbers: {out}")
        return
    rows = table("text", *(f">{number}" for number in range(1, len(lines) + 1)))
    for number, (text, cosines) in enumerate(zip(lines, vectors @ vectors.T, strict=True), 1):
        rows.add_row(f"{number}  {text}", *(f"{cosine:.3f}" for cosine in cosines))
    print_table(shown, rows)


def _npy(vectors: np.ndarray) -> memoryview:
    """Return an array as a file of NumPy, which it writes to no pipe itself."""
    import numpy as np

    held = io.BytesIO()
    np.save(held, vectors)
    return held.getbuffer()
