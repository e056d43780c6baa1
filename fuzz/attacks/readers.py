"""The kinds of folders and files that are attacked: how a valid one is made, and what reads it."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import octavo
import torch
import transformers
from octavo import lora
from octavo.compress.text_compression import text_job
from octavo.data import BytePairTokenizer, CharTokenizer
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.gguf_tensors import load_gguf
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers import kinds as classifiers
from octavo.lab.language.gpt import GPT, modern_skips
from octavo.lab.language.model_folder import load_language_model, save_language_model
from octavo.lab.polynomials import export, static
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig
from octavo.lab.polynomials.seq2seq import build as build_seq2seq
from octavo.model_folder.explain_folder import explain_folder
from octavo.search.journal import Journal
from octavo.train import read_metrics
from torch import nn

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "of", "rain", "cat", *ascii_lowercase]
RECIPES = [
    "int4:g32; encoder.*.query weight=mxint8 input=mxint8; last:Linear keep",
    "type:Linear weight=int8:channel@mse input=int8@quantile:0.999 bias=int32; embed*=mxint8",
    'regex:.*\\.key nf4; "name:a b" keep; glob:encoder.** mxfp4@mse; first:Linear int8:channel@gptq',
]


class Module(nn.Module):
    """A model of one's own, with a tied head, a buffer and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.mix = nn.Conv1d(32, 32, 3, padding=1)
        self.up = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 40, bias=False)
        self.register_buffer("positions", torch.arange(16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.embed(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(self.up(x).transpose(1, 2)).transpose(1, 2))


def _config(kind: str) -> Any:
    small = {"vocab_size": len(WORDS)}
    if kind == "bert":
        return transformers.BertConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            **small,
        )
    if kind == "gpt2":
        return transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0, **small
        )
    if kind == "llama":
        return transformers.LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            **small,
        )
    if kind == "t5":
        return transformers.T5Config(
            d_model=32, d_kv=16, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=2, **small
        )
    if kind == "distilbert":
        return transformers.DistilBertConfig(
            dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=64, sinusoidal_pos_embds=True, **small
        )
    return transformers.MambaConfig(hidden_size=32, num_hidden_layers=1, state_size=4, **small)


ARCHITECTURES = ("bert", "gpt2", "llama", "t5", "distilbert", "mamba")


