"""Trees that are kept: the same tensors come back, from memory or a file, and nobody's writing changes them."""

import errno
from pathlib import Path

import pytest
import torch
from octavo.data import kept_trees
from octavo.data.kept_trees import KeptTrees, can_keep


def tree_of(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 6, generator=generator)
    return (x[1:3], {"ids": torch.randint(9, (3,), generator=generator), "none": None}, [x.bfloat16(), 0.5])


def same(a, b):
    return torch.equal(a[0], b[0]) and torch.equal(a[1]["ids"], b[1]["ids"]) and torch.equal(a[2][0], b[2][0])


@pytest.mark.parametrize("most", [1 << 28, 0, 300])
def test_what_comes_back_is_what_was_kept(most, monkeypatch):
    monkeypatch.setattr(kept_trees, "MOST_HELD", most)
    kept = KeptTrees()
    for seed in range(4):
        tree = tree_of(seed)
        kept.append(tree)
        tree[0].zero_()
    assert len(kept) == 4
    for _ in range(2):
        for seed in range(4):
            tree = kept[seed]
            assert same(tree, tree_of(seed)) and tree[1]["none"] is None and tree[2][1] == 0.5
            tree[0].zero_()
            tree[1]["ids"] += 1


def test_no_name_of_a_file_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_trees, "MOST_HELD", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = KeptTrees()
    kept.append(torch.ones(8))
    assert list(Path(tmp_path).iterdir()) == [] and torch.equal(kept[0], torch.ones(8))


@pytest.mark.parametrize("most", [1 << 28, 0])
def test_strides_are_those_of_a_clone(most, monkeypatch):
    monkeypatch.setattr(kept_trees, "MOST_HELD", most)
    tensors = [torch.randn(4, 6).T, torch.randn(1, 3).expand(5, 3), torch.randn(8, 8)[::2, 1:4], torch.tensor(2.0)]
    kept = KeptTrees()
    for tensor in tensors:
        kept.append(tensor)
    for number, tensor in enumerate(tensors):
        assert torch.equal(kept[number], tensor) and kept[number].stride() == tensor.clone().stride()


@pytest.mark.parametrize("most", [1 << 28, 0])
def test_forgotten_numbers_refuse_to_be_used(most, monkeypatch):
    monkeypatch.setattr(kept_trees, "MOST_HELD", most)
    kept = KeptTrees()
    kept.append(tree_of(0))
    kept.forget_numbers()
    assert kept[0][0].shape == (2, 6) and kept[0][2][0].dtype == torch.bfloat16 and kept[0][2][1] == 0.5
    with pytest.raises((RuntimeError, NotImplementedError)):
        (kept[0][0] + torch.ones(2, 6)).sum().item()


def test_objects_are_not_kept():
    assert can_keep(tree_of(0)) and can_keep({"a": [None, "b", torch.float16]})
    assert not can_keep((torch.zeros(2), object())) and not can_keep([iter([1])])


def test_a_disk_without_space_is_named(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_trees, "MOST_HELD", 0)
    monkeypatch.setattr("os.posix_fallocate", full)
    kept = KeptTrees()
    with pytest.raises(OSError, match=r"32 bytes cannot be written; set TMPDIR to a folder with more space: .*octavo-"):
        kept.append(torch.zeros(8))
    assert len(kept) == 0
