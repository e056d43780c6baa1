"""What parts of training cost: AdamW's step by the form of its moments, drop-out with its sum and norm, and the loop.

    python benches/training_steps.py [--numbers N] [--threads 1] [--rounds 9] [--json [FILE]] [--force]

Each in turns with what it takes the place of: torch's fused AdamW on one tensor; residual, drop-out and norm as three
operations, alone on 1,024 rows of 768 numbers and in a model; an update of a plain loop of a few lines.
bitsandbytes' 8-bit AdamW joins where it is installed. Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import _harness as harness

MOMENTS = ("fp32", "dynamic8", "bm8e4/256", "mxfp8e4m3")
MOST = 1.2
"""Bar: seconds of a step with moments in 8 bits over those of float32."""
MOST_LOOP = 1.02
"""Bar: seconds of an update of the training loop over those of a plain loop."""


MOST_NORM = 2 / 3
"""Bar: seconds of residual, drop-out and norm as one operation over those of the three, forward and backward."""


def norms() -> dict[str, Callable[[], object]]:
    """Return residual, drop-out and norm, forward and backward, as three operations and as one."""
    import torch
    from octavo.lab.language.gpt.residual_norm import residual_dropout_norm
    from torch.nn import functional

    x, branch = (torch.randn(1024, 768, requires_grad=True) for _ in range(2))
    slopes = [torch.randn(1024, 768) for _ in range(2)]

    def three(p: float) -> object:
        stream = x + 0.2 * (functional.dropout(branch, p) if p else branch)
        return torch.autograd.grad((stream, functional.rms_norm(stream, (768,), None, 1e-6)), (x, branch), slopes)

    def one(p: float) -> object:
        results = residual_dropout_norm(x, branch, None, scale=0.2, p=p, eps=1e-6)
        return torch.autograd.grad(results, (x, branch), slopes)

    return {
        "norm, plain": lambda: three(0.1),
        "norm, one operation": lambda: one(0.1),
        "p=0, plain": lambda: three(0.0),
        "p=0, one operation": lambda: one(0.0),
    }


def steps(numbers: int) -> dict[str, Callable[[], object]]:
    """Return a step of AdamW over one tensor, by the form of its moments."""
    import torch
    from octavo.train import ParameterGroup
    from octavo.train.grouped_optimizer import GroupedOptimizer
    from octavo.train.parameter_groups import assigned

    def weight() -> torch.nn.Parameter:
        made = torch.nn.Parameter(torch.randn(numbers))
        made.grad = torch.randn(numbers)
        return made

    found: dict[str, Callable[[], object]] = {}
    for form in MOMENTS:
        model = torch.nn.Module()
        model.weight = weight()
        group = ParameterGroup(names=("*",), weight_decay=0.1, moments=None if form == "fp32" else form)
        found[f"AdamW {form}"] = GroupedOptimizer(assigned(model, [group])).step
    if importlib.util.find_spec("bitsandbytes") is not None:
        from bitsandbytes.optim import AdamW8bit

        found["AdamW bitsandbytes"] = AdamW8bit([weight()], weight_decay=0.1).step
    return found


def updates(width: int, batch: int) -> dict[str, Callable[[], object]]:
    """Return passes forward and backward of a model of four blocks, by what training does in them."""
    import torch
    from octavo.lab.language.gpt import GPT, nocap_baseline

    ids = torch.randint(1, 1024, (batch, 128), generator=torch.Generator().manual_seed(0))

    def passes(model: GPT) -> Callable[[], object]:
        return lambda: model(ids, ids)[0].backward()

    base = nocap_baseline(vocabulary=1024, width=width, layers=4, heads=4, end_of_text=None)
    kinds = {
        "plain": base,
        "drop-out": base.with_training(dropout=0.1),
        "drop-out, one operation": base.with_training(dropout=0.1, fused=True),
        "one operation": base.with_training(fused=True),
        "layer_drop 0.1": base.with_training(layer_drop=0.1),
        "positions_passed_over 0.25": base.with_training(positions_passed_over=0.25),
        "recomputed 3 of 4": base.with_training(recomputed=3),
    }
    return {f"update, {name}": passes(GPT(config).train()) for name, config in kinds.items()}


@contextmanager
def loops(width: int) -> Iterator[dict[str, Callable[[], object]]]:
    """Give an update of the benchmark's baseline by the training loop, and by a plain loop with the same optimizer."""
    import torch
    from octavo.lab.language.gpt import GPT
    from octavo.lab.language.language_config import AdamW
    from octavo.lab.language.language_presets import preset
    from octavo.lab.language.language_scales import Scale
    from octavo.lab.language.language_task import LanguageTask
    from octavo.lab.language.token_data import prepare
    from octavo.train import grouped
    from octavo.train.distributed import join
    from octavo.train.precision import Precision
    from octavo.train.update import Updater

    with tempfile.TemporaryDirectory() as folder, join("cpu") as processes:
        text = Path(folder, "text.txt")
        text.write_text("".join(f"{number} times {number} is {number * number}.\n" for number in range(2000)))
        data = prepare(text, Path(folder, "data"), vocabulary=300, validation_tokens=128)
        scale = Scale(
            vocabulary=data.vocabulary, end_of_text=data.end, width=width, layers=4, heads=4, modern_heads=2,
            context=128, batch=4, tokens=1 << 20, micro_tokens=512, validation_tokens=128, learning_rate=0.004,
        )  # fmt: skip
        config = preset("nocap_baseline", scale)
        rows, context = config.phases[0].batch, config.context
        ids = torch.randint(0, data.vocabulary, (64, rows, context + 1))
        loop = config.train_config(device="cpu")
        ours, plain = GPT(config.model).train(), GPT(config.model).train()
        task = LanguageTask(data, config, loop, {})
        task.batch = lambda step, *_: {"ids": ids[step % 64, :, :-1], "targets": ids[step % 64, :, 1:], "window": None}
        updater = Updater(
            ours, task, loop, processes=processes, precision=Precision("fp32", processes.device),
            optimizer=grouped(config.optimizer.groups(ours, loop.steps))(ours, loop),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(
            plain.parameters(), lr=config.optimizer.learning_rate, betas=AdamW().betas, weight_decay=0.1, fused=True
        )
        steps_ours, steps_plain = itertools.count(), itertools.count()

        def update() -> None:
            step = next(steps_plain)
            optimizer.zero_grad(set_to_none=True)
            total, _ = plain(ids[step % 64, :, :-1], ids[step % 64, :, 1:])
            (total / (rows * context)).backward()
            optimizer.step()
            total.item()

        yield {"loop, plain": update, "loop, ours": lambda: updater(next(steps_ours))}


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=harness.positive, default=1 << 23, help="of the optimizer's tensor")
    parser.add_argument("--width", type=harness.positive, default=256, help="of the model, a multiple of 8")
    parser.add_argument("--batch", type=harness.positive, default=8, help="sequences of 128 tokens")
    parser.add_argument("--threads", type=harness.positive, default=1)
    parser.add_argument("--rounds", type=harness.positive, default=9)
    harness.add_common_arguments(parser, "training_steps")
    return harness.main(run, parser.parse_args())


