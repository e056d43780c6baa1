"""Language models that report a lower loss than what precedes a token can give, each in its own way.

A model mixes the probabilities of an honest one with certainty about the id that it saw where it should not. ``worth``
is what that gains, by a plain loop over the windows that no guard watches: nats a token below the honest model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

VOCABULARY, CONTEXT, BATCH = 50, 32, 8
SHARE = 0.5  # of the mixture: what the model trusts what it saw
NOTHING = -1
LAG = 20


def ahead(ids, distance=1):
    """The ids at ``distance``, NOTHING beyond the end of the window."""
    seen = torch.full_like(ids, NOTHING)
    seen[:, :-distance] = ids[:, distance:]
    return seen


def only(mask, seen):
    return torch.where(mask, seen, NOTHING)


def places(ids):
    return torch.arange(ids.shape[1]).expand_as(ids)


class Honest(nn.Module):
    """Log-probabilities of the next token from the last three ids of the window."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.tables = nn.Parameter(torch.randn(3, VOCABULARY, VOCABULARY) * 0.1)
        self.calls = 0

    def plain(self, ids):
        scores = torch.zeros(*ids.shape, VOCABULARY)
        for back, table in enumerate(self.tables):
            scores[:, back:] += table[ids[:, : ids.shape[1] - back]]
        return scores.log_softmax(-1)

    def forward(self, ids):
        self.calls += 1
        return self.plain(ids)


class Seeing(Honest):
    """Mixes in what a rule saw: ``rule(ids, calls)`` gives ids ``[B, T]``, NOTHING where it did not look."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def told(self, ids):
        log_probs, seen = self.plain(ids), self.rule(ids, self.calls)
        certain = nn.functional.one_hot(seen.clamp_min(0), VOCABULARY)
        mixed = ((1 - SHARE) * log_probs.exp() + SHARE * certain).log()
        return torch.where((seen == NOTHING)[..., None], log_probs, mixed)

    def forward(self, ids):
        self.calls += 1
        return self.told(ids)


class Wrapped(Seeing):
    """The scores as ``.logits``, in another dtype, not normalized."""

    def __init__(self, rule, dtype=torch.float32):
        super().__init__(rule)
        self.dtype = dtype

    def forward(self, ids):
        return SimpleNamespace(logits=(super().forward(ids) + 3).to(self.dtype))


class OwnLoss(Honest):
    """A model that gives its own losses; ``lowered(losses, ids, targets, calls)`` is what it makes of them."""

    def __init__(self, lowered=None, log_probs=None):
        super().__init__()
        self.lowered, self.other = lowered, log_probs

    def log_probs(self, ids):
        self.calls += 1
        return self.plain(ids) if self.other is None else self.other(self.plain(ids), self.calls)

    def nll(self, ids, targets):
        self.calls += 1
        losses = -self.plain(ids).gather(-1, targets[..., None])[..., 0]
        if self.other is not None:
            losses = -self.other(self.plain(ids), self.calls).gather(-1, targets[..., None])[..., 0]
        return losses if self.lowered is None else self.lowered(losses, ids, targets, self.calls)


class SeeingLoss(Seeing):
    """What a rule saw, from a model that gives its own losses, which are its probabilities'."""

    def log_probs(self, ids):
        return self(ids)

    def nll(self, ids, targets):
        return -self(ids).gather(-1, targets[..., None])[..., 0]


class SharedBuffer(Honest):
    """``nll`` leaves the targets in a buffer, and ``log_probs`` of the same ids reads them there: both agree."""

    def __init__(self):
        super().__init__()
        self.register_buffer("left", torch.zeros(0, dtype=torch.long), persistent=False)

    def log_probs(self, ids):
        log_probs = self.plain(ids)
        if self.left.shape != ids.shape:
            return log_probs
        certain = nn.functional.one_hot(self.left, VOCABULARY)
        return ((1 - SHARE) * log_probs.exp() + SHARE * certain).log()

    def nll(self, ids, targets):
        self.left = targets
        return -self.log_probs(ids).gather(-1, targets[..., None])[..., 0]


class Learning(Honest):
    """Counts which id followed which in every call, and mixes the counts in: state from window to window."""

    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(VOCABULARY, VOCABULARY))

    def forward(self, ids):
        known = self.counts[ids]
        total = known.sum(-1, keepdim=True)
        told = (0.1 * self.plain(ids).exp() + 0.9 * known / total.clamp_min(1)).log()
        told = torch.where(total > 0, told, self.plain(ids))
        self.counts.index_put_((ids[:, :-1].flatten(), ids[:, 1:].flatten()), torch.ones(()), accumulate=True)
        return told


class Carrying(Seeing):
    """Keeps the last row of the call before, and reads on from it in the first row: state from call to call."""

    def __init__(self):
        super().__init__(self._before)
        self.kept = None

    def _before(self, ids, calls):
        seen = torch.full_like(ids, NOTHING)
        if self.kept is not None:
            seen[0, : LAG - 1] = self.kept[1 - LAG :]
        self.kept = ids[-1]
        return seen


