"""Training on a user's own lines: each once in a pass, and the same bits after a stop."""

from collections import Counter

import pytest
import torch
from octavo.errors import DataError
from octavo.lab.polynomials.data import Splits, generate, split_lines
from octavo.lab.polynomials.line_task import PolynomialTask
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.lab.polynomials.train_configs import train_config
from octavo.train import train


def own_task(**options):
    return PolynomialTask(split_lines(generate(90, seed=3), validation=10, test=5), 8, **options)


def test_own_lines_are_trained_on_in_passes():
    task = own_task(seed=4)
    size = len(task.stream)
    found = []
    for step in range(size):  # eight passes
        source, target = task.batch(step, 0, 0, 8)
        lefts, rights = task.tokenizer.decode(source), task.tokenizer.decode(target)
        found += [f"{left}={right}" for left, right in zip(lefts, rights, strict=True)]
    wanted = task.stream.lines(0, 8 * size)
    assert set(Counter(found).values()) == {8} and len(set(found)) == size
    for step in range(size):  # an update holds the lines of its place, sorted by length
        assert sorted(found[8 * step : 8 * step + 8]) == sorted(wanted[8 * step : 8 * step + 8])
    assert not torch.equal(own_task(seed=5).batch(0, 0, 0, 8)[0], task.batch(0, 0, 0, 8)[0])


def test_a_run_on_own_lines_goes_on_with_the_same_bits(tmp_path):
    config = train_config(steps=7, batch_size=8, accumulation=1, precision="fp32", device="cpu", checkpoint_every=2)
    shape = Seq2SeqConfig(embedding=8, encoder=8, hidden=16, feedforward=16)

    def go(folder, stop=None):
        def callback(_, step):
            if step == stop:
                raise RuntimeError("stopped")

        torch.manual_seed(0)
        train(build(shape), own_task(), config, folder, progress=False, callbacks=[callback])
        return (folder / "last.safetensors").read_bytes()

    whole = go(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        go(tmp_path / "parts", stop=5)  # in the first pass; the newest checkpoint is of step 4
    assert (tmp_path / "parts" / "checkpoints").exists() and go(tmp_path / "parts") == whole


def test_bad_own_lines_are_refused_before_training():
    for bad, reason in (("q=x", "line 3"), ("x" * 33 + "=x", "line 3: the left side has 33"), ("x=", "line 3")):
        data = Splits(["x=x", "y=y", bad], ["z=z"], [])
        with pytest.raises(DataError, match=reason):
            PolynomialTask(data, 2)
