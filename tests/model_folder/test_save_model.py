"""save_model and load_model: what is loaded is what was saved, and what does not fit is refused by name."""

import copy
import json
import subprocess
import sys

import octavo
import pytest
import torch
from helpers.models import tensor_bytes
from octavo import ContainerError, DTypeError, ModelError, lora
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.nn import PackedLayer, PackedLinear, QuantAttention, QuantLinear, attention
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

OVERHEAD = 1.02  # of the file over the bytes of its tensors, at the size below


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Network(nn.Module):
    """Embeddings, a convolution, blocks, a tied head, buffers that are saved and one that is not."""

    def __init__(self, words=50, width=64, inner=96, tied=True):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.mix = nn.Conv1d(width, width, 3, padding=1, groups=2)
        self.blocks = nn.Sequential(Block(width, inner), Block(width, inner))
        self.attention = QuantAttention()
        self.scale = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(100).float().view(100, 1) / 100, persistent=False)

    def forward(self, ids):
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        x = self.mix(x.transpose(1, 2))
        x = self.blocks(self.scale(x).transpose(1, 2))
        return self.head(self.attention(x, x, x)[0])


IDS = torch.arange(35).view(5, 7)
RECIPES = [
    "mxint8",
    "int8:channel@mse; type:Linear int8:channel@mse input=int8@minmax bias=int32; type:Conv1d int8:channel input=int8",
    "int4:g32; name:mix keep; glob:blocks.*.up nvfp4 input=mxfp8e4m3 output=bf16; name:blocks.1.down uint4:g32",
    "mxint8; name:attention input=int8@minmax output=mxint8",
]


def network(**options):
    torch.manual_seed(0)
    model = Network(**options)
    model.scale.running_mean.normal_()
    return model.eval()


def quantized(recipe=RECIPES[0], **options):
    return octavo.quantize_model(network(**options), recipe, calibration=[IDS], progress=False)


def packed(recipe=RECIPES[0], **options):
    return octavo.pack_model(quantized(recipe, **options))


@torch.no_grad()
def out(model):
    return model(IDS)


# --- round trips --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("pack", [True, False], ids=["packed", "simulated"])
def test_what_is_loaded_computes_what_was_saved(tmp_path, recipe, pack):
    model = packed(recipe) if pack else quantized(recipe)
    octavo.save_model(model, tmp_path / "model")
    for skeleton in (Network, Network(), lambda: Network(tied=False)):
        loaded = octavo.load_model(tmp_path / "model", skeleton)
        assert torch.equal(out(loaded), out(model))
        assert [type(m) for m in loaded.modules()] == [type(m) for m in model.modules()]
        state = model.state_dict()
        assert loaded.state_dict().keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
        assert not loaded.training
        if pack:
            assert loaded.head.weight_codes is loaded.embed.weight_codes
        else:
            assert loaded.head.weight is loaded.embed.weight


def test_a_simulated_model_trains_on_after_loading(tmp_path):
    recipe = "int4:channel@lsq; type:Linear int4:channel@lsq input=int8@lsq"
    model = quantized(recipe)
    octavo.save_model(model, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model", Network).train()
    loaded(IDS).sum().backward()
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, p in loaded.named_parameters() if p.grad is not None} == learned
    assert any("scales" in name for name in learned)


