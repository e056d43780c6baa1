"""The one table of layers: a kind that is registered here, in the test, goes the whole way of a model."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import STRUCTURE, Checkpoint
from octavo.nn import PackedLayer, QuantLayer, registry
from octavo.nn.registry import LayerKind, kind_of, layer_kinds, packed_classes, register, simulated_classes
from octavo.recipe import Recipe
from octavo.tensors import container
from torch import Tensor, nn

PACKAGE = Path(octavo.__file__).parent
X = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))


class Doubling(nn.Module):
    """A float layer of somebody's own: twice ``x W^T``, W being stored as ``[out, 2, in / 2]``."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(width)
        self.weight = nn.Parameter(torch.randn(out, 2, width // 2, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x @ self.weight.flatten(1).t()


class QuantDoubling(QuantLayer, Doubling):
    replaces = Doubling
    quant_roles = ("weight", "input", "output")

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * x @ weight.flatten(1).t()


class PackedDoubling(PackedLayer):
    replaces = Doubling

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.input_quantizer is None else self.input_quantizer(x)
        y = 2 * x @ self._decoded(x.dtype).flatten(1).t()
        return y if self.output_quantizer is None else self.output_quantizer(y)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Doubling(64, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.fixture
def doubling() -> Iterator[LayerKind]:
    kind = register(LayerKind(Doubling, QuantDoubling, PackedDoubling))
    yield kind
    registry.unregister(kind)


def test_a_layer_of_one_file_goes_the_whole_way(doubling, tmp_path):
    model = Model()
    assert list(Recipe.of("mxint8").plan(model)) == ["first", "second"]
    simulated = octavo.quantize_model(model, "mxint8 input=mxint8", progress=False).eval()
    packed = octavo.pack_model(simulated)
    assert (type(simulated.first), type(packed.first)) == (QuantDoubling, PackedDoubling)
    assert packed.first.packed_weight.shape == (32, 64)
    octavo.save_model(packed, tmp_path / "packed")
    octavo.save_model(simulated, tmp_path / "simulated")
    for folder, kind in (("packed", PackedDoubling), ("simulated", QuantDoubling)):
        loaded = octavo.load_model(tmp_path / folder, Model)
        assert type(loaded.first) is kind
        torch.testing.assert_close(loaded(X), simulated(X))
    plain = unpack(Checkpoint.open(tmp_path / "packed"))
    assert plain["first.weight"].shape == model.first.weight.shape == (32, 2, 32)
    torch.testing.assert_close(plain["first.weight"].flatten(1), simulated.first.weight_matrix(), atol=0.1, rtol=0)
    costs = {cost.path: cost for cost in octavo.explain(packed).layers}
    assert costs["first"].kernel == "decode + torch" and costs["first"].format == "mxint8"
    assert {cost.path for cost in octavo.explain(model).layers} == {"first", "second"}
    assert octavo.quant.coverage(packed).quantized == 64 * 32 + 32 * 8
    assert octavo.nn.QuantDoubling is QuantDoubling


def test_a_layer_that_is_not_registered_is_none():
    model = Model()
    assert kind_of(model.first) is None
    assert list(Recipe.of("mxint8").plan(model)) == ["first.weight_table", "second"]  # it reads its weight as a table
    with pytest.raises(octavo.DTypeError, match=r"accepted are Conv1d, .*Embedding, .*Linear, Conv1D of transformers"):
        octavo.quantize_model(model, {"first": octavo.recipe.spec.LayerPlan()})
    with pytest.raises(AttributeError, match="QuantDoubling"):
        octavo.nn.QuantDoubling  # noqa: B018


def test_the_most_special_kind_is_that_of_a_subclass(doubling):
    class Special(Doubling):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class QuantSpecial(QuantLayer, Special):
        replaces = Special

    assert kind_of(Special(4, 4)) is doubling and doubling.own_class(Special(4, 4)) is Special
    kind = register(LayerKind(Special, QuantSpecial))
    try:
        assert kind_of(Special(4, 4)) is kind and kind_of(Doubling(4, 4)) is doubling
        with pytest.raises(octavo.ModelError, match="a QuantSpecial has no packed form"):
            octavo.pack_model(octavo.quantize_model(nn.Sequential(Special(4, 4)), "mxint8", progress=False))
    finally:
        registry.unregister(kind)


@pytest.mark.parametrize("kind", [kind for kind in layer_kinds() if isinstance(kind.float_class, type)], ids=str)
def test_simulated_and_packed_classes_stand_in_for_their_float_class(kind):
    assert issubclass(kind.simulated, kind.float_class) and kind.simulated.replaces is kind.float_class
    assert kind.packed.replaces is kind.float_class and set(kind.roles) <= {"weight", "input", "output", "bias"}


def test_names_in_files_are_those_that_files_of_0_1_have():
    """And those of kinds that came later."""
    later = ("Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "EmbeddingBag")
    assert set(packed_classes()) == {
        "PackedLinear", "PackedEmbedding", "PackedConv1d", "PackedConv2d", *(f"Packed{name}" for name in later),
    }  # fmt: skip
    assert set(simulated_classes()) == {
        "QuantLinear", "QuantTransposedLinear", "QuantEmbedding", "QuantConv1d", "QuantConv2d", "QuantMatmul",
        "QuantAttention", *(f"Quant{name}" for name in later),
    }  # fmt: skip


def test_every_public_layer_is_registered():
    public = {getattr(octavo.nn, name) for name in octavo.nn.__all__}
    layers = {cls for cls in public if isinstance(cls, type) and issubclass(cls, registry.FormatLayer)}
    known = {*packed_classes().values(), *simulated_classes().values()}
    assert layers - known == {QuantLayer, PackedLayer} and known - layers == set()


def test_no_other_file_keeps_a_table_of_layer_classes():
    """Outside nn a file may work with one kind of layer, as adapters do with linear ones; two kinds are a table."""
    classes = [*packed_classes(), *simulated_classes(), "nn.Linear", "nn.Conv1d", "nn.Conv2d", "nn.Embedding"]
    bases = re.compile(r'"""(?:.|\n)*?"""|self\.\w+(, self\.\w+)* = .*|class .*')
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        if room not in ("nn", "lab"):
            code = bases.sub("", file.read_text())
            named = [name for name in classes if re.search(rf"(?<![\w.`]){re.escape(name)}\b", code)]
            kinds = {re.sub("Packed|Quant|Transposed|nn.", "", name) for name in named}
            assert len(kinds) < 2, f"{file.relative_to(PACKAGE)}: {named}"


def test_recipes_load_the_kinds_themselves():
    """A process that imports recipes alone decides about layers as one that has them loaded."""
    import subprocess
    import sys

    code = (
        "from torch import nn\nfrom octavo.recipe import Recipe\nprint(list(Recipe.of('mxint8').plan(nn.Linear(4, 4))))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "['']\n"


def test_bytes_and_kernels_are_those_of_the_class():
    layer = octavo.nn.PackedEmbedding.from_embedding(nn.Embedding(50, 64), "mxint8")
    assert layer.cost(4) == ("gather", math.ceil(layer.packed_weight.nbytes / 50 * 4))
    conv = octavo.nn.PackedConv2d.from_conv(nn.Conv2d(3, 4, 3), "mxint8")
    assert conv.cost(4) == ("decode + torch", conv.packed_weight.nbytes + 2 * 4 * 27 * 4)


def shaped() -> list[tuple[nn.Module, str]]:
    """A float layer of every kind that is packed, none of them square."""
    made = [
        nn.Linear(48, 32), nn.Conv1d(16, 24, 3), nn.Conv2d(16, 24, (3, 5)), nn.Conv3d(16, 24, (3, 5, 1)),
        nn.Embedding(40, 32), nn.EmbeddingBag(40, 32), nn.ConvTranspose1d(16, 24, 3, groups=4),
        nn.ConvTranspose2d(16, 24, (3, 5)), nn.ConvTranspose3d(16, 24, (3, 5, 1)),
    ]  # fmt: skip
    return [(layer, type(layer).__name__) for layer in made]


@pytest.mark.parametrize("name", [*(kind for _, kind in shaped()), "Conv1D"])
def test_every_form_of_a_layer_tells_the_same_matrix(name):
    """A file is loaded into float, simulated and packed layers alike: ``(N, K)`` is one for all three."""
    if name == "Conv1D":
        layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(32, 48)  # its weight is [48, 32]
    else:
        layer = next(made for made, kind in shaped() if kind == name)
    kind = kind_of(layer)
    simulated = octavo.quantize_model(nn.Sequential(layer), "mxint8", progress=False)[0]
    packed = kind.packed.from_layer(simulated)
    rows = tuple(simulated.weight_matrix().shape)
    assert rows[0] != rows[1]
    assert {kind.packed.matrix_shape(form) for form in (layer, simulated, packed)} == {rows}
    assert kind.packed.matrix_shape(nn.LayerNorm(4)) is None


def test_conv1d_of_transformers_is_a_layer_in_all_forms(tmp_path):
    """Explained as other layers are, quantized twice alike, and loaded into a model that is quantized already."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(conv1d(32, 48), nn.Linear(32, 16))

    x = torch.randn(3, 48)
    assert [cost.path for cost in octavo.explain(model()).layers] == ["0", "1"]
    simulated = octavo.quantize_model(model(), "mxint8", progress=False).eval()
    assert list(Recipe.of("mxint8").plan(simulated)) == ["0", "1"]
    packed = octavo.pack_model(simulated)
    octavo.save_model(packed, tmp_path / "m")
    for place in (model, lambda: octavo.quantize_model(model(), "mxint4", progress=False), lambda: packed):
        torch.testing.assert_close(octavo.load_model(tmp_path / "m", place())(x), simulated(x))


@pytest.mark.parametrize(
    "shape", [[7, 64], "x", 5, {}, [-8, -64], [True, 512], [512.0], [1] * 60 + [512], [0], [2**70]]
)
def test_shapes_in_a_file_are_those_of_its_weight(shape, tmp_path):
    octavo.save_model(
        octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(64, 8)), "mxint8", progress=False)), tmp_path
    )
    file = next(tmp_path.glob("*.safetensors"))
    metadata, tensors = container.metadata(file), container.load(file)
    structure = json.loads(metadata[STRUCTURE])
    structure["layers"]["0"]["shape"] = shape
    container.save(tensors, file, metadata={**metadata, STRUCTURE: json.dumps(structure)})
    with pytest.raises(octavo.ContainerError, match=r"0\.weight: shape \(8, 64\), but its structure says"):
        unpack(Checkpoint.open(tmp_path))
