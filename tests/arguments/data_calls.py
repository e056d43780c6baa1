"""Valid calls of the rooms ``data`` and ``engine``, entered in ``valid_calls.CALLS``."""

import functools
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import octavo
import torch
from arguments.valid_calls import RECORDS, simple, valid
from octavo import data
from octavo.data import BytePairTokenizer, CharTokenizer, TokenLoader, write_shard
from octavo.lab.language.gpt import GPT, preset
from octavo.lab.language.model_folder import save_language_model

TEXT = "the cat sat on the mat. the dog ran in the fog. " * 9
BYTES, CHARACTERS = BytePairTokenizer.train(TEXT, 280), CharTokenizer("abc")
IDS, OFFSETS = BYTES.encode_batch(["the cat", "a dog"])
SENTENCES = data.Sentences(("a", "b"), (0, 1))


# --- octavo.data: texts and ids ----------------------------------------------------------------------------------------

simple("data.BytePairTokenizer", BytePairTokenizer, core=BYTES._core)
simple("data.BytePairTokenizer.train", BytePairTokenizer.train, texts=[TEXT], size=270, pattern="gpt2", special=["<|endoftext|>"], least=2, tell=None)  # fmt: skip
simple("data.BytePairTokenizer.token", BYTES.token, number=5)
simple("data.BytePairTokenizer.id", BYTES.id, token="the")
simple("data.BytePairTokenizer.encode", BYTES.encode, text="a cat", special="refuse", around=False, dtype="uint16")
simple("data.BytePairTokenizer.encode_batch", BYTES.encode_batch, texts=["a cat"], special="refuse", around=False, dtype=None)  # fmt: skip
simple("data.BytePairTokenizer.count", BYTES.count, text="a cat", special="split")
simple("data.BytePairTokenizer.decode", BYTES.decode, ids=IDS, errors="replace")
simple("data.BytePairTokenizer.decode_bytes", BYTES.decode_bytes, ids=IDS)
simple("data.BytePairTokenizer.decode_batch", BYTES.decode_batch, ids=IDS, offsets=OFFSETS, errors="replace")
simple("data.BytePairTokenizer.decode_stream", lambda ids: list(BYTES.decode_stream(ids)), ids=IDS)
simple("data.BytePairTokenizer.stream", BYTES.stream, special="refuse", dtype=np.int64)
simple("data.BytePairStream", data.BytePairStream, tokenizer=BYTES, special="refuse", dtype=None)
valid("data.BytePairStream.feed")(lambda at: (BYTES.stream().feed, {"piece": "a cat "}))
simple("data.CharTokenizer", CharTokenizer, characters="abc")
simple("data.CharTokenizer.from_lines", CharTokenizer.from_lines, lines=["ab", "c"])
simple("data.CharTokenizer.encode", CHARACTERS.encode, lines=["ab", "c"], max_length=9, end=True, start=False, dtype=np.uint8)  # fmt: skip
simple("data.CharTokenizer.decode", CHARACTERS.decode, ids=[[3, 4, 2]])
simple("data.Sentences", data.Sentences, texts=("a", "b"), labels=(0, 1))
simple("data.Sentences.pick", SENTENCES.pick, rows=[1, 0])


@valid("data.BytePairTokenizer.load")
def _(at):
    BYTES.save(at)
    return BytePairTokenizer.load, {"path": at / "tokenizer.json"}


