"""Options of the commands that read a corpus of labelled texts."""

from __future__ import annotations

from typing import Annotated

import typer

CorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What --data holds: sst2 (sst2_train.tsv, sst2_dev.tsv) or imdb (imdb_train.jsonl, imdb_test.jsonl, or "
        "the folders train and test with pos and neg inside), files plain or .xz.  [default: sst2]",
    ),
]
LengthOption = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens of a text that are read, up to 512.  [default: 64]")
]
HeldOutOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Test on N training texts, never trained on, in place of the corpus's test file: SST-2's 872 sentences "
        "are too few for small differences.",
    ),
]
