"""GGUF files of every architecture give the scores of the model that was converted, and come back from folders."""

import warnings

import octavo
import pytest
import torch
from octavo import ContainerError, ModelError, OctavoWarning, PackedTensor
from octavo.interchange.conversion import Conversion, as_folder
from octavo.interchange.convert import convert as convert_model
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_model import GgufModel

transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")
from helpers.decoder_models import CASES, GEMMA, LLAMA3, SMALL, decoder_model  # noqa: E402
from helpers.gguf_converter import architecture_of, convert, converted  # noqa: E402

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 96]])
NO_SCALAR = {key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"} | {
    "query_pre_attn_scalar": 32
}
LLAMA3_REAL = {**LLAMA3, "original_max_position_embeddings": 8192}  # which the converter assumes
OWN = {
    "gemma": ("Gemma", {**SMALL, "head_dim": 32}),
    "starcoder2": ("Starcoder2", SMALL),
    "starcoder2 bare": ("Starcoder2", {**SMALL, "use_bias": False, "tie_word_embeddings": False}),
    "gemma2 usual": ("Gemma2", NO_SCALAR),
    "gemma3 usual": ("Gemma3", {**NO_SCALAR, "num_hidden_layers": 7}),
    "gemma3 linear": (
        "Gemma3",
        {**NO_SCALAR, "num_hidden_layers": 6, "final_logit_softcapping": 5.0,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
         }},
    ),
    "llama 3": ("Llama", {**SMALL, "rope_parameters": LLAMA3_REAL}),
    "granite 3": ("Granite", {**SMALL, "rope_parameters": LLAMA3_REAL, "logits_scaling": 2}),
    "mistral nemo": ("Mistral", {**SMALL, "sliding_window": None, "head_dim": 32}),
    "falcon two norms": ("Falcon", {**CASES["falcon"][1], "new_decoder_architecture": True, "num_kv_heads": 2}),
}  # fmt: skip
READ = (
    "llama", "llama biases", "llama linear", "llama yarn", "mistral without window", "qwen2", "qwen2 yarn",
    "qwen3", "qwen3 biases", "phi3", "phi3 window", "phi3 long", "phi4", "smollm3", "gpt_neox", "gpt_neox half",
    "falcon", "falcon new", "falcon one norm", "stablelm", "stablelm parallel", "stablelm 2", "granite", "granite tied",
    "olmo2", "olmo2 tied", "mixtral", "mixtral all", "qwen3 moe", *OWN,
)  # fmt: skip
CASES.update(OWN)


def floats(file, name):
    return file.read(name).view(torch.float32)


def scores(model):
    with torch.no_grad():
        return model(IDS, use_cache=False).logits


def made(name, **changes):
    return decoder_model(name, **changes)


@pytest.mark.parametrize("name", READ)
def test_a_file_of_floats_gives_the_scores_of_the_model(tmp_path, name):
    """Weights of norms of Gemma are rounded once where the converter adds 1."""
    model = made(name)
    loaded = octavo.load_model(convert(model, tmp_path / "x.gguf"))
    if architecture_of(model).startswith("gemma"):
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if path.endswith("norm.weight"):
                    parameter.copy_(parameter + 1 - 1)
    assert torch.equal(scores(loaded), scores(model))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", READ)
def test_a_file_comes_back_from_a_model_folder(tmp_path, name, kind):
    """The same tensors and keys, from a packed folder and from one of floats."""
    path = convert(made(name), tmp_path / "x.gguf", kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OctavoWarning)
        Conversion.of(GgufModel.open(path), packed=True).write(tmp_path / "folder")
    convert_model(tmp_path / "folder", tmp_path / "y.gguf", "gguf")
    assert (tmp_path / "y.gguf").read_bytes() == path.read_bytes()
    (tmp_path / "folder" / "gguf.json").unlink()  # nothing is known of the former file
    report = convert_model(tmp_path / "folder", tmp_path / "z.gguf", "gguf")
    first, again = GgufFile(path), GgufFile(tmp_path / "z.gguf")
    assert first.tensors.keys() == again.tensors.keys() and all(tensor.exact for tensor in report.tensors)
    for name in first.tensors:
        if first.tensors[name].type.name == "F16":
            continue  # a folder has them in float32
        assert first.tensors[name].type == again.tensors[name].type, name
        if name == "rope_freqs.weight":  # computed anew
            assert torch.allclose(floats(first, name), floats(again, name), rtol=1e-6)
        else:
            assert torch.equal(first.read(name), again.read(name)), name
    missing = {
        key: value for key, value in first.metadata.items()
        if again.metadata.get(key) != value and not key.startswith(("general", "tokenizer"))
    }  # fmt: skip
    assert not missing


