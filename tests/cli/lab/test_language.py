"""Language models from the command line: trained from any text, compared in a bench."""

import json

import pytest
from data.byte_pair_texts import END, corpus
from octavo.lab.language.model_folder import load_language_model


def test_a_language_model_is_trained_from_any_text(octavo, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text(END.join(corpus(2500, seed) for seed in range(6)))
    options = [
        "--data",
        text,
        "-o",
        tmp_path / "run",
        "--tokens",
        2048,
        "--vocabulary",
        300,
        "--validation-tokens",
        128,
    ]
    report = json.loads(octavo("train", "gpt", *options, "--json").stdout)
    assert report["tokens"] == 2048 and report["validation"]["tokens"] >= 128
    model, tokenizer = load_language_model(tmp_path / "run" / "model")
    assert tokenizer.size == model.config.vocabulary == 300
    again = octavo("train", "gpt", *options).output
    assert "nats a token" in again and f"{report['validation']['nats']:.4f}" in again
    refused = octavo("train", "gpt", *options[:-4], "--vocabulary", 290, "--preset", "muon", code=2)
    assert "other files or options" in " ".join(refused.output.split())


def test_a_text_that_is_one_document_trains_a_model_that_keeps_documents_apart(octavo, tmp_path):
    (tmp_path / "book.txt").write_text(corpus(9000, 1))
    options = ("--vocabulary", 300, "--validation-tokens", 128, "--tokens", 1024, "--preset", "document_mask", "--json")
    report = json.loads(octavo("train", "gpt", "--data", tmp_path / "book.txt", "-o", tmp_path, *options).stdout)
    assert report["tokens"] == 1024
    assert load_language_model(tmp_path / "model")[0].config.keep_documents


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--data is missing"),
        (["--data", "x", "--preset", "moun"], "moun"),
        (["--data", "x", "--scale", "huge"], "micro, mini, true"),
        (["--data", "x", "--preset", "muon", "--lr", 0.1], "has its own"),
        (["--data", "x", "--precision", "fp7"], "fp7"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_text_is_read(octavo, tmp_path, options, told):
    assert told in " ".join(octavo("train", "gpt", *options, code=2).output.split())


def test_the_presets_are_listed(octavo):
    listed = octavo("train", "gpt", "--list").output
    assert all(name in listed for name in ("nocap_baseline", "modern_skips", "lightrnn_reallocated"))


@pytest.mark.slow
def test_a_bench_reports_what_is_there(octavo, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text(END.join(corpus(2500, seed) for seed in range(6)))
    options = ["--data", text, "-o", tmp_path / "b", "--arms", "muon", "--seeds", 1, "--tokens", 2048,
               "--validation-tokens", 128]  # fmt: skip
    shown = octavo("bench", "gpt", *options).output
    assert "nocap_baseline" in shown and "muon" in shown and "seeds" in shown
    told = json.loads(octavo("bench", "gpt", "--data", text, "-o", tmp_path / "b", "--report-only", "--json").stdout)
    assert [row["arm"] for row in told["budgets"]["tokens"]] and (tmp_path / "b" / "report.md").exists()
    fast = json.loads(octavo("bench", "gpt", *options, "--speeds", "--json").stdout)
    assert [row["arm"] for row in fast] == ["nocap_baseline", "muon"] and all(row["tflops"] > 0 for row in fast)
    assert "--report-only" in octavo("bench", "gpt", *options, "--speeds", "--report-only", code=2).output


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(END.join(corpus(2500, seed) for seed in range(6)))
    return path


def test_a_study_is_a_page_of_the_bench_with_bounds_apart(octavo, tmp_path, book):
    options = ["--data", book, "-o", tmp_path / "b", "--arms", "block_diffusion", "--seeds", 1, "--tokens", 2048,
               "--validation-tokens", 128]  # fmt: skip
    shown = octavo("bench", "gpt", *options).output
    assert "at most" in shown and "bound" in shown
    told = octavo("study", "language", tmp_path / "b").output
    assert "no verdict beside exact losses" in " ".join(told.split())
    study = json.loads((tmp_path / "b" / "language.json").read_text())
    assert [one["arm"] for one in study["bounds"]] == ["block_diffusion"]
    assert "--data book.txt --scale micro --tokens 2048" in study["arms"][0]["command"]
    assert "block_diffusion" in (tmp_path / "b" / "language.html").read_text()
    assert "no lines of a bench" in octavo("study", "language", tmp_path / "none", code=2).output


def test_masked_diffusion_is_sampled_through_torch_and_says_so(octavo, tmp_path, book):
    octavo("train", "gpt", "--data", book, "-o", tmp_path / "run", "--tokens", 2048, "--vocabulary", 300,
           "--validation-tokens", 128, "--preset", "block_diffusion")  # fmt: skip
    folder = tmp_path / "run" / "model"
    result = octavo("generate", folder, "the", "a", "--tokens", 20, "--steps", 4, "--temperature", 1, "--json")
    assert "sampled through torch" in result.stderr
    again = octavo("generate", folder, "the", "a", "--tokens", 20, "--steps", 4, "--temperature", 1, "--json")
    texts = json.loads(result.stdout)["texts"]
    assert [one["prompt"] for one in texts] == ["the", "a"] and texts == json.loads(again.stdout)["texts"]
    assert "autoregressive" in octavo("generate", folder, "the", "--top-k", 3, code=2).output


@pytest.mark.slow
def test_a_grid_of_techniques_is_reported_as_a_bench(octavo, tmp_path, book):
    pytest.importorskip("optuna")
    options = ["--data", book, "-o", tmp_path / "b", "--grid", "gqa,long_cooldown", "--trials", 2, "--seeds", 1,
               "--tokens", 1024, "--validation-tokens", 128]  # fmt: skip
    shown = octavo("bench", "gpt", *options).output
    assert "nocap_baseline" in shown and (tmp_path / "b" / "trials.jsonl").exists()
    assert "each once" in octavo("bench", "gpt", *options[:4], "--grid", "gqa,gqa", code=2).output


@pytest.mark.parametrize(
    "options", [("--in-a-row", "3"), ("--validate-every", "9"), ("--until", "0"), ("--until", "x")], ids=str
)
def test_options_without_a_loss_are_refused(octavo, tmp_path, options):
    for verb in ("train", "bench"):
        shown = octavo(verb, "gpt", "--data", tmp_path / "none.txt", "-o", tmp_path / "o", *options, code=2).output
        assert "until" in shown and not (tmp_path / "o").exists()


def test_a_bench_of_speeds_or_a_grid_has_no_loss_to_end_at(octavo, tmp_path):
    for option in (("--speeds",), ("--grid", "muon,gqa")):
        shown = octavo("bench", "gpt", "--data", tmp_path / "x", "--until", 3, *option, code=2).output
        assert "accepted is one of them" in " ".join(shown.split())


def test_the_command_shows_the_table_and_where_the_loss_was_reached(octavo, tmp_path, book):
    shown = octavo("train", "gpt", "--data", book, "-o", tmp_path / "r", "--tokens", 4096, "--vocabulary", 300,
                   "--validation-tokens", 128, "--until", 5.5, "--validate-every", 1024).stdout  # fmt: skip
    assert "update" in shown and "by the clock" in shown and "loss 5.5000" in shown and "5.40 h" in shown
    assert (tmp_path / "r" / "model" / "config.json").exists()
