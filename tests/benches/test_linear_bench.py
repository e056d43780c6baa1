"""benches/linear.py: which peers a format has, what bars say, and what is told about a ggml that is not one."""

import sys
from pathlib import Path

import octavo
import pytest
from octavo import _core

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.fixture(autouse=True)
def benches(monkeypatch):
    """Programs import their neighbours."""
    monkeypatch.setattr(sys, "path", [str(BENCHES), *sys.path])


def test_every_format_is_in_one_group_and_its_peers_can_be_built():
    import _ggml
    import _linear_peers
    from _linear_bars import FORMATS

    groups = _linear_peers.groups(FORMATS.split())
    assert sorted(text for texts, _ in groups for text in texts) == sorted(FORMATS.split())
    for texts, peers in groups:
        assert all(str(octavo.Format.parse(text)) for text in texts)
        assert all(
            peer.removeprefix("ggml ") in _ggml.TYPES if peer.startswith("ggml ") else peer in _linear_peers._BUILDS
            for peer in peers
        )


def row(name, batch=1, share=0.5, **over):
    return {
        "batch": batch,
        "row": name,
        "over": {"read": share, **{k.replace("_", " ", 1): v for k, v in over.items()}},
    }


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "miss"), (0.9, "met")])
def test_a_bar_above_ggml_is_one_where_ggml_is_bound_by_memory(share, verdict):
    from _linear_bars import judge

    results = [row("ggml q8_0, CPU", share=share), row("mxint8 x int8:g32", ggml_q8_0=1.05)]
    (found,) = judge(results, "")
    assert found["verdict"] == verdict
    assert found["misses"] == ({} if verdict == "met" else {"mxint8 x int8:g32": 1.05})
    assert judge(results, "avx2") == []


def test_bars_of_what_was_not_measured_are_left_out():
    from _linear_bars import judge

    results = [row("int8:channel x int8:channel", 32, bfloat16=1.3, float32=1.6)]
    assert [(b["verdict"], b["ratios"]) for b in judge(results, "")] == [("miss", {"int8:channel x int8:channel": 1.3})]
    assert [b["verdict"] for b in judge(results, "avx2")] == ["met"]


def test_a_folder_or_library_that_is_no_ggml_is_told(tmp_path):
    from _ggml import GgmlError, Library, find

    with pytest.raises(GgmlError, match="no file or folder"):
        find(tmp_path / "none")
    with pytest.raises(GgmlError, match="holds no ggml-base and ggml-cpu"):
        find(tmp_path)
    with pytest.raises(GgmlError, match="no function ggml_init; build a newer"):
        Library(Path(_core.__file__), 1)
    built = tmp_path / "build" / "src"
    built.mkdir(parents=True)
    for name in ("libggml-cpu.so", "libggml-base.so", "libggml.so", "libggml-base.so.0"):
        (built / name).write_bytes(b"no library")
    assert [file.name for file in find(tmp_path)] == ["libggml-base.so", "libggml-cpu.so"]
    with pytest.raises(GgmlError, match="cannot be loaded"):
        Library(built / "libggml.so", 1)
