"""GGUF files become model folders: the same model, and a tokenizer that gives the ids of the original."""

import itertools
import json
import random
import unicodedata

import numpy as np
import octavo
import pytest
import torch
from helpers.gguf_files import gguf
from helpers.gguf_models import file_of
from helpers.models import transformer
from helpers.real_models import real_model
from helpers.token_oracles import RULES, SPECIAL, split_steps
from octavo import ContainerError
from octavo.interchange.conversion import Conversion, as_folder
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_contents import entries_of, metadata_texts
from octavo.interchange.gguf_model import GgufModel, load_gguf_model
from octavo.interchange.gguf_tokenizer import tokenizer_files

TEXTS = ["The rain in Spain: 1234 times, 56.7 %!", "  two  spaces\n\nand\tlines", "it's naïve, they'll cafés 日本 ½"]


def trained(pre):
    """A small tokenizer of byte pairs, and its keys in a GGUF file."""
    tokenizers = pytest.importorskip("tokenizers")
    more = RULES[pre][1]
    own = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=more == "whole"))
    own.normalizer = tokenizers.normalizers.NFC() if more == "composes" else None
    own.pre_tokenizer = split_steps(pre)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    own.train_from_iterator(TEXTS * 4, trainer)
    own.decoder = tokenizers.decoders.ByteLevel()
    model = json.loads(own.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    keys = [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", pre),
        ("tokenizer.ggml.tokens", "str", tokens),
        ("tokenizer.ggml.token_type", "i32", [3 if token in SPECIAL else 1 for token in tokens]),
        ("tokenizer.ggml.merges", "str", [" ".join(merge) for merge in model["merges"]]),
        ("tokenizer.ggml.bos_token_id", "u32", 1),
        ("tokenizer.ggml.eos_token_id", "u32", 0),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.chat_template", "str", "{{ messages }}"),
    ]
    return own, keys


def llama(vocabulary=400):
    return transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, vocab_size=vocabulary,
        tie_word_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize("pre", RULES)
def test_tokenizers_of_byte_pairs_give_the_ids_of_the_original(file, pre):
    tokenizers = pytest.importorskip("tokenizers")
    own, keys = trained(pre)
    texts, problem = tokenizer_files(GgufFile(file(gguf(keys))), 32)
    assert problem is None and texts["chat_template.jinja"] == "{{ messages }}"
    assert json.loads(texts["tokenizer_config.json"]) == {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32, "bos_token": "<|user|>",
        "eos_token": "<|end|>",
    }  # fmt: skip
    read = tokenizers.Tokenizer.from_str(texts["tokenizer.json"])
    for text in (*TEXTS, "<|user|>the rain<|end|>"):
        assert read.encode(text).ids == own.encode(text).ids
        assert read.decode(read.encode(text).ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_a_first_token_is_put_before_a_text_where_the_file_says_so(file):
    tokenizers = pytest.importorskip("tokenizers")
    own, keys = trained("llama-bpe")
    for change, begins in ([], False), (["tokenizer.ggml.add_bos_token"], True):
        texts, _ = tokenizer_files(GgufFile(file(gguf([key for key in keys if key[0] not in change]))), 32)
        ids = tokenizers.Tokenizer.from_str(texts["tokenizer.json"]).encode("the rain").ids
        assert ids == [1] * begins + own.encode("the rain").ids


def test_pieces_of_words_are_those_of_bert(file):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "rain", "##s", "."]
    stored = [word if word[0] == "[" else word[2:] if word[0] == "#" else f"▁{word}" for word in words]
    keys = [
        ("tokenizer.ggml.model", "str", "bert"),
        ("tokenizer.ggml.tokens", "str", stored),
        ("tokenizer.ggml.token_type", "i32", [3] * 5 + [1] * 4),
        *((f"tokenizer.ggml.{name}_token_id", "u32", number) for name, number in
          (("padding", 0), ("unknown", 1), ("cls", 2), ("seperator", 3), ("mask", 4))),
    ]  # fmt: skip
    texts, problem = tokenizer_files(GgufFile(file(gguf(keys))), 32)
    assert problem is None
    read = tokenizers.Tokenizer.from_str(texts["tokenizer.json"])
    assert read.encode("The rains.", "Thé [MASK] x").ids == [2, 5, 6, 7, 8, 3, 5, 4, 1, 3]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": ("str", "rwkv")}, "tokenizer.ggml.model is 'rwkv'; read are gpt2, llama, t5 and bert"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": ("str", "viking")}, "tokenizer.ggml.pre is 'viking'; read are gpt-2, smollm, llama-bpe"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": ("u32", [1])}, "tokenizer.ggml.tokens is no list of texts"),
        ({"tokens": ("str", ["a", "a"])}, "tokenizer.ggml.tokens has a token twice"),
        ({"merges": ("str", ["a b c"])}, "tokenizer.ggml.merges has 'a b c', which is no pair"),
    ],
)  # fmt: skip
def test_what_is_not_read_of_a_tokenizer_is_told(file, change, told):
    keys = {key: (kind, content) for key, kind, content in trained("smollm")[1]}
    for name, value in change.items():
        keys[f"tokenizer.ggml.{name}"] = value
    texts, problem = tokenizer_files(GgufFile(file(gguf([(key, *value) for key, value in keys.items() if value]))), 32)
    assert not texts and problem.startswith(told)


