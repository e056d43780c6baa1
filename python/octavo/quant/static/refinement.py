"""Refinement: a few hundred small steps in which a model learns to compute under the rounding of static INT8."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from octavo.errors import DataError, SettingError
from octavo.models.seq2seq import PAD, HybridSeq2Seq, Seq2Seq
from octavo.ops import quantize
from octavo.quant.static.layout import FORMAT, LARGEST, check_scales, linears
from octavo.quant.static.observation import check_hybrid

STEPS, RATE = 600, 2e-4


def refine(
    model: Seq2Seq,
    scales: Mapping[str, float],
    batches: Iterable[Tensor],
    *,
    steps: int = STEPS,
    rate: float = RATE,
    progress: Callable[[int, float], None] | None = None,
) -> HybridSeq2Seq:
    """Return a copy of a hybrid model whose static INT8 form, with these scales, answers as the model itself does.

    ``scales``: what :func:`calibrate` returned. ``batches``: sources ``[B, S]``, taken in turn, again from the first
    where they end; a row is learned with the answer that ``model`` gives, so that no right answers are needed.
    In each of ``steps`` steps Adam, whose rate falls from ``rate`` to 0, lessens the divergence of the tokens'
    probabilities from the model's; inputs and weights of the linear layers are rounded on the way, with gradients
    passed straight through. ``progress`` is called with the number of steps done and the last divergence, in nats a
    token.

    Raises as :func:`calibrate`, FormatError for other scales, and SettingError for a number of steps or a rate that is
    not positive.
    """
    teacher = check_hybrid(model)
    check_scales(scales, teacher.config)
    if steps < 1 or not rate > 0:
        raise SettingError(f"{steps} steps at the rate {rate}; accepted are 1 step and more, and positive rates")
    student = deepcopy(teacher)
    lessons = [_lesson(teacher, batch.to(next(teacher.parameters()).device)) for batch in batches if len(batch)]
    if not lessons:
        raise DataError("no row to learn from; give at least one batch of sources")
    optimiser = torch.optim.Adam(student.parameters(), lr=rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    with _rounded(student, scales):
        for step, lesson in zip(range(1, steps + 1), cycle(lessons), strict=False):
            loss = _divergence(student, *lesson)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if progress:
                progress(step, loss.item())
    refined = deepcopy(teacher)  # not the student itself, whose weights now come after its biases
    refined.load_state_dict(student.state_dict())
    return refined.eval()


@torch.no_grad()
def _lesson(teacher: HybridSeq2Seq, source_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources, the teacher's answers and the log-probabilities of their tokens."""
    target_BT, _ = teacher.generate(source_BS)
    return source_BS, target_BT, teacher(source_BS, target_BT).float().log_softmax(-1)


def _divergence(student: HybridSeq2Seq, source_BS: Tensor, target_BT: Tensor, expected_BTV: Tensor) -> Tensor:
    """Return the mean of KL(teacher || student) over the tokens of the teacher's answers."""
    found_BTV = student(source_BS, target_BT).float().log_softmax(-1)
    each_BT = functional.kl_div(found_BTV, expected_BTV, reduction="none", log_target=True).sum(-1)
    return each_BT[target_BT != PAD].mean()


class _RoundedWeight(nn.Module):
    """A weight as static INT8 stores it."""

    def forward(self, weight: Tensor) -> Tensor:
        return quantize(weight, FORMAT)


@contextmanager
def _rounded(model: HybridSeq2Seq, scales: Mapping[str, float]) -> Iterator[None]:
    """Round inputs and weights of the linear layers; the LSTMs, which lose little, compute as before."""

    def rounding(scale: float) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            x = inputs[0].clamp(-LARGEST * scale, LARGEST * scale)
            return (x + ((x / scale).round() * scale - x).detach(),)

        return hook

    layers = {name: model.get_submodule(name) for name in linears(model.config)}
    hooks = [layer.register_forward_pre_hook(rounding(scales[name])) for name, layer in layers.items()]
    for layer in layers.values():
        parametrize.register_parametrization(layer, "weight", _RoundedWeight())
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers.values():
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
