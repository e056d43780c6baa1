"""Tokenizers that GGUF files name give the ids of the tokenizers that they were made of."""

import json
import random

import pytest
from helpers.gguf_files import gguf
from helpers.sentencepiece_models import USER, keys_of
from helpers.sentencepiece_models import trained as trained_pieces
from helpers.token_oracles import ODD, RULES, SPECIAL, BytePairs, odd_texts, split_steps, word_pieces, words
from octavo.data.foreign_tokenizer import load_tokenizer
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_splits import SPLITS
from octavo.interchange.gguf_tokenizer import texts_of, tokenizer_files

tokenizers = pytest.importorskip("tokenizers")
P = "tokenizer.ggml."
MARKS = ["<unk>", "<s>", "</s>", "<pad>"]
COUNTS = [500, pytest.param(100_000, marks=pytest.mark.slow)]


def read(metadata):
    files, problem = texts_of(metadata, 32)
    assert problem is None
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"])


def differing(texts, found, expected):
    """Texts whose ids differ, the first few."""
    return [text for text, one, other in zip(texts, found, expected, strict=True) if list(one) != list(other)][:3]


def pairs(pre):
    """A vocabulary of byte pairs learned from random words, and more tokens that no pair makes, with its oracle."""
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = split_steps(pre)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    known = words(random.Random(1))
    own.train_from_iterator([" ".join(known), " ".join(ODD), *known], trainer)
    model = json.loads(own.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [word for word in dict.fromkeys(f"{a}{b}" for a in "qxz" for b in "jkw") if word not in model["vocab"]]
    return tokens, model["merges"], BytePairs(pre, tokens, model["merges"])


FAMILIES = list({str(rule): pre for pre, rule in reversed(RULES.items())}.values())


@pytest.mark.parametrize(
    ("pre", "count"), [(pre, 200) for pre in RULES] + [pytest.param(pre, 100_000, marks=pytest.mark.slow) for pre in FAMILIES]
)  # fmt: skip
def test_byte_pairs_are_those_of_the_rule_of_every_family(tmp_path, pre, count):
    tokens, merges, oracle = pairs(pre)
    files, problem = texts_of({
        f"{P}model": "gpt2", f"{P}pre": pre, f"{P}tokens": tokens, f"{P}merges": [" ".join(pair) for pair in merges],
        f"{P}token_type": [3 if token in SPECIAL else 1 for token in tokens],
    }, 32)  # fmt: skip
    assert problem is None
    (tmp_path / "tokenizer.json").write_text(files["tokenizer.json"], encoding="utf-8")
    texts = odd_texts(count, more=[*SPECIAL, "xk", "xkw", "qj", " zw"])
    expected = [oracle.encode(text) for text in texts]
    found = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    assert not differing(texts, [one.ids for one in found.encode_batch(texts)], expected)
    ours = load_tokenizer(tmp_path)
    assert not differing(texts, [ours.encode(text, special="allow").tolist() for text in texts], expected)


def test_every_name_of_a_way_to_split_has_a_rule():
    assert set(SPLITS) == set(RULES)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_joined_pieces_are_those_of_sentencepiece(prefix, count):
    model = trained_pieces("bpe", add_dummy_prefix=prefix)
    texts = odd_texts(count, without=MARKS)
    found = read(keys_of(model, "llama")).encode_batch(texts)
    assert not differing(texts, [one.ids for one in found], model.encode(texts))


@pytest.mark.parametrize("count", COUNTS)
def test_pieces_that_a_user_defined_stay_whole_as_in_sentencepiece(count):
    """As Gemma has them: line breaks and runs of spaces; U+2581 in a text is no space before these are found."""
    model = trained_pieces("bpe", *USER, add_dummy_prefix=False)
    texts = odd_texts(count, more=["<X>", "<table>", "ing", "\n\n", " " * 5], without=[*MARKS, "▁"])
    keys = keys_of(model, "llama", *USER)
    assert keys[f"{P}token_type"].count(4) == len(USER)
    found = read(keys).encode_batch(texts)
    assert not differing(texts, [one.ids for one in found], model.encode(texts))


T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
UNIGRAMS = [
    {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, "byte_fallback": False},
    {"normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": True},
    {"normalization_rule_name": "nfkc", "remove_extra_whitespaces": True, "add_dummy_prefix": False},
    {"remove_extra_whitespaces": True},
    {"add_dummy_prefix": False},
    {},
]


@pytest.mark.parametrize("settings", UNIGRAMS, ids=lambda one: "-".join(map(str, one.values())) or "plain")
@pytest.mark.parametrize("count", COUNTS)
def test_unigrams_are_those_of_sentencepiece(settings, count):
    """A table of replacements meets characters one by one, as in transformers: no text has clusters of several."""
    regex = pytest.importorskip("regex")
    model = trained_pieces("unigram", **T5, **settings)
    single = (
        None if "normalization_rule_name" not in settings else lambda text: len(regex.findall(r"\X", text)) == len(text)
    )
    texts = odd_texts(count, without=MARKS, keep=single)
    found = read(keys_of(model, "t5")).encode_batch(texts)
    assert not differing(texts, [one.ids for one in found], model.encode(texts))


@pytest.mark.parametrize("count", COUNTS)
def test_unigrams_are_those_of_transformers(count):
    """Its tokenizer of a model of SentencePiece, and so its T5: also for clusters of several characters."""
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    protocol = pytest.importorskip("transformers.utils.sentencepiece_model_pb2_new")
    model = trained_pieces("unigram", **T5, **UNIGRAMS[0])
    description = protocol.ModelProto.FromString(model.serialized_model_proto())
    vocabulary = [(piece.piece, piece.score) for piece in description.pieces]
    own = convert.SpmConverter.build_tokenizer_from_spm_proto(description, vocabulary, legacy=True)
    texts = odd_texts(count, without=MARKS)
    found = read(keys_of(model, "t5")).encode_batch(texts)
    assert not differing(texts, [one.ids for one in found], [one.ids for one in own.encode_batch(texts)])


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_a_file_of_llama_with_logarithms_for_scores_has_unigrams(prefix, count):
    model = trained_pieces("unigram", add_dummy_prefix=prefix)
    texts = odd_texts(count, without=MARKS)
    found = read(keys_of(model, "llama")).encode_batch(texts)
    assert not differing(texts, [one.ids for one in found], model.encode(texts))


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_keys(lowercase):
    """Pieces of words in a file of llama.cpp, which has no key for the first token of a text."""
    rng = random.Random(2)
    characters = sorted({one for part in (*ODD, *words(rng)) for one in part + part.lower() if one.strip("\0\x07")})
    known = [word.lower() if lowercase else word for word in words(rng)]
    pieces = dict.fromkeys([*BERT, *characters, *(f"##{one}" for one in characters), *known])
    pieces |= dict.fromkeys(f"##{word[at:]}" for word in known for at in (1, 2) if word[at:])
    tokens = [one if one in BERT else one[2:] if one.startswith("##") and len(one) > 2 else f"▁{one}" for one in pieces]
    numbers = {"padding": 0, "unknown": 1, "bos": 2, "seperator": 3, "eos": 3, "mask": 4}
    keys = {
        f"{P}model": "bert", f"{P}tokens": tokens, f"{P}token_type": [3] * 5 + [1] * (len(tokens) - 5),
        **{f"{P}{name}_token_id": number for name, number in numbers.items()},
    }  # fmt: skip
    return keys if lowercase else {**keys, f"{P}normalizer.lowercase": False}, list(pieces)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_pieces_of_words_are_those_of_berts_rule(lowercase, count):
    keys, pieces = word_keys(lowercase)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    texts = [*odd_texts(count, without=BERT), "a" * 99, "a" * 100, "a" * 101]
    expected = [[2, *word_pieces(text, vocabulary, lowercase=lowercase), 3] for text in texts]
    assert not differing(texts, [one.ids for one in read(keys).encode_batch(texts)], expected)


def test_special_tokens_in_a_text_have_their_ids():
    keys = keys_of(trained_pieces("bpe"), "llama")
    assert read(keys).encode("<s>a<unk></s>").ids[0:1] == [1]
    assert [number for number in read(keys).encode("x<s>a<unk></s>").ids if number < 3] == [1, 0, 2]
    assert read(word_keys(True)[0]).encode("[MASK]a[UNK]").ids[1:2] == [4]


@pytest.mark.parametrize("family", [{"general.name": "Phi-3 Mini"}, {"general.architecture": "phi3"}])
def test_white_space_behind_a_special_token_of_phi_3_is_left_out(family):
    keys = keys_of(trained_pieces("bpe", "<|end|>"), "llama", "<|end|>")
    plain, keys = read(keys), {**keys, **family}
    assert read(keys).encode("<|end|>\n a").ids == plain.encode("<|end|>a").ids != plain.encode("<|end|>\n a").ids
    assert read(keys).encode("<s>\n a").ids == plain.encode("<s>\n a").ids


@pytest.mark.parametrize("damage", range(40))
def test_a_damaged_table_of_replacements_is_refused_or_read_without_a_panic(damage):
    """The package tokenizers does not check the table: a wrong number in it ends the process."""
    keys = keys_of(trained_pieces("unigram", **T5, **UNIGRAMS[0]), "t5")
    table, rng = keys[f"{P}precompiled_charsmap"], random.Random(damage)
    if damage % 4 == 0:
        table = table[: rng.randrange(len(table))]
    elif damage % 4 == 1:
        table = [rng.randrange(256) for _ in range(rng.randrange(200))]
    else:
        for place in rng.choices(range(len(table) if damage % 4 == 2 else 2000), k=200):
            table[place] = rng.randrange(256)
    files, problem = texts_of({**keys, f"{P}precompiled_charsmap": table}, 32)
    if problem is None:
        tokenizers.Tokenizer.from_str(files["tokenizer.json"]).encode_batch(odd_texts(500))
    else:
        assert problem == f"{P}precompiled_charsmap is no table of replacements"


@pytest.mark.parametrize("table", [5, "x", [], [300], ["a"], [0, 0, 0, 0], [4, 0, 0, 0, 1]])
def test_what_is_no_table_of_replacements_is_refused(table):
    keys = {**keys_of(trained_pieces("unigram", **T5, **UNIGRAMS[0]), "t5"), f"{P}precompiled_charsmap": table}
    assert texts_of(keys, 32) == ({}, f"{P}precompiled_charsmap is no table of replacements")


def folder_of(tmp_path, pre="viking", model="gpt2", **more):
    """A file whose way to split is not known, in a folder of its own."""
    tokens, merges, oracle = pairs("smollm")
    keys = [
        (f"{P}model", "str", model), (f"{P}pre", "str", pre), (f"{P}tokens", "str", tokens),
        (f"{P}merges", "str", [" ".join(pair) for pair in merges]), (f"{P}eos_token_id", "u32", 0),
        *((key, "str", value) for key, value in more.items()),
    ]  # fmt: skip
    (tmp_path / "x.gguf").write_bytes(gguf(keys))
    own = tokenizers.Tokenizer(tokenizers.models.BPE(oracle.numbers, [tuple(pair) for pair in merges]))
    own.pre_tokenizer = split_steps("smollm")
    return GgufFile(tmp_path / "x.gguf"), own


def test_a_tokenizer_in_a_file_or_beside_it_is_taken_where_that_of_its_keys_is_not_read(tmp_path):
    file, own = folder_of(tmp_path)
    files, problem = tokenizer_files(file, 32)
    assert not files and problem.startswith(f"{P}pre is 'viking'; read are gpt-2, smollm")
    assert problem.endswith("; put the tokenizer.json of the model beside the file")
    (tmp_path / "tokenizer.json").write_text(own.to_str())
    files, problem = tokenizer_files(file, 32)
    assert problem is None and files["tokenizer.json"] == own.to_str()
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "<|end|>"
    (tmp_path / "tokenizer_config.json").write_text('{"x": 1}')
    assert tokenizer_files(file, 32)[0]["tokenizer_config.json"] == '{"x": 1}'
    assert tokenizer_files(folder_of(tmp_path, model="gemma4")[0], 32)[0]["tokenizer.json"] == own.to_str()
    inside, _ = folder_of(tmp_path, **{"tokenizer.huggingface.json": own.to_str()})
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_files(inside, 32)[0]["tokenizer.json"] == own.to_str()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: content["model"]["vocab"].update({"new": 5}), "is of another model: its token 5 is 'new', in the file "),
        (lambda content: content["model"]["vocab"].update({"new": 9999}), "is of another model: its token 9999 is 'new', in the file None"),
        (lambda content: content["model"].pop("vocab"), "has another shape than that of the package tokenizers"),
    ],
)  # fmt: skip
def test_a_tokenizer_of_another_model_beside_a_file_is_refused(tmp_path, change, told):
    file, own = folder_of(tmp_path)
    content = json.loads(own.to_str())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    files, problem = tokenizer_files(file, 32)
    assert not files and f"{tmp_path / 'tokenizer.json'} {told}" in problem
