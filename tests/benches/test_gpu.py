"""The bench of a GPU, without one: bars and verdicts on made-up figures, and a rehearsal of the measurements."""

import json
import sys
from pathlib import Path

import pytest
import torch
from octavo.display.console import plain_text

BENCHES = str(Path(__file__).resolve().parents[2] / "benches")


@pytest.fixture(scope="module", autouse=True)
def on_path():
    sys.path.append(BENCHES)  # last: names there are those of common modules
    yield
    sys.path.remove(BENCHES)


@pytest.fixture
def bars():
    from gpu import bars

    return bars


@pytest.fixture
def main():
    import importlib.util

    spec = importlib.util.spec_from_file_location("bench_gpu", f"{BENCHES}/gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def product(m, us, *, format="mxint8", n=8192, k=8192, lin_us=100.0, **changes):
    return {"kernel": "packed_linear", "format": format, "m": m, "n": n, "k": k, "weights": n * k, "us": us,
            "weight_bytes": n * k, "over_lin": lin_us / us, "of_read": 0.9, "correct": True, **changes}  # fmt: skip


def verdict(bars, figures, words):
    found = [row for row in bars.judge(figures) if words in row["bar"]]
    assert len(found) == 1
    return found[0]


def test_without_a_figure_nothing_is_judged(bars):
    judged = bars.judge([])
    assert len(judged) == len(bars.BARS)
    assert {row["verdict"] for row in judged} == {"not measured"}
    assert all(row["worst"] is None and row["stretch_reached"] is None for row in judged)


def test_a_bar_is_as_good_as_its_worst_figure(bars):
    words = "W8A16 linear, M <= 8, from 8192^2 up"
    passed = verdict(bars, [product(1, 50.0), product(8, 57.0)], words)
    assert (passed["verdict"], passed["figures"], passed["worst"]) == ("pass", 2, pytest.approx(100 / 57))
    assert passed["stretch_reached"] is False
    assert verdict(bars, [product(1, 50.0)], words)["stretch_reached"] is True
    missed = verdict(bars, [product(1, 50.0), product(8, 58.0)], words)
    assert missed["verdict"] == "miss" and missed["misses"] == ["packed_linear format=mxint8 m=8 n=8192 k=8192"]
    # Other widths, sizes and numbers of rows are other bars'.
    others = [product(1, 90.0, format="int4:g32"), product(16, 90.0), product(1, 90.0, n=4096)]
    assert verdict(bars, others, words)["verdict"] == "not measured"


@pytest.mark.parametrize("ratio", [float("nan"), None])
def test_a_ratio_that_is_none_keeps_no_promise(bars, ratio):
    figures = [{"kernel": "host", "op": "decode", "of_add": ratio, "correct": True}]
    assert verdict(bars, figures, "host cost")["verdict"] == "miss"


def test_a_fast_kernel_that_is_wrong_misses(bars):
    found = verdict(bars, [product(1, 1.0, correct=False)], "from 8192^2 up, over LIN >= 1.75")
    assert found["verdict"] == "miss" and found["misses"][0].endswith("(wrong)")


def test_times_have_an_upper_bound(bars):
    for value, wanted in ((1.9, "pass"), (2.1, "miss")):
        figures = [{"kernel": "host", "op": "decode", "of_add": value, "correct": True}]
        assert verdict(bars, figures, "host cost")["verdict"] == wanted


def test_rows_are_held_against_one_row(bars):
    figures = [product(1, 20.0), product(64, 26.0), product(64, 99.0, format="nf4"), product(16, 24.0)]
    bars.add_one_row(figures)
    assert figures[1]["of_one_row"] == pytest.approx(1.3) and "of_one_row" not in figures[2]
    found = verdict(bars, figures, "time over its M = 1")
    assert (found["verdict"], found["worst"], found["figures"]) == ("miss", pytest.approx(1.3), 2)


def test_ratios_to_bandwidth(bars):
    # 203 MB in 73.7 us at 3 TB/s: the example of 92 %.
    assert bars.of_rate(203_423_744, 73.7, 3.0e12) == pytest.approx(0.92, abs=1e-3)
    # 3 MB at 3 TB/s take 1 us; 1.15 us and 3 us for the launch are allowed.
    assert bars.of_allowance(3_000_000, 4.15, 3.0e12) == pytest.approx(1.0)


def test_a_small_decode_is_judged_by_its_allowance(bars):
    def decode(nbytes, **ratios):
        return {"kernel": "decode", "family": "mxint8", "input_bytes": nbytes, "correct": True, **ratios}

    figures = [decode(10**7, of_copy=0.3, of_allowance=0.99), decode(10**8, of_copy=0.95, of_allowance=2.0)]
    assert verdict(bars, figures, "input >= 64 MB, blocks")["worst"] == 0.95
    assert verdict(bars, figures, "input 1..64 MB")["verdict"] == "pass"
    assert verdict(bars, figures, "against mase-cuda, input")["verdict"] == "not measured"


def test_verdicts_are_a_table_and_latencies_a_picture(bars, tmp_path):
    from gpu import report

    shown = plain_text(report.verdicts(bars.judge([product(m, 90.0) for m in (1, 2, 4, 8)])))
    row = next(line for line in shown.splitlines() if "from 8192^2 up, over LIN >= 1.75" in line)
    assert row.startswith("miss") and "and 1 more" in row
    assert not report.draw([], "a GPU", tmp_path / "none.png")
    pytest.importorskip("matplotlib")
    figures = [{"kernel": "latency", "elements": 4**n, "cpu_us": 4.0**n, "eager_us": 9.0, "us": 2.0} for n in (5, 6)]
    assert report.draw(figures, "a GPU", tmp_path / "plot.png") and (tmp_path / "plot.png").stat().st_size > 1000


def test_without_a_gpu_the_bench_says_so(main, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--json", "nowhere.json"])
    assert main.main() == 3
    assert "no GPU to measure: torch finds no GPU here" in capsys.readouterr().err
    assert not Path("nowhere.json").exists()


def test_unknown_groups_are_refused(main, capsys):
    assert main.arguments(["--only", "linear,decode"]).only == ("decode", "linear")
    with pytest.raises(SystemExit):
        main.arguments(["--only", "attention"])
    assert "unknown group 'attention'; accepted are yardsticks, capture" in capsys.readouterr().err


def test_a_job_that_fails_stops_no_other(main):
    def broken():
        raise RuntimeError("no memory\nat all")

    def half():
        yield {"kernel": "host", "op": "one", "correct": True}
        raise ValueError("late")

    figures, without = [], []
    jobs = iter([broken, half, lambda: {"kernel": "host", "op": "two", "correct": True}])
    main.collect(jobs, figures, without, lambda: None)
    assert [figure["op"] for figure in figures] == ["one", "two"]
    assert without == ["RuntimeError: no memory", "ValueError: late"]


@pytest.fixture
def rehearsed(monkeypatch):
    """Every part of the bench with the CPU in the GPU's place: all calls are made, and every time is 10 us."""
    pytest.importorskip("octavo.ops.gemm")
    from gpu import calls, codecs, generation, models, products, timing

    def microseconds(made, replays=0):
        for call in made:
            call()
        return 10.0

    class Graph:
        """Replays write where the first run wrote."""

        def __init__(self, made):
            self.calls, self.outs = made, [call() for call in made]

        def replay(self):
            for call, out in zip(self.calls, self.outs, strict=True):
                out.copy_(call())

    for module in (calls, codecs, generation, models, products, timing):
        for name, value in (
            ("DEVICE", "cpu"), ("microseconds", microseconds), ("rotation", lambda nbytes: 2), ("captured", Graph),
            ("host_microseconds", lambda call: call() is not None and 10.0),
        ):  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 1000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    monkeypatch.setattr(codecs, "SIZES", (1024,))
    monkeypatch.setattr(codecs, "LARGE", 8192)
    monkeypatch.setattr(codecs, "COLUMNS", 1024)
    monkeypatch.setattr(calls, "LATENCIES", (1024,))
    monkeypatch.setattr(generation, "BATCHES", (1, 5))
    monkeypatch.setattr(products, "SIDES", (64,))
    monkeypatch.setattr(products, "has_own_kernels", lambda: True)
    monkeypatch.setattr(products, "ODD", ((1, 64, 64), (17, 33, 144)))
    monkeypatch.setattr(products, "SHAPES", ((64, 256),))
    monkeypatch.setattr(products, "ROWS", (1, 16))
    monkeypatch.setattr(products, "kernel", lambda *given, device: "rehearsed")


@pytest.mark.parametrize(
    "group, kernels",
    [
        ("capture", {"capture", "host", "latency"}),
        ("decode", {"decode", "decode all pairs", "encode"}),
        (
            "int8",
            {"int8_gemm", "int8_gemm plain kernel", "int8_gemm requantized", "int8_gemm odd", "int8_gemm refusals"},
        ),
        ("linear", {"packed_linear"}),
        ("seq2seq", {"seq2seq graph"}),  # our own kernels need a GPU
        ("memory", {"memory"}),
    ],
)
def test_a_rehearsal_finds_every_kernel_right(main, bars, rehearsed, group, kernels):
    figures, without = [], []
    yardsticks = {"copy_bytes_per_s": 3e12, "read_bytes_per_s": 3e12}
    main.collect(main.work(group, yardsticks, None), figures, without, lambda: None)
    assert without == []
    assert {figure["kernel"] for figure in figures} == kernels
    wrong = {bars.label(figure) for figure in figures if not figure["correct"]}
    assert wrong <= {"int8_gemm refusals case=device"}  # here there is but one
    bars.add_one_row(figures)
    assert len({row["bar"] for row in bars.judge(figures)}) == len(bars.BARS)
    json.dumps(figures)


def test_a_run_writes_figures_verdicts_and_the_picture(main, rehearsed, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(main, "machine", lambda: {"commit": "0"})
    monkeypatch.setattr(main, "yardsticks", lambda: {"copy_bytes_per_s": 3e12, "read_bytes_per_s": 2.5e12})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    told = tmp_path / "gpu.json"
    assert main.run(main.arguments(["--json", str(told), "--only", "capture,linear"])) == 0
    found = json.loads(told.read_text())
    assert found["without"] == [] and {row["verdict"] for row in found["bars"]} == {"pass", "not measured"}
    shown = capsys.readouterr().out
    assert ", COPY 3.00 TB/s, READ 2.50 TB/s" in shown and "host cost of an op, over torch.add <= 2" in shown
    pytest.importorskip("matplotlib")
    assert told.with_suffix(".png").exists()