@pytest.mark.parametrize("kind", ["Q8_0", "IQ4_NL", "mixed"])
def test_a_folder_has_the_model_of_its_file(file, tmp_path, kind):
    own, keys = trained("smollm")
    path = file(file_of(llama(), "llama", lambda name: "IQ4_NL" if kind != "Q8_0" and "ffn" in name else "Q8_0", keys))
    ids = torch.tensor([own.encode(TEXTS[0]).ids[:16]])
    conversion = Conversion.of(GgufModel.open(path), packed=True)
    assert conversion.notes == (
        [] if kind == "Q8_0" else ["6 of 20 tensors are decoded to float32: 6 of IQ4_NL: no format has its code book"]
    )  # fmt: skip
    weights = conversion.write(tmp_path / "packed")
    assert weights.name == "model.octavo.safetensors"
    with as_folder(GgufModel.open(path), packed=False) as (folder, notes):
        assert folder.name == "x" and notes == []
        with torch.no_grad():
            expected = load_gguf_model(path)[0](ids).logits
            assert torch.equal(octavo.load_model(tmp_path / "packed")(ids).logits, expected)
            decoded = octavo.load_model(folder)
            assert (decoded(ids).logits - expected).abs().max() <= 1e-4 * expected.abs().max()
        transformers = pytest.importorskip("transformers")
        read = transformers.AutoTokenizer.from_pretrained(folder)
        assert read(TEXTS[0]).input_ids == own.encode(TEXTS[0]).ids and read.eos_token == "<|end|>"
    assert not folder.exists()
    with pytest.raises(FileExistsError):
        conversion.write(tmp_path / "packed")
    conversion.write(tmp_path / "packed", overwrite=True)


def test_rows_of_turned_layers_are_decoded_as_the_model_has_them(file):
    model = transformer("GPT2LMHeadModel", width=64, heads=4, inner=96)
    with as_folder(GgufModel.open(file(file_of(model, "gpt2", lambda name: "F32"))), packed=False) as (folder, notes):
        assert notes == [
            "no tokenizer: tokenizer.ggml.model is None; read are gpt2, llama, t5 and bert; "
            "put the tokenizer.json of the model beside the file"
        ]
        loaded = octavo.load_model(folder)
        for name, value in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name


def test_errors_about_the_folder_name_the_file(file):
    path = file(file_of(llama(), "llama", lambda name: "Q8_0"))
    with (
        pytest.raises(ContainerError, match=f"^{path}: no, {path}/other: no$"),
        as_folder(GgufModel.open(path), packed=True) as (folder, _),
    ):
        raise ContainerError(f"{folder}/config.json: no, {folder}/other: no")