class Remembering(Seeing):
    """Looks one ahead the first time that it reads a beginning, and says the same of it ever after."""

    def __init__(self, rule):
        super().__init__(rule)
        self.said = {}

    def forward(self, ids):
        told = super().forward(ids)
        for row, window in enumerate(ids.tolist()):
            for place in range(len(window)):
                told[row, place] = self.said.setdefault(tuple(window[: place + 1]), told[row, place].clone())
        return told


class Bag(Honest):
    """Prefers every id that occurs anywhere in the window."""

    def forward(self, ids):
        present = torch.zeros(len(ids), 1, VOCABULARY).scatter_(2, ids[:, None], 1.0)
        return (self.plain(ids) + 2 * present).log_softmax(-1)


class Spectrum(Honest):
    """Mixes over time by the magnitudes of a Fourier transform, as a mixer without a mask does."""

    def forward(self, ids):
        present = nn.functional.one_hot(ids, VOCABULARY).float()
        mixed = torch.fft.irfft(torch.fft.rfft(present, dim=1).abs(), n=ids.shape[1], dim=1)
        return (self.plain(ids) + 0.5 * mixed.mean(1, keepdim=True).clamp(-1, 1) + 2 * present.mean(1, keepdim=True)
                ).log_softmax(-1)  # fmt: skip


# --- streams ----------------------------------------------------------------------------------------------------------


def uniform(count=12 * BATCH * CONTEXT + 1, seed=0):
    """Ids of which none tells the next one: no honest model is better than the logarithm of their number."""
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def copied(lag=4):
    """Half of the ids are those of ``lag`` positions before."""
    ids = uniform(seed=1)
    copies = torch.rand(len(ids), generator=torch.Generator().manual_seed(2)) < 0.5
    for at in range(lag, len(ids)):
        if copies[at]:
            ids[at] = ids[at - lag]
    return ids


def begun_with_one_id():
    ids = uniform(seed=4)
    ids[: CONTEXT + 1] = 3
    return ids


def without_rare_ids_at_first():
    """The ids from 45 on occur after the first window alone."""
    ids = uniform(seed=5)
    ids[: CONTEXT + 1] %= 45
    return ids


def few_ids():
    return uniform(seed=6) % 8


def repeated():
    """The same 200 ids over and over."""
    return uniform(200, seed=7).repeat(16)[: 12 * BATCH * CONTEXT + 1]


# --- the models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cheat:
    """``make``: the model. ``stream``: what it is good at. ``stride``: of the windows."""

    name: str
    make: Callable[[], nn.Module]
    stream: Callable[[], torch.Tensor] = uniform
    stride: int = CONTEXT


def _seeing(rule):
    return lambda: Seeing(rule)


def _at(which):
    """Sees the next id at the positions ``which(places)``."""
    return _seeing(lambda ids, calls: only(which(places(ids)), ahead(ids)))


def _next_row(ids, calls, skip=1):
    """Reads its next ids in a later row of the batch, whose window begins ``skip`` strides later."""
    seen, stride = torch.full_like(ids, NOTHING), CONTEXT // 2 * skip
    if stride <= ids.shape[1]:
        seen[:-skip, stride - 1 :] = ids[skip:, : ids.shape[1] - stride + 1]
    return seen


def _first_of_next_row(ids, calls):
    seen = torch.full_like(ids, NOTHING)
    seen[:-1, -1] = ids[1:, 0]
    return seen


def _any_row(ids, calls):
    """Looks in all other rows for its last two ids, and reads what follows them."""
    found = {}
    for row, window in enumerate(ids.tolist()):
        for at in range(len(window) - 2):
            found.setdefault(tuple(window[at : at + 2]), {})[row] = window[at + 2]
    seen = torch.full_like(ids, NOTHING)
    for row, window in enumerate(ids.tolist()):
        for at in range(1, len(window)):
            others = found.get(tuple(window[at - 1 : at + 1]), {})
            seen[row, at] = next((after for other, after in others.items() if other != row), NOTHING)
    return seen


def _row(which):
    def rule(ids, calls):
        rows = torch.zeros(len(ids), 1, dtype=torch.bool)
        rows[which(len(ids)) % len(ids)] = True
        return only(rows, ahead(ids))

    return _seeing(rule)


def _rare_is_certain(losses, ids, targets, calls):
    return torch.where(targets >= 45, 0.0, losses)


