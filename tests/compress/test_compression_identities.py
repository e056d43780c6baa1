"""A compression that was stopped, and its model or data corrected: the same command never answers for the old ones."""

import json
import shutil
from string import ascii_lowercase

import pytest
import torch
from helpers.quick import spread
from octavo.compress.compress_model import run_job
from octavo.compress.compression_options import Goal, Options
from octavo.compress.text_compression import text_job

transformers = pytest.importorskip("transformers")

WORDS = ("the", "of", "in", "rain", "storm", "coast", "bank", "doctor", "cat", "train", "music")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 16, "rope_theta": 10_000.0, "initializer_range": 0.3,
}  # fmt: skip


class Stopped(Exception):
    """In place of a kill: nothing that follows is run."""


def folder_of(place, model):
    vocabulary = place / "vocab.txt"
    place.mkdir()
    vocabulary.write_text("\n".join([*SPECIAL, *WORDS, *ascii_lowercase]))
    transformers.BertTokenizer(str(vocabulary), model_max_length=64).save_pretrained(place)
    model.eval().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    return folder_of(tmp_path_factory.mktemp("made") / "llama", model)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config)
    return folder_of(tmp_path_factory.mktemp("made") / "classifier", model)


def texts(seed):
    random = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[int(at)] for at in torch.randint(len(WORDS), (5,), generator=random)) for _ in range(60)]


def before(folder, data, journal, stop=None):
    """The quality of the float model that a compression reports; ``stop``: the step at which it is killed."""

    def tell(text, share):
        if stop is not None and stop in text:
            raise Stopped

    job = text_job(str(folder), data)
    options = Options(Goal(bits=14), formats=("mxint8",), fast=True, journal=journal)
    found = run_job(job, options, tell=tell)
    return found.found.before.value


def config_of(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def corrected_model(folder, data):
    config_of(folder, rope_theta=2.0)


def corrected_text(folder, data):
    data.write_text(data.read_text().replace("rain", "music"))


def corrected_tokenizer(folder, data):
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"rain"', '"~"').replace('"cat"', '"rain"').replace('"~"', '"cat"'))


@pytest.mark.parametrize("correct", spread([corrected_model, corrected_text, corrected_tokenizer]))
def test_a_language_model_that_was_corrected_is_measured_anew(llama, tmp_path, correct):
    folder, data = shutil.copytree(llama, tmp_path / "llama"), tmp_path / "data.txt"
    data.write_text("\n".join(texts(0)))
    with pytest.raises(Stopped):
        before(folder, data, tmp_path / "kept", stop="verifying")
    stale = before(folder, data, tmp_path / "first")
    correct(folder, data)
    found = before(folder, data, tmp_path / "kept")
    assert found == before(folder, data, tmp_path / "fresh") != stale


def test_labels_that_were_corrected_are_measured_anew(classifier, tmp_path):
    data = tmp_path / "labelled.tsv"

    def write(flip):
        rows = [f"{place % 3 // 2 ^ flip}\t{text}\n" for place, text in enumerate(dict.fromkeys(texts(1)))]
        data.write_text("".join(rows))

    write(0)
    with pytest.raises(Stopped):
        before(classifier, data, tmp_path / "kept", stop="verifying")
    stale = before(classifier, data, tmp_path / "first")
    write(1)
    assert before(classifier, data, tmp_path / "kept") == before(classifier, data, tmp_path / "fresh") != stale


def test_the_same_compression_measures_nothing_again(llama, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("\n".join(texts(0)))
    before(llama, data, tmp_path / "kept")
    lines = (tmp_path / "kept" / "study.jsonl").read_bytes()
    before(shutil.copytree(llama, tmp_path / "elsewhere"), data, tmp_path / "kept")
    assert (tmp_path / "kept" / "study.jsonl").read_bytes() == lines
