"""Training and its speed from the command line, with runs that last seconds."""

import json
import lzma
import resource
import signal
import subprocess
import sys

import pytest
from helpers.quick import spread
from octavo.lab.polynomials import train_configs, training_run
from octavo.lab.polynomials.line_task import PolynomialTask
from octavo.storage.locks import FolderLock

TINY = ("--steps", "4", "--batch", "8", "--accumulation", "1", "--precision", "fp32", "--device", "cpu")


@pytest.fixture
def few_lines(monkeypatch):
    """Hold out few lines: the tests are about the command, not about the model."""
    for module in (train_configs, training_run):
        monkeypatch.setattr(module, "TEST", 20)
        monkeypatch.setattr(module, "VALIDATION", 20)
    monkeypatch.setattr(training_run, "CALIBRATION", 16)


@pytest.mark.parametrize("arch", spread(["hybrid", "lstm", "transformer"]))
def test_a_run_leaves_a_model_a_report_and_metrics(octavo, tmp_path, few_lines, arch):
    out = tmp_path / "run"
    report = json.loads(octavo("train", "polynomials", "--arch", arch, *TINY, "-o", out, "--json").stdout)
    assert report["steps"] == 4 and report["reason"] == "finished"
    assert report["test"]["lines"] == 20
    assert json.loads((out / "report.json").read_text()) == report
    assert json.loads((out / "model" / "config.json").read_text())["architecture"] == arch
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(octavo, tmp_path, few_lines):
    """The same command on a finished run tests and exports what is there, bit for bit."""
    args = ("train", "polynomials", *TINY, "-o", tmp_path / "run")
    octavo(*args)
    weights = (tmp_path / "run" / "model" / "model.octavo.safetensors").read_bytes()
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    octavo(*args)
    assert (tmp_path / "run" / "model" / "model.octavo.safetensors").read_bytes() == weights
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == metrics


def test_what_is_refused_writes_nothing(octavo, tmp_path):
    out = ("-o", tmp_path / "run")
    assert "unknown architecture 'gru'" in octavo("train", "polynomials", "--arch", "gru", *out, code=2).output
    assert "steps is 0" in octavo("train", "polynomials", "--steps", "0", *out, code=2).output
    assert "did you mean" in octavo("train", "polynomials", "--format", "mxintb8", *out, code=2).output
    assert "--ddp is 0" in octavo("train", "polynomials", "--ddp", "0", *out, code=2).output
    assert "unknown architecture" in octavo("bench", "polynomials", "--arch", "gru", *out, code=2).output
    assert "processes is 0" in octavo("bench", "polynomials", "--processes", "0", *out, code=2).output
    assert "precision is 'int8'" in octavo("bench", "polynomials", "--precision", "int8", *out, code=2).output
    assert not list(tmp_path.iterdir())


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Lines of one's own, which are no polynomials, and the folder of the run."""
    monkeypatch.setattr(training_run, "CALIBRATION", 16)
    file = tmp_path / "lines.txt.xz"
    rows = [f"{number}*{letter}={number}{letter}" for number in range(30) for letter in "xyz"]
    file.write_bytes(lzma.compress("\n".join(rows).encode()))
    return file, tmp_path / "run"


def test_own_lines_are_trained_on_tested_and_evaluated(octavo, own):
    file, out = own
    args = ("train", "polynomials", *TINY[2:], "--data", file, "--validation", "5", "--test", "10", "-o", out)
    result = octavo(*args, "--epochs", "0.5", "--json")
    report = json.loads(result.stdout)
    assert "75 to train on, 5 to watch, 10 to test with" in result.stderr
    assert report["steps"] == 5  # of 8 lines: half of 75, rounded up
    assert report["test"]["lines"] == 10 and report["test"]["by_kind"] == {"other": {"exact": 0, "lines": 10}}
    made = json.loads((out / "model" / "accuracy.json").read_text())
    assert f"--data {file} --validation 5 --test 10" in made["command"]
    found = json.loads(octavo("eval", "polynomials", "--data", file, "--model", out / "model", "--json").stdout)
    assert found["lines"] == 90