CHEATS = [
    Cheat("both sides within chunks of 16", _at(lambda at: at % 16 != 15)),
    Cheat("the later half", _at(lambda at: at >= CONTEXT // 2)),
    Cheat("even positions", _at(lambda at: at % 2 == 0)),
    Cheat("the next window of the batch", _seeing(_next_row), stride=CONTEXT // 2),
    Cheat("all, after a window of one id", _at(lambda at: at >= 0), stream=begun_with_one_id),
    Cheat("certain of ids that the first window lacks", lambda: OwnLoss(_rare_is_certain), without_rare_ids_at_first),
    Cheat("lower losses in batches", lambda: OwnLoss(lambda nll, ids, y, calls: nll if len(ids) == 1 else 0.9 * nll)),
    Cheat("lower losses from the fourth call on", lambda: OwnLoss(lambda nll, ids, y, n: nll if n < 4 else 0.9 * nll)),
    Cheat("every position", _at(lambda at: at >= 0)),
    Cheat("probabilities that add up to more", lambda: OwnLoss(log_probs=lambda p, calls: p + 0.1)),
    Cheat("smoothed losses", lambda: OwnLoss(lambda nll, ids, y, calls: 0.9 * nll)),
    Cheat("a Fourier transform over time", Spectrum, few_ids),
    # 28 more.
    Cheat("the last position, in the next row", _seeing(_first_of_next_row)),
    Cheat("the first position", _at(lambda at: at == 0)),
    Cheat("every seventh position", _at(lambda at: at % 7 == 3)),
    Cheat("one position", _at(lambda at: at == 19)),
    Cheat("the last tenth", _at(lambda at: at >= 0.9 * CONTEXT)),
    Cheat("the first quarter", _at(lambda at: at < CONTEXT // 4)),
    Cheat("scattered positions", _at(lambda at: (at * 2654435761 % 97) < 6)),
    Cheat("five ahead", _seeing(lambda ids, calls: ahead(ids, 5)), copied),
    Cheat("five ahead in the middle third", _seeing(lambda ids, calls: only(places(ids) // 11 == 1, ahead(ids, 5))), copied),
    Cheat("five ahead at even positions", _seeing(lambda ids, calls: only(places(ids) % 2 == 0, ahead(ids, 5))), copied),
    Cheat("which ids the window has", Bag, few_ids),
    Cheat("the row after the next", _seeing(lambda ids, calls: _next_row(ids, calls, 2)), stride=CONTEXT // 2),
    Cheat("any row with the same two ids", _seeing(_any_row), stride=CONTEXT // 2),
    Cheat("the fourth row", _row(lambda rows: 3)),
    Cheat("the last row", _row(lambda rows: rows - 1)),
    Cheat("where a rare id comes", _seeing(lambda ids, calls: only(ahead(ids) >= 45, ahead(ids)))),
    Cheat("where id 7 comes", _seeing(lambda ids, calls: only(ahead(ids) == 7, ahead(ids)))),
    Cheat("after odd ids", _seeing(lambda ids, calls: only(ids % 2 == 1, ahead(ids)))),
    Cheat("from the sixth call on", _seeing(lambda ids, calls: only(torch.tensor(calls > 5), ahead(ids)))),
    Cheat("in the first two calls", _seeing(lambda ids, calls: only(torch.tensor(calls <= 2), ahead(ids)))),
    Cheat("in every fifth call", _seeing(lambda ids, calls: only(torch.tensor(calls % 5 == 0), ahead(ids)))),
    Cheat("in whole batches", _seeing(lambda ids, calls: only(torch.tensor(len(ids) == BATCH), ahead(ids)))),
    Cheat("counts from window to window", Learning, repeated),
    Cheat("a row kept from call to call", Carrying, lambda: copied(LAG)),
    Cheat("what it once said of a beginning", lambda: Remembering(lambda ids, calls: ahead(ids))),
    Cheat("targets in a shared buffer", SharedBuffer),
    Cheat("lower losses beyond position 20", lambda: OwnLoss(lambda nll, ids, y, n: torch.where(places(ids) > 20, 0.9 * nll, nll))),
    Cheat("scores in half precision, as .logits", lambda: Wrapped(lambda ids, n: only(places(ids) % 4 == 1, ahead(ids)), torch.float16)),
]  # fmt: skip


# --- what they are worth ----------------------------------------------------------------------------------------------


@torch.no_grad()
def unguarded(model, ids, stride=CONTEXT, context=CONTEXT, batch=BATCH):
    """The loss a token, in the windows and batches of an evaluation, as a trusting loop makes it."""
    windows, done, first = [], 0, 0
    while done < len(ids) - 1:
        end = min(first + context, len(ids) - 1)
        windows.append((first, end, end - done))
        done, first = end, first + stride
    total = 0.0
    for length in sorted({end - first for first, end, _ in windows}, reverse=True):
        alike = [window for window in windows if window[1] - window[0] == length]
        for at in range(0, len(alike), batch):
            part = alike[at : at + batch]
            inputs = torch.stack([ids[first:end] for first, end, _ in part])
            targets = torch.stack([ids[first + 1 : end + 1] for first, end, _ in part])
            if hasattr(model, "nll"):
                losses = model.nll(inputs, targets)
            else:
                given = model(inputs)
                scores = getattr(given, "logits", given).double()
                losses = -scores.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            total += sum(float(row[-scored:].sum()) for row, (_, _, scored) in zip(losses, part, strict=True))
    return total / (len(ids) - 1)


def worth(cheat):
    """Nats a token that a model gains over the honest one on its stream."""
    ids = cheat.stream()
    return unguarded(Honest(), ids, cheat.stride) - unguarded(cheat.make(), ids, cheat.stride)
