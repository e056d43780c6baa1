"""The peak of a device is taken apart: parts add up to it, weights are counted as they lie, answers are compared.

A GPU is replaced by a meter that follows the tensors of the CPU, made by operators and freed with their storage.
"""

import octavo
import pytest
import torch
from helpers.followed_cpu import BLOCK, FollowedCpu
from octavo.errors import FormatError, ModelError, SettingError
from octavo.lab.studies import device_memory
from octavo.lab.studies.device_memory import EVERYTHING, LINEAR, PARTS, DeviceMemory, agreement, held_bytes, parts
from octavo.lab.studies.device_memory_tables import device_memory_figure, device_memory_notes, device_memory_table
from octavo.lab.studies.folder_subject import FolderSubject, open_for_memory
from octavo.lab.studies.measured_points import Laboratory
from octavo.search.journal import Journal
from torch import nn

CPU = torch.device("cpu")


class Scripted:
    """A meter that answers what it is told: of the model, of a batch, of layers, and of the peak."""

    def __init__(self, before, loaded, ready, layers, peak):
        self.numbers, self.most = [before, loaded, ready, *layers], peak

    def allocated(self):
        return self.numbers.pop(0)

    def begin(self):
        pass

    def peak(self):
        return self.most

    def reserved(self):
        return self.most + 50


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).eval()


def test_parts_are_told_apart_by_what_is_allocated_when():
    model = network()
    own = sum(p.nbytes for p in model.parameters())
    meter = Scripted(
        1000,
        1000 + own + 24,
        1000 + own + 124,
        [1000 + own + n for n in (124, 324, 324, 424, 424, 150)],
        1000 + own + 700,
    )
    scores, costs = parts(model, [(torch.ones(2, 64),)], meter, CPU)
    assert scores.shape == (2, 3) and not meter.numbers
    assert costs == {
        "weights": 0, "scales": 0, "float": own, "allocator": 24, "inputs": 100, "activations": 300,
        "temporaries": 276, "peak": own + 700, "reserved": 1000 + own + 750,
    }  # fmt: skip