def test_float_models_travel_too(tmp_path):
    model = network().to(torch.bfloat16)
    octavo.save_model(model, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model", Network)
    assert loaded.embed.weight.dtype == torch.bfloat16 and loaded.head.weight is loaded.embed.weight
    assert torch.equal(loaded.mix.weight, model.mix.weight)


def test_one_layer_is_a_model(tmp_path):
    layer, x = PackedLinear.from_linear(nn.Linear(64, 8), "mxint4"), torch.randn(3, 64)
    octavo.save_model(layer, tmp_path / "layer")
    assert torch.equal(octavo.load_model(tmp_path / "layer", lambda: nn.Linear(64, 8))(x), layer(x))
    assert torch.equal(octavo.load_model(tmp_path / "layer" / PACKED_NAME, nn.Linear(64, 8))(x), layer(x))


def test_a_shared_module_stays_shared(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(32, 32)
            self.b = self.a

        def forward(self, x):
            return self.b(self.a(x))

    model = octavo.pack_model(octavo.quantize_model(Twice(), "mxint8", progress=False))
    octavo.save_model(model, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model", Twice)
    assert loaded.a is loaded.b
    x = torch.randn(2, 32)
    assert torch.equal(loaded(x), model(x))


def test_loaded_models_may_be_mapped(tmp_path):
    model = packed()
    octavo.save_model(model, tmp_path / "model")
    assert torch.equal(out(octavo.load_model(tmp_path / "model", Network, mmap=True)), out(model))


# --- the file -----------------------------------------------------------------------------------------------------------


def test_tensors_keep_their_names_and_ties_are_stored_once(tmp_path):
    model = packed()
    octavo.save_model(model, tmp_path / "model")
    entries = {entry.name: entry for entry in octavo.inspect(tmp_path / "model" / PACKED_NAME)}
    assert entries.keys() == network().state_dict().keys() - {"head.weight"}
    assert entries["embed.weight"].format == "mxint8" and entries["mix.weight"].shape == (64, 96)
    assert entries["blocks.0.up.bias"].kind == "plain"


def test_the_file_is_little_more_than_its_tensors(tmp_path):
    model = packed(words=2000, width=128, inner=256)
    octavo.save_model(model, tmp_path / "model")
    (file,) = (tmp_path / "model").iterdir()
    saved = tensor_bytes(model) - model.positions.nbytes - model.embed.weight.nbytes
    assert file.stat().st_size <= OVERHEAD * (saved + model.embed.weight.nbytes)


def test_equal_models_give_equal_bytes(tmp_path):
    for name in "ab":
        octavo.save_model(packed(RECIPES[1]), tmp_path / name)
    assert (tmp_path / "a" / PACKED_NAME).read_bytes() == (tmp_path / "b" / PACKED_NAME).read_bytes()


def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch):
    octavo.save_model(packed(), tmp_path / "model")
    before = (tmp_path / "model" / PACKED_NAME).read_bytes()
    monkeypatch.setattr(octavo.tensors.container, "save", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        octavo.save_model(packed(RECIPES[1]), tmp_path / "model")
    with pytest.raises(OSError, match="disk full"):
        octavo.save_model(packed(), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / PACKED_NAME).read_bytes() == before


def test_targets_that_would_mix_models_are_refused(tmp_path):
    octavo.save_model(packed(), tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        octavo.save_model(packed(), tmp_path / "model", overwrite=False)
    octavo.save_model(packed(RECIPES[1]), tmp_path / "model")
    (tmp_path / "file").write_text("")
    with pytest.raises(ContainerError, match="a file; models are written to a folder"):
        octavo.save_model(packed(), tmp_path / "file")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_text("")
    with pytest.raises(ContainerError, match="ambiguous"):
        octavo.save_model(packed(), tmp_path / "hf")


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"blocks.0.up: has adapters; .*save_adapters"):
        octavo.save_model(lora.insert(network(), rank=2, targets="name:blocks.0.up"), tmp_path / "model")
    with pytest.raises(ModelError, match="meta device"):
        octavo.save_model(network().to("meta"), tmp_path / "model")

    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"epoch": 3}

    with pytest.raises(ModelError, match=r"0\._extra_state: state that is a dict"):
        octavo.save_model(nn.Sequential(Extra(2, 2)), tmp_path / "model")
    assert not list(tmp_path.iterdir())


# --- memory -------------------------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Sizes of float tensors with memory that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numels = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.device.type == "cpu":
                self.numels.add(tensor.numel())
        return made


def test_a_factory_never_allocates_dense_weights(tmp_path):
    octavo.save_model(packed("int4:g32"), tmp_path / "model")
    dense = {50 * 64, 64 * 96, 64 * 32 * 3}
    with Watch() as watch:
        network()
    assert dense <= watch.numels
    with Watch() as watch:
        octavo.load_model(tmp_path / "model", Network)
    assert not dense & watch.numels


def test_loading_brings_no_compiler_into_memory(tmp_path):
    """Filling weights that take no memory loads torch._dynamo: 150 MB, more than most models here."""
    octavo.save_model(octavo.nn.PackedEmbedding.from_embedding(nn.Embedding(50, 64), "mxint8"), tmp_path / "model")
    code = (
        "import sys, octavo\nfrom torch import nn\n"
        "octavo.load_model(sys.argv[1], lambda: nn.Embedding(50, 64))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "model"], check=True)


# --- files that do not fit ----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    octavo.save_model(packed(), tmp_path / "model")
    return tmp_path / "model" / PACKED_NAME


def rewrite(file, change):
    """Write a saved model again, changed by ``change(tensors, structure)``."""
    tensors, metadata = octavo.load(file), octavo.tensors.container.metadata(file)
    structure = json.loads(metadata["structure"])
    change(tensors, structure)
    octavo.save(tensors, file, metadata={"structure": json.dumps(structure)})


CHANGES = {
    "blocks.0.norm.weight: missing": lambda t, s: t.pop("blocks.0.norm.weight"),
    "blocks.1.up.weight: missing": lambda t, s: t.pop("blocks.1.up.weight"),
    "blocks.1.up.bias: missing": lambda t, s: t.pop("blocks.1.up.bias"),
    "stray: has no place": lambda t, s: t.update(stray=torch.zeros(1)),
    r"scale.running_mean: tensor of shape \(3,\)": lambda t, s: t.update({"scale.running_mean": torch.zeros(3)}),
    r"blocks.0.down.weight: PackedTensor\(.*but the model's layer has shape \(64, 96\)": lambda t, s: t.update(
        {"blocks.0.down.weight": octavo.encode(torch.zeros(64, 64), "mxint8")}
    ),
    "blocks.0.down.weight: not packed": lambda t, s: t.update({"blocks.0.down.weight": torch.zeros(64, 96)}),
    r"blocks.0.up.bias: shape \(4,\)": lambda t, s: t.update({"blocks.0.up.bias": torch.zeros(4)}),
    "blocks.0.down.bias: the layer of this model has none": lambda t, s: t.update(
        {"blocks.0.down.bias": torch.zeros(64)}
    ),
    r"blocks.0.norm.weight: PackedTensor\(.*plain tensor": lambda t, s: t.update(
        {"blocks.0.norm.weight": octavo.encode(torch.zeros(64), "mxint8")}
    ),
    "nowhere: a quantized layer in the file, but": lambda t, s: s["layers"].update(nowhere={"class": "PackedLinear"}),
    "unknown layer class 'Rocket'": lambda t, s: s["layers"]["head"].update({"class": "Rocket"}),
    r"unknown layer class \[\]": lambda t, s: s["layers"]["head"].update({"class": []}),
    "of other types than": lambda t, s: s["layers"]["head"].update(disabled=3),
    "blocks.0.up: saved as PackedEmbedding, but": lambda t, s: s["layers"]["blocks.0.up"].update(
        {"class": "PackedEmbedding"}
    ),
    "mix: saved with": lambda t, s: s["layers"]["mix"]["geometry"].update(stride=[2]),
    "no format of a tensor": lambda t, s: s["layers"]["blocks.0.up"].update(input={"format": 3}),
    "width 99 is outside": lambda t, s: s["layers"]["blocks.0.up"].update(input={"format": "mxint99"}),
    "head.weight: tied to nothing": lambda t, s: s["ties"].update({"head.weight": "nothing"}),
    "embed.weight: tied to": lambda t, s: s["ties"].update({"embed.weight": "mix.weight"}),
    "structure version 2": lambda t, s: s.update(version=2),
    "cannot be read": lambda t, s: s.pop("layers"),
    "parts of other types": lambda t, s: s.update(ties=[]),
}


@pytest.mark.parametrize("told", CHANGES)
def test_files_that_do_not_fit_are_refused_by_name(saved, told):
    rewrite(saved, CHANGES[told])
    with pytest.raises(ContainerError, match=told):
        octavo.load_model(saved, Network)


def test_quantizer_scales_that_do_not_fit_are_refused_by_name(tmp_path):
    octavo.save_model(packed(RECIPES[1]), tmp_path)
    name = "blocks.0.up.input_quantizer.scales"
    rewrite(tmp_path / PACKED_NAME, lambda t, s: t.update({name: torch.zeros(1, dtype=torch.uint8)}))
    with pytest.raises(ContainerError, match=r"blocks.0.up.input_quantizer"):
        octavo.load_model(tmp_path, Network)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scales": torch.tensor([torch.nan])}, r"scales: NaN or infinity"),
        ({"scales": torch.tensor([-1.0])}, r"scales: negative"),
        ({"format": torch.tensor(list(b"int4"), dtype=torch.uint8)}, r"format: scales of 'int4', but .* says 'int8'"),
        ({"format": torch.zeros(4)}, r"format: scales of 'a torch.float32 tensor"),
    ],
)
def test_quantizers_that_contradict_the_structure_are_refused_by_name(tmp_path, change, told):
    octavo.save_model(packed(RECIPES[1]), tmp_path)
    given = {f"blocks.0.up.input_quantizer.{part}": value for part, value in change.items()}
    rewrite(tmp_path / PACKED_NAME, lambda t, s: t.update(given))
    with pytest.raises(ContainerError, match=f"blocks.0.up.input_quantizer.{told}"):
        octavo.load_model(tmp_path, Network)


@pytest.mark.parametrize(("value", "told"), [(torch.inf, "NaN or infinity"), (-1.0, "negative values")])
def test_scales_of_weights_that_no_encoder_writes_are_refused_by_name(tmp_path, value, told):
    octavo.save_model(packed("int8:channel"), tmp_path)
    rewrite(tmp_path / PACKED_NAME, lambda t, s: t["blocks.0.up.weight"].scales.view(-1)[:1].fill_(value))
    with pytest.raises(ContainerError, match=f"blocks.0.up.weight.scales: {told}"):
        octavo.load_model(tmp_path, Network)


def test_learned_scales_may_have_turned_around(tmp_path):
    model = quantized("int4:channel@lsq")
    with torch.no_grad():
        model.head.weight_quantizer.scales.neg_()
    octavo.save_model(model, tmp_path / "model")
    assert torch.equal(out(octavo.load_model(tmp_path / "model", Network)), out(model))


def test_what_is_no_model_is_refused(saved, tmp_path):
    with pytest.raises(DTypeError, match=r"save_model: model is None; accepted is a torch.nn.Module"):
        octavo.save_model(None, tmp_path / "none")
    with pytest.raises(DTypeError, match=r"load_model: model is 5; accepted is a torch.nn.Module"):
        octavo.load_model(saved, 5)


def test_truncated_files_are_refused(saved):
    data = saved.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:length])
        with pytest.raises(ContainerError):
            octavo.load_model(saved, Network)


