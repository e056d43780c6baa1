"""Every architecture of the table: what the default selection reaches, packed against simulated, saved and loaded."""

import runpy
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.architectures import ARCHITECTURES, OF_TORCH, measure

ROOT = Path(__file__).resolve().parents[2]
MODELS = runpy.run_path(str(ROOT / "docs" / "models.py"))
LEAST = 0.95  # share of the elements of parameters of two and more axes
GAP = 2e-5  # packed against simulated, relative to the largest output: sums in another order
EXCESS = 1.05  # bytes over those of whole groups: rows of short convolutions end with a short one
QUICK = (
    *OF_TORCH, "Gemma3", "OPT", "Falcon", "GptOss", "Mamba", "Bert", "XLNet", "Bart", "ViT", "Whisper", "CLIP", "Blip2",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
@pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")
def test_an_architecture_is_reached_packed_and_loaded(name):
    if name not in OF_TORCH:
        pytest.importorskip("transformers")
    row = measure(name)
    assert row.covered >= LEAST, row
    assert row.gap <= GAP and row.is_same and row.excess <= EXCESS, row
    release, lines = MODELS["recorded"](MODELS["PAGE"].read_text(encoding="utf-8"))
    if name in OF_TORCH or release == version("transformers"):  # another release has other sizes
        assert lines[name] == MODELS["line"](row), "run: python docs/models.py"


def test_the_page_has_every_architecture():
    _, lines = MODELS["recorded"](MODELS["PAGE"].read_text(encoding="utf-8"))
    names = [name for name in lines if name != "architecture" and not name.startswith(("**", "--"))]
    assert names == list(ARCHITECTURES) and len(names) >= 60
