"""Where studies run: on a GPU where torch finds one, with the device in every record."""

import json

import pytest
import torch
from octavo.lab.classifiers.training_run import Hyperparameters
from octavo.lab.studies import stopwatch
from octavo.lab.studies.format_sensitivity import FormatSensitivity
from octavo.lab.studies.lora_ranks import LoraRanks, Tuning
from octavo.lab.studies.measured_points import Laboratory, Point, Training
from octavo.lab.studies.pruning import Prune
from octavo.lab.studies.ptq_qat import PtqQat
from octavo.lab.studies.subject import ClassifierSubject, elsewhere, placed
from octavo.search.journal import Journal, identity

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SHORT = Tuning(epochs=0.25)
STUDIES = {
    "ptq-qat": PtqQat(("int", "mase-a"), (8,), 1, Training(share=0.1)),
    "prune": Prune((0.5,), ("magnitude", "wanda", "taylor"), ("local",), seeds=1, tuning=SHORT, baseline="mase"),
    "lora": LoraRanks((2,), ("int8:channel",), 1, SHORT),
    "sensitivity": FormatSensitivity(("int4:g32", "mxint8"), samples=8),
}


def test_a_cpu_adds_nothing_to_settings_and_a_gpu_its_kind():
    """Points of earlier versions, all of them of CPUs, are found again; those of a GPU are other points."""
    assert elsewhere(torch.device("cpu")) == {}
    assert elsewhere(torch.device("cuda", 1)) == {"device": "cuda"}
    settings = {"model": "tiny"}
    assert identity(settings | elsewhere(torch.device("cuda"))) != identity(settings)


def test_batches_of_any_kind_are_placed():
    one, meta = torch.ones(2), torch.device("meta")
    mapping, pair = placed([{"input_ids": one, "length": 3}, (one, one)], meta)
    assert mapping["input_ids"].device == meta and mapping["length"] == 3
    assert [item.device for item in pair] == [meta, meta]


def test_the_record_of_a_point_names_its_device(laboratory):
    record = laboratory.measure_all([Point({"study": "test"}, "ptq", "type:Linear int8:channel")])[0]
    assert record["made"]["device"] == "cpu" and record["made"]["name"]
    assert "device" not in record["settings"]["subject"]


def test_the_device_is_the_gpu_where_there_is_one_and_no_other_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(device))
    chosen = []
    assert stopwatch.chosen_device("cpu") == torch.device("cpu") and not chosen
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(stopwatch, "best_device", lambda: gpu)
    assert stopwatch.chosen_device(None) == gpu and chosen == [gpu]


@GPU
@pytest.mark.parametrize("name", STUDIES)
def test_studies_run_on_a_gpu_and_resume(split, subject, tmp_path, name):
    device = torch.device("cuda", 0)
    placed_subject = ClassifierSubject(
        "tiny", subject.classifier(), split, hyperparameters(subject), steps=40, judged=16, device=device
    )
    assert placed_subject.identity == subject.identity | {"device": "cuda"}
    rows = []
    for _ in range(2):
        with Journal(tmp_path) as journal:
            rows.append(STUDIES[name].run(Laboratory(placed_subject, journal, tmp_path)))
    assert rows[0] == rows[1]
    lines = [json.loads(line) for line in (tmp_path / "study.jsonl").read_text().splitlines()]
    assert {line["made"]["device"] for line in lines if "made" in line} <= {"cuda"}


def hyperparameters(subject):
    return Hyperparameters(1, subject.batch_size, subject.learning_rate, subject.precision)