def test_files_without_a_model_are_refused(tmp_path):
    octavo.save({"weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ContainerError, match=r"holds tensors but no model; octavo.load reads them"):
        octavo.load_model(tmp_path, Network)
    with pytest.raises(FileNotFoundError):
        octavo.load_model(tmp_path / "nothing", Network)


def test_another_model_is_refused(saved):
    with pytest.raises(ContainerError, match=r"but the model has|the model's layer has shape"):
        octavo.load_model(saved, lambda: Network(width=32))
    with pytest.raises(ContainerError, match="but this Linear has none"):
        octavo.load_model(saved, lambda: nn.Linear(2, 2))
    with pytest.raises(ModelError, match="the factory returned a int"):
        octavo.load_model(saved, lambda: 3)


def test_values_that_only_the_constructor_could_give_are_missed(saved):
    class Computed(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.empty(3), persistent=False)

    with pytest.raises(ModelError, match=r"mean: not in the file.*give load_model a model"):
        octavo.load_model(saved, Computed)
    assert isinstance(octavo.load_model(saved, Computed()).head, PackedLayer)


# --- transformers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hugging(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=60, **sizes)).eval()
    folder = tmp_path_factory.mktemp("hf") / "model"
    made = octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False))
    octavo.save_model(made, folder)
    return made, folder


