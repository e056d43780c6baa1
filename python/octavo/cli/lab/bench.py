"""``octavo lab bench``: steps and tokens a second of training and validation, and the bench of language models."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import JsonOption
from octavo.cli.lab._sliding import StrideOption, ValidationOption, sliding_of
from octavo.cli.lab._until import EveryOption, InARowOption, UntilOption, until_of
from octavo.cli.lab.study_attention import attention
from octavo.cli.lab.study_nas import StorageOption
from octavo.errors import SettingError

if TYPE_CHECKING:
    from octavo.lab.language.bench_speed import ArmSpeed
    from octavo.lab.polynomials.speed import Speed

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _bench() -> None:
    """Measure whole jobs: their speed, or the gain of a technique."""


@app.command("polynomials")
def polynomials(
    arch: Annotated[str, typer.Option(metavar="NAME", help="lstm, hybrid or transformer.")] = "hybrid",
    processes: Annotated[int, typer.Option(metavar="N", help="Processes of the DDP configurations.")] = 2,
    batch: Annotated[int, typer.Option(help="Lines in a step, over all processes.")] = 512,
    steps: Annotated[int, typer.Option(help="Training steps to measure.")] = 20,
    val_steps: Annotated[int, typer.Option(help="Validation steps to measure.")] = 4,
    epoch: Annotated[int, typer.Option(metavar="LINES", help="Training lines of an epoch.")] = 1_000_000,
    val_epoch: Annotated[int, typer.Option(metavar="LINES", help="Validation lines of an epoch.")] = 20_000,
    whole_epoch: Annotated[
        bool,
        typer.Option(
            "--whole-epoch", help="Measure the seconds of a whole epoch, in place of --steps and --val-steps."
        ),
    ] = False,
    precision: Annotated[str, typer.Option(metavar="NAME", help="fp32, bf16 or fp16.")] = "fp32",
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto (cuda where torch finds a GPU), cpu or cuda.")
    ] = "auto",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where speed.json and speed.md go.")
    ] = Path("octavo-speed"),
    json: JsonOption = False,
) -> None:
    """Speed of training and validation, with DDP and with a cache.

    The four configurations are the baseline, DDP, a key/value cache, and both.

    Each configuration runs in processes of its own, one after the other; together some minutes on 2 cores. A step of
    training is an update; a step of validation generates the answers of a batch. Steps and tokens a second are given
    for training, validation and both. The seconds of an epoch follow from them, or are measured with --whole-epoch.
    The speed-up over the baseline is in per cent.

    \b
    Examples:
      octavo lab bench polynomials
      octavo lab bench polynomials --whole-epoch --epoch 800000 --val-epoch 200000
      octavo lab bench polynomials --processes 8 --batch 6144 --precision bf16
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.lab.polynomials.speed import SpeedConfig, check_device, configurations, measure_all
    from octavo.lab.polynomials.speed_table import SpeedReport
    from octavo.lab.polynomials.train_configs import model_config

    model_config(arch)
    base = SpeedConfig(
        architecture=arch, batch=batch, steps=steps, val_steps=val_steps, precision=precision, device=device,
        epoch=epoch, val_epoch=val_epoch,
    )  # fmt: skip
    if whole_epoch:
        base = base.whole_epoch()
    configurations(base, processes)
    check_device(device, processes)
    stderr = console(stderr=True)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:  # noqa: TID251
        stderr.print(
            f"note: other work runs on this machine (load {os.getloadavg()[0]:.1f}); it makes the figures worse"  # noqa: TID251
        )

    def done(name: str, speed: Speed) -> None:
        stderr.print(f"{name}: {speed.train_steps_per_s:.3g} training, {speed.val_steps_per_s:.3g} validation steps/s")

    report = SpeedReport(measure_all(base, processes, done))
    report.save(out)
    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    print_table(stdout, report.table())
    stdout.print()
    for note in report.notes():
        stdout.print(note)
    stdout.print(f"written: {out / 'speed.md'}, {out / 'speed.json'}")


