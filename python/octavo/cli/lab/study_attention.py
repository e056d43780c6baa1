"""``octavo lab study attention``: naive attention against the fused one, and kinds of attention by context."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._study import numbers, resumable, show, words
from octavo.cli.lab.study_speed import BatchOption, DevicesOption, measure
from octavo.errors import SettingError

_PAIR = ("naive", "fused")


def attention(
    context: typer.Context,
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="naive,fused; or any of mha, gqa, mla, mla_absorbed, paged, gqa_pages, mla_pages; or all of these.  "
            "[default: naive,fused]",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", "--contexts", metavar="NUMBERS",
            help="Tokens of the prompt and in the cache.  [default: 128,512,2048; of mha ...: 1024,2048 to 16384]",
        ),
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option(
            "--dtypes", "--dtype", metavar="NAMES",
            help="float32, bfloat16, float16.  [default: float32,bfloat16; of mha ..., which take one: float32]",
        ),
    ] = None,
    batch: BatchOption = 1,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="Heads of queries.  [default: 8; of mha ...: 12]")
    ] = None,
    width: Annotated[int, typer.Option("--width", "--head-size", metavar="N", help="Width of a head.")] = 64,
    causal: Annotated[bool, typer.Option("--causal", help="Of naive,fused: no token sees a later one.")] = False,
    phases: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Of mha ...: prompt, decode, or both.  [default: both]")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(metavar="N", help="Heads of keys and values of gqa.  [default: 3]")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(metavar="N", help="Latent values a position of mla.  [default: 128]")
    ] = None,
    rotary: Annotated[
        int | None, typer.Option(metavar="N", help="Values of the turned key of mla.  [default: 32]")
    ] = None,
    page: Annotated[int | None, typer.Option(metavar="N", help="Positions of a page of paged.  [default: 64]")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", "--runs", metavar="N",
            help="Timings of each point; the median counts.  [default: 7; of mha ...: 5]",
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Name the dominant kernel of each row, and its share of the time.")
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Of mha ...: draw TFLOP/s and GB/s of every run, too: attention-runs.png.")
    ] = False,
    device: DevicesOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER",
            help="Where results go.  [default: octavo-attention-DEVICE; of mha ...: octavo-attention-kinds-DEVICE]",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Time and memory of attention: naive, fused, and other kinds.

    naive,fused: softmax(Q K^T / sqrt(d)) V holds one score for each pair of tokens. scaled_dot_product_attention
    computes the same a tile of scores at a time, so its memory grows with the length and not with the length squared.

    \b
    The other kinds ask what a prompt and a decoded token cost:
      mha            keeps a key and a value of every head
      gqa            keeps those of a few heads, which others share
      mla            keeps a latent a position, from which it makes keys and values of all heads
      mla_absorbed   the same without making them
      paged          mha in pages of 64 positions, gathered for each token
      gqa_pages      gqa in pages, which tokens attend to where they lie
      mla_pages      mla_absorbed in pages, likewise

    On a GPU a kernel attends to pages, in float16 and bfloat16. Time runs from given queries to mixed heads. All
    points of a run are measured before the next run; every timing is a line of FOLDER/study.jsonl. Forms of the same
    attention are compared before they are timed. A prompt of 16,384 positions takes seconds on a CPU, and time grows
    with its square: give shorter --lengths for a first look.

    The same command goes on where it was stopped.

    \b
    Examples:
      octavo lab study attention
      octavo lab study attention --lengths 256,1024,4096 --causal --profile
      octavo lab study attention --device cuda --dtypes float16,bfloat16 --batch 8 --profile
      octavo lab study attention --kinds mha,gqa,mla_absorbed --lengths 256,512,1024 --plot
      octavo lab study attention --kinds all --device cuda --dtypes bfloat16 --batch 8 --plot
    """
    # octavo lab bench attention was a command of its own; its name is a hidden alias, which goes with the next release.
    is_bench = context.parent is not None and context.parent.info_name == "bench"
    chosen = words(kinds) if kinds is not None else ["all"] if is_bench else list(_PAIR)
    shared = {"batch": batch, "profile": profile, **({} if heads is None else {"heads": heads})}
    of_kinds = {"phases": phases, "kv_heads": kv_heads, "rank": rank, "rotary": rotary, "page": page}
    of_kinds = {name: value for name, value in of_kinds.items() if value is not None}
    if not set(chosen) & set(_PAIR):
        if causal:
            raise SettingError("--causal is of --kinds naive,fused; in the others no token sees a later one")
        settings = {**shared, **of_kinds, "head_size": width, **({} if rounds is None else {"runs": rounds})}
        _kinds(chosen, lengths, dtypes, settings, device, out, plot=plot, is_bench=is_bench, json=json)
        return
    if set(chosen) != set(_PAIR):
        raise SettingError(
            f"--kinds {kinds}: naive and fused are compared with each other; accepted are naive,fused, or some of mha, "
            "gqa, mla, mla_absorbed, paged, gqa_pages, mla_pages"
        )
    if wrong := [*of_kinds, *(["plot"] if plot else [])]:
        raise SettingError(
            f"--{wrong[0].replace('_', '-')} is of --kinds mha, gqa, mla, mla_absorbed, and of pages; give --kinds all"
        )
    settings = {**shared, "width": width, "causal": causal, **({} if rounds is None else {"rounds": rounds})}
    _pair(lengths, dtypes, settings, device, out, json=json)


