"""A model and a task small enough to train in a second: next-symbol prediction with a rule, and padding of any length."""

import octavo
import torch
from octavo.train import TrainConfig, checkpoint, read_metrics, strip_timings, train
from torch import nn
from torch.nn import functional

VOCABULARY, POSITIONS = 11, 8


class Model(nn.Module):
    """Embedding, one hidden layer, a head; dropout if asked for. The same first weights every time."""

    def __init__(self, width=16, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(VOCABULARY, width)
            self.hidden = nn.Linear(width, 2 * width)
            self.dropout = nn.Dropout(dropout)
            self.norm = nn.LayerNorm(2 * width)
            self.head = nn.Linear(2 * width, VOCABULARY)

    def forward(self, tokens):
        x = functional.gelu(self.hidden(self.embed(tokens)))
        return self.head(self.norm(self.dropout(x)))


class Rule:
    """Predict (3 a + 1) mod 11 from a. Sequences have 2 to 8 tokens; the rest are padding, -1 in the targets."""

    metric, goal = "exact", "max"

    def __init__(self, batch_size=12, seed=0, held_out=24):
        self.batch_size, self.seed, self.held_out = batch_size, seed, held_out
        self.asked = []  # (step, start, size) of every batch

    def batch(self, step, micro, start, size):
        self.asked.append((step, start, size))
        first = step * self.batch_size + start
        return self.sequences(range(first, first + size))

    def sequences(self, positions):
        tokens = torch.zeros(len(positions), POSITIONS, dtype=torch.int64)
        targets = torch.full((len(positions), POSITIONS), -1)
        for row, position in enumerate(positions):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + position)
            length = int(torch.randint(2, POSITIONS + 1, (), generator=generator))
            tokens[row, :length] = torch.randint(0, VOCABULARY, (length,), generator=generator)
            targets[row, :length] = (3 * tokens[row, :length] + 1) % VOCABULARY
        return {"tokens": tokens, "targets": targets}

    def loss(self, model, batch):
        logits, targets = model(batch["tokens"]), batch["targets"]
        real = targets >= 0
        flat = logits.flatten(0, 1).float()
        loss_sum = functional.cross_entropy(flat, targets.flatten(), ignore_index=-1, reduction="sum")
        return loss_sum, real.sum(), {"correct": ((logits.argmax(-1) == targets) & real).sum()}

    def evaluate(self, model, rank=0, world=1):
        batch = self.sequences(range(10**6 + rank, 10**6 + self.held_out, world))
        device = next(model.parameters()).device
        correct = model(batch["tokens"].to(device)).argmax(-1).cpu() == batch["targets"]
        real = batch["targets"] >= 0
        return {"exact": ((correct | ~real).all(1).sum(), len(correct)), "tokens": (correct[real].sum(), real.sum())}


def config(**changes):
    """Everything that could go wrong in a resumed run, in 40 steps: nothing of it divides anything else."""
    base = dict(
        steps=40,
        batch_size=12,
        accumulation=2,
        learning_rate=3e-3,
        schedule="trapezoid",
        warmup=5,
        cooldown=0.4,
        evaluate_every=10,
        checkpoint_every=7,
        log_every=4,
        ema=0.9,
        device="cpu",
    )
    return TrainConfig(**{**base, **changes})


def run(folder, task=None, model=None, callbacks=(), **changes):
    """Train quietly and return the result."""
    return train(
        model or Model(dropout=0.1), task or Rule(), config(**changes), folder, progress=False, callbacks=callbacks
    )


def lines(folder, kind="train"):
    """The lines of one kind, without clocks."""
    return [line for line in strip_timings(read_metrics(folder)) if line["kind"] == kind]


def losses(folder):
    return torch.tensor([line["loss"] for line in lines(folder)], dtype=torch.float64)


def assert_same_run(folder, whole):
    """Same weights, same best weights, same lines but for clocks, same optimizer, generators and counters."""
    for name in ("last.safetensors", "best.safetensors"):
        found, expected = octavo.load(folder / name), octavo.load(whole / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
    assert strip_timings(read_metrics(folder)) == strip_timings(read_metrics(whole))
    found, expected = (checkpoint.load(checkpoint.available(at)[0]) for at in (folder, whole))
    for content in (found, expected):
        content.pop("clock"), content["state"]["window"].pop("seconds")
    assert checkpoint.digest(found) == checkpoint.digest(expected)


class Crash(Exception):
    pass


class Crashing(Rule):
    """Fails, or does something worse, when it is asked for update ``at``."""

    def __init__(self, at, does=None):
        super().__init__()
        self.at, self.does = at, does

    def batch(self, step, micro, start, size):
        if step == self.at:
            if self.does is None:
                raise Crash
            self.does()
        return super().batch(step, micro, start, size)
