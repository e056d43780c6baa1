"""Files of texts that calibrate a compression: how they are cut, and how much of them is taken."""

import json

import pytest
import torch
from helpers.text_folders import labelled_file, labelled_rows, text_folder
from octavo.compress.named_jobs import named_job
from octavo.compress.text_compression import Reading, text_job
from octavo.errors import DataError, SettingError

pytest.importorskip("transformers")
END = 4  # the place of [END] among the words
TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return text_folder(tmp_path_factory.mktemp("decoder"), "GPT2", "LMHeadModel")


def texts(count):
    return [text for text, _ in labelled_rows(count)]


def objects(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_windows_of_a_language_model_are_as_many_and_as_long_as_asked_for(decoder, tmp_path):
    data = objects(tmp_path / "a.jsonl", [{"body": text} for text in texts(200)])
    job = text_job(str(decoder), data, reading=Reading("body", 6, 16))
    rows = torch.cat([batch["input_ids"] for batch in job.batches])
    assert rows.shape == (6, 16) and (rows == END).any() and job.samples == 6
    assert job.data[0].count == 96 and "6 windows of 16" in job.data[0].source
    plain = tmp_path / "a.txt"
    plain.write_text("\n".join(texts(200)))
    rows = torch.cat(
        [batch["input_ids"] for batch in text_job(str(decoder), plain, reading=Reading(tokens=16)).batches]
    )
    assert not (rows == END).any()  # one text, whose lines are no texts of their own


def test_chat_messages_are_rendered_by_the_template_of_the_folder(decoder, tmp_path):
    chats = [{"messages": [{"role": "the", "content": text}]} for text in texts(200)]
    data = objects(tmp_path / "a.jsonl", chats)
    with pytest.raises(DataError, match="line 1: 'messages': chat messages need a chat template"):
        text_job(str(decoder), data)
    folder = text_folder(tmp_path / "chat", "GPT2", "LMHeadModel")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    job = text_job(str(folder), data, reading=Reading(samples=4, tokens=8))
    assert torch.cat([batch["input_ids"] for batch in job.batches]).shape == (4, 8)


def test_encoders_and_classifiers_read_objects(tmp_path):
    encoder = text_folder(tmp_path / "encoder")
    data = objects(tmp_path / "a.jsonl", [{"text": text} for text in texts(80)])
    job = text_job(str(encoder), data, reading=Reading(samples=5, tokens=4))
    assert job.data[0].count == 5 and max(len(batch["input_ids"][0]) for batch in job.batches) == 4
    classifier = text_folder(tmp_path / "classifier", head="ForSequenceClassification", num_labels=2)
    assert text_job(str(classifier), data).measures.startswith("agreement")
    labelled = labelled_file(tmp_path / "b.jsonl", 80, ("LABEL_0", "LABEL_1"))
    assert text_job(str(classifier), labelled).measures.startswith("accuracy")


def test_sizes_that_cannot_be_are_refused(decoder, tmp_path):
    data = objects(tmp_path / "a.jsonl", [{"text": text} for text in texts(60)])
    with pytest.raises(SettingError, match="tokens is 41; the GPT2LMHeadModel reads at most 40 at once"):
        text_job(str(decoder), data, reading=Reading(tokens=41))
    with pytest.raises(SettingError, match="samples is 0"):
        Reading(samples=0)
    with pytest.raises(SettingError, match="--field and --tokens are of texts"):
        named_job("polynomials", lines=10, reading=Reading(tokens=8))
