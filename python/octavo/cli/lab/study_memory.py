"""``octavo lab study memory``: bytes of packed models, in processes and on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import OutOption, QuickOption, SubjectOptions, Usual, run, with_subject

_IN_PROCESSES, _ON_GPU = Usual(1000, 64), Usual(64, 16)


@with_subject
def memory(
    subject: SubjectOptions,
    out: OutOption = None,
    recipes: Annotated[
        str | None,
        typer.Option(
            "--recipes", metavar="TEXTS",
            help="Recipes that pack the models, separated by '|'.  [default: mxint8 | int4:g32; on a GPU "
            "type:Linear mxint8 | mxint8]",
        ),
    ] = None,
    texts: Annotated[
        int | None, _IN_PROCESSES.option("Texts that are answered while memory is measured; on a GPU 64, else:")
    ] = None,
    quick: QuickOption = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Memory of packed models against float32.

    Bytes are counted by component, and measured.

    On a CPU each model is saved, and loaded in a fresh process that answers texts eight at a time; its resident and
    peak memory are read from the system. Answers are compared with those of the simulated model.

    On a GPU the peak of torch's allocator is taken apart: packed codes, scales, what stayed float, the rounding of the
    allocator, inputs, activations, temporaries. Labels and the three highest scores are compared with those of float32.

    --model FOLDER takes a classifier of transformers as it is. It answers the texts of --data FILE, or random ids.

    \b
    Examples:
      octavo lab study memory
      octavo lab study memory --recipes 'mxint8 | type:Embedding int4:g32; type:Linear nf4'
      octavo lab study memory --model minilm --data data/ --trained minilm
      octavo lab study memory --device cuda --model deberta/
      octavo lab study memory --device cuda --model deberta/ --data emotion.tsv --recipes 'mxint8 | int4:g32'
    """
    from octavo.lab.studies import device_memory_tables, result_files
    from octavo.lab.studies.device_memory import EVERYTHING, LINEAR, DeviceMemory
    from octavo.lab.studies.folder_subject import open_for_memory
    from octavo.lab.studies.memory import Memory
    from octavo.lab.studies.stopwatch import device_of
    from octavo.report.study_plots import memory_figure

    chosen = None if recipes is None else tuple(text.strip() for text in recipes.split("|") if text.strip())
    measure = partial(run, "memory", subject=subject, out=out, quick=quick, json=json, opener=open_for_memory)
    if device_of(subject.device).type == "cuda":
        count = _ON_GPU.of(texts, quick=quick)
        study = DeviceMemory((LINEAR, EVERYTHING) if chosen is None else chosen, count)
        measure(study.run, device_memory_tables.device_memory_table, device_memory_tables.device_memory_notes,
                device_memory_tables.device_memory_figure)  # fmt: skip
        return
    count = _IN_PROCESSES.of(texts, quick=quick)
    in_processes = Memory(("mxint8", "int4:g32") if chosen is None else chosen, count)
    measure(in_processes.run, result_files.memory_table, result_files.memory_notes, memory_figure)
