"""Use an installed wheel as its first user would: formats, a file, a packed layer; with ``--core`` without PyTorch.

python .ci/release/smoke.py [--core]
"""

import sys
import tempfile
from pathlib import Path


def core() -> None:
    """The native module alone: it loads, knows every format, and says what it runs on."""
    from octavo import _core

    texts = _core.formats()
    assert len(texts) > 50 and all(str(_core.Format(text)) for text in texts), texts
    print(f"octavo core {_core.__version__}: {len(texts)} formats, SIMD level {_core.simd_level()}")


def package() -> None:
    """Every format round trip, a file of tensors, a packed layer beside its simulation."""
    import octavo
    import torch

    x = torch.linspace(-3, 3, 4096).view(16, 256)
    for text in octavo.formats():
        wanted = octavo.quantize(x, text)
        assert torch.equal(octavo.decode(octavo.encode(x, text)), wanted), text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors.safetensors"
        octavo.save({"x": octavo.encode(x, "mxfp4")}, path)
        octavo.save({"x": octavo.encode(x, "mxint8")}, path, overwrite=True)
        assert torch.equal(octavo.load(path)["x"].decode(), octavo.quantize(x, "mxint8"))
        model = torch.nn.Sequential(torch.nn.Linear(256, 32))
        simulated = octavo.quantize_model(model, "type:Linear mxint8")
        packed = octavo.pack_model(simulated)
        torch.testing.assert_close(packed(x), simulated(x))
        octavo.save_model(packed, Path(folder) / "model")
        again = octavo.load_model(Path(folder) / "model", torch.nn.Sequential(torch.nn.Linear(256, 32)))
        assert torch.equal(again(x), packed(x))
    print(f"octavo {octavo.__version__}: {len(octavo.formats())} formats, a file, a packed model: all as stored")


if __name__ == "__main__":
    core()
    if "--core" not in sys.argv:
        package()
