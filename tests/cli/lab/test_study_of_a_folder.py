"""Studies of the folder of a model of transformers: each runs, resumes, and names the device."""

import json

import pytest
from helpers.text_folders import labelled_file, text_folder

STUDIES = {
    "ptq-qat": ("--families", "int", "--widths", "8", "--seeds", "1"),
    "prune": ("--sparsities", "0.5", "--scopes", "local", "--seeds", "1", "--baseline", "mase"),
    "combined": ("--budget", "8", "--formats", "int4:g32,mxint8", "--samples", "8", "--quick"),
    "lora": ("--ranks", "2", "--bases", "int8:channel", "--seeds", "1", "--no-peft"),
    "sensitivity": ("--formats", "int4:g32", "--samples", "8", "--no-estimate"),
    "formats": ("--families", "int", "--widths", "8", "--quick"),
    "mixed": ("--groups", "LinearLog", "--samplers", "random", "--trials", "2", "--points", "2", "--epochs", "1"),
}
SLOW = ("lora", "sensitivity", "formats", "mixed", "combined")


@pytest.fixture
def data(tmp_path):
    labelled_file(tmp_path / "test.tsv", 20, start=500)
    return labelled_file(tmp_path / "train.tsv", 120)


@pytest.mark.parametrize(
    "study", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in STUDIES]
)
def test_a_study_of_a_folder_runs_and_resumes_and_names_the_device(octavo, tmp_path, data, study):
    if study == "mixed":
        pytest.importorskip("optuna")
    folder = text_folder(tmp_path / "bert-mini", "Bert", "ForSequenceClassification", num_labels=2)
    command = ("study", study, "--model", folder, "--data", data, "--test", tmp_path / "test.tsv", "--device", "cpu")
    command += (*STUDIES[study], "-o", tmp_path / "out", "--json")
    first = octavo(*command)
    found = json.loads(first.stdout)
    assert found["subject"]["model"] == "bert-mini" and found["machine"]["device"] == "cpu"
    assert ("is studied as it is" in first.stderr) is (study != "lora")  # which gives it a fresh head
    assert not (tmp_path / "out" / "training").exists()
    journal = (tmp_path / "out" / "study.jsonl").read_text()
    records = [json.loads(line) for line in journal.splitlines()]
    assert {record["made"]["device"] for record in records if "made" in record} == {"cpu"} or study == "sensitivity"
    again = json.loads(octavo(*command).stdout)
    assert again["rows"] == found["rows"] and (tmp_path / "out" / "study.jsonl").read_text() == journal


def test_a_model_whose_matrices_are_no_linear_layers_is_told(octavo, tmp_path, data):
    folder = text_folder(tmp_path / "gpt", "GPT2", "ForSequenceClassification", num_labels=2)
    command = ("study", "ptq-qat", "--families", "int", "--widths", "8", "--no-qat", "--data", data, "--quick")
    shown = octavo(*command, "--model", folder, "-o", tmp_path / "out").stderr
    assert "of the matrices of this GPT2ForSequenceClassification; Conv1D stay float" in " ".join(shown.split())
    folder = text_folder(tmp_path / "bert", "Bert", "ForSequenceClassification", num_labels=2)
    assert "stay float" not in octavo(*command, "--model", folder, "-o", tmp_path / "other").stderr


def test_a_folder_without_a_head_is_fine_tuned_first(octavo, tmp_path, data):
    """Six classes from a pretrained encoder; the study goes on with the run, and another one takes it by --trained."""
    folder = text_folder(tmp_path / "encoder")
    texts = labelled_file(tmp_path / "six.tsv", 240, tuple("abcdef"))
    command = ("study", "ptq-qat", "--families", "int", "--widths", "8", "--no-qat", "--data", texts, "--json")
    first = octavo(*command, "--model", folder, "-o", tmp_path / "out")
    assert "training the model" in first.stderr and (tmp_path / "out" / "training" / "model").is_dir()
    run = ("--model", "transformers", "--trained", tmp_path / "out" / "training")
    again = json.loads(octavo(*command, *run, "-o", tmp_path / "other").stdout)
    assert [row["accuracy"] for row in again["rows"]] == [row["accuracy"] for row in json.loads(first.stdout)["rows"]]
    shown = octavo(*command, "--model", tmp_path / "out" / "training" / "model", "-o", tmp_path / "no", code=2).output
    assert "give --model transformers --trained" in shown
    shown = octavo("study", "ptq-qat", "--model", folder, "-o", tmp_path / "no", code=2).output
    assert "give --data FOLDER with" in shown
