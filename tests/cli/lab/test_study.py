"""Studies from the command line, on the shipped model and on one that is trained in a second."""

import functools
import importlib.util
import json

import pytest
import torch
from octavo.compress import readers, sentiment
from octavo.lab.classifiers import training_run
from octavo.lab.studies import subject_catalogue
from octavo.lab.studies.measured_points import Laboratory
from octavo.storage.locks import FolderLock

TRAIN, TEST = readers.CORPORA["sst2"].files.values()
FAST = ("--families", "int", "--widths", "4", "--seeds", "1")


@pytest.fixture
def small(monkeypatch):
    """A generated task of few texts, and a training of few updates."""
    load = subject_catalogue.signs.load
    monkeypatch.setattr(subject_catalogue.signs, "load", lambda train, **_: load(64, validation=16, test=32))
    monkeypatch.setattr(sentiment, "load", functools.partial(sentiment.load, validation=16))
    monkeypatch.setitem(
        training_run.HYPERPARAMETERS,
        "tiny",
        training_run.Hyperparameters(epochs=3, batch_size=16, learning_rate=1e-3, precision="fp32"),
    )


@pytest.fixture
def data(tmp_path):
    """A folder of sentences."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count in ((TRAIN, 100), (TEST, 30)):
        lines = [
            f"{number % 2}\t{name} {'good' if number % 2 else 'bad'} film number {number}" for number in range(count)
        ]
        (folder / name).write_text("label\tsentence\n" + "\n".join(lines) + "\n")
    return folder


def test_one_command_without_arguments_gives_table_picture_and_journal(octavo, tmp_path, small):
    out = tmp_path / "study"
    shown = octavo("study", "ptq-qat", *FAST, "--baseline", "mase", "-o", out).stdout
    assert [line.split()[:2] for line in shown.splitlines()[2:5]] == [["fp32", "32"], ["int", "4"], ["mase", "4"]]
    assert "32 test texts; they alone give differences a standard error" in shown
    names = {path.name for path in out.iterdir()}
    assert {"study.jsonl", "results.csv", "results.json", "training", "runs"} <= names
    assert len((out / "study.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    "end, code",
    [
        pytest.param(KeyboardInterrupt(), 130, id="SIGINT"),
        pytest.param(SystemExit(143), 143, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_study_has_the_exit_code_of_its_signal_and_goes_on(
    octavo, tmp_path, small, monkeypatch, end, code
):
    command = ("study", "ptq-qat", *FAST, "--no-qat", "-o", tmp_path / "study")

    def stop(self, point):
        raise end

    with monkeypatch.context() as patch:
        patch.setattr(Laboratory, "measure", stop)
        shown = octavo(*command, code=code).stderr
    assert shown.splitlines()[-1] == f"interrupted: the same command goes on from {tmp_path / 'study'}"
    octavo(*command)


def test_a_second_study_in_a_folder_is_refused(octavo, tmp_path, small):
    with FolderLock(tmp_path / "study"):
        shown = octavo("study", "ptq-qat", *FAST, "-o", tmp_path / "study", code=2).stderr
    assert "another process is at work on this study" in shown and "give another --out" in shown


@pytest.mark.slow
def test_the_same_command_measures_nothing_twice(octavo, tmp_path, small):
    command = ("study", "ptq-qat", *FAST, "--no-qat", "-o", tmp_path / "study")
    first = octavo(*command).stdout
    journal = (tmp_path / "study" / "study.jsonl").read_text()
    again = octavo(*command)
    assert again.stdout == first and again.stderr.count("(found)") == 2
    assert (tmp_path / "study" / "study.jsonl").read_text() == journal
    octavo(*command, "--widths", "4,8")
    assert (tmp_path / "study" / "study.jsonl").read_text().startswith(journal)


@pytest.mark.slow
def test_formats_are_compared_on_the_shipped_model(octavo, tmp_path):
    out = tmp_path / "study"
    given = (
        "--model",
        "polynomials",
        "--quick",
        "--families",
        "mxint",
        "--modes",
        "weights",
        "--widths",
        "8",
        "--json",
    )
    found = json.loads(octavo("study", "formats", *given, "-o", out).stdout)
    assert found["metric"] == "exact match" and found["subject"]["model"] == "polynomials"
    base, mxint = found["rows"]
    assert (mxint["family"], mxint["weight_bits"], mxint["texts"]) == ("mxint", 8.25, 200)
    assert base["accuracy"] > 0.98 and mxint["difference_points"] > -2
    written = json.loads((out / "results.json").read_text())
    assert written["rows"] == found["rows"]
    assert written["machine"]["threads"] == torch.get_num_threads()  # another count trains other weights
    assert written["machine"]["torch"] == torch.__version__


@pytest.mark.slow
def test_memory_is_counted_and_measured(octavo, tmp_path, small):
    shown = octavo(
        "study", "memory", "--recipes", "mxint8 | type:Linear nf4", "--quick", "-o", tmp_path / "study"
    ).stdout
    assert shown.splitlines()[0].split() == [
        "MB",
        "(1e6",
        "bytes)",
        "fp32",
        "mxint8",
        "of",
        "fp32",
        "type:Linear",
        "nf4",
        "of",
        "fp32",
    ]
    assert "mxint8: 32 of 32 answers as simulated" in shown
    assert "all weights, counted" in shown and "peak, measured" in shown


def test_without_matplotlib_there_is_a_table_and_advice(octavo, tmp_path, small, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    ran = octavo("study", "ptq-qat", *FAST, "--no-qat", "-o", tmp_path / "study")
    assert "pip install matplotlib" in ran.stderr
    assert (tmp_path / "study" / "results.csv").exists() and not list((tmp_path / "study").glob("*.png"))


@pytest.mark.slow
def test_sentences_are_trained_on_and_studied(octavo, tmp_path, data, small):
    run_folder, out = tmp_path / "run", tmp_path / "study"
    report = json.loads(octavo("train", "sst2", "--data", data, "--steps", "3", "-o", run_folder, "--json").stdout)
    assert report["steps"] == 3 and report["test"]["texts"] == 30
    given = ("--data", data, "--trained", run_folder, "--no-qat", "-o", out)
    found = json.loads(octavo("study", "ptq-qat", *FAST, *given, "--json").stdout)
    assert found["rows"][0]["accuracy"] == report["test"]["accuracy"]
    assert not (out / "training").exists()
    lines = (data / TRAIN).read_text().splitlines()
    (data / TRAIN).write_text("\n".join(lines[:-1]) + "\n")
    assert "trained on other texts" in octavo("study", "ptq-qat", *FAST, *given, code=2).output


@pytest.mark.slow
def test_pruned_models_are_compared_with_the_dense_one(octavo, tmp_path, small):
    out = tmp_path / "study"
    command = ("study", "prune", "--sparsities", "0.5", "--scopes", "local", "--seeds", "1", "--no-tune", "-o", out)
    first = octavo(*command)
    assert [line.split()[0] for line in first.stdout.splitlines()[2:5]] == ["dense", "random", "magnitude"]
    assert len((out / "study.jsonl").read_text().splitlines()) == 4  # three points, and their costs
    assert octavo(*command).stdout == first.stdout


@pytest.mark.slow
def test_sensitivity_is_measured_once_and_drawn(octavo, tmp_path, small):
    out = tmp_path / "study"
    command = ("study", "sensitivity", "--formats", "nf4,mxint8", "--samples", "8", "-o", out)
    first = octavo(*command)
    assert "embeddings.word" in first.stdout and "rank correlation" in first.stdout
    found = json.loads((out / "results.json").read_text())["rows"]
    assert len((out / "results.csv").read_text().splitlines()) == 1 + len(found)
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert (out / "sensitivity.png").exists() is drawn and ("pip install matplotlib" in first.stderr) is not drawn
    assert octavo(*command).stdout == first.stdout


@pytest.mark.slow
def test_adapters_are_compared_with_full_fine_tuning(octavo, tmp_path, small):
    """A base that knows one generated task learns another; the same command measures nothing twice."""
    out = tmp_path / "study"
    command = ("study", "lora", "--ranks", "2", "--bases", "mxint8", "--seeds", "1", "--no-peft", "-o", out)
    first = octavo(*command)
    assert [line.split()[:2] for line in first.stdout.splitlines()[2:5]] == [
        ["full", "fp32"], ["lora", "fp32"], ["lora", "mxint8"],
    ]  # fmt: skip
    assert len((out / "study.jsonl").read_text().splitlines()) == 4  # three points, and their costs
    assert octavo(*command).stdout == first.stdout


@pytest.mark.slow
def test_reviews_are_trained_on_and_studied_at_their_length(octavo, tmp_path, small):
    """IMDb, with texts held out; the study takes length and held-out texts from the run."""
    folder, run_folder, out = tmp_path / "data", tmp_path / "run", tmp_path / "study"
    folder.mkdir()
    for name, count in (("imdb_train.jsonl", 100), ("imdb_test.jsonl", 4)):
        lines = [json.dumps({"label": n % 2, "text": f"{name} {n} " + "word " * 90}) for n in range(count)]
        (folder / name).write_text("\n".join(lines))
    corpus = ("--data", folder, "--corpus", "imdb")
    trained = ("train", "classifier", *corpus, "--length", "96", "--held-out", "20", "--steps", "2", "-o", run_folder)
    report = json.loads(octavo(*trained, "--json").stdout)
    assert (report["length"], report["held_out"], report["test"]["texts"]) == (96, True, 20)
    study = ("study", "ptq-qat", *FAST, *corpus, "--trained", run_folder, "--no-qat", "-o", out)
    found = json.loads(octavo(*study, "--json").stdout)
    assert found["rows"][0]["accuracy"] == report["test"]["accuracy"]
    assert (found["held_out"], found["subject"]["length"]) == (True, 96)
    assert "training texts that were held out" in octavo(*study).stdout
    assert "reads 96 tokens; give --length 96" in octavo(*study, "--length", "64", code=2).output
    assert "trained on other texts" in octavo(*study, "--held-out", "30", code=2).output


@pytest.mark.parametrize(
    "given, told",
    [
        (("ptq-qat", "--corpus", "imdb"), "--corpus, --test and --held-out are of texts in files: give --data FOLDER"),
        (("ptq-qat", "--length", "600"), "length is 600; accepted are 1 to 512 tokens"),
        (("ptq-qat", "--data", "nowhere", "--corpus", "yelp"), "unknown corpus 'yelp'; accepted are sst2, imdb"),
        (("ptq-qat", "--model", "bert"), "unknown model 'bert'; accepted are tiny, minilm, polynomials"),
        (("ptq-qat", "--model", "minilm"), "give --data FOLDER with sst2_train.tsv and sst2_dev.tsv"),
        (("ptq-qat", "--families", "int9"), "unknown family 'int9'"),
        (("ptq-qat", "--widths", "4,wide"), "--widths: 'wide' is no width"),
        (("ptq-qat", "--widths", ""), "--widths is empty"),
        (("ptq-qat", "--families", ","), "--families is empty"),
        (("ptq-qat", "--data", "missing.tsv"), "missing.tsv: no such file"),
        (("nas", "--texts", "0"), "--texts is 0; accepted are whole numbers of at least 64"),
        (("ptq-qat", "--widths", "1"), "width 1; accepted are 2 to 32"),
        (("ptq-qat", "--baseline", "torchao"), "unknown baseline 'torchao'; accepted are mase"),
        (("ptq-qat", "--qat-share", "0"), "--qat-share is 0"),
        (("ptq-qat", "--seeds", "0"), "one of each"),
        (("ptq-qat", "--model", "polynomials", "--data", "here"), "leave out --data and --trained"),
        (("ptq-qat", "--trained", "nowhere"), "nowhere: no trained classifier here"),
        (("ptq-qat", "--data", "nowhere"), "neither sst2_train.tsv nor sst2_train.tsv.xz"),
        (("prune", "--sparsities", "half"), "--sparsities: 'half' is no share"),
        (("prune", "--model", "polynomials"), "unknown model 'polynomials'; accepted are tiny, minilm and the folder"),
        (("prune", "--baseline", "torch"), "unknown baseline 'torch'; accepted are mase"),
        (("sensitivity", "--formats", "nf4,int99"), "int99"),
        (("sensitivity", "--roles", "bias"), "unknown role 'bias'; accepted are weight and input"),
        (("sensitivity", "--samples", "0"), "0 samples"),
        (
            ("combined", "--model", "polynomials"),
            "unknown model 'polynomials'; accepted are tiny, minilm and the folder",
        ),
        (("combined", "--budget", "0"), "a budget of 0.0 bits"),
        (("combined", "--sparsity", "1"), "sparsity 1"),
        (("combined", "--formats", "int99"), "int99"),
        (("combined", "--baseline", "torch"), "unknown baseline 'torch'; accepted are mase"),
        (("lora", "--data", "here"), "--data is for --model minilm"),
        (("lora", "--model", "polynomials"), "unknown model 'polynomials'; accepted are tiny, minilm and the folder"),
        (("lora", "--ranks", "0"), "ranks (0,)"),
        (("lora", "--bases", "int99"), "int99"),
        (("lora", "--epochs", "0"), "0.0 epochs"),
        (("formats", "--families", "posit"), "unknown family 'posit'"),
        (("formats", "--modes", "biases"), "unknown mode 'biases'"),
        (("memory", "--recipes", "|"), "0 recipes"),
        (("memory", "--recipes", "mxint8 | int99"), "int99"),
        (("compile", "--recipe", "int99"), "int99"),
        (("compile", "--backend", "llvm"), "unknown backend 'llvm'; accepted are inductor, aot_eager, eager"),
        (("compile", "--batch", "0"), "--batch is 0"),
        (("compile", "--width", "100"), "--width is 100; accepted are multiples of 64"),
        (("compile", "--calls", "5,x"), "--calls: 'x' is no number of calls"),
        (("compile", "--calls", "0"), "--calls has 0"),
        (("compile", "--device", "tpu"), "device is 'tpu'; accepted are 'cpu', 'cuda' and 'cuda:N'"),
        (("attention", "--lengths", "128,long"), "--lengths: 'long' is no length"),
        (("attention", "--lengths", "0"), "--lengths is 0"),
        (("attention", "--dtypes", "float8"), "unknown dtype 'float8'; accepted are float32, bfloat16, float16"),
        (("attention", "--heads", "0"), "--heads is 0"),
    ],
)
def test_what_is_refused_is_refused_before_the_work(octavo, tmp_path, monkeypatch, given, told):
    monkeypatch.chdir(tmp_path)
    assert told in octavo("study", *given, code=2).output


def test_training_on_sentences_refuses_what_cannot_be(octavo, tmp_path, data):
    out = ("-o", tmp_path / "run")
    assert "unknown model 'bert'" in octavo("train", "sst2", "--data", data, "--model", "bert", *out, code=2).output
    assert "--epochs is 0" in octavo("train", "sst2", "--data", data, "--epochs", "0", *out, code=2).output
    assert "neither sst2_train" in octavo("train", "sst2", "--data", tmp_path, *out, code=2).output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("study",),
        *(
            ("study", n)
            for n in (
                "ptq-qat",
                "formats",
                "memory",
                "prune",
                "lora",
                "sensitivity",
                "combined",
                "compile",
                "attention",
            )
        ),
        ("train", "classifier"),
    ],
)
def test_help_teaches_with_examples(octavo, command):
    shown = octavo(*command, "--help").stdout
    assert "octavo lab study" in shown


# --- speed ----------------------------------------------------------------------------------------------------------


def test_attention_is_timed_once_and_drawn(octavo, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "study"
    command = ("study", "attention", "--device", "cpu", "--lengths", "16,8", "--rounds", "1", "--causal", "-o", out)
    first = octavo(*command).stdout
    assert [line.split()[:2] for line in first.splitlines()[2:6]] == [
        ["float32", "8"], ["float32", "16"], ["bfloat16", "8"], ["bfloat16", "16"],
    ]  # fmt: skip
    assert {"study.jsonl", "results.csv", "results.json", "attention.png", "attention.svg"} == {
        path.name for path in out.iterdir()
    }
    assert octavo(*command).stdout == first
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert all(row["naive_s"] > 0 and row["naive_peak_bytes"] is None for row in rows)
    assert rows[0]["score_bytes"] == 8 * 8 * 8 * 4
    assert max(row["largest_difference"] for row in rows if row["dtype"] == "float32") < 1e-5
    lines = (out / "study.jsonl").read_text()
    shown = octavo(*command, "--profile").stdout
    assert "naive kernel" in shown and "aten::" in shown
    assert (out / "study.jsonl").read_text().startswith(lines), "times of the points are not measured again"
    for row in json.loads((out / "results.json").read_text())["rows"]:
        assert "scaled_dot_product" in row["sdpa_kernel"] and 0 < row["naive_kernel_share"] < 1


def test_two_devices_are_one_table_and_one_picture(octavo, tmp_path, monkeypatch):
    import torch
    from octavo.lab.studies.speed_tables import compile_figure, compile_notes, compile_table

    pytest.importorskip("matplotlib")
    cpu = torch.device("cpu")
    monkeypatch.setattr("octavo.lab.studies.stopwatch.devices_of", lambda text: {"cpu": cpu, "cuda": cpu})
    command = (
        "study",
        "attention",
        "--device",
        "cpu,cuda",
        "--lengths",
        "8",
        "--rounds",
        "1",
        "-o",
        tmp_path / "study",
    )
    shown = octavo(*command).stdout.splitlines()
    assert shown[0].split()[:2] == ["device", "dtype"]
    assert [line.split()[:2] for line in shown[2:6]] == [
        ["cpu", "float32"], ["cpu", "bfloat16"], ["cuda", "float32"], ["cuda", "bfloat16"],
    ]  # fmt: skip
    found = json.loads((tmp_path / "study" / "results.json").read_text())
    assert set(found["machines"]) == {"cpu", "cuda"} and "machine" not in found
    numbers = dict.fromkeys(("cold_s", "eager_s", "compiled_s", "speed_up", "largest_difference"), 1.0)
    rows = [
        {"device": device, "model": "fp32", **numbers, "calls_to_pay": 3, "graph_breaks": 1, "break_reasons": "print"}
        for device in ("cpu", "cuda")
    ]
    assert [column.header for column in compile_table(rows).columns][:2] == ["device", "model"]
    assert compile_notes(rows)[-1] == "fp32, cuda: print"
    assert [label.get_text() for label in compile_figure(rows, title="").axes[1].get_xticklabels()] == [
        "fp32, cpu", "fp32, cuda",
    ]  # fmt: skip


def test_kernels_of_a_gpu_are_added_up_by_name():
    from types import SimpleNamespace

    from octavo.lab.studies.kernel_profile import kernel_times, largest_share, short_name
    from torch.autograd import DeviceType

    def event(name, us, kind=DeviceType.CUDA, **more):
        times = {"time_range": SimpleNamespace(elapsed_us=lambda: us), "self_cpu_time_total": us}
        return SimpleNamespace(name=name, device_type=kind, **times, **more)

    gemm = "void (anonymous namespace)::gemm<float, 4>(float*, int)"
    events = [event("softmax", 3), event(gemm, 2), event(gemm, 4), event("aten::bmm", 50, DeviceType.CPU),
              event("ProfilerStep", 99, is_user_annotation=True)]  # fmt: skip
    name, share = largest_share(kernel_times(events, on_gpu=True))
    assert (name, short_name(name)) == (gemm, "gemm") and share == pytest.approx(6 / 9)
    assert kernel_times(events, on_gpu=False) == {"aten::bmm": 50} and largest_share({}) == ("", 0.0)


SMALL = ("--device", "cpu", "--batch", "2", "--length", "8", "--layers", "1", "--width", "64", "--rounds", "1")


def compiled(octavo, out, *more):
    found = json.loads(octavo("study", "compile", *SMALL, *more, "-o", out, "--json").stdout)
    assert [row["model"] for row in found["rows"]] == ["fp32", "quantized", "packed"]
    for row in found["rows"]:
        assert (row["graphs"], row["graph_breaks"], row["break_reasons"]) == (1, 0, "")
        assert row["cold_s"] > row["compiled_s"] > 0 and row["largest_difference"] < 1e-5
    return found


@pytest.mark.slow
def test_models_are_captured_without_a_graph_break(octavo, tmp_path):
    found = compiled(octavo, tmp_path / "study", "--backend", "eager")
    lines = (tmp_path / "study" / "study.jsonl").read_text()
    totals = compiled(octavo, tmp_path / "study", "--backend", "eager", "--calls", "3,1")
    assert (tmp_path / "study" / "study.jsonl").read_text().startswith(lines), "finished points are not measured again"
    for row, before in zip(totals["rows"], found["rows"], strict=True):
        assert before.items() <= row.items()
        for kind in ("eager", "compiled"):
            assert 0 < row[f"{kind}_1_calls_s"] < row[f"{kind}_3_calls_s"]
    assert found["machine"]["device"] == "cpu" and found["settings"]["backend"] == "eager"


@pytest.fixture
def bert(tmp_path):
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.BertConfig(vocab_size=61, max_position_embeddings=16, num_labels=3, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_the_model_of_a_folder_is_compiled_in_place_of_the_tiny_one(octavo, bert, tmp_path):
    import torch
    import transformers
    from octavo.lab.studies.compile_speed import Compile

    study = Compile(batch=2, length=8, folder=str(bert))
    ids = study.inputs(torch.device("cpu"))
    whole = transformers.BertForSequenceClassification.from_pretrained(bert).eval()
    with torch.no_grad():
        assert torch.equal(study.model("fp32")(ids), whole(ids).logits) and ids.shape == (2, 8) and ids.min() >= 5
        assert (study.model("packed")(ids) - whole(ids).logits).abs().max() < 0.1
    out = ("-o", tmp_path / "study")
    assert "--length is 64" in octavo("study", "compile", "--model", bert, *out, code=2).output
    assert "unknown model" in octavo("study", "compile", "--model", tmp_path / "none", *out, code=2).output


@pytest.mark.slow
def test_a_folder_is_captured_and_found_again(octavo, bert, tmp_path):
    command = (
        "study",
        "compile",
        *SMALL[:-6],
        "--rounds",
        1,
        "--model",
        bert,
        "--backend",
        "eager",
        "-o",
        tmp_path / "s",
    )
    shown = octavo(*command).stdout
    lines = (tmp_path / "s" / "study.jsonl").read_text()
    assert octavo(*command).stdout == shown and (tmp_path / "s" / "study.jsonl").read_text() == lines
    assert json.loads(lines.splitlines()[0])["settings"]["folder"] == "bert"


@pytest.mark.slow
def test_models_are_compiled(octavo, tmp_path):
    compiled(octavo, tmp_path / "study")


def test_a_failed_compilation_is_told_in_a_line(octavo, tmp_path, monkeypatch):
    import torch

    def broken(*_, **__):
        raise torch._dynamo.exc.Unsupported("no compiler found")

    monkeypatch.setattr(torch, "compile", broken)
    told = octavo("study", "compile", *SMALL, "-o", tmp_path / "study", code=2).output
    assert "of the fp32 model failed: no compiler found" in told and "needs a C++ compiler" in told


def test_cuda_is_refused_where_there_is_none(octavo, tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for study in ("compile", "attention"):
        told = octavo("study", study, "--device", "cuda", "-o", tmp_path / "study", code=2).output
        assert "finds no GPU; octavo doctor" in told and not (tmp_path / "study").exists()
