"""The study of adapters: what is trained, what it costs, and which base it goes on."""

import octavo
import pytest
import torch
from octavo.errors import DataError, FormatError, PackageError, SettingError
from octavo.lab.classifiers import training_run
from octavo.lab.polynomials.data import expand, signs
from octavo.lab.studies import lora_ranks, result_files, subject_catalogue
from octavo.lab.studies.lora_ranks import LoraRanks, Tuned, Tuning, Variant
from octavo.lab.studies.subject import digest
from octavo.lab.studies.training_costs import allocated, training_costs
from octavo.report import study_plots
from octavo.search.journal import identity

TUNING = Tuning(epochs=0.5)
HEAD = "classifier"


def trained_names(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_costs_are_those_counted_by_hand(subject):
    """Of one layer 16 wide with an inner width of 32: six layers and a pooler are adapted, the head is trained whole."""
    rank, head = 3, 16 * 3 + 3
    sides = [(16, 16)] * 4 + [(16, 32), (32, 16), (16, 16)]
    models = {
        "full": Variant("full").model(subject, 0),
        "lora": Variant("lora", "fp32", rank).model(subject, 0),
        "packed": Variant("lora", "type:Linear mxint8", rank).model(subject, 0),
    }
    config = TUNING.config(subject, subject.texts, 0, adapters=True)
    costs = training_costs(models, subject.task(0), config)
    adapted = rank * sum(a + b for a, b in sides) + head
    everything = sum(p.numel() for p in subject.model().parameters())
    assert [costs[name]["trained"] for name in models] == [everything, adapted, adapted]
    for cost in costs.values():
        tensors = cost["optimizer_bytes"] - 8 * cost["trained"]  # two moments; AdamW counts steps of each tensor
        assert 0 <= tensors <= 4 * 60
        assert cost["peak_bytes"] > cost["model_bytes"] + cost["optimizer_bytes"] and cost["step_s"] > 0
    assert costs["packed"]["model_bytes"] < costs["full"]["model_bytes"]


def test_memory_that_a_call_takes_is_found():
    assert 4 << 20 <= allocated(lambda: torch.zeros(1 << 20) + 1) <= 9 << 20
    assert allocated(lambda: None) == 0


def test_the_base_stays_as_it_is(subject, tmp_path):
    """Trained: adapters and the head; codes and float weights are the same bits afterwards."""
    for base in ("fp32", "int4:g32"):
        variant = Variant("lora", base, 2)
        before = variant.model(subject, 0)
        names = trained_names(before)
        assert names and all(".lora." in name or name.startswith(HEAD) for name in names)
        after = Tuned(variant, TUNING, 0).build(subject, tmp_path / base[:4])
        frozen = [key for key in before.state_dict() if key not in names]
        state = after.state_dict()
        assert all(torch.equal(before.state_dict()[key], state[key]) for key in frozen)
        assert any(not torch.equal(before.state_dict()[key], state[key]) for key in names)
        assert isinstance(after.get_submodule(HEAD), torch.nn.Linear)


def test_adapters_begin_at_the_base(subject):
    batch = subject.inputs(4, 4)[0]
    with torch.no_grad():
        expected = subject.model()(**batch)
        assert torch.equal(Variant("lora", "fp32", 2).model(subject, 0).eval()(**batch), expected)


@pytest.mark.slow
def test_peft_adapts_the_same_layers(subject):
    pytest.importorskip("peft")
    ours, theirs = (Variant(method, "fp32", 2).model(subject, 0) for method in ("lora", "peft"))
    assert sum(p.numel() for p in ours.parameters() if p.requires_grad) == sum(
        p.numel() for p in theirs.parameters() if p.requires_grad
    )


@pytest.mark.slow
def test_every_variant_has_a_row_a_cell_and_a_place_in_the_picture(laboratory):
    study = LoraRanks((4, 2), ("mxint8",), seeds=2, tuning=TUNING)
    rows = study.run(laboratory)
    assert [(row["method"], row["base"], row["rank"]) for row in rows] == [
        ("full", "fp32", None), *(("lora", base, rank) for base in ("fp32", "mxint8") for rank in (2, 4)),
    ]  # fmt: skip
    assert rows[0]["difference_points"] == 0 and all(row["seeds"] == 2 for row in rows)
    assert result_files.lora_table(rows).row_count == 5 and len(result_files.lora_notes(rows)) == 2
    laboratory.subject.model = lambda: pytest.fail("measured twice")
    assert study.run(laboratory) == rows
    pytest.importorskip("matplotlib")
    figure = study_plots.lora_figure(rows, metric="accuracy", title="a title")
    assert [axes.get_xlabel() for axes in figure.axes] == ["trained parameters", "time of a step (ms)"]


@pytest.mark.parametrize(
    "changed",
    [
        Tuned(Variant("lora", "fp32", 3), TUNING),
        Tuned(Variant("lora", "mxint8", 2), TUNING),
        Tuned(Variant("peft", "fp32", 2), TUNING),
        Tuned(Variant("lora", "fp32", 2), TUNING, seed=1),
        Tuned(Variant("lora", "fp32", 2), Tuning(epochs=1)),
        Tuned(Variant("lora", "fp32", 2), Tuning(epochs=0.5, rate=3)),
    ],
)
def test_whatever_decides_a_number_is_part_of_its_identity(subject, changed):
    assert identity(changed.settings(subject)) != identity(Tuned(Variant("lora", "fp32", 2), TUNING).settings(subject))


@pytest.mark.parametrize(
    "given, error",
    [
        (dict(ranks=()), SettingError),
        (dict(ranks=(0,)), SettingError),
        (dict(seeds=0), SettingError),
        (dict(tuning=Tuning(epochs=0)), SettingError),
        (dict(bases=("int99",)), FormatError),
    ],
)
def test_a_study_that_cannot_be_is_refused(given, error):
    with pytest.raises(error):
        LoraRanks(**given)


def test_peft_that_is_asked_for_and_missing_is_told(monkeypatch):
    monkeypatch.setattr(lora_ranks, "has_peft", lambda: False)
    with pytest.raises(PackageError, match="pip install peft"):
        LoraRanks(peft=True)


# --- the base -------------------------------------------------------------------------------------------------------


def test_a_base_has_a_fresh_head_and_another_task(tmp_path, monkeypatch):
    load = signs.load
    sizes = dict(validation=16, test=32)
    monkeypatch.setattr(subject_catalogue.signs, "load", lambda train, **given: load(64, **{**given, **sizes}))
    small = training_run.Hyperparameters(epochs=1, batch_size=16, learning_rate=1e-3, precision="fp32")
    monkeypatch.setitem(training_run.HYPERPARAMETERS, "tiny", small)
    first = subject_catalogue.open_subject("tiny", tmp_path, progress=False)
    base, again = (subject_catalogue.open_base("tiny", tmp_path, progress=False) for _ in range(2))
    assert base.identity == again.identity != first.identity
    was, now = first.model().state_dict(), base.model().state_dict()
    assert {key for key in was if not torch.equal(was[key], now[key])} == {f"{HEAD}.weight", f"{HEAD}.bias"}
    assert digest(first.model()) == first.identity["weights"]


@pytest.mark.parametrize("left, label", [("(x-2)*(x+1)", 0), ("(x-2)*(x-1)", 2), ("9*s**2", 1), ("-4*c*(c-11)", 1)])
def test_signs_of_constants(left, label):
    assert signs.sign(expand(left), "constant") == label


def test_minilm_begins_at_its_pretraining(tmp_path):
    with pytest.raises(SettingError, match="leave out --trained"):
        subject_catalogue.open_base("minilm", tmp_path, trained=tmp_path)
    with pytest.raises(SettingError, match="give --data FOLDER"):
        subject_catalogue.open_base("minilm", tmp_path)
    with pytest.raises((DataError, octavo.OctavoError)):
        subject_catalogue.open_base("minilm", tmp_path, data=tmp_path)
