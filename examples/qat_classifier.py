"""Train a classifier through 2-bit weights (QAT), pack it, and compare it with rounding after training (PTQ).

python examples/qat_classifier.py
"""

import octavo
import torch
from torch import Tensor, nn

RECIPE = "type:Linear weight=int2:g16 input=int8; last:Linear weight=int8:channel"


def sample(count: int) -> tuple[Tensor, Tensor]:
    """Return points of 16 coordinates and their class of 4: which quarter of the circle a rotated pair lies in."""
    x = torch.randn(count, 16)
    a, b = x[:, :8].sum(1), x[:, 8:].sum(1)
    return x, (a * b > 0).long() + 2 * (a > b).long()


def train(model: nn.Module, steps: int, rate: float) -> None:
    """Train with AdamW on fresh batches; a quantized model trains as any other."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(steps):
        x, target = sample(256)
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()


@torch.inference_mode()
def accuracy(model: nn.Module, x: Tensor, target: Tensor) -> float:
    """Return the share of points whose class is right."""
    return (model(x).argmax(-1) == target).float().mean().item()


def main() -> None:
    """Print accuracies in float32, after rounding, after training through the format, and packed."""
    torch.manual_seed(0)
    test = sample(4000)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    train(model, steps=400, rate=3e-3)
    quantized = octavo.quantize_model(model, RECIPE).eval()
    rounded = accuracy(quantized, *test)
    train(quantized, steps=400, rate=1e-3)
    packed = octavo.pack_model(quantized)
    print(f"float32 {accuracy(model, *test):.1%}, rounded to 2 bits {rounded:.1%}")
    print(f"trained through 2 bits {accuracy(quantized, *test):.1%}, packed {accuracy(packed, *test):.1%}")


if __name__ == "__main__":
    main()
