"""Contracts of a language model: what must hold for every technique, as checks that name what is broken.

``check_technique`` builds small models around a registered technique and runs every contract that concerns its kind.
The checks of one model serve at the start of a run, too. Each raises ContractError.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContractError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.gpt_config import GPTConfig
from octavo.lab.language.gpt.gpt_decoding import first_state, step
from octavo.lab.language.gpt.gpt_network import GPT
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.next_token import IGNORED
from octavo.lab.language.techniques import Technique

CAUSAL, NORMAL, ONE_LOSS, DECODED = 1e-5, 1e-5, 1e-4, 1e-4
"""Largest differences: of float32 sums in another order, in nats or in probability."""

VOCABULARY, WIDTH, LENGTH = 61, 32, 23


def check_technique(technique: Technique) -> None:
    """Run the contracts of one technique on its examples; about a second on a CPU."""
    for config in technique.examples:
        model = example_model(technique, config)
        ids_BT, targets_BT = example_batch()
        check_causality(model, ids_BT)
        check_normalization(model, ids_BT)
        check_one_loss(model, ids_BT, targets_BT)
        check_leak(model, ids_BT, targets_BT)
        check_decoding(model, ids_BT)
        check_gradients(model, ids_BT, targets_BT)
        if technique.kind == "mixer":
            check_reach(model.blocks[0].mixer, technique.lags, WIDTH)
    for off, plain in technique.off:
        check_off_switch(technique, off, plain)


def example_config(technique: Technique, config: Any) -> GPTConfig:
    """Return a model of two blocks with ``config`` in its place, and the parts that it goes with."""
    attention = Attention(heads=4)
    base = GPTConfig(vocabulary=VOCABULARY, width=WIDTH, pattern="aa", mixers={"a": attention}, end_of_text=0)
    changes: dict[str, Any] = dict(technique.beside)
    if technique.kind == "mixer":
        changes["mixers"] = {"a": config}
    else:
        changes[technique.kind] = config
    return replace(base, **changes)


def example_model(technique: Technique, config: Any, *, seed: int = 0) -> GPT:
    """Return that model with every parameter drawn at random, so that no zero of its start hides a defect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(example_config(technique, config))
        stream = torch.randint(0, VOCABULARY, (2000,))
        model.count(stream)
        with torch.no_grad():
            for parameter in model.parameters():
                spread = 0.5 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
                parameter.add_(torch.randn_like(parameter) * spread)
        if hasattr(model.head, "remember"):
            model.head.remember(model, stream, context=LENGTH)
    return model