def test_held_out_lines_may_have_files_of_their_own(octavo, own, tmp_path):
    file, out = own
    watched = tmp_path / "watched.txt"
    watched.write_text("1*x=1x\n2*y=2y\n5*k=5k\n")
    args = ("train", "polynomials", *TINY, "--data", file, "--validation", watched, "--test", "0", "-o", out)
    result = octavo(*args)
    assert "88 to train on, 3 to watch, 0 to test with" in result.stderr
    assert "not measured: there are no test lines" in result.stdout


def test_a_run_is_evaluated_on_a_file_and_its_loss_is_drawn(octavo, own, few_lines, tmp_path):
    pytest.importorskip("matplotlib")
    file, out = own
    (tmp_path / "bad.txt").write_text("1*x\n")
    (tmp_path / "empty.txt").write_text("")
    args = ("train", "polynomials", "--arch", "lstm", *TINY, "-o", out)
    for name, reason in (("bad.txt", "line 1"), ("empty.txt", "no line to evaluate on"), ("absent", "no such file")):
        assert reason in octavo(*args, "--evaluate", tmp_path / name, code=2).output
    assert not out.exists()
    shown = octavo(*args, "--evaluate", file).stdout
    assert f"of 90 lines of {file}" in " ".join(shown.split()) and str(out / "loss.png") in shown
    assert {"loss.png", "loss.svg"} <= {path.name for path in out.iterdir()}
    report = json.loads((out / "report.json").read_text())
    assert report["evaluated"]["lines"] == 90 and report["evaluated"]["file"] == str(file)
    assert report["test"]["lines"] == 20, "the test lines stay"


def test_the_picture_has_the_losses_and_evaluations_of_the_log():
    pytest.importorskip("matplotlib")
    from octavo.lab.polynomials.loss_picture import loss_figure

    lines = [{"kind": "train", "step": step, "loss": loss} for step, loss in ((50, 2.0), (100, None), (150, 0.5))]
    lines.append({"kind": "evaluation", "step": 150, "metrics": {"exact": 0.25}})
    panels = loss_figure(lines, title="run").axes
    assert [line.get_xydata().tolist() for panel in panels for line in panel.lines] == [
        [[50, 2.0], [150, 0.5]], [[150, 25.0]],
    ]  # fmt: skip
    assert len(loss_figure(lines[:3], title="run").axes) == 1


@pytest.mark.slow
def test_the_preset_of_the_report_trains_on_four_fifths_of_distinct_lines(octavo, tmp_path, monkeypatch):
    assert (train_configs.REPORT_TRAIN, train_configs.REPORT_VALIDATION) == (800_000, 200_000)
    monkeypatch.setattr(train_configs, "REPORT_TRAIN", 80)
    monkeypatch.setattr(train_configs, "REPORT_VALIDATION", 20)
    monkeypatch.setattr(train_configs, "REPORT_EPOCHS", 2)
    args = ("train", "polynomials", "--preset", "report", *TINY[4:], "-o", tmp_path / "run")
    result = octavo(*args, "--json")
    report = json.loads(result.stdout)
    assert "distinct lines by the law: 80 to train on, 20 to watch, 0 to test with" in result.stderr
    assert report["steps"] == 10, "two passes in batches of 16"
    assert report["validation"]["lines"] == 20 and "test" not in report
    made = json.loads((tmp_path / "run" / "model" / "accuracy.json").read_text())
    assert "--arch lstm" in made["command"] and "--seed 42" in made["command"] and "--preset report" in made["command"]
    assert made["seed"] == 42
    rows = [f"{number}*x={number}x" for number in range(25)]
    (tmp_path / "own.txt").write_text("\n".join(rows))
    other = (*args[:-1], tmp_path / "own", "--data", tmp_path / "own.txt", "--steps", 2, "--arch", "transformer")
    assert "5 to train on, 20 to watch" in octavo(*other).stderr
    assert "accepted is report" in octavo("train", "polynomials", "--preset", "author", code=2).output


