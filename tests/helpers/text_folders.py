"""Folders of small models of transformers with a tokenizer of words, and labelled texts that they read."""

import json

import pytest

from helpers.models import transformer

WORDS = ["film", "good", "bad", "sad", "number", "the", "was", *map(str, range(40))]
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[END]")
#: Families, with what their configurations need beside sizes, and the id that they pad by.
FAMILIES = {
    "Bert": ({}, 0),
    "Roberta": ({"pad_token_id": 1}, 1),
    "DebertaV2": ({"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}, 0),
    "DistilBert": ({"dim": 16, "n_heads": 2, "n_layers": 1, "hidden_dim": 32}, 0),
    "GPT2": ({"n_positions": 40}, None),
}  # fmt: skip


def text_folder(folder, family="Bert", head="Model", **config):
    """The folder of a model with a tokenizer; ``head``: Model, or ForSequenceClassification with ``num_labels``."""
    transformers = pytest.importorskip("transformers")
    options, pad = FAMILIES[family]
    words = [*MARKS, *WORDS]
    if pad == 1:
        words[0], words[1] = words[1], words[0]
    sizes = {"vocab_size": len(words), "max_position_embeddings": 40} | options | config
    if family == "GPT2":
        sizes.pop("max_position_embeddings")
    model = transformer(f"{family}{head}", width=16, layers=1, heads=2, inner=32, **sizes)
    model.save_pretrained(folder)
    tokenizer(transformers, words, pad is not None).save_pretrained(folder)
    return folder


def tokenizer(transformers, words, pads):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [(mark, words.index(mark)) for mark in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", eos_token="[END]",
        **({"pad_token": "[PAD]"} if pads else {}),
    )  # fmt: skip


def labelled_rows(count, names=("neg", "pos"), start=0):
    """Different texts of unequal length, each with the name of its class."""
    moods = ("bad", "good", "sad")
    return [
        (f"the film number {row} was {moods[row % len(names) % 3]}" + " film" * (row % 5), names[row % len(names)])
        for row in range(start, start + count)
    ]


def labelled_file(path, count, names=("neg", "pos"), start=0):
    """A file of them: a table, or JSON objects where the name says so."""
    rows = labelled_rows(count, names, start)
    if path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "label": name}) for text, name in rows]
    else:
        lines = [f"{text}\t{name}" for text, name in rows]
    path.write_text("\n".join(lines) + "\n")
    return path