@app.command("gpt")
def gpt(
    data: Annotated[
        Path, typer.Option(metavar="PATH", help="A folder of shards, a text file, or a folder of text files.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where results.jsonl and the report go.")
    ] = Path("octavo-bench-gpt"),
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="micro (a CPU), mini (a GPU) or true (the benchmark's size).")
    ] = "micro",
    arms: Annotated[
        str, typer.Option(metavar="LIST", help="Presets with commas between; NAME@FIELD=VALUE changes one.")
    ] = "tuned_baseline,muon,modern",
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of every arm; a claim needs 3.")] = 3,
    budgets: Annotated[
        str,
        typer.Option(metavar="LIST", help="tokens, time, parts (0.5time: of the baseline's seconds), hours (5.4h)."),
    ] = "tokens",
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a whole budget.  [default: the scale's]")
    ] = None,
    validation_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens of a validation.")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Run every arm through torch.compile.")] = False,
    until: UntilOption = None,
    validate_every: EveryOption = None,
    in_a_row: InARowOption = None,
    validation_kind: ValidationOption = "plain",
    stride: StrideOption = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Presets whose every combination is an arm, in place of --arms; searched."),
    ] = None,
    sampler: Annotated[str, typer.Option(metavar="NAME", help="Of the grid: grid, random, tpe or nsga2.")] = "grid",
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Of the grid: combinations at most.  [default: all]")
    ] = None,
    storage: StorageOption = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Report what is there; run nothing.")] = False,
    speeds: Annotated[
        bool, typer.Option("--speeds", help="Measure tokens/s of the arms, some updates of each, and stop.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure the gain of training techniques for language models.

    Arms are trained side by side. Losses are exact, and verdicts come with their statistics.

    All arms of a seed run before the next seed, on the same tokens in the same order, the baseline among them. Every
    run appends a line to FOLDER/results.jsonl when it ends; stopped, the same command goes on, and more arms, seeds or
    budgets add to what is there. A verdict needs three seeds a side; below 3 standard errors it is "even".

    --speeds measures speed alone: a table of tokens a second, TFLOP/s, memory of a GPU and the seconds of the first
    updates, which compile. Nothing is trained to an end.

    \b
    Budgets:
      tokens    all arms see the same tokens
      time      each arm gets the tokens that it trains on in the seconds of the baseline, its schedule stretched
      0.5time   does an arm reach the baseline's loss in half of its time?
      5.4h      each arm gets the tokens that it trains on in so many hours

    Speeds are measured first, all arms in turns: keep the machine quiet for that.

    --until LOSS asks for time to a loss. Every run ends at its first exact validation of at most LOSS. The report
    has tokens and seconds in place of losses. Each arm has the schedule of its whole budget. --validation paged adds
    the loss of a sliding window to every run, as in `octavo lab train gpt`.

    NAME@FIELD=VALUE,... changes any field, as --set of `octavo lab train gpt` does: contexts, for one, or ahead of
    multi-token prediction. NAME+NAME is an arm with the differences of both presets.

    --grid searches all combinations of a list for the lowest loss, by Optuna's samplers: pip install "octavo[search]".
    Combinations that change the same field twice are left out; trials are kept beside the lines, or in --storage,
    where several workers, each with its own --out, share them.

    \b
    Examples:
      octavo lab bench gpt --data fineweb.jsonl --arms muon,modern
      octavo lab bench gpt --data fineweb.jsonl --arms muon,modern --budgets tokens,time,0.5time
      octavo lab bench gpt --data fw.jsonl --arms nocap_baseline@learning_rate=0.008,nocap_baseline@batch=16 --seeds 1
      octavo lab bench gpt --data fw.jsonl --arms nocap_baseline@context=256,mtp_parallel@ahead=4,context=256
      octavo lab bench gpt --data fineweb.jsonl --scale mini --compile --budgets tokens,0.33time      (a GPU)
      octavo lab bench gpt --data fineweb.jsonl --grid muon,modern_block,cocont,gqa --sampler tpe --trials 8 --seeds 1
      octavo lab bench gpt --data fineweb10B/ --scale true --compile --speeds --arms modern,modern@micro_tokens=32768
      octavo lab bench gpt --data fineweb10B/ --scale true --compile --arms modern --until 3.3821 --in-a-row 3
      octavo lab bench gpt --data fineweb.jsonl --report-only
    """
    from octavo.display.console import console, print_json, print_table, table
    from octavo.lab.language import bench_arms, language_bench
    from octavo.lab.language.bench_report import HEADER, BenchReport, told
    from octavo.lab.language.bench_times import TIME_HEADER

    ends = until_of(until, validate_every, in_a_row)

    def plan(names: tuple[str, ...]) -> language_bench.BenchPlan:
        return language_bench.BenchPlan(
            scale=scale, arms=names, seeds=seeds, budgets=tuple(budgets.split(",")), tokens=tokens,
            validation_tokens=validation_tokens, device=device, compile=compile, until=ends,
            sliding=sliding_of(validation_kind, stride),
        )  # fmt: skip

    tell = console(stderr=True).print
    if ends is not None and (speeds or grid is not None):
        option, use = ("--speeds", "trains nothing") if speeds else ("--grid", "searches for the lowest loss")
        raise SettingError(f"--until is {until:g} beside {option}, which {use}; accepted is one of them")
    if speeds:
        if grid is not None or report_only:
            raise SettingError(
                f"--speeds and {'--grid' if grid is not None else '--report-only'} are given; accepted is one"
            )
        _show_speeds(language_bench.run_speeds(plan(tuple(bench_arms.arms(arms))), data, out, tell=tell), json=json)
        return
    if grid is not None and not report_only:
        from octavo.lab.language.arm_grid import search_arms

        chosen = [name.strip() for name in grid.split(",")]
        search_arms(plan(()), chosen, data, out, sampler=sampler, trials=trials, storage=storage, tell=tell)
    if report_only or grid is not None:
        lines = language_bench.read_lines(out)
    else:
        lines = language_bench.run_bench(plan(tuple(bench_arms.arms(arms))), data, out, tell=tell)
    report = BenchReport(lines)
    written = report.save(out)
    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    for budget in report.budgets:
        rows = table(*HEADER)
        for cells in report.rows(budget):
            rows.add_row(*cells)
        stdout.print(f"budget: {told(budget)}")
        print_table(stdout, rows)
        stdout.print()
    for times in report.times():
        rows = table(*TIME_HEADER)
        for cells in times.rows():
            rows.add_row(*cells)
        stdout.print(times.title, soft_wrap=True)
        print_table(stdout, rows)
        stdout.print()
    for note in report.notes():
        stdout.print(note)
    for text, state in report.facts():
        stdout.print(f"{text}: {state}")
    stdout.print(f"written: {', '.join(map(str, written))}")


def _show_speeds(found: dict[str, tuple[ArmSpeed, int]], *, json: bool) -> None:
    """Print how fast arms train."""
    from octavo.display.console import console, print_json, print_table, table

    rows = [
        {**asdict(speed), "arm": name, "flops_per_token": flops, "tflops": 1e-12 * speed.tokens_per_s * flops}
        for name, (speed, flops) in found.items()
    ]
    if json:
        print_json(rows)
        return
    shown = table("arm", ">tokens/s", ">of the first", ">TFLOP/s", ">peak MiB", ">first updates")
    for row in rows:
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}"
        ratio = row["tokens_per_s"] / rows[0]["tokens_per_s"]
        shown.add_row(
            row["arm"], f"{row['tokens_per_s']:,.0f}", f"{ratio:.2f}", f"{row['tflops']:.3g}", peak,
            f"{row['first_s']:.1f} s",
        )  # fmt: skip
    print_table(console(), shown)


app.command("attention", hidden=True)(attention)  # octavo lab study attention


@app.command("experts")
def experts(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder that octavo lab train gpt wrote.")],
    data: Annotated[
        list[Path], typer.Option(metavar="PATH", help="A source: a text file or a folder of them; give one or more.")
    ],
    tokens: Annotated[int, typer.Option(metavar="N", help="Tokens that are read of each source.")] = 65536,
    context: Annotated[int, typer.Option(metavar="N", help="Tokens of a window.")] = 128,
    json: JsonOption = False,
) -> None:
    """Show which experts of a mixture read which text.

    The table has the shares of every block's experts, a row for each source.

    A source is named by its file or folder. Shares are of choices, or of weight where a gate weighs all experts. "even"
    is 100 % where experts are used alike. The bits below say how well an expert tells the source: 0 where all sources
    use the same ones.

    \b
    Examples:
      octavo lab train gpt --data books/ --preset moe_8 -o moe
      octavo lab bench experts moe/model --data books/ --data reviews.jsonl
    """
    from octavo.display.console import console, print_json, print_table, table
    from octavo.lab.language import expert_use as use
    from octavo.lab.language.model_folder import load_language_model

    for name, value in (("tokens", tokens), ("context", context)):
        if value < 2:
            raise SettingError(f"--{name} is {value}; accepted are whole numbers from 2 on")
    if len({path.stem for path in data}) != len(data):
        raise SettingError(f"--data names {', '.join(path.stem for path in data)}; accepted are different names")
    network, tokenizer = load_language_model(model)
    end = network.config.end_of_text
    sources = {path.stem: use.read_source(path, tokenizer, end=end, most=tokens) for path in data}
    found = use.expert_use(network, sources, context=context)
    told = use.information(found)
    if json:
        print_json({"use": [one.as_dict() for one in found], "bits": told})
        return
    rows = table("mixture", "source", ">tokens", ">even", "shares of experts, %")
    for one in sorted(found, key=lambda one: one.part):
        shares = " ".join(f"{100 * share:.0f}" for share in one.shares)
        rows.add_row(one.part, one.source, f"{one.tokens:,}", f"{one.evenness:.0%}", shares)
    stdout = console()
    print_table(stdout, rows)
    stdout.print()
    for part, bits in told.items():
        stdout.print(f"{part}: an expert tells {bits:.3f} bits of the source")


@app.command("diffusion")
def diffusion(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder of masked diffusion.")],
    against: Annotated[Path, typer.Option(metavar="FOLDER", help="An autoregressive model of the same tokenizer.")],
    judge: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model that scores samples; best a third.  [--against]")
    ] = None,
    steps: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Steps in which a block is revealed, separated by commas.")
    ] = "1,2,4,8,16",
    tokens: Annotated[int, typer.Option(metavar="N", help="Ids of a sample.")] = 128,
    samples: Annotated[int, typer.Option(metavar="N", help="Samples of each kind.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    json: JsonOption = False,
) -> None:
    """Speed of masked diffusion beside an autoregressive model.

    Tokens a second are measured at equal quality of the samples.

    Both are sampled through torch, a sequence at a time: one token by token from its cache, the other in fewer and
    fewer steps a block. Quality is what a judge gives a token of the samples, with their entropy beside it: text that
    repeats itself is easy to predict. Samples are of equal quality where neither is worse than those of the
    autoregressive model, by two standard errors of the nats and 2 % of the entropy. A judge of the same data can be
    pleased; the figure says nothing of the likelihood, of which octavo eval estimates a bound.

    \b
    Examples:
      octavo lab bench diffusion diffusion/model --against plain/model
      octavo lab bench diffusion diffusion/model --against plain/model --judge large/model --steps 2,4,8 --samples 32
    """
    from octavo.cli.lab._study import numbers
    from octavo.display.console import console, print_json, print_table, table
    from octavo.lab.language.diffusion_speed import sampled_speeds
    from octavo.lab.language.model_folder import load_language_model

    chosen = numbers("--steps", steps, "number")
    ours, plain, scorer = (load_language_model(folder)[0].eval() for folder in (model, against, judge or against))
    found = sampled_speeds(
        ours, plain, scorer, steps=chosen, tokens=tokens, samples=samples, seed=seed, tell=console(stderr=True).print
    )
    if json:
        print_json({"samples": [one.as_dict() for one in found], "tokens": tokens, "count": samples})
        return
    stdout, rows = console(), table("model", ">steps", ">tokens/s", ">nats by the judge", ">entropy", "quality")
    for one in found:
        told = "" if one.steps is None else "equal" if one.equal else "worse"
        nats = f"{one.nats:.3f} ± {one.error:.3f}"
        rows.add_row(one.model, str(one.steps or ""), f"{one.tokens_per_s:,.0f}", nats, f"{one.entropy:.3f}", told)
    print_table(stdout, rows)
    stdout.print()
    equal = [one for one in found[1:] if one.equal]
    if not equal:
        stdout.print("no number of steps gives samples of equal quality")
        return
    best = max(equal, key=lambda one: one.tokens_per_s)
    share = best.tokens_per_s / found[0].tokens_per_s
    stdout.print(f"at equal quality: {share:.2f} of the autoregressive model's tokens a second, in {best.steps} steps")