def _pair(
    lengths: str | None, dtypes: str | None, settings: dict[str, Any], device: str | None, out: Path | None, *,
    json: bool,
) -> None:  # fmt: skip
    """Compare naive attention with the fused one."""
    from octavo.lab.studies import speed_tables
    from octavo.lab.studies.attention_speed import Attention
    from octavo.lab.studies.stopwatch import devices_of

    if lengths is not None:
        settings["lengths"] = numbers("--lengths", lengths, "length")
    if dtypes is not None:
        settings["dtypes"] = tuple(words(dtypes))
    measure("attention", Attention(**settings), devices_of(device), out, json=json, table=speed_tables.attention_table,
            notes=speed_tables.attention_notes, draw=speed_tables.attention_figure)  # fmt: skip


def _kinds(
    kinds: list[str], lengths: str | None, dtypes: str | None, settings: dict[str, Any], device: str | None,
    out: Path | None, *, plot: bool, is_bench: bool, json: bool,
) -> None:  # fmt: skip
    """Measure kinds of attention by context."""
    from octavo.display.console import console
    from octavo.display.progress import milestones
    from octavo.lab.studies import attention_cost_tables as tables
    from octavo.lab.studies.attention_costs import KINDS, AttentionCosts
    from octavo.lab.studies.stopwatch import device_of, machine
    from octavo.search.journal import Journal

    if "phases" in settings:
        settings["phases"] = tuple(words(settings["phases"]))
    if lengths is not None:
        settings["contexts"] = numbers("--lengths", lengths, "length")
    if dtypes is not None:
        if len(words(dtypes)) != 1:
            raise SettingError(f"--dtypes {dtypes}: of kinds of attention accepted is one; run the command for each")
        settings["dtype"] = dtypes.strip()
    costs = AttentionCosts(kinds=KINDS if kinds == ["all"] else tuple(kinds), **settings)
    chosen = device_of(device)
    folder = out or Path(f"octavo-{'bench-attention' if is_bench else 'attention-kinds'}-{chosen.type}")
    with Journal(folder) as journal, milestones(console(stderr=True)) as tell, resumable(folder):
        rows = costs.run(journal, chosen, tell)
        rates = costs.rates(journal, chosen)
    where = machine(chosen)
    title = f"attention: {where['name']}, {where['threads']} threads, torch {where['torch']}, {costs.dtype}"
    facts = {"study": "attention costs", "machine": where, "settings": asdict(costs)}
    runs = {"attention-runs": lambda _: tables.attention_runs_figure(rates, title=title)} if plot else {}
    show("attention", rows, facts, folder, table=tables.attention_cost_table, notes=tables.attention_cost_notes,
         draw=partial(tables.attention_cost_figure, title=title), further=runs, json=json)  # fmt: skip