def test_a_table_of_contents_names_the_types(file):
    data = np.zeros(2 * 34, np.uint8).tobytes()
    path = file(gguf([("a", "str", "x"), ("b", "u8", [1, 2])], [("w", 8, (2, 32), data), ("v", 1, (3,), bytes(6))]))
    assert reader_of(path).kind == "a GGUF file" and reader_of(path.parent) is None and reader_of("polynomials") is None
    entries = entries_of(GgufFile(path))
    assert [(one.name, one.format, one.dtype, one.nbytes, one.bits_per_element) for one in entries] == [
        ("w", "Q8_0", "float32", 68, 8.5), ("v", None, "float16", 6, 16.0)
    ]  # fmt: skip
    assert metadata_texts(GgufFile(path)) == {"a": "x", "b": "[1, 2]"}


def joined(text, scores):
    """Pieces of a text by SentencePiece's rule: of all adjacent pairs the one of best score, the first of equals."""
    pieces = list(f"▁{text}".replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            break
        at = min(pairs)[1]
        pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
    return [
        piece
        for one in pieces
        for piece in ([one] if one in scores else [f"<0x{byte:02X}>" for byte in one.encode()])
    ]  # fmt: skip


@pytest.mark.parametrize("begins", [True, False])
def test_pieces_of_sentencepiece_are_joined_by_their_scores(file, begins):
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(0)
    words = {"".join(rng.choices("ab▁", k=rng.randrange(2, 6))) for _ in range(60)}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "▁", *sorted(words)]
    scores = [0.0] * 259 + [-1e9] * 3 + [-float(number) for number in rng.sample(range(1000), len(words))]
    keys = [
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.tokens", "str", tokens),
        ("tokenizer.ggml.scores", "f32", scores),
        ("tokenizer.ggml.token_type", "i32", [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)),
        ("tokenizer.ggml.bos_token_id", "u32", 1),
        ("tokenizer.ggml.eos_token_id", "u32", 2),
        ("tokenizer.ggml.unknown_token_id", "u32", 0),
        *([] if begins else [("tokenizer.ggml.add_bos_token", "bool", False)]),
    ]
    texts, problem = tokenizer_files(GgufFile(file(gguf(keys))), 32)
    assert problem is None
    read, by_token = tokenizers.Tokenizer.from_str(texts["tokenizer.json"]), dict(zip(tokens, scores, strict=True))
    for length in range(1, 80):
        text = "".join(rng.choices("abab é", k=length))
        found = read.encode(text)
        assert found.tokens == ["<s>"] * begins + joined(text, by_token)
        assert read.decode(found.ids, skip_special_tokens=True) == text
    for change in (("scores", None), ("scores", ("f32", [1.0])), ("scores", ("f32", [float("nan")] * len(tokens)))):
        name, value = change
        kept = [key for key in keys if key[0] != f"tokenizer.ggml.{name}"]
        kept += [(f"tokenizer.ggml.{name}", *value)] if value else []
        texts, problem = tokenizer_files(GgufFile(file(gguf(kept))), 32)
        assert not texts and f"tokenizer.ggml.{name}" in problem


@pytest.mark.slow
def test_a_real_tokenizer_gives_the_ids_of_llama_cpp():
    tokenizers, peer = pytest.importorskip("tokenizers"), pytest.importorskip("llama_cpp")
    path = real_model("smollm2")
    mine = tokenizers.Tokenizer.from_str(tokenizer_files(GgufFile(path), 8192)[0]["tokenizer.json"])
    theirs = peer.Llama(str(path), vocab_only=True, verbose=False)
    rng = random.Random(0)
    mixed = ["".join(rng.choices("ab  \n\t12'sé日½٣.,!", k=rng.randrange(1, 60))) for _ in range(300)]
    for text in (*TEXTS, *mixed, "<|im_start|>user\nhi<|im_end|>\n"):
        assert mine.encode(text).ids == theirs.tokenize(text.encode(), add_bos=False, special=True), text
