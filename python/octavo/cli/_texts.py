"""Options of the commands that read a corpus of labelled texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The corpus in the folder --data. sst2: sst2_train.tsv, sst2_dev.tsv. imdb: imdb_train.jsonl, "
        "imdb_test.jsonl, or the folders train and test with pos and neg inside. emotion: emotion_train.jsonl, "
        "emotion_test.jsonl, or train.txt, test.txt. Files are plain or .xz.  [default: sst2]",
    ),
]
TestOption = Annotated[
    Path | None,
    typer.Option("--test", metavar="FILE", help="Labelled texts to report.  [default: a tenth of the file --data]"),
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
