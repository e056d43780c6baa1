"""What the tests of the command line share: a way to run it, and a small model on disk."""

from pathlib import Path

import pytest
import torch
from octavo.cli import app
from octavo.tensors import container
from typer.testing import CliRunner, Result

SHAPES = {
    "embeddings.word.weight": (96, 64),
    "layer.0.query.weight": (64, 64),
    "layer.0.query.bias": (64,),
    "layer.1.query.weight": (64, 64),
    "layer.1.query.bias": (64,),
    "norm.weight": (64,),
}


def model_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return tensors | {"embeddings.position_ids": torch.arange(96).reshape(1, 96)}


@pytest.fixture
def octavo():
    """Run the command line in this process: ``octavo("inspect", path)``."""

    def run(*args: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="octavo")
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small safetensors file."""
    path = tmp_path / "model.safetensors"
    container.save(model_tensors(), path, metadata={"format": "pt"})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model folder: weights in two shards, configuration, tokenizer, and files that are no part of either."""
    import json

    path = tmp_path / "hub" / "bert"
    (path / "pooling").mkdir(parents=True)
    tensors = model_tensors()
    shards = {"model-1-of-2.safetensors": {}, "model-2-of-2.safetensors": {}}
    for position, (name, tensor) in enumerate(tensors.items()):
        list(shards.values())[position % 2][name] = tensor
    for name, shard in shards.items():
        container.save(shard, path / name, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, shard in shards.items() for name in shard}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "pooling" / "config.json").write_text("{}")
    (path / "pytorch_model.bin").write_bytes(b"weights again")
    (path / ".gitattributes").write_text("hidden")
    return path
