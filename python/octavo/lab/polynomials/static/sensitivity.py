"""Which inputs need more than int8: those whose rounding alone changes the model's answers most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import DataError, FormatError, NonFiniteError
from octavo.lab.polynomials.seq2seq import PAD, HybridSeq2Seq, Seq2Seq
from octavo.lab.polynomials.static.integer_layers import to_codes
from octavo.lab.polynomials.static.layout import WIDEST, check_scales, linears, site
from octavo.lab.polynomials.static.observation import check_hybrid


@torch.no_grad()
def damages(model: Seq2Seq, batches: Iterable[Tensor], scales: Mapping[str, float]) -> dict[str, float]:
    """Return how much the int8 codes of every linear layer's input change the answers, by the name of the layer.

    The damage is the Kullback-Leibler divergence, in nats a token, of the next token's distribution where one input
    alone is rounded, from that of the float model, along its own greedy answers to ``batches`` (as of
    :func:`calibrate`). Layers that read the same tensor are rounded together and get the same number; those with too
    many inputs for 16 bits are left out. ``scales``: as of :func:`quantize_static`.

    Raises as :func:`calibrate` and, for scales, as :func:`quantize_static`.
    """
    hybrid = check_hybrid(model)
    check_scales(scales, hybrid.config)
    sites: dict[str, list[str]] = {}
    for name, (_, inputs) in linears(hybrid.config).items():
        if inputs <= WIDEST:
            sites.setdefault(site(name), []).append(name)
    sums, tokens = dict.fromkeys(sites, 0.0), 0
    device = next(hybrid.parameters()).device
    for source_BS in batches:
        source_BS = source_BS[(source_BS != PAD).any(1)].to(device)
        if not len(source_BS):
            continue
        answers_BT, _ = hybrid.generate(source_BS)
        exact = _distribution(hybrid, source_BS, answers_BT)
        tokens += len(exact)
        for place, names in sites.items():
            rounded = _distribution(hybrid, source_BS, answers_BT, {name: scales[name] for name in names})
            sums[place] += float((exact.exp() * (exact - rounded)).sum())
    if not tokens:
        raise DataError("no row to measure on; give at least one batch of sources")
    for place, total in sums.items():
        if total != total:
            raise NonFiniteError(f"the answers where the input of {place} is rounded hold NaN")
    return {name: sums[place] / tokens for place, names in sites.items() for name in names}


def costly(damages: Mapping[str, float], left: float = 0.1) -> list[str]:
    """Return the layers whose inputs get 16 bits: the most damaging first, until the rest is ``left`` of all damage.

    ``damages``: what :func:`damages` returns. ``left``: from 0, all that do any damage, to 1, none.
    Raises FormatError for another share.
    """
    if not 0 <= left <= 1:
        raise FormatError(f"left is {left}; accepted are shares from 0 to 1")
    by_site = {site(name): max(damage, 0.0) for name, damage in damages.items()}
    rest = sum(by_site.values())
    allowed, chosen = left * rest, set()
    for place in sorted(by_site, key=by_site.__getitem__, reverse=True):
        if rest <= allowed or by_site[place] == 0:
            break
        chosen.add(place)
        rest -= by_site[place]
    return [name for name in damages if site(name) in chosen]


def _distribution(
    model: HybridSeq2Seq, source_BS: Tensor, answers_BT: Tensor, rounded: Mapping[str, float] | None = None
) -> Tensor:
    """Return the logarithms of the next token's probabilities, ``[tokens, V]``, where some inputs are rounded."""
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(_rounding(scale)) for name, scale in (rounded or {}).items()
    ]
    try:
        logits_BTV = model(source_BS, answers_BT)
    finally:
        for hook in hooks:
            hook.remove()
    return logits_BTV.double().log_softmax(-1)[answers_BT != PAD]


def _rounding(scale: float) -> Callable[[nn.Module, tuple[Tensor, ...]], Any]:
    step = torch.tensor(scale, dtype=torch.float32)
    return lambda _, inputs: ((to_codes(inputs[0], step) * step).to(inputs[0].dtype),)