def _foreign(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(_config(kind)).eval()


# --- valid ones ---------------------------------------------------------------------------------------------------------


def _saved(kind: str, folder: Path) -> None:
    model = _foreign(kind)
    with contextlib.suppress(octavo.OctavoError):
        model = octavo.pack_model(
            octavo.quantize_model(
                model, "type:Linear mxint8; type:Embedding mxint8" if kind != "gpt2" else "mxint8", progress=False
            )
        )
    octavo.save_model(model, folder)


def _saved_module(folder: Path) -> None:
    torch.manual_seed(0)
    model = octavo.quantize_model(
        Module().eval(),
        "mxint8; type:Linear int8:channel input=int8@minmax",
        calibration=[torch.arange(16).view(2, 8)],
        progress=False,
    )
    octavo.save_model(octavo.pack_model(model), folder)


def _encoder(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    _foreign("bert").half().save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)


def _sharded(folder: Path) -> None:
    _encoder(folder)
    tensors = octavo.load(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(tensors), {}
    for number in (1, 2):
        part = names[number - 1 :: 2]
        octavo.save({name: tensors[name] for name in part}, folder / f"model-{number}.safetensors")
        places |= dict.fromkeys(part, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": places})
    )


def _classifier(folder: Path) -> None:
    torch.manual_seed(0)
    from octavo.data.words import WordTokenizer

    model = Classifier(ClassifierConfig(vocabulary=8, width=8, layers=1, heads=2, feed_forward=16))
    classifiers.tiny_classifier(WordTokenizer(["a", "b", "c", "d", "e", "f"]), model).save(folder, {"seed": 0})


def _run(folder: Path) -> None:
    from train import tiny

    tiny.train(tiny.Model(width=8), tiny.Rule(), _train_config(), folder, progress=False)
    newest = max((folder / "checkpoints").iterdir())
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix == ".safetensors":
            file.unlink()
    assert newest.name == "step-00000004.pt"


def _train_config(steps: int = 4) -> Any:
    from train import tiny

    return tiny.config(steps=steps, checkpoint_every=2, log_every=1, evaluate_every=None, schedule="constant", warmup=0)


def _container(folder: Path) -> None:
    folder.mkdir(parents=True)
    x = torch.linspace(-3, 3, 256).view(4, 64)
    tensors = {
        fmt: octavo.encode(x, fmt) for fmt in ("mxint8", "int4:g32", "nf4", "uint4:g32", "mxfp4", "int8:channel")
    }
    octavo.save(
        {**tensors, "plain": x, "half": x.half(), "ids": torch.arange(5)}, folder / "a.safetensors", metadata={"k": "v"}
    )


def _recipes(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, text in enumerate(RECIPES):
        recipe = octavo.Recipe.parse(text)
        (folder / f"{number}.txt").write_text(text)
        (folder / f"{number}.toml").write_text(recipe.to_toml())
        (folder / f"{number}.json").write_text(recipe.to_json())


def _seq2seq(folder: Path) -> None:
    torch.manual_seed(0)
    model = build_seq2seq(Seq2SeqConfig(embedding=8, encoder=6, hidden=12, heads=3, layers=2, feedforward=20)).eval()
    lines = [torch.randint(3, 31, (8, 12))]
    integer = static.quantize_static(model, static.calibrate(model, lines))
    export.export_model(model, CharTokenizer.polynomials(), folder, integer=integer, metadata={"a": 1})


def _gpt(folder: Path) -> None:
    torch.manual_seed(0)
    small = modern_skips(vocabulary=258, width=16, layers=3, heads=2, end_of_text=256)
    save_language_model(folder, GPT(small), BytePairTokenizer.train(["a cat"], 258))


def _lora(folder: Path) -> None:
    folder.mkdir(parents=True)
    model = lora.insert(_small(), rank=2, targets="type:Linear", train=("head",))
    lora.save_adapters(model, folder / "adapter.safetensors")


def _small() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.body, model.head = nn.Linear(8, 8), nn.Linear(8, 2)
    return model


def _journal(folder: Path) -> None:
    with Journal(folder) as journal:
        for width in (1, 2, 3):
            journal.add({"width": width, "nested": {"a": [1, None]}}, result={"right": 1, "texts": 2}, seconds=0.5)


# --- readers ------------------------------------------------------------------------------------------------------------


def _read_pack(folder: Path) -> None:
    from octavo.cli.pack import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(folder, folder.parent / "out", "int4:g32")


def _read_compress(folder: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        job = text_job(str(folder))
        job.evaluate(job.model)


def _read_run(folder: Path) -> None:
    from train import tiny

    with contextlib.suppress(OSError, octavo.OctavoError):
        read_metrics(folder)
    tiny.train(tiny.Model(width=8), tiny.Rule(), _train_config(5), folder, progress=False)


def _gguf(folder: Path) -> None:
    from helpers.gguf_models import file_of

    folder.mkdir(parents=True)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    tokens = [("tokenizer.ggml.tokens", "str", WORDS), ("tokenizer.ggml.scores", "f32", [0.5] * len(WORDS))]
    kinds = ("Q8_0", "Q4_0", "Q4_1", "F16")
    data = file_of(
        transformers.LlamaForCausalLM(config), "llama", lambda name: kinds[len(name) % len(kinds)], more=tokens
    )
    (folder / "x.gguf").write_bytes(data)


def _read_gguf(folder: Path) -> None:
    tensors = load_gguf(folder / "x.gguf", decode=True)
    for value in tensors.values():
        value.decode() if isinstance(value, octavo.PackedTensor) else value.view(-1)[:1].clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.OctavoWarning)
        octavo.load_model(folder / "x.gguf")


def _compressed_tensors(folder: Path) -> None:
    from helpers.compressed_models import ARGS, folder_of, weights

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    forms = {
        "q_proj": ("words", weights(4)), "k_proj": ("words", weights(3, symmetric=False), True),
        "v_proj": ("nvfp4", ARGS["nvfp4"]), "o_proj": ("bytes", weights(8, strategy="channel")),
        "gate_proj": ("mxfp4", ARGS["mxfp4"]), "up_proj": ("mxfp8", ARGS["mxfp8"]),
        "down_proj": ("float", weights(8, "float", "channel")),
    }  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    folder_of(model, folder, lambda name: forms.get(name.rpartition(".")[2]), files=2)


def _read_compressed_tensors(folder: Path) -> None:
    reader = reader_of(folder)
    if reader is not None:
        reader.contents(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.OctavoWarning)
        octavo.load_model(folder)


def _packed_folder(layout: str) -> Callable[[Path], None]:
    """Return what writes a small llama in the layout of another package."""

    def written(folder: Path) -> None:
        from helpers.checkpoints import llama, write

        write(folder, *llama(layout))

    return written


def _read_container(folder: Path) -> None:
    file = folder / "a.safetensors"
    octavo.inspect(file)
    for value in octavo.load(file).values():
        value.decode() if isinstance(value, octavo.PackedTensor) else value.view(-1)[:1].clone()
    octavo.load(file, mmap=True)


def _read_recipes(folder: Path) -> None:
    model = _MODEL or _foreign("bert")
    for file in sorted(file for file in folder.iterdir() if file.suffix in (".txt", ".toml", ".json")):
        for read in (
            octavo.Recipe.of,
            lambda path: octavo.Recipe.from_json(_text(path)),
            lambda path: octavo.Recipe.parse(_text(path)),
        ):
            with contextlib.suppress(octavo.FormatError, OSError):
                recipe = read(file)
                octavo.Recipe.from_toml(recipe.to_toml())
                recipe.explain(model)


def _text(path: Path) -> str:
    return (
        path.read_bytes().decode(errors="surrogateescape") if path.is_file() and path.stat().st_size < 1 << 24 else ""
    )


def _read_seq2seq(folder: Path) -> None:
    for read in (export.load_model, export.load_integer, _expand):
        with contextlib.suppress(octavo.OctavoError, OSError):
            read(folder)


def _expand(folder: Path) -> None:
    octavo.lab.polynomials.Engine.load(folder, threads=1).expand(["(x+1)*(x-2)"], errors="return")
    octavo.lab.polynomials.Engine.load(folder, threads=1, precision="integer").expand(["(x+1)*(x-2)"], errors="return")


def _read_journal(folder: Path) -> None:
    with Journal(folder) as journal:
        journal.find({"width": 1})
        journal.add({"width": 9}, result={"right": 1})


_MODEL: nn.Module | None = None

# Kind: makers of valid folders, and the reader.
READERS: dict[str, tuple[list[Callable[[Path], None]], Callable[[Path], Any]]] = {
    "saved-bert": (
        [_encoder, _sharded, *(lambda folder, kind=kind: _saved(kind, folder) for kind in ARCHITECTURES)],
        octavo.load_model,
    ),
    "saved-module": ([_saved_module], lambda folder: octavo.load_model(folder, Module)),
    "recipe-model": (
        [_encoder, _sharded, _seq2seq, *(lambda folder, kind=kind: _saved(kind, folder) for kind in ARCHITECTURES)],
        lambda folder: explain_folder(octavo.Recipe.parse("mxint8"), folder),
    ),
    "pack": ([_encoder, _sharded, _container], _read_pack),
    "compress": ([_encoder, _sharded], _read_compress),
    "classifier": ([_classifier], classifiers.load),
    "run": ([_run], _read_run),
    "container": ([_container], _read_container),
    "gguf": ([_gguf], _read_gguf),
    "compressed-tensors": ([_compressed_tensors], _read_compressed_tensors),
    "packed-folders": (
        [_packed_folder(layout) for layout in ("gptq-3", "awq", "modelopt-nvfp4", "modelopt-fp8", "bnb-nf4")],
        _read_compressed_tensors,
    ),
    "recipes": ([_recipes], _read_recipes),
    "seq2seq": ([_seq2seq], _read_seq2seq),
    "gpt": ([_gpt], load_language_model),
    "lora": ([_lora], lambda folder: lora.load_adapters(_small(), folder / "adapter.safetensors")),
    "journal": ([_journal], _read_journal),
}
