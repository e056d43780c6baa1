"""The baseline again, in float64 and by hand: nothing of the package, no module, no attention call."""

import math

import torch
from torch.nn import functional


def reference_logits(weights, ids, heads, layers):
    """Logits of the baseline; ``weights``: name to float64 tensor, as the package names them."""
    norm = lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    table = weights["embedding.table.weight"]
    x, (batch, length) = table[ids], ids.shape
    size = table.shape[1] // heads
    angle = torch.outer(
        torch.arange(length).double(), 10000.0 ** -(torch.arange(0, size, 2).double() / size)
    )  # one a position and pair
    turn = torch.complex(angle.cos(), -angle.sin())
    for layer in range(layers):
        part = lambda name, y, at=layer: y @ weights[f"blocks.{at}.{name}.weight"].T  # noqa: E731
        split = lambda y: y.view(batch, length, heads, size).transpose(1, 2)  # noqa: E731
        query, key, value = (split(part(f"mixer.{name}", norm(x))) for name in ("query", "key", "value"))
        pairs = [torch.complex(*y.chunk(2, -1)) * turn for y in (query, key)]
        query, key = (torch.cat([pair.real, pair.imag], -1) for pair in pairs)
        scores = query @ key.mT / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        x = x + part("mixer.out", mixed) / math.sqrt(2 * layers)
        x = x + part("ffn.down", functional.gelu(part("ffn.up", norm(x))))
    return norm(x) @ table.T


def reference_losses(start, batches, heads, layers, rate):
    """Losses before each of the updates of AdamW with weight decay 0.1 on everything, all in float64."""
    weights = {name: value.detach().double().clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for update, (ids, targets) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate * (update + 1) / 256
        logits = reference_logits(weights, ids, heads, layers)
        loss = (logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