@valid("data.BytePairTokenizer.from_merges")
def _(at):
    (at / "merges.txt").write_text("a b\n")
    (at / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    return BytePairTokenizer.from_merges, {"merges": at / "merges.txt", "vocabulary": at / "vocab.json", "pattern": "gpt2"}  # fmt: skip


@valid("data.BytePairTokenizer.from_tiktoken")
def _(at):
    import base64

    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (at / "x.tiktoken").write_text("".join(lines))
    return BytePairTokenizer.from_tiktoken, {"path": at / "x.tiktoken", "pattern": "gpt2", "special": {"<|x|>": 300}}


@valid("data.BytePairTokenizer.train_files")
def _(at):
    (at / "x.txt").write_text(TEXT)
    return BytePairTokenizer.train_files, {
        "paths": [at / "x.txt"], "size": 270, "pattern": "gpt2", "special": ["<|endoftext|>"], "least": 2,
        "journal": at / "journal", "tell": lambda stage, done, total: None,
    }  # fmt: skip


for name, tokenizer in (("BytePairTokenizer", BYTES), ("CharTokenizer", CHARACTERS)):
    valid(f"data.{name}.save")(lambda at, tokenizer=tokenizer: (tokenizer.save, {"path": at / "tokenizer.json"}))


@valid("data.CharTokenizer.load")
def _(at):
    CHARACTERS.save(at / "tokenizer.json")
    return CharTokenizer.load, {"path": at / "tokenizer.json"}


# --- octavo.data: files ------------------------------------------------------------------------------------------------


@valid("data.count_tokens")
def _(at):
    (at / "x.txt").write_text(TEXT)
    return data.count_tokens, {"sources": [at / "x.txt"], "tokenizer": BYTES, "tell": lambda stage, done, total: None}


@valid("data.write_shards")
def _(at):
    (at / "x.txt").write_text(TEXT)
    return data.write_shards, {
        "sources": [at / "x.txt"], "folder": at / "out", "tokenizer": BYTES, "end": "<|endoftext|>", "shard": 1000,
        "validation": 10, "name": "tokens", "tell": lambda stage, done, total: None,
    }  # fmt: skip


@valid("data.write_shard")
def _(at):
    return write_shard, {"path": at / "x.bin", "ids": [1, 2, 3]}


@valid("data.read_shard")
def _(at):
    write_shard(at / "x.bin", [1, 2, 3])
    return data.read_shard, {"path": at / "x.bin", "vocabulary": 9}


@valid("data.find_shards")
def _(at):
    write_shard(at / "x_train_1.bin", [1, 2, 3])
    return data.find_shards, {"paths": [at], "split": "train"}


@valid("data.read_labelled")
def _(at):
    (at / "x.tsv").write_text("1\ta\n0\tb\n")
    return data.read_labelled, {"path": at / "x.tsv", "classes": {"bad": 0, "good": 1}, "field": None}


@valid("data.read_texts")
def _(at):
    (at / "x.jsonl").write_text('{"body": "a"}\n{"body": "b"}\n')
    return data.read_texts, {"path": at / "x.jsonl", "field": "body", "tokenizer": None}


@valid("data.text_windows")
def _(at):
    return data.text_windows, {"texts": ["the cat sat"] * 9, "tokenizer": BYTES, "tokens": 4, "windows": 3}


def loader(at, **options):
    write_shard(at / "x_train_1.bin", [9, 2, 3] * 20)
    return TokenLoader(at / "x_train_1.bin", **{"batch": 2, "context": 4, "vocabulary": 10, "end": 9, **options})


@valid("data.TokenLoader")
def _(at):
    loader(at)
    return TokenLoader, {
        "paths": [at], "batch": 2, "context": 4, "vocabulary": 10, "end": 9, "order": "documents", "split": "train", "seed": 0,
        "rank": 0, "ranks": 1, "tokens": 50,
    }  # fmt: skip


valid("data.TokenLoader.restore")(lambda at: ((one := loader(at)).restore, {"state": one.state()}))
valid("data.TokenLoader.continued")(lambda at: (loader(at).continued, {"batch": 3, "context": 2}))
valid("data.TokenLoader.skip")(lambda at: (loader(at).skip, {"batches": 3}))


# --- octavo.engine -----------------------------------------------------------------------------------------------------


@functools.cache
def decoder_folder():
    at = Path(tempfile.mkdtemp()) / "model"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"vocabulary": BYTES.size, "width": 16, "layers": 1, "heads": 1, "end_of_text": BYTES.size - 1}
        save_language_model(at, GPT(preset("nocap_baseline", **sizes)), BYTES)
    (at / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return at


@functools.cache
def decoder():
    return octavo.TextGenerator.load(decoder_folder())


@functools.cache
def encoder_folder():
    """Write a BERT of one layer."""
    at = Path(tempfile.mkdtemp())
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 12}
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}  # fmt: skip
    (at / "config.json").write_text(json.dumps({"model_type": "bert", **sizes, **shape}))
    weights = {f"embeddings.{name}_embeddings.weight": torch.ones(n, 8) for name, n in (("word", 8), ("position", 12), ("token_type", 2))}  # fmt: skip
    layer = "encoder.layer.0"
    linears = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense", "intermediate.dense", "output.dense"]  # fmt: skip
    for name in (f"{layer}.{linear}" for linear in linears):
        weights |= {f"{name}.weight": torch.eye(8), f"{name}.bias": torch.zeros(8)}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        weights |= {f"{name}.LayerNorm.weight": torch.ones(8), f"{name}.LayerNorm.bias": torch.arange(8.0)}
    octavo.save(weights, at / "model.safetensors")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "a"]
    special = {name: {"id": name, "ids": [words.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    piece = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
    content = {
        "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": piece, "pair": piece, "special_tokens": special},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {word: number for number, word in enumerate(words)},
        },
    }  # fmt: skip
    (at / "tokenizer.json").write_text(json.dumps(content))
    return at


@functools.cache
def encoder():
    return octavo.TextEncoder.load(encoder_folder())


@valid("TextGenerator")
def _(at):
    one = decoder()
    return octavo.TextGenerator, {
        "core": one._core,
        "path": one._path,
        "tokenizer": BYTES,
        "begin": 1,
        "ends": (1,),
        "cache": "fp16",
    }


@valid("TextGenerator.load")
def _(at):
    shutil.copytree(decoder_folder(), at / "model")
    return octavo.TextGenerator.load, {"path": at / "model", "cache": "mxint8"}


valid("TextGenerator.scores")(lambda at: (decoder().scores, {"ids": [1, 2]}))


@valid("TextGenerator.generate_ids")
def _(at):
    def call(**arguments):
        return list(decoder().generate_ids(**arguments))

    return call, {"prompts": [[1, 2]], "sampling": octavo.Sampling(), "tokens": 3, "stop": [1], "cache": True}


@valid("TextGenerator.stream")
def _(at):
    def call(**arguments):
        return list(decoder().stream(**arguments))

    return call, {"prompt": "the", "sampling": octavo.Sampling(), "tokens": 3, "stop": ["x"], "special": "refuse"}


@valid("TextGenerator.generate")
def _(at):
    return decoder().generate, {"prompt": ["the"], "sampling": octavo.Sampling(), "tokens": 3, "stop": ["x"], "special": "refuse"}  # fmt: skip


MESSAGES = [{"role": "user", "content": "the"}]


@valid("TextGenerator.stream_chat")
def _(at):
    def call(**arguments):
        return list(decoder().stream_chat(**arguments))

    return call, {
        "messages": MESSAGES,
        "sampling": octavo.Sampling(),
        "tokens": 3,
        "stop": ["x"],
        "variables": {"a": 1},
    }


@valid("TextGenerator.chat")
def _(at):
    return decoder().chat, {"messages": MESSAGES, "sampling": octavo.Sampling(), "tokens": 3, "stop": ["x"], "variables": {"a": 1}}  # fmt: skip


@valid("TextGenerator.chat_ids")
def _(at):
    return decoder().chat_ids, {"messages": MESSAGES, "add_generation_prompt": True, "variables": {"a": 1}}


@valid("TextGenerator.answer_ids")
def _(at):
    def call(**arguments):
        return list(decoder().answer_ids(**arguments))

    return call, {"prompt": [1, 2], "sampling": octavo.Sampling(), "tokens": 3}


@valid("TextEncoder.load")
def _(at):
    shutil.copytree(encoder_folder(), at / "model")
    return octavo.TextEncoder.load, {"path": at / "model"}


valid("TextEncoder")(lambda at: (octavo.TextEncoder, {"core": encoder()._core, "path": encoder()._path}))
valid("TextEncoder.ids")(lambda at: (encoder().ids, {"text": "the cats", "limit": 9}))
valid("TextEncoder.embed")(lambda at: (encoder().embed, {"texts": ["the cats", "a cat"], "limit": 9}))
simple("Sampling", octavo.Sampling, temperature=1.0, top_k=3, top_p=0.5, seed=1)


@functools.cache
def engine():
    return octavo.lab.polynomials.Engine.load()


valid("polynomials.Engine")(
    lambda at: (octavo.lab.polynomials.Engine, {"core": engine()._core, "path": engine()._path})
)


@valid("polynomials.Engine.load", slow=True)
def _(at):
    return octavo.lab.polynomials.Engine.load, {
        "path": None,
        "precision": "float",
        "route": "auto",
        "threads": 1,
        "device": "cpu",
    }


valid("polynomials.Engine.expand")(
    lambda at: (engine().expand, {"lines": ["(x+1)*(x-1)"], "beam": 1, "errors": "raise"})
)


@valid("polynomials.Engine.expand_file")
def _(at):
    (at / "in.txt").write_text("(x+1)*(x-1)\n")
    return engine().expand_file, {
        "source": at / "in.txt", "target": at / "out.txt", "beam": 1, "format": "text", "failed": lambda number, reason: None,
        "progress": lambda lines, nbytes: None,
    }  # fmt: skip


@valid("polynomials.Engine.expand_stream")
def _(at):
    return engine().expand_stream, {
        "reader": io.BytesIO(b"(x+1)*(x-1)\n"), "writer": io.BytesIO(), "beam": 1, "format": "text",
        "failed": lambda number, reason: None, "progress": lambda lines, nbytes: None,
    }  # fmt: skip


RECORDS |= {"data.ShardIndex", "data.TokenAccount", "data.TokenBatch", "data.TokenCount", "polynomials.Summary"}
