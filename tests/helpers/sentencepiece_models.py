"""Models of SentencePiece, trained on random words, and their keys in a GGUF file as llama.cpp's converter writes them."""

import functools
import io
import random

import pytest

from .token_oracles import words

USER = ("<X>", "<table>", "\n", "▁▁", "▁▁▁", "ing")
"""Pieces that a model is told to keep whole."""


@functools.cache
def trained(kind, *whole, **settings):
    """A processor of a model: ``kind`` is bpe or unigram, ``whole`` are pieces that it keeps."""
    sentencepiece = pytest.importorskip("sentencepiece")
    rng, written = random.Random(0), io.BytesIO()
    known = [*words(rng), *map(chr, range(33, 127))]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([" ".join(rng.choices(known, k=rng.randint(1, 12))) for _ in range(3000)]),
        model_writer=written, minloglevel=2, hard_vocab_limit=False,
        **{"model_type": kind, "vocab_size": 700, "byte_fallback": True, "normalization_rule_name": "identity",
           "remove_extra_whitespaces": False, "character_coverage": 1.0, "user_defined_symbols": list(whole), **settings},
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def keys_of(processor, model, *whole):
    """The keys of a processor's model; ``model``: ``llama`` or ``t5``, ``whole``: pieces that it keeps."""
    size = processor.get_piece_size()
    pieces = [processor.id_to_piece(number) for number in range(size)]
    kinds = [4 if piece in whole else _kind(processor, number) for number, piece in enumerate(pieces)]
    prefix = "tokenizer.ggml."
    keys = {
        f"{prefix}model": model,
        # The converter writes user-defined pieces as texts have them.
        f"{prefix}tokens": [
            piece.replace("▁", " ") if kind == 4 else piece for piece, kind in zip(pieces, kinds, strict=True)
        ],
        f"{prefix}scores": [processor.get_score(number) for number in range(size)],
        f"{prefix}token_type": kinds,
        f"{prefix}unknown_token_id": processor.unk_id(),
        f"{prefix}eos_token_id": processor.eos_id(),
        f"{prefix}add_bos_token": False,
        f"{prefix}add_eos_token": False,
    }
    table, dummy, squeezes = _normalizer(processor.serialized_model_proto())
    keys[f"{prefix}add_space_prefix"] = dummy
    if model == "t5":
        keys[f"{prefix}remove_extra_whitespaces"] = squeezes
    return {**keys, f"{prefix}precompiled_charsmap": list(table)} if table else keys


def _kind(processor, number):
    tests = (processor.is_unknown, 2), (processor.is_control, 3), (processor.is_unused, 5), (processor.is_byte, 6)
    return next((kind for test, kind in tests if test(number)), 1)


def _fields(data):
    """Numbers and values of a message of Protocol Buffers."""
    place = 0

    def number():
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        field, kind = divmod(number(), 8)
        if kind == 0:
            yield field, number()
        else:
            size = {1: 8, 5: 4}.get(kind) or number()
            yield field, data[place : place + size]
            place += size


def _normalizer(model):
    """The table of a model's normalizer, whether it puts a space before texts, and whether it leaves out others."""
    spec = dict(_fields(dict(_fields(model))[3]))
    return spec.get(2, b""), spec.get(3, 1) == 1, spec.get(4, 1) == 1