@pytest.mark.parametrize("name", ["llama", "mistral without window", "qwen3", "gemma3 usual", "mixtral", "falcon new"])
def test_a_folder_of_transformers_becomes_the_file_of_the_converter(tmp_path, name):
    """Experts lie one by one in a folder of transformers; transformers joins them, a file stacks them."""
    model = made(name)
    model.save_pretrained(tmp_path / "folder")
    convert_model(tmp_path / "folder", tmp_path / "x.gguf", "gguf")
    file, expected = GgufFile(tmp_path / "x.gguf"), converted(model)
    assert file.tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert file.read(name).numpy().tobytes() == array.tobytes(), name
    assert torch.equal(scores(octavo.load_model(tmp_path / "x.gguf")), scores(octavo.load_model(tmp_path / "folder")))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3 moe"])
@pytest.mark.parametrize("split", [False, True], ids=["stacked", "split"])
def test_experts_are_packed_layers(tmp_path, name, kind, split):
    model = made(name, hidden_size=64, moe_intermediate_size=32) if name == "qwen3 moe" else made(name)
    path = convert(model, tmp_path / "x.gguf", kind, split_experts=split)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OctavoWarning)
        loaded = octavo.load_model(path)
    expert = loaded.model.layers[0].mlp.experts.get_submodule("2")
    assert isinstance(expert.gate_up_proj.weight, PackedTensor) and isinstance(expert.down_proj.weight, PackedTensor)
    decoded = octavo.load_model(convert(made_of(path, model), tmp_path / "floats.gguf"))
    assert torch.allclose(scores(loaded), scores(decoded), atol=1e-3)
    octavo.save_model(loaded, tmp_path / "saved")
    assert torch.equal(scores(octavo.load_model(tmp_path / "saved")), scores(loaded))


def made_of(path, model):
    """The model with the values of a file."""
    with as_folder(GgufModel.open(path), packed=False) as (folder, _):
        return type(model).from_pretrained(folder)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3 moe", "gemma2 usual", "gemma3 usual", "stablelm"])
def test_weights_are_those_that_transformers_reads(tmp_path, name):
    # transformers reads no size of heads or experts that is not its default.
    sizes = {"qwen3": {"head_dim": 128}, "qwen3 moe": {"moe_intermediate_size": 768}}
    model = made(name, **sizes.get(name, {}))
    words = [f"w{number}" for number in range(model.config.vocab_size)]

    def more(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(words)

    path = convert(model, tmp_path / "x.gguf", more=more)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    mine = octavo.load_model(path)
    assert theirs.state_dict().keys() == mine.state_dict().keys()
    for tensor, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[tensor], value), tensor


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistral", "sliding_window of the configuration is 50; GGUF files hold models without it"),
        ("qwen2 window", "use_sliding_window of the configuration is True"),
        ("gemma2", "query_pre_attn_scalar of the configuration is 24; GGUF files hold 32"),
        ("gemma3 pattern", "query_pre_attn_scalar"),
        ("smollm3 biases", "no_rope_layers of the configuration is"),
        ("falcon sequential", "multi_query of the configuration is False; GGUF files hold True"),
        ("gpt_neox sequential", "hidden_act of the configuration is 'gelu_new'; GGUF files hold 'gelu'"),
        ("llama yarn of deepseek", "rope_parameters: mscale of the configuration is 0.7"),
        ("qwen3 moe sparse", "norm_topk_prob of the configuration is False; GGUF files hold True"),
    ],
)
def test_what_a_file_cannot_say_is_refused_by_its_field(tmp_path, name, message):
    made(name).save_pretrained(tmp_path / "folder")
    with pytest.raises(ModelError, match=message.replace("(", r"\(")):
        convert_model(tmp_path / "folder", tmp_path / "x.gguf", "gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("name", "add", "message"),
    [
        ("llama", lambda w: w.add_string("llama.rope.scaling.type", "dynamic"), "llama.rope.scaling.type is 'dynamic'"),
        (
            "qwen2",
            lambda w: w.add_string("qwen2.rope.scaling.type", "longrope"),
            "qwen2.rope.scaling.type is 'longrope'",
        ),
        ("qwen2", lambda w: w.add_expert_count(4), "qwen2.expert_count is 4"),
        ("qwen2", lambda w: w.add_key_length(24), "qwen2.attention.key_length is 24"),
        ("olmo2", lambda w: w.add_sliding_window(64), "olmo2.attention.sliding_window is 64"),
        ("gpt_neox", lambda w: w.add_float32("gptneox.rope.scale_linear", 2.0), "gptneox.rope.scale_linear is 2"),
    ],
)
def test_what_is_not_read_is_refused_by_its_key(tmp_path, name, add, message):
    path = convert(made(name), tmp_path / "x.gguf", more=add)
    with pytest.raises(ContainerError, match=message):
        octavo.load_model(path)