def test_models_of_transformers_load_from_their_folder_alone(hugging):
    model, folder = hugging
    loaded = octavo.load_model(folder)
    assert isinstance(loaded, type(model)) and not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    decoder = loaded.get_output_embeddings()
    assert decoder.weight_codes is loaded.get_input_embeddings().weight_codes


def test_gpt2_layers_that_store_weights_transposed_are_packed(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=2, n_positions=16)
    ).eval()
    simulated = octavo.quantize_model(model, "int8:channel; type:Conv1D int8:channel input=int8", progress=False)
    made = octavo.pack_model(simulated)
    octavo.save_model(made, tmp_path / "gpt2")
    loaded = octavo.load_model(tmp_path / "gpt2")
    with torch.no_grad():
        assert torch.allclose(made(IDS).logits, simulated(IDS).logits, atol=1e-5)
        assert torch.equal(loaded(IDS).logits, made(IDS).logits)
    assert type(loaded.transformer.h[0].attn.c_attn) is PackedLinear


def test_quantized_attention_of_transformers_is_attached_again(hugging, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = copy.deepcopy(hugging[0].config)  # attaching writes into it
    model = attention.attach(transformers.BertForMaskedLM(config).eval())
    batches = [{"input_ids": IDS}]
    recipe = "mxint8; type:QuantAttention input=int8@minmax"
    made = octavo.pack_model(octavo.quantize_model(model, recipe, calibration=batches, progress=False))
    octavo.save_model(made, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, made(IDS).logits)


def test_folders_that_transformers_cannot_build_are_refused(hugging, saved, tmp_path):
    with pytest.raises(ModelError, match=r"no config.json of transformers; give load_model the model"):
        octavo.load_model(saved.parent)
    _, folder = hugging
    file = folder / PACKED_NAME
    data = file.read_bytes()
    try:
        rewrite(file, lambda t, s: s.update({"class": "Pipeline"}))
        with pytest.raises(ContainerError, match="transformers has no model 'Pipeline'"):
            octavo.load_model(folder)
        rewrite(file, lambda t, s: s.update({"class": "GPT2LMHeadModel"}))
        with pytest.raises(ContainerError, match="which no GPT2LMHeadModel takes"):
            octavo.load_model(folder)
    finally:
        file.write_bytes(data)


def test_simulated_layers_are_what_they_were(tmp_path):
    model = quantized("mxint8 ; name:head keep; name:embed keep")
    model.blocks[0].up.weight_quantizer.enabled = False
    octavo.save_model(model, tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model", Network)
    assert type(loaded.blocks[0].up) is QuantLinear and not loaded.blocks[0].up.weight_quantizer.enabled
    assert torch.equal(out(loaded), out(model))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.5])
def test_scales_that_no_encoder_writes_are_refused(tmp_path, value):
    model = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(64, 8)), "int4:g32", progress=False))
    model[0].weight_scales[3, 1] = value
    octavo.save_model(model, tmp_path)
    with pytest.raises(ContainerError, match=r"0\.weight\.scales"):
        octavo.load_model(tmp_path, nn.Sequential(nn.Linear(64, 8)))
