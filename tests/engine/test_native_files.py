"""The native engine reads files and folders of other packages: its models are those of octavo.load_model."""

import tempfile
import warnings

import numpy as np
import octavo
import pytest
from helpers.chat_templates import CHATML
from helpers.gguf_files import gguf
from helpers.gguf_models import file_of
from helpers.real_models import real_model
from octavo.errors import ContainerError, DataError, OctavoWarning
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.checkpoints import base, write  # noqa: E402 # after what they need
from helpers.models import transformer  # noqa: E402

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):"]
BYTES = [*range(33, 127), *range(161, 173), *range(174, 324)]  # code points that byte-level tokens have for bytes
LETTERS = [*map(chr, BYTES), "Ġt", "<|im_start|>", "<|im_end|>"]
KEYS = [
    ("tokenizer.ggml.model", "str", "gpt2"),
    ("tokenizer.ggml.pre", "str", "smollm"),
    ("tokenizer.ggml.tokens", "str", LETTERS),
    ("tokenizer.ggml.token_type", "i32", [1] * (len(LETTERS) - 2) + [3] * 2),
    ("tokenizer.ggml.merges", "str", ["Ġ t"]),
    ("tokenizer.ggml.eos_token_id", "u32", len(LETTERS) - 1),
    ("tokenizer.chat_template", "str", CHATML),
]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder of temporary folders, which is empty again at the end."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert [one.name for one in place.iterdir() if not one.name.startswith("torchinductor")] == []


def llama_file(path, kind="Q8_0", keys=()):
    model = transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, vocab_size=len(LETTERS),
        tie_word_embeddings=True,
    )  # fmt: skip
    path.write_bytes(file_of(model, "llama", lambda name: kind if "ffn" in name else "Q8_0", keys))
    return path


def agree(path, ids):
    """Whether scores are those of the model in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OctavoWarning)
        generator, model = octavo.TextGenerator.load(path), octavo.load_model(path)
    with torch.no_grad():
        expected = model.float()(torch.tensor([ids])).logits[0].numpy()
    return np.abs(generator.scores(ids) - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "IQ4_NL"])
def test_scores_of_a_file_are_those_of_its_model(tmp_path, scratch, kind):
    assert agree(llama_file(tmp_path / "x.gguf", kind), [1, 5, 9, 2, 40, 7])


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_scores_of_a_packed_folder_are_those_of_its_model(tmp_path, scratch, method):
    folder = tmp_path / method
    tensors, config = base()
    rng = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if "proj" in name]:
        rows, columns = tensors.pop(name).shape
        layer = name.removesuffix(".weight")

        def words(*shape):
            return torch.randint(-(2**31), 2**31 - 1, shape, generator=rng).to(torch.int32)

        down = (columns // 8, rows) if method == "gptq" else (columns, rows // 8)
        tensors[f"{layer}.qweight"] = words(*down)
        tensors[f"{layer}.qzeros"] = words(columns // 32, rows // 8)
        tensors[f"{layer}.scales"] = (torch.rand(columns // 32, rows, generator=rng) * 0.01).half()
        if method == "gptq":
            tensors[f"{layer}.g_idx"] = torch.arange(columns, dtype=torch.int32) // 32
    settings = {"quant_method": method, "bits": 4, "group_size": 32}
    more = {"desc_act": False, "sym": False} if method == "gptq" else {"zero_point": True, "version": "gemm"}
    write(folder, tensors, {**config, "quantization_config": {**settings, **more}})
    assert agree(folder, [1, 5, 9, 2])


def test_vectors_of_a_file_are_those_of_its_folder(tmp_path, scratch):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁rain", "s", "▁."]
    keys = [
        ("tokenizer.ggml.model", "str", "bert"),
        ("tokenizer.ggml.tokens", "str", words),
        ("tokenizer.ggml.token_type", "i32", [3] * 5 + [1] * 4),
        *((f"tokenizer.ggml.{name}_token_id", "u32", number) for name, number in
          (("padding", 0), ("unknown", 1), ("cls", 2), ("seperator", 3), ("mask", 4))),
    ]  # fmt: skip
    model = transformer("BertModel", width=64, heads=4, inner=96, vocab_size=len(words))
    path = tmp_path / "bert.gguf"
    path.write_bytes(file_of(model, "bert", lambda name: "F32", keys))
    encoder = octavo.TextEncoder.load(path)
    ids = encoder.ids("the rains")
    assert ids == [2, 5, 6, 7, 3] and repr(encoder) == f"TextEncoder('{path}', width=64)"
    with torch.no_grad():
        mean = octavo.load_model(path)(torch.tensor([ids])).last_hidden_state[0].mean(0)
    assert np.abs(encoder.embed(["the rains"])[0] - (mean / mean.norm()).numpy()).max() <= 1e-3


def test_what_is_decoded_is_told_to_the_caller(tmp_path):
    path = llama_file(tmp_path / "x.gguf", "IQ4_NL", KEYS)
    with pytest.warns(OctavoWarning, match=rf"^{path}: 6 of 20 tensors are decoded to float32: 6 of IQ4_NL") as caught:
        octavo.TextGenerator.load(path)
    assert caught[0].filename == __file__


def test_a_chat_needs_the_file_alone_and_names_it(tmp_path, scratch):
    path = llama_file(tmp_path / "x.gguf", keys=KEYS)
    generator = octavo.TextGenerator.load(str(path))
    assert repr(generator) == f"TextGenerator('{path}', vocabulary={len(LETTERS)})"
    ids = generator.chat_ids([{"role": "user", "content": "the"}])
    assert ids[0] == LETTERS.index("<|im_start|>") and LETTERS.index("<|im_end|>") in ids
    assert isinstance(generator.chat([{"role": "user", "content": "the"}], tokens=3), str)
    silent = octavo.TextGenerator.load(llama_file(tmp_path / "silent.gguf", keys=KEYS[:-1]))
    with pytest.raises(DataError, match=rf"^{tmp_path}/silent.gguf: no chat template.*without --chat$"):
        silent.chat([{"role": "user", "content": "the"}])


def test_commands_take_a_file(tmp_path, scratch):
    from octavo.cli import app

    path = llama_file(tmp_path / "x.gguf", keys=KEYS)
    ran = CliRunner().invoke(app, ["generate", str(path), "the", "--tokens", "3"])
    assert ran.exit_code == 0 and ran.stdout.startswith("the"), ran.output


def test_errors_name_the_file(tmp_path, scratch):
    path = tmp_path / "x.gguf"
    path.write_bytes(llama_file(path).read_bytes()[:-100])
    with pytest.raises(ContainerError, match=f"^{path}"):
        octavo.TextGenerator.load(path)
    path.write_bytes(gguf([("general.architecture", "str", "clip")]))
    with pytest.raises(ContainerError, match=f"^{path}"):
        octavo.TextEncoder.load(path)
    with pytest.raises(ContainerError, match=f"^{path}"):
        octavo.TextEncoder.load(llama_file(path, keys=KEYS))


def test_the_real_file_gives_the_tokens_of_torch(scratch):
    path = real_model("smollm2")
    generator, model = octavo.TextGenerator.load(path), octavo.load_model(path)
    for prompt in PROMPTS:
        ids = generator.tokenizer.encode(prompt).tolist()
        more = [token for (token,) in generator.generate_ids([ids], tokens=20, stop=[])]
        with torch.no_grad():
            found = model.generate(
                torch.tensor([ids]), max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0
            )
        assert more == found[0, len(ids) :].tolist(), prompt
