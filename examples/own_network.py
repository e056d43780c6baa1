"""Pack a network of your own: a recipe, calibration, a folder, and a model that runs on its packed weights.

python examples/own_network.py
"""

import tempfile
from pathlib import Path

import octavo
import torch
from torch import Tensor, nn


class Tagger(nn.Module):
    """Gives each id of a sequence one of 12 tags."""

    def __init__(self) -> None:
        """Make the layers, with random weights."""
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.norm = nn.LayerNorm(64)
        self.tags = nn.Linear(64, 12)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (batch, length, 12)."""
        x = self.embed(ids)
        return self.tags(self.norm(x + self.encoder(x)))


def main() -> None:
    """Print the size before and after, and how often the packed model gives the float model's tag."""
    torch.manual_seed(0)
    model = Tagger().eval()
    batches = [torch.randint(1000, (16, 32)) for _ in range(8)]

    # Rules are read in order, and the last one that matches a tensor decides.
    recipe = octavo.Recipe.parse("int4:g32; encoder.* weight=mxint8 input=int8@mse; last:Linear keep")
    print(recipe.explain(model))
    quantized = octavo.quantize_model(model, recipe, calibration=batches).eval()
    packed = octavo.pack_model(quantized)

    with tempfile.TemporaryDirectory() as folder:
        octavo.save_model(packed, folder)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        loaded = octavo.load_model(folder, Tagger)  # a function that makes the network; its dense weights never exist

    ids = torch.randint(1000, (64, 32))
    with torch.inference_mode():
        same = (loaded(ids).argmax(-1) == model(ids).argmax(-1)).float().mean()
    before = sum(value.nbytes for value in model.state_dict().values())
    print(f"{before:,} -> {size:,} bytes; same tag as in float32: {same:.1%}")


if __name__ == "__main__":
    main()
