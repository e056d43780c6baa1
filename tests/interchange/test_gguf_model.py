"""Models of GGUF files have the weights that transformers and their source have; carried tensors are packed layers."""

import warnings
from collections import Counter

import octavo
import pytest
import torch
from helpers.gguf_files import gguf
from helpers.gguf_models import file_of, metadata, tensors
from helpers.models import transformer
from helpers.real_models import real_model
from octavo import ContainerError, ModelError, OctavoWarning, PackedTensor
from octavo.interchange.gguf_model import GgufModel, load_gguf_model

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def llama(**config):
    return transformer("LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, **config)


def gpt2(**config):
    return transformer("GPT2LMHeadModel", width=64, heads=4, inner=96, **config)


def bert(**config):
    model = transformer("BertModel", width=64, heads=4, inner=96, **config)
    model.pooler = None
    return model


@pytest.fixture
def file(tmp_path):
    def written(model, architecture, kind="Q8_0", **more):
        kind_of = kind if callable(kind) else lambda name: kind
        (tmp_path / "x.gguf").write_bytes(file_of(model, architecture, kind_of, **more))
        return tmp_path / "x.gguf"

    return written


def values(model):
    """Every weight by its name, as a float model of transformers has it."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        weight = getattr(module, "weight", None)
        if weight is None:
            continue
        is_packed = isinstance(weight, PackedTensor)
        value = weight.decode() if is_packed else weight.detach()
        found[f"{name}.weight"] = value.t() if getattr(module, "is_transposed", False) else value
        if isinstance(getattr(module, "bias", None), torch.Tensor):
            found[f"{name}.bias"] = module.bias.detach()
    return found


def assert_same(mine, theirs):
    assert mine.keys() == theirs.keys() and len(mine) > 10
    for name, value in theirs.items():
        assert torch.equal(mine[name], value), name


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize(
    ("make", "architecture"), [(llama, "llama"), (gpt2, "gpt2"), (bert, "bert")], ids=["llama", "gpt2", "bert"]
)
def test_float_files_give_the_model_that_was_written(file, make, architecture, kind):
    model = make()
    if kind == "F16":
        for parameter in model.parameters():
            parameter.data = parameter.data.half().float()
    loaded = octavo.load_model(file(model, architecture, kind))
    assert type(loaded) is type(model) and not loaded.training
    assert_same(values(loaded), values(model))
    with torch.no_grad():
        assert torch.equal(loaded(IDS)[0], model(IDS)[0])


def test_heads_and_biases_of_a_llama_are_its_own(file):
    model = llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True, rope_theta=5000.0)
    loaded = octavo.load_model(file(model, "llama", "F32"))
    assert_same(values(loaded), values(model))
    with torch.no_grad():
        assert torch.equal(loaded(IDS)[0], model(IDS)[0])
    tied = octavo.load_model(file(llama(tie_word_embeddings=True), "llama", "F32"))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight


def with_factors(model, factors, path):
    entry = ("rope_freqs.weight", 0, (len(factors),), factors.float().numpy().tobytes())
    path.write_bytes(gguf(metadata(model, "llama"), [entry, *tensors(model, "llama", lambda name: "F32")]))
    return path


def test_rotations_of_llama_3_are_read(tmp_path):
    """The file has the quotient of plain and scaled frequencies."""
    scaled = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model, plain = (
        llama(rope_parameters=scaled),
        llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    )
    factors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    assert 1 in factors and 32 in factors and ((factors > 1) & (factors < 32)).any()
    loaded = octavo.load_model(with_factors(model, factors, tmp_path / "x.gguf"))
    with torch.no_grad():
        assert torch.equal(loaded(IDS)[0], model(IDS)[0]) and not torch.equal(loaded(IDS)[0], plain(IDS)[0])
    for wrong in (factors.flip(0), factors * 1.01, factors[:-1], factors * float("nan"), factors * 0):
        with pytest.raises(
            ContainerError, match=r"tensor 'rope_freqs.weight': F32 of shape .* the 8 factors of Llama 3"
        ):
            GgufModel.open(with_factors(model, wrong, tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    ("positions", "low", "high", "factor"),
    [
        (64, 1, 4, 8),
        (8192, 1, 4, 16),
        (4096, 0.5, 60, 4),
        (1000, 1, 1.01, 3),
        (10, 1, 4, 8),
        (10**6, 1, 4, 8),
        (64, 1, 4, 1),
    ],
)
def test_rotations_of_llama_3_of_other_positions_are_read(tmp_path, positions, low, high, factor):
    """Bounds of waves are given in turns within so many positions; a file has the factors that come of them alone."""
    scaled = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": float(factor), "low_freq_factor": float(low),
        "high_freq_factor": float(high), "original_max_position_embeddings": positions,
    }  # fmt: skip
    model = llama(rope_parameters=scaled)
    plain = llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}).model.rotary_emb.inv_freq
    factors = plain / model.model.rotary_emb.inv_freq
    loaded = octavo.load_model(with_factors(model, factors, tmp_path / "x.gguf"))
    wanted = model.model.rotary_emb.inv_freq
    assert torch.allclose(loaded.model.rotary_emb.inv_freq, wanted, rtol=1e-4, atol=0)


MIXED = {"attn_q": "Q4_0", "ffn_up": "Q4_0", "token_embd": "Q8_0", "ffn_down": "F16"}


@pytest.mark.parametrize(("make", "architecture"), [(llama, "llama"), (gpt2, "gpt2")], ids=["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "mixed"])
def test_weights_are_those_of_transformers(file, make, architecture, kind):
    """transformers decodes the file by gguf-py."""
    pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")

    def kind_of(name):
        return MIXED.get(name.split(".")[-2], "Q8_0") if kind == "mixed" else kind

    # transformers takes the vocabulary of gpt2 from its tokens, and assumes 1024 positions and 4 times the width.
    model = make() if make is llama else transformer("GPT2LMHeadModel", width=64, heads=4, inner=256, n_positions=1024)
    words = [f"w{number}" for number in range(50)]
    path = file(
        model, architecture, kind_of, more=[("general.name", "str", "x"), ("tokenizer.ggml.tokens", "str", words)]
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OctavoWarning)
        mine = octavo.load_model(path)
    assert_same(values(mine), values(theirs))


@pytest.mark.parametrize(
    ("make", "architecture"), [(llama, "llama"), (gpt2, "gpt2"), (bert, "bert")], ids=["llama", "gpt2", "bert"]
)
@pytest.mark.parametrize(
    ("kind", "text"), [("Q8_0", "int8:g32"), ("Q4_0", "int4:g32,full"), ("Q4_1", "uint4:g32,offset")]
)
def test_carried_tensors_are_packed_layers_that_run_and_are_saved(file, tmp_path, make, architecture, kind, text):
    path = file(make(), architecture, kind)
    loaded, origins = load_gguf_model(path)
    packed = {origin.name for origin in origins if origin.format == text}
    assert len(packed) >= 9 and all(origin.reason is None for origin in origins)
    layers = [module for module in loaded.modules() if isinstance(getattr(module, "weight", None), PackedTensor)]
    assert {str(layer.weight.format) for layer in layers} == {text}
    octavo.save_model(loaded, tmp_path / "saved")
    again = octavo.load_model(tmp_path / "saved")
    with torch.no_grad():
        result = loaded(IDS)[0]
        assert torch.equal(again(IDS)[0], result)
        float_model = make()
        float_model.load_state_dict(values(loaded), strict=False)
        assert (result - float_model(IDS)[0]).abs().max() <= 1e-4 * result.abs().max()  # sums in another order


def test_decoded_tensors_are_told(file):
    path = file(llama(), "llama", lambda name: "IQ4_NL" if "attn_v" in name else "Q8_0")
    with pytest.warns(
        OctavoWarning, match=r"x.gguf: 2 of \d+ tensors are decoded to float32: 2 of IQ4_NL: no format has"
    ) as told:
        octavo.load_model(path)
    assert told[0].filename == __file__
    _, origins = load_gguf_model(path)
    assert [origin.name for origin in origins if origin.reason] == ["blk.0.attn_v.weight", "blk.1.attn_v.weight"]


def changed(key, kind, content):
    """Metadata of the small llama with one value changed, or added."""
    keys = [one for one in metadata(llama(), "llama") if one[0] != key]
    return [*keys, (key, kind, content)]


@pytest.mark.parametrize(
    ("key", "kind", "content", "told"),
    [
        ("general.architecture", "str", "rwkv", "general.architecture is 'rwkv'; models are read of llama, smollm3"),
        ("general.architecture", "u32", 3, "general.architecture is 3"),
        ("split.count", "u16", 3, "one of 3 files of a model"),
        ("llama.expert_count", "u32", 8, "llama.expert_used_count is missing; accepted is a whole number"),
        ("llama.rope.scaling.type", "str", "yarn", "llama.rope.scaling.factor is missing; accepted is a finite number above 0"),
        ("llama.rope.scaling.type", "str", "su", "llama.rope.scaling.type is 'su'; accepted is 'none', 'linear' or 'yarn'"),
        ("llama.rope.dimension_count", "u32", 8, "llama.rope.dimension_count is 8"),
        ("llama.block_count", "str", "2", "llama.block_count is '2'; accepted is a whole number from 0"),
        ("llama.block_count", "u32", 3, "no tensor for model.layers.2."),
        ("llama.block_count", "u32", 1, "tensor 'blk.1.attn_q.weight': the metadata say nothing of model.layers.1"),
        ("llama.block_count", "u32", 2**32 - 1, "num_hidden_layers"),
        ("llama.embedding_length", "u32", 32, "llama.rope.dimension_count is 16; accepted is 8, the size of a head"),
        ("llama.feed_forward_length", "u32", 64, "tensor 'blk.0.ffn_gate.weight': shape [96, 64]; by the metadata"),
        ("llama.attention.head_count", "u32", 0, "llama.rope.dimension_count is 16; accepted is 64"),
        ("llama.attention.head_count_kv", "u32", 5, "tensor 'blk.0.attn_k.weight' has 32 rows; accepted are multiples of twice its 5"),
        ("llama.attention.head_count_kv", "u32", 0, "tensor 'blk.0.attn_k.weight' has 32 rows"),
        ("llama.attention.head_count_kv", "u32", 4, "by the metadata model.layers.0.self_attn.k_proj.weight is [64, 64]"),
        ("llama.attention.layer_norm_rms_epsilon", "f32", float("nan"), "is nan; accepted is a finite number above 0"),
    ],
)  # fmt: skip
def test_metadata_that_do_not_fit_are_refused(tmp_path, key, kind, content, told):
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf(changed(key, kind, content), tensors(llama(), "llama", lambda name: "Q8_0")))
    with pytest.raises(ContainerError) as error:
        load_gguf_model(path)
    assert str(error.value).startswith(f"{path}: ") and told in str(error.value), error.value


def test_tensors_that_do_not_fit_are_refused(file, tmp_path):
    path = file(llama(), "llama", leave=("blk.1.ffn_norm.weight",))
    with pytest.raises(ContainerError, match=r"no tensor for model.layers.1.post_attention_layernorm.weight"):
        octavo.load_model(path)
    path = file(llama(), "llama", leave=("token_embd.weight",))
    with pytest.raises(ContainerError, match=r"tensor 'token_embd.weight' is missing; accepted are matrices"):
        octavo.load_model(path)
    for name in ("rope_factors_long.weight", "blk.0.attn_q.scale", "blk.00.attn_q.weight", "blk.0.ssm.weight"):
        more = [*tensors(llama(), "llama", lambda name: "Q8_0"), (name, 0, (4,), bytes(16))]
        path.write_bytes(gguf(metadata(llama(), "llama"), more))
        with pytest.raises(ContainerError, match=f"tensor '{name}' has no place in a LlamaForCausalLM"):
            GgufModel.open(path)
    with pytest.raises(ModelError, match="a GGUF file says what to build; leave model out"):
        octavo.load_model(file(llama(), "llama"), llama())


@pytest.mark.slow
def test_the_file_of_a_real_model_has_the_weights_of_gguf_py():
    """All of SmolLM2's matrices stay packed: blocks of Q4_1, and the table and tied head of Q8_0."""
    peer, path = pytest.importorskip("gguf"), real_model("smollm2")
    model, origins = load_gguf_model(path)
    assert Counter(origin.format for origin in origins) == {None: 61, "uint4:g32,offset": 210, "int8:g32": 1}
    assert all(origin.reason is None for origin in origins)
    theirs = {entry.name: entry for entry in peer.GGUFReader(path).tensors}
    subject, mine = GgufModel.open(path), values(model)
    for name, place in subject.places.items():
        value = torch.tensor(peer.quants.dequantize(theirs[name].data, theirs[name].tensor_type))
        if place.row_rule is not None:
            value = value.view(place.row_rule.heads, -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        assert torch.equal(mine[place.name], value), name