def test_packed_weights_are_codes_and_scales_and_the_rest_stayed_float():
    model = network()
    dense = sum(p.nbytes for p in model.parameters())
    assert held_bytes(model) == {"weights": 0, "scales": 0, "float": dense}
    packed = octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False))
    weights = 64 * 64 + 3 * 64
    assert held_bytes(packed) == {"weights": weights, "scales": weights // 32, "float": dense - 4 * weights}
    model[2].weight = nn.Parameter(model[0].weight[:3])  # a view of the other's storage
    assert held_bytes(model)["float"] == dense - 4 * 3 * 64, "shared memory counts once"


class Arrives(nn.Sequential):
    """A model whose tensors are allocated when it is moved, as on a GPU."""

    def to(self, device):
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return self


def test_the_parts_of_tensors_that_are_followed_add_up():
    model, batch = Arrives(*network()).eval(), {"input": torch.randn(16, 64)}
    with FollowedCpu() as meter:
        _, costs = parts(model, [batch], meter, CPU)
    assert sum(costs[part] for part in PARTS) == costs["peak"] > 0
    blocks = [-(-p.nbytes // BLOCK) * BLOCK for p in model.parameters()]
    assert costs["allocator"] == sum(blocks) - costs["float"] > 0
    assert costs["activations"] >= 16 * 64 * 4 and costs["temporaries"] >= 0 and costs["reserved"] >= costs["peak"]


def test_answers_agree_by_label_and_by_the_three_highest():
    reference = torch.tensor([[5.0, 4, 3, 2], [1, 2, 3, 4], [9, 8, 7, 6]])
    scores = torch.tensor([[5.0, 4, 3, 2], [1, 2, 5, 4], [9, 7, 8, 6]])
    assert agreement(scores, reference) == {"texts": 3, "same_labels": 2, "same_top": 1, "difference": 2.0}
    assert agreement(reference[:, :1], reference[:, :1])["same_top"] == 3


def test_a_study_tells_less_memory_where_more_is_packed_and_resumes(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory, "machine", lambda device: {"name": "a followed CPU"})
    study = DeviceMemory(texts=20)
    with Journal(tmp_path) as journal:
        laboratory = Laboratory(subject, journal, tmp_path)
        with FollowedCpu() as meter:
            rows = study.run(laboratory, meter)
        assert [row["model"] for row in rows] == ["fp32", LINEAR, EVERYTHING] and len(journal) == 3
        assert study.run(laboratory, Scripted(0, 0, 0, [], 0)) == rows, "nothing is measured twice"
    sizes = [row["weights"] + row["scales"] + row["float"] for row in rows]
    assert sizes[0] > sizes[1] > sizes[2] and rows[0]["same_top"] == rows[0]["texts"] == 20
    for row in rows:
        assert sum(row[part] for part in PARTS) == row["peak"] and row["same_labels"] >= 18
        row |= {"peak": row["peak"] + 1_000_000, "temporaries": row["temporaries"] + 1_000_000}
    shown = device_memory_table(rows)
    assert [column.header for column in shown.columns][1:] == ["fp32", LINEAR, EVERYTHING]
    assert shown.row_count == len(PARTS) + 6
    assert "of its bytes stayed float" in device_memory_notes(rows)[-1]
    pytest.importorskip("matplotlib")
    assert len(device_memory_figure(rows, metric="", title="").axes[0].patches) == 3 * len(PARTS)


def test_what_cannot_be_is_refused():
    with pytest.raises(SettingError, match="0 recipes"):
        DeviceMemory(())
    with pytest.raises(FormatError, match="int99"):
        DeviceMemory(("int99",))


@pytest.fixture
def deberta(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_labels=6,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.DebertaV2ForSequenceClassification(config).save_pretrained(tmp_path / "deberta")
    return tmp_path / "deberta"


def test_a_folder_of_transformers_is_measured_as_it_is(deberta, tmp_path):
    subject = open_for_memory(str(deberta), tmp_path, device=CPU, length=16)
    assert isinstance(subject, FolderSubject) and subject.name == "deberta"
    assert subject.identity == FolderSubject(deberta, texts=None, length=16, device=CPU).identity
    assert subject.identity != FolderSubject(deberta, texts=None, length=17, device=CPU).identity
    (first, *_) = subject.inputs(10, 8)
    assert first["input_ids"].shape == (8, 16) and sum(len(b["input_ids"]) for b in subject.inputs(10, 8)) == 10
    with Journal(tmp_path / "study") as journal:
        rows = DeviceMemory(texts=10).run(Laboratory(subject, journal, tmp_path), FollowedCpu())
    fp32, linear, everything = rows
    assert everything["float"] < linear["float"] < fp32["float"] and fp32["weights"] == 0
    assert fp32["texts"] == 10


def test_a_folder_without_classes_or_with_no_length_is_refused(tmp_path, deberta):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path / "encoder")
    with pytest.raises(ModelError, match="has no classes"):
        open_for_memory(str(tmp_path / "encoder"), tmp_path, device=CPU)
    with pytest.raises(SettingError, match="--length is 0"):
        open_for_memory(str(deberta), tmp_path, device=CPU, length=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_parts_add_up(deberta, tmp_path):
    device = torch.device("cuda")
    subject = open_for_memory(str(deberta), tmp_path, device=device)
    with Journal(tmp_path / "study") as journal:
        rows = DeviceMemory(texts=10).run(Laboratory(subject, journal, tmp_path))
    assert rows[2]["peak"] < rows[1]["peak"] < rows[0]["peak"]
    for row in rows:
        assert sum(row[part] for part in PARTS) == row["peak"] and all(row[part] >= 0 for part in PARTS)
