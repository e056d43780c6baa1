"""Layers with sparse codes: the outputs of dense ones, and everything that layers do."""

import copy
import io

import octavo
import pytest
import torch
from octavo import PackedTensor
from octavo.nn import PackedConv2d, PackedEmbedding, PackedLinear
from torch import nn

ORDER = 1e-5  # of float32 sums of some hundred products in another order, relative to the largest output


class Network(nn.Module):
    """Layers of every kind, and a linear one that is tied to another."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 64)
        self.up, self.down = nn.Linear(64, 160), nn.Linear(160, 64, bias=False)
        self.twin = nn.Linear(64, 160)
        self.twin.weight = self.up.weight
        self.conv = nn.Conv2d(1, 8, 3)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.down(torch.relu(self.up(x) + self.twin(x)))
        return self.conv(x[:, None]).mean(1)


IDS = torch.arange(36).view(4, 9)


def pruned(sparsity=0.7, recipe="int8:g32"):
    torch.manual_seed(0)
    model = octavo.prune_model(Network().eval(), sparsity)
    return octavo.quantize_model(octavo.prune.fold_model(model), recipe, progress=False)


def both(**options):
    """The same model with dense and with sparse codes."""
    simulated = pruned(**options)
    return octavo.pack_model(simulated), octavo.pack_model(simulated, sparse=True)


def assert_close(a, b):
    assert a.dtype == b.dtype and (a - b).abs().max() <= ORDER * b.abs().max()


RECIPES = [
    "int8:g32", "mxint8", "mxfp6e2m3", "mxfp4", "int8:channel", "int8:g32 input=int8:g32", "int8:channel input=int8",
    "mxint8 input=mxint8", "mxfp8e4m3 input=mxfp8e4m3",
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_sparse_model_has_the_outputs_of_the_dense_one(recipe):
    dense, sparse = both(recipe=f"weight={recipe}")
    assert all(isinstance(layer.packed_weight, PackedTensor) for layer in (sparse.up, sparse.conv))
    for name in ("up", "down", "twin", "conv"):
        layer = sparse.get_submodule(name)
        assert layer.is_sparse and not dense.get_submodule(name).is_sparse
        assert layer.packed_weight == dense.get_submodule(name).packed_weight
    assert not sparse.embed.is_sparse  # rows are read one by one
    assert sparse.twin.weight_codes is sparse.up.weight_codes and sparse.twin.weight_bitmap is sparse.up.weight_bitmap
    with torch.no_grad():
        for ids in (IDS[:1, :3], IDS):
            if "input" in recipe or ids.numel() > 4:
                assert torch.equal(sparse(ids), dense(ids))
            else:
                assert_close(sparse(ids), dense(ids))


def test_nothing_is_sparse_where_that_saves_no_bytes():
    torch.manual_seed(0)
    packed = octavo.pack_model(octavo.quantize_model(Network(), "mxint8", progress=False), sparse=True)
    assert not any(getattr(layer, "is_sparse", False) for layer in packed.modules())
    assert octavo.explain(packed).layers[0].zeros is None


def test_formats_without_a_code_to_leave_out_stay_dense():
    simulated = pruned(recipe="type:Linear nf4; type:Conv2d uint8:g32; type:Embedding mxint8")
    packed = octavo.pack_model(simulated, sparse=True)
    assert not any(getattr(layer, "is_sparse", False) for layer in packed.modules())


@pytest.mark.parametrize("mmap", [False, True])
def test_a_folder_holds_sparse_layers(tmp_path, mmap):
    dense, sparse = both()
    octavo.save_model(sparse, tmp_path / "sparse")
    octavo.save_model(dense, tmp_path / "dense")
    loaded = octavo.load_model(tmp_path / "sparse", Network, mmap=mmap)
    assert loaded.up.is_sparse and loaded.twin.weight_codes is loaded.up.weight_codes
    with torch.no_grad():
        assert torch.equal(loaded(IDS), sparse(IDS))
    files = [tmp_path / name / "model.octavo.safetensors" for name in ("sparse", "dense")]
    assert files[0].stat().st_size < 0.7 * files[1].stat().st_size
    octavo.save_model(loaded, tmp_path / "again")
    assert (tmp_path / "again/model.octavo.safetensors").read_bytes() == files[0].read_bytes()
    stored = {entry.name: entry for entry in octavo.inspect(files[0])}
    assert stored["up.weight"].nbytes == sparse.up.packed_weight.nbytes
    told = {cost.path: cost for cost in octavo.explain(sparse).layers}
    assert told["up"].stored == stored["up.weight"].nbytes + sparse.up.bias.nbytes
    assert told["up"].dense == dense.up.packed_weight.nbytes and told["up"].zeros == pytest.approx(0.7, abs=0.02)
    assert "zeros" in str(octavo.explain(sparse)) and "zeros" not in str(octavo.explain(dense))


def test_state_dicts_carry_sparse_codes():
    dense, sparse = both()
    state = sparse.state_dict()
    assert "up.weight_bitmap" in state and "up.weight_starts" not in state and "embed.weight_bitmap" not in state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    state = torch.load(file)
    other_dense, other_sparse = both(sparsity=0.4)
    for model, other in [(other_sparse, sparse), (other_dense, sparse), (other_sparse, dense)]:
        model = copy.deepcopy(model)
        model.load_state_dict(other.state_dict())
        assert model.up.is_sparse == other.up.is_sparse and model.up.packed_weight == sparse.up.packed_weight
        with torch.no_grad():
            assert torch.equal(model(IDS), other(IDS))
    state["up.weight_bitmap"][0, 0] ^= 1
    with pytest.raises(RuntimeError, match=r"up\.weight: sparse codes: the bitmap"):
        other_sparse.load_state_dict(state)


def test_sparse_models_are_copied_moved_and_compiled():
    _, sparse = both()
    with torch.no_grad():
        wanted = sparse(IDS)
        assert torch.equal(copy.deepcopy(sparse)(IDS), wanted)
        assert torch.equal(torch.compile(sparse, backend="aot_eager", fullgraph=True)(IDS), wanted)
        half = copy.deepcopy(sparse).bfloat16()
        assert half.up.is_sparse and half(IDS).dtype == torch.bfloat16 and half.up.weight_codes.dtype == torch.uint8
    assert sparse.to("meta").up.weight_bitmap.is_meta


def test_gradients_pass_through_sparse_layers():
    dense, sparse = both()
    made = []
    for model in (dense, sparse):
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        model.up(x).square().sum().backward()
        made.append(x.grad)
    assert torch.equal(*made)


def test_adapters_train_on_sparse_layers():
    _, sparse = both()
    adapted = octavo.lora.insert(sparse, rank=2)
    assert adapted.up.is_sparse and torch.equal(adapted(IDS), sparse(IDS))
    adapted(IDS).sum().backward()
    assert any(p.grad is not None for p in adapted.parameters() if p.requires_grad)


def test_a_sparse_weight_replaces_a_dense_one_and_the_reverse():
    dense, sparse = both()
    layer, weight = dense.up, sparse.up.packed_weight
    layer.weight = weight
    assert layer.is_sparse and "sparse=True" in repr(layer) and "weight_bitmap" in layer.state_dict()
    layer.weight = weight.to_dense()
    assert not layer.is_sparse and "weight_bitmap" not in layer.state_dict() and "sparse" not in repr(layer)


def test_layers_of_every_kind_take_sparse_weights():
    x = torch.where(torch.rand(16, 36, generator=torch.Generator().manual_seed(0)) < 0.8, 0.0, 1.0)
    weight = octavo.encode(x, "int8:g32").to_sparse()
    table, x = PackedEmbedding(weight), weight.decode()
    assert torch.equal(table(torch.tensor([3, 0, 15])), x[[3, 0, 15]])
    conv = PackedConv2d(
        weight, in_channels=4, kernel_size=(3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1,
        padding_mode="zeros",
    )  # fmt: skip
    assert_close(conv(torch.ones(1, 4, 3, 3)).flatten(), x.sum(1))
    assert_close(PackedLinear(weight)(torch.ones(1, 36)).flatten(), x.sum(1))
