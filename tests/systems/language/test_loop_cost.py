"""The training loop costs nothing: its updates are as fast as those of a loop of ten lines."""

import statistics
import time

import pytest
import torch
from octavo.models.gpt import GPT
from octavo.systems.language.language_config import AdamW
from octavo.systems.language.language_presets import preset
from octavo.systems.language.language_scales import SCALES
from octavo.systems.language.language_task import LanguageTask
from octavo.train import grouped
from octavo.train.distributed import join
from octavo.train.precision import Precision
from octavo.train.update import Updater
from systems.language.language_worker import tokens

# Share of the speed of the plain loop that ours has at least; medians over rounds in turns, on a quiet machine.
LEAST = 0.98
ROUNDS, UPDATES = 24, 4


@pytest.mark.slow
def test_updates_of_the_loop_are_as_fast_as_plain_ones(tmp_path):
    data, _ = tokens(tmp_path)
    config = preset("nocap_baseline", SCALES["micro"])
    loop = config.train_config(device="cpu")
    torch.manual_seed(0)
    ours, plain = GPT(config.model).train(), GPT(config.model).train()
    rows, context = config.phases[0].batch, config.context
    ids = torch.randint(0, data.vocabulary, (64, rows, context + 1))
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=config.optimizer.learning_rate, betas=AdamW().betas, weight_decay=0.1, fused=True
    )
    with join("cpu") as processes:
        task = LanguageTask(data, config, loop, {})
        task.batch = lambda step, *_: {"ids": ids[step % 64, :, :-1], "targets": ids[step % 64, :, 1:], "window": None}
        updater = Updater(
            ours, task, loop, processes=processes, precision=Precision("fp32", processes.device),
            optimizer=grouped(config.optimizer.groups(ours, loop.steps))(ours, loop),
        )  # fmt: skip

        def with_loop(step):
            updater(step)

        def without(step):
            optimizer.zero_grad(set_to_none=True)
            total, _ = plain(ids[step % 64, :, :-1], ids[step % 64, :, 1:])
            (total / (rows * context)).backward()
            optimizer.step()
            total.item()

        ratios = []
        for turn in range(ROUNDS + 2):
            seconds = []
            for update in (without, with_loop) if turn % 2 else (with_loop, without):
                begin = time.perf_counter()
                for step in range(turn * UPDATES, (turn + 1) * UPDATES):
                    update(step)
                seconds.append(time.perf_counter() - begin)
            one, other = seconds if turn % 2 else reversed(seconds)
            ratios.append(one / other)
    assert statistics.median(ratios[2:]) >= LEAST
