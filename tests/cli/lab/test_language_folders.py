"""Commands that take a model of texts take the folder of a language model, packed or not."""

import json
from dataclasses import replace

import octavo as package
import pytest
import torch
from data.byte_pair_texts import corpus
from octavo.data import BytePairTokenizer
from octavo.lab.language.gpt import GPT, MaskedDiffusion, modern, nocap_baseline
from octavo.lab.language.model_folder import load_language_model, save_language_model
from octavo.train import exact_nll, likelihood_bound


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with its tokenizer, its packed twin, and a text."""
    place, text = tmp_path_factory.mktemp("language"), corpus(60_000, 3)
    tokenizer = BytePairTokenizer.train([text], 300)
    torch.manual_seed(0)
    model = GPT(modern(vocabulary=300, width=32, layers=2, heads=2, end_of_text=299)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # some begin as 0, and all tokens as likely as each other
            parameter += 0.1 * torch.randn_like(parameter)
    save_language_model(place / "float", model, tokenizer)
    packed = package.pack_model(package.quantize_model(model, "int8:g32", progress=False))
    save_language_model(place / "packed", packed, tokenizer)
    plain = nocap_baseline(vocabulary=300, width=32, layers=1, heads=2, end_of_text=299)
    save_language_model(place / "diffusion", GPT(replace(plain, objective=MaskedDiffusion(block=8))), tokenizer)
    (place / "text.txt").write_text(text)
    return place


@pytest.mark.parametrize("name", ["float", "packed"])
def test_the_perplexity_of_a_file_is_that_of_exact_nll(octavo, folder, name):
    given = ("--data", folder / "text.txt", "--context", 64, "--tokens", 1000, "--json")
    found = json.loads(octavo("eval", folder / name, *given).stdout)
    model, tokenizer = load_language_model(folder / name)
    ids = tokenizer.encode((folder / "text.txt").read_text())
    assert found["value"] == pytest.approx(exact_nll(model, ids, context=64, tokens=1000).perplexity, rel=1e-6)


def test_tokens_read_no_more_of_a_file_than_they_need_and_tell_what_was_checked(octavo, folder, tmp_path):
    """What is damaged behind the tokens is not read; their number is that of the whole text's beginning."""
    text = (folder / "text.txt").read_bytes()
    (tmp_path / "text.txt").write_bytes(text[:40_000] + b"\xff")
    given = ("--context", 64, "--tokens", 500, "--json")
    found, whole = (
        json.loads(octavo("eval", folder / "float", "--data", path, *given).stdout)
        for path in (tmp_path / "text.txt", folder / "text.txt")
    )
    assert found["value"] == whole["value"] and found["count"] == 500 and found["examples"] == whole["examples"]
    assert found["checked"]["batches"] <= 40 and found["checked"]["cuts"] > 200 and found["checked"]["moved"] < 1e-3
    shown = octavo("eval", folder / "float", "--data", folder / "text.txt", *given[:-1]).stdout
    assert f"{found['checked']['cuts']} cuts" in " ".join(shown.split())
    assert "not UTF-8" in octavo("eval", folder / "float", "--data", tmp_path / "text.txt", code=2).output
    assert (
        "--tokens is -5"
        in octavo("eval", folder / "float", *given[:2], "--data", folder / "text.txt", "--tokens", -5, code=2).output
    )
    assert "--leaks" in octavo("eval", folder / "float", "--data", folder / "text.txt", "--leaks", "no", code=2).output
    fewer = json.loads(
        octavo("eval", folder / "float", "--data", folder / "text.txt", *given, "--guard-calls", 4).stdout
    )
    assert fewer["value"] == whole["value"] and 0 < fewer["checked"]["batches"] <= 4
    refused = octavo("eval", folder / "float", "--data", folder / "text.txt", "--guard-calls", 0, code=2).output
    assert "guard_calls is 0" in refused


def test_a_packed_model_agrees_with_its_float_one(octavo, folder):
    given = ("--against", folder / "float", "--data", folder / "text.txt", "--json")
    found = json.loads(octavo("eval", folder / "packed", *given).stdout)
    assert found["metric"] == "KL" and 0 < found["value"] < 1e-2


def test_masked_diffusion_is_told_as_a_bound_and_never_as_a_perplexity(octavo, folder):
    given = ("--data", folder / "text.txt", "--context", 32, "--tokens", 300)
    found = json.loads(octavo("eval", folder / "diffusion", *given, "--json").stdout)
    model, tokenizer = load_language_model(folder / "diffusion")
    ids = tokenizer.encode((folder / "text.txt").read_text())
    bound = likelihood_bound(model, ids, context=32, tokens=300)
    assert (found["metric"], found["nats"], found["error"]) == ("bound", bound.nats, bound.error)
    assert "upper bound" in found["told"] and not {"value", "perplexity"} & found.keys()
    assert "at most" in octavo("eval", folder / "diffusion", *given).stdout
    assert "--stride" in octavo("eval", folder / "diffusion", *given, "--stride", 8, code=2).output


def test_masked_diffusion_is_compressed_by_no_command(octavo, folder, tmp_path):
    given = ("--data", folder / "text.txt", "--budget", 7, "--formats", "nf4,int8:g32", "-o", tmp_path / "small")
    told = " ".join(octavo("compress", "--model", folder / "diffusion", *given, code=2).output.split())
    assert "trained on a bound and has no exact loss" in told


def test_a_text_of_several_documents_is_measured_with_their_ends(octavo, folder, tmp_path):
    (tmp_path / "two.txt").write_text("the cat<|endoftext|>the dog")
    found = json.loads(octavo("eval", folder / "float", "--data", tmp_path / "two.txt", "--json").stdout)
    model, tokenizer = load_language_model(folder / "float")
    ids = tokenizer.encode("the cat<|endoftext|>the dog", special="allow")
    assert found["count"] == len(ids) - 1 and found["value"] == pytest.approx(
        exact_nll(model, ids, context=64).perplexity
    )


@pytest.mark.slow
def test_a_graph_has_the_sizes_of_the_model(octavo, folder):
    assert "symbolic sizes: batch, sequence" in octavo("graph", folder / "float").output


@pytest.mark.slow
def test_a_budget_becomes_a_packed_model_that_generates(octavo, folder, tmp_path):
    given = ("--data", folder / "text.txt", "--budget", 7, "--formats", "nf4,int8:g32", "--fast")
    octavo("compress", "--model", folder / "float", *given, "-o", tmp_path / "small")
    told = json.loads((tmp_path / "small" / "report.json").read_text())
    assert told["metrics"][0]["key"] == "perplexity"
    shown = json.loads(octavo("generate", tmp_path / "small", "the ", "--tokens", 4, "--json").stdout)
    model, tokenizer = load_language_model(tmp_path / "small")
    ids = tokenizer.encode("the ").tolist()
    for _ in range(4):  # greedy, in PyTorch
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert tokenizer.decode(ids) == "the " + shown["texts"][0]["text"]


def test_of_a_run_the_model_is_named(octavo, folder, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(folder / "float")
    for command in (("pack", tmp_path / "run", "-o", tmp_path / "out"), ("inspect", tmp_path / "run")):
        told = " ".join(octavo(*command, code=2).output.split())
        assert "the folder of a run" in told and "run/model" in told.replace(" ", "")