def example_batch(batch: int = 2, length: int = LENGTH, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return ids and targets ``[batch, length]`` with borders of documents (id 0) among them."""
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randint(1, VOCABULARY, (batch, length + 1), generator=generator)
    stream[0, length // 3] = stream[-1, length // 2] = 0
    return stream[:, :-1].contiguous(), stream[:, 1:].contiguous()


def check_causality(model: Any, ids_BT: Tensor) -> None:
    """C1: log-probabilities at positions up to t stay when later tokens change; several t, both modes of the model."""
    length = ids_BT.shape[1]
    generator = torch.Generator().manual_seed(2)
    training = model.training
    try:
        for mode in (False, True):
            model.train(mode)
            for cut in sorted({1, 2, length // 3, length // 2, length - 1} - {0, length}):
                changed = ids_BT.clone()
                others = torch.randint(1, model.config.vocabulary, changed[:, cut:].shape, generator=generator)
                changed[:, cut:] = others.to(changed)
                with torch.random.fork_rng(devices=[]), torch.no_grad():
                    torch.manual_seed(3)
                    before = model(ids_BT)[:, :cut]
                    torch.manual_seed(3)
                    moved = (before - model(changed)[:, :cut]).abs().amax((0, 2))
                if (worst := float(moved.max())) > CAUSAL:
                    raise ContractError(
                        f"causality: position {int(moved.argmax())} moved by {worst:.2g} when tokens from {cut} on "
                        "changed; a mixer, an embedding or a norm sees the future"
                    )
    finally:
        model.train(training)


def check_reach(mixer: Any, lags: tuple[int, ...], width: int, *, at: int = 20) -> None:
    """C1 reversed: the output at position ``at`` changes with the input ``lag`` positions earlier, for every lag."""
    generator = torch.Generator().manual_seed(4)
    x_BTD = torch.randn(1, at + 1, width, generator=generator)
    context = MixingContext(torch.arange(at + 1))
    with torch.no_grad():
        before = mixer(x_BTD, context)[:, at]
        for lag in lags:
            changed = x_BTD.clone()
            changed[:, at - lag] = torch.randn(1, width, generator=generator)
            if torch.equal(before, mixer(changed, context)[:, at]):
                raise ContractError(f"reach: position {at} does not depend on position {at - lag}; nothing is mixed")


def check_normalization(model: Any, ids_BT: Tensor) -> None:
    """C2: the probabilities of every position add up to 1."""
    with torch.no_grad():
        totals = model.log_probs(ids_BT).double().exp().sum(-1)
    if not bool(((totals - 1).abs() <= NORMAL).all()):
        worst = float(totals.flatten()[(totals - 1).abs().nan_to_num(torch.inf).argmax()])
        raise ContractError(f"normalization: probabilities of a position add up to {worst:.6g}; a head gives 1")


def check_one_loss(model: Any, ids_BT: Tensor, targets_BT: Tensor) -> None:
    """C3: in evaluation ``nll`` is ``-log_probs`` of the target, whatever the objective."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            wanted = -model.log_probs(ids_BT).gather(-1, targets_BT[..., None])[..., 0]
            off = float((model.nll(ids_BT, targets_BT) - wanted).abs().max())
    finally:
        model.train(training)
    if not off <= ONE_LOSS:
        raise ContractError(
            f"one loss: nll differs from -log_probs of the target by {off:.3g} nats; smoothing, an auxiliary or a "
            "sampled loss has got into evaluation"
        )


def check_decoding(model: GPT, ids_BT: Tensor) -> None:
    """C4: token by token with the state of the mixers gives what a pass over the whole sequence gives."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole, state = model(ids_BT), first_state(model, len(ids_BT))
            for at in range(ids_BT.shape[1]):
                told, state = step(model, ids_BT[:, at], state)
                off = float((told - whole[:, at]).abs().max())
                if not off <= DECODED:
                    raise ContractError(f"decoding: position {at} differs by {off:.3g} from a pass over the whole")
    finally:
        model.train(training)


def check_gradients(model: GPT, ids_BT: Tensor, targets_BT: Tensor) -> None:
    """C5: the loss that is trained on gives every parameter a gradient, finite and not all zero."""
    model.zero_grad(set_to_none=True)
    model.train()
    total, parts = model(ids_BT, targets_BT)
    if "tokens" not in parts or int(parts["tokens"]) != int((targets_BT != IGNORED).sum()):
        raise ContractError("accounting: parts['tokens'] is not the number of targets that are scored")
    total.backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None or not bool(gradient.any()):
            raise ContractError(f"gradients: {name} gets none; the loss does not depend on it")
        if not bool(gradient.isfinite().all()):
            raise ContractError(f"gradients: that of {name} is not finite")
    model.zero_grad(set_to_none=True)


def check_off_switch(technique: Technique, off: Any, plain: Any) -> None:
    """C6: at strength 0 the technique is the plain model, bit for bit, in what it predicts and in its loss."""
    tested, wanted = GPT(example_config(technique, off)), GPT(example_config(technique, plain))
    own = dict(tested.named_parameters())
    with torch.no_grad():
        for name, parameter in wanted.named_parameters():
            own[_counterpart(name, own)][tuple(slice(size) for size in parameter.shape)] = parameter
    ids_BT, targets_BT = example_batch()
    losses, predictions = [], []
    for model in (tested, wanted):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)  # both have the same noise
            losses.append(model(ids_BT, targets_BT)[0].item())
            predictions.append(model(ids_BT).detach())
    same = torch.equal(*predictions)
    if not same or losses[0] != losses[1]:
        raise ContractError(f"off switch: {off} is not {plain}: predictions equal {same}, losses {losses}")


def _counterpart(name: str, own: Collection[str]) -> str:
    """Return the parameter of that name, or the first whose name has all its parts in order, as an expert's has."""

    if name in own:
        return name

    def holds(other: str) -> bool:
        parts = iter(other.split("."))
        return all(part in parts for part in name.split("."))

    return next(other for other in own if holds(other))


def check_leak(model: Any, ids_BT: Tensor, targets_BT: Tensor) -> None:
    """C9: losses of the first half of every window stay when the second half is scrambled."""
    half = ids_BT.shape[1] // 2
    if half < 1:
        return
    changed = ids_BT.clone()
    changed[:, half:] = changed[:, half:].flip(0, 1)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            before, after = (model.nll(some, targets_BT)[:, :half] for some in (ids_BT, changed))
    finally:
        model.train(training)
    if not (moved := float((before - after).abs().max())) <= CAUSAL:
        raise ContractError(
            f"leak: losses of the first half moved by {moved:.2g} nats when the second half was scrambled"
        )
