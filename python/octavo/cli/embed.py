"""``octavo embed``: one vector a text, natively."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli._app import JsonOption


def run(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder of a text encoder, packed or not.")],
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

    Prints how similar each text is to each other one (the cosine); --json prints the vectors, -o writes them.

    \b
    Examples:
      octavo pack bert-folder -o small --recipe mxint8
      octavo embed small "a cat on a sofa" "a kitten on a couch" "tax law"
      octavo embed small -o vectors.npy < lines.txt
    """
    from octavo.encoder import Encoder
    from octavo.errors import DataError
    from octavo.files import whole
    from octavo.report.console import console, print_json, print_table, table

    if texts:
        lines = texts
    else:
        try:
            lines = sys.stdin.buffer.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"standard input: byte {error.start} is no UTF-8; accepted is text in UTF-8") from None
    if not lines:
        raise DataError("no text to embed; give some after FOLDER, or lines on standard input")
    vectors = Encoder.load(folder).embed(lines, limit=limit)
    if out is not None:
        import numpy as np

        with whole(out) as file:
            np.save(file, vectors)
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
