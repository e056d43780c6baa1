"""Tokenizers of the package ``tokenizers`` of every kind that the core does not run."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

TEXT = "the cat sat on the mat, the dog ran in the fog. na\u00efve caf\u00e9 2024! " * 30
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]


def sentencepiece(prefix):
    """BPE with bytes for what no token has, as in Llama 2 and Mistral (``prefix``) and in Gemma."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    content = json.loads(trained.to_str())["model"]
    named = [*SPECIAL[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *content["vocab"]]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(named))}
    merges = [tuple(pair) for pair in content["merges"]]
    built = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "\u2581")
    built.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space]) if prefix else space
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return built


def unigram():
    built = tokenizers.Tokenizer(models.Unigram())
    built.pre_tokenizer, built.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", special_tokens=SPECIAL, show_progress=False)
    built.train_from_iterator([TEXT], trainer)
    return built


def word_piece():
    built = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    built.normalizer, built.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    built.train_from_iterator([TEXT], trainer)
    return built


def other_split():
    """Byte-level BPE that cuts texts as no family that the core knows."""
    built = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(r"\p{L}{1,3}|\s+|."), "isolated")
    built.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator([TEXT], trainer)
    return built


KINDS = {
    "SentencePiece, prefix": lambda: sentencepiece(True),
    "SentencePiece": lambda: sentencepiece(False),
    "Unigram": unigram,
    "WordPiece": word_piece,
    "another split": other_split,
}
