"""Teach a packed model a new task: low-rank adapters (LoRA) over 4-bit weights that never change.

python examples/lora_on_packed.py
"""

import tempfile
from pathlib import Path

import octavo
import torch
from octavo import lora
from torch import Tensor, nn


def sample(count: int, turn: int) -> tuple[Tensor, Tensor]:
    """Return points of 16 coordinates and their class: the largest of the first 8, after a turn of the coordinates."""
    x = torch.randn(count, 16)
    return x, x.roll(turn, 1)[:, :8].argmax(1)


def train(model: nn.Module, turn: int, steps: int, rate: float) -> None:
    """Train the parameters that are not frozen."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    model.train()
    for _ in range(steps):
        x, target = sample(256, turn)
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


@torch.inference_mode()
def accuracy(model: nn.Module, turn: int) -> float:
    """Return the share of 4,000 points whose class is right."""
    x, target = sample(4000, turn)
    return (model(x).argmax(-1) == target).float().mean().item()


def main() -> None:
    """Print the accuracy on the new task without and with the adapter, and the size of its file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
    train(model, turn=0, steps=300, rate=3e-3)
    packed = octavo.pack_model(octavo.quantize_model(model, "int4:g32"))
    print(f"packed, old task: {accuracy(packed, turn=0):.1%}, new task: {accuracy(packed, turn=2):.1%}")

    adapted = lora.insert(packed, rank=8, alpha=16, targets="type:Linear")
    train(adapted, turn=2, steps=300, rate=1e-2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.safetensors"
        lora.save_adapters(adapted, file)  # the adapter alone, bound to the base by its hash
        again = lora.load_adapters(packed, file).eval()
        size = file.stat().st_size
    print(f"adapter of {size:,} bytes, new task: {accuracy(again, turn=2):.1%}")


if __name__ == "__main__":
    main()