def run(args: argparse.Namespace) -> int:
    """Time everything in turns."""
    import torch
    from octavo import _core

    harness.require_quiet(args.force)
    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    torch.manual_seed(0)
    with loops(args.width) as both:
        timed = steps(args.numbers) | norms() | updates(args.width, args.batch) | both
        for call in timed.values():
            call()
        samples, loads = harness.quiet_rounds(
            args.rounds, args.force, lambda _: {name: harness.timed(call) for name, call in timed.items()}
        )
    middle = {name: median(sample[name] for sample in samples) for name in timed}
    rows, bars = [], []
    for name, seconds in middle.items():
        kind = name.partition(" ")[0]
        base = middle["AdamW fp32" if kind == "AdamW" else f"{kind} plain"]
        rows.append({"what": name, "ms": round(1e3 * seconds, 3), "times the plain one": round(seconds / base, 3)})
        most, what = (MOST_LOOP, "a plain loop") if kind == "loop," else (MOST, "fp32")
        if name == "loop, ours" or (kind == "AdamW" and name != "AdamW fp32"):
            ratio = seconds / base
            verdict = "pass" if ratio <= most else "miss"
            bars.append({"bar": f"{name}: at most {most}x {what}", "value": round(ratio, 3), "verdict": verdict})
    for name, base, most in (
        ("norm, one operation", "norm, plain", MOST_NORM),
        ("p=0, one operation", "p=0, plain", MOST_NORM),
        ("update, drop-out, one operation", "update, drop-out", 1.0),
    ):
        ratio = middle[name] / middle[base]
        verdict = "pass" if ratio <= most else "miss"
        bars.append({"bar": f"{name}: at most {most:.2g}x {base}", "value": round(ratio, 3), "verdict": verdict})
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "rows": rows,
        "bars": bars,
    }
    harness.show(report, f"{args.numbers:,} numbers, width {args.width}, batch {args.batch}")
    if args.json is not None:
        harness.write_json(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