def test_a_million_distinct_lines_are_divided():
    from octavo.lab.polynomials.data import million_lines

    lines = million_lines(7, train=80, validation=20)
    assert (len(lines.train), len(lines.validation), lines.test) == (80, 20, [])
    assert len({*lines.train, *lines.validation}) == 100
    assert (
        lines.train
        == million_lines(7, train=80, validation=20).train
        != million_lines(8, train=80, validation=20).train
    )


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_lines(octavo, own):
    file, out = own
    args = ("train", "polynomials", *TINY, "--data", file, "-o", out)
    octavo(*args)
    weights = (out / "last.safetensors").read_bytes()
    octavo(*args)
    assert (out / "last.safetensors").read_bytes() == weights
    rows = lzma.decompress(file.read_bytes())
    file.write_bytes(rows.replace(b"7*x=7x", b"7*x=8x"))
    assert "of a run on other data" in octavo(*args, code=2).stderr
    file.write_bytes(rows)  # the same lines, not compressed
    octavo(*args)
    assert "of a run on other data" in octavo(*args, "--validation", "6", code=2).stderr
    assert "of a run on other data" in octavo("train", "polynomials", *TINY, "-o", out, code=2).stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--epochs", "3"], "--epochs is 3.0; it needs --data FILE"),
        (["--validation", "3"], "--validation is 3; it needs --data FILE"),
        (["--test", "3"], "--test is 3; it needs --data FILE"),
        (["--data", "{file}", "--epochs", "3", "--steps", "4"], "--epochs is 3 and --steps 4; give one of them"),
        (["--data", "{file}", "--epochs", "0"], "--epochs is 0.0; accepted are numbers above 0"),
        (["--data", "{file}", "--epochs", "inf"], "--epochs is inf"),
        (["--data", "{file}", "--validation", "86"], "no line is left to train on"),
        (["--data", "{file}", "--validation", "91"], "there are 90 distinct lines"),
        (["--data", "{file}", "--validation", "0"], "no line is left to validate with"),
        (["--data", "{file}", "--test", "absent"], "absent: no such file"),
        (["--data", "absent"], "absent: no such file"),
        (["--data", "/dev/null"], "there are 0 distinct lines"),
        (["--data", "/dev/null", "--ddp", "2"], "--data is /dev/null, no regular file"),
    ],
)
def test_own_lines_that_cannot_be_meant_are_refused(octavo, own, options, reason):
    file, out = own
    result = octavo("train", "polynomials", "-o", out, *(text.format(file=file) for text in options), code=2)
    assert reason in result.stderr
    assert not out.exists()


