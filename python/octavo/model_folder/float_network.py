"""Networks of our own with float32 weights, whatever form their folder holds them in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from octavo.errors import ContainerError, NonFiniteError
from octavo.model_folder.model_config import OwnModel, own_model
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, held
from octavo.recipe.sites import dtype_name
from octavo.tensors.packed_tensor import FLOATS


def float_network(folder: Path, kind: str) -> tuple[nn.Module, OwnModel]:
    """Return the network of a folder in eval mode, its weights decoded to float32, and what the configuration says.

    Nothing is allocated for the model before its weights are known to fit. Raises FileNotFoundError for a file that is
    missing, ContainerError naming file and tensor where weights are not those of the configuration, NonFiniteError.
    """
    own = own_model(folder, kind)
    assert own is not None  # a kind was asked for
    if not held(folder):
        raise FileNotFoundError(2, "No such file or directory", str(folder / PACKED_NAME))
    source = Checkpoint.open(folder)
    model = build(own.make, Extent.of(source.entries(), str(own.file), own.config.as_dict()))
    file = source.files[0]
    tensors = unpack(source)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    _check_names(file, own.file.name, tensors, shapes)
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ContainerError(f"{file}: {name} has shape {tuple(tensor.shape)}; the model's is {shapes[name]}")
        if tensor.dtype not in FLOATS:
            accepted = ", ".join(map(dtype_name, FLOATS))
            raise ContainerError(f"{file}: {name} has dtype {dtype_name(tensor.dtype)}; accepted are {accepted}")
        if not tensor.isfinite().all():
            raise NonFiniteError(f"{file}: {name} holds NaN or infinity; accepted are finite weights")
    # Copies: float32 tensors of a mapped file would change with it.
    copies = {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(copies, assign=True)
    return model.eval(), own


def _check_names(file: Path, described: str, tensors: Mapping[str, object], shapes: Mapping[str, object]) -> None:
    differing = sorted(tensors.keys() ^ shapes.keys())
    if differing:
        problem = f"is no weight of the model that {described} describes" if differing[0] in tensors else "is missing"
        raise ContainerError(f"{file}: {differing[0]} {problem} ({len(differing)} such names)")