@pytest.mark.parametrize("number, code", spread([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 2))
def test_an_interrupted_run_has_the_exit_code_of_its_signal_and_goes_on(
    octavo, tmp_path, few_lines, monkeypatch, number, code
):
    args = ("train", "polynomials", "--arch", "lstm", *TINY, "-o")
    batch, told = PolynomialTask.batch, []

    def signalled(self, step, *rest):
        if step == 2 and not told:
            told.append(signal.raise_signal(number))
        return batch(self, step, *rest)

    octavo(*args, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(PolynomialTask, "batch", signalled)
        shown = octavo(*args, tmp_path / "run", code=code).output.splitlines()
    assert shown[-1].startswith("interrupted after step") and shown[-1].endswith(f"goes on from {tmp_path / 'run'}")
    assert not (tmp_path / "run" / "model").exists()
    octavo(*args, tmp_path / "run")
    weights = [(tmp_path / name / "model" / "model.octavo.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]


def test_a_signal_that_comes_after_the_last_step_ends_the_command(octavo, tmp_path, few_lines, monkeypatch, interrupts):
    evaluate, told = PolynomialTask.evaluate, []

    def signalled(self, *given):
        if not told:
            told.append(signal.raise_signal(signal.SIGINT))
        return evaluate(self, *given)

    args = ("train", "polynomials", "--arch", "lstm", *TINY, "-o", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(PolynomialTask, "evaluate", signalled)
        octavo(*args, code=130)
    assert (tmp_path / "run" / "last.safetensors").exists() and not (tmp_path / "run" / "model").exists()
    octavo(*args)
    assert (tmp_path / "run" / "model").exists()


def test_a_full_disk_is_told_in_one_line(octavo, tmp_path, few_lines):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        shown = octavo("train", "polynomials", "--arch", "lstm", *TINY, "-o", tmp_path / "run", code=2).output
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert shown.splitlines()[-1] == f"error: {tmp_path}/run/best.safetensors: file too large"


HOLDING = (
    "import sys; from octavo.storage.locks import FolderLock\nwith FolderLock(sys.argv[1]): print(flush=True); input()"
)


@pytest.mark.parametrize("options", [(), pytest.param(("--ddp", "2"), marks=pytest.mark.slow)])
def test_a_second_run_in_a_folder_is_refused(octavo, tmp_path, few_lines, options):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    holder.stdout.readline()
    before = sorted((tmp_path / "run").iterdir())
    args = ("train", "polynomials", "--arch", "lstm", *TINY, *options, "-o", tmp_path / "run")
    shown = octavo(*args, code=2).output.splitlines()
    assert len(shown) == 1
    assert f"{tmp_path / 'run'}: another process is at work on this run (process {holder.pid} on" in shown[0]
    assert sorted((tmp_path / "run").iterdir()) == before
    holder.communicate(b"\n")
    if not options:
        octavo(*args)
        octavo("inspect", tmp_path / "run" / "last.safetensors")


def test_what_only_reads_is_not_kept_out(octavo, tmp_path, few_lines):
    octavo("train", "polynomials", "--arch", "lstm", *TINY, "-o", tmp_path / "run")
    with FolderLock(tmp_path / "run"):
        octavo("inspect", tmp_path / "run" / "last.safetensors")
        octavo("expand", "--model", tmp_path / "run" / "model", "(x+1)*(x-2)")
        octavo("recipe", "mxint8", "--model", tmp_path / "run" / "model")


def test_the_table_has_overall_rates_and_per_cent():
    from octavo.lab.polynomials.speed import Speed, SpeedConfig
    from octavo.lab.polynomials.speed_table import SpeedReport

    config = SpeedConfig(batch=10, steps=5, val_steps=2, epoch=100, val_epoch=20)
    where = {"device": "cpu", "gpu": None, "machine": "x86_64", "threads": 1}
    report = SpeedReport(
        {"baseline": Speed(config, 2.0, 1.0, 400.0, 100.0, where), "DDP": Speed(config, 5.0, 4.0, 1000.0, 400.0, where)}
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.markdown().splitlines()[:4]]
    table = [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    assert [row["s per epoch"] for row in table] == ["7", "2"] and [row["speed-up %"] for row in table] == [
        "+0.0",
        "+180.0",
    ]
    assert table[0]["overall steps/s"] == "1.71" and table[0]["overall tokens/s"] == f"{(400 * 5 + 100 * 2) / 7:,.0f}"
    assert report.as_dict()["configurations"]["DDP"]["speed_up_percent"] == pytest.approx(180)
    assert "at the measured speeds" in "".join(report.notes()) and not config.is_whole_epoch
    whole = config.whole_epoch()
    assert (whole.steps, whole.val_steps, whole.is_whole_epoch) == (10, 2, True)


@pytest.mark.slow
def test_one_command_gives_the_whole_speed_table(octavo, tmp_path):
    """Four configurations in processes of their own: baseline, DDP, cache, both."""
    args = (
        "--arch",
        "lstm",
        "--batch",
        "4",
        "--whole-epoch",
        "--epoch",
        "4",
        "--val-epoch",
        "4",
        "-o",
        tmp_path / "speed",
    )
    report = json.loads(octavo("bench", "polynomials", *args, "--json").stdout)
    assert list(report["configurations"]) == ["baseline", "DDP", "KV cache", "DDP + KV cache"]
    assert report["configurations"]["baseline"]["speed_up"] == 1
    shown = (tmp_path / "speed" / "speed.md").read_text()
    for entry in report["configurations"].values():
        assert entry["train_steps_per_s"] > 0 and entry["val_tokens_per_s"] > 0
        assert entry["epoch_s"] == pytest.approx(1 / entry["train_steps_per_s"] + 1 / entry["val_steps_per_s"])
    assert "measured whole" in shown and "not padding" in shown and "| DDP + KV cache | 2 | yes | yes |" in shown
