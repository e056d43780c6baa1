"""``octavo check``: its exit codes, its JSON, the repaired copy, and the readers it knows."""

import json

import pytest
from helpers import checkpoints
from helpers.browser import browser, open_in_browser
from helpers.checkpoints import INNER
from octavo.interchange.check.findings import RULES
from octavo.interchange.foreign_readers import reader_of


@pytest.fixture
def sound(tmp_path):
    return checkpoints.write(tmp_path / "sound", *checkpoints.llama("gptq-4"))


@pytest.fixture
def broken(tmp_path):
    """A GPTQ folder that states the version that it is not."""
    tensors, config = checkpoints.llama("gptq-v2")
    config["quantization_config"]["checkpoint_format"] = "gptq"
    return checkpoints.write(tmp_path / "broken", tensors, config)


def test_a_sound_checkpoint_has_no_findings(octavo, sound):
    shown = octavo("check", sound).stdout
    assert "findings: none" in shown and "14 gptq, 4.825 bits a parameter, 100.0% of linear weights" in shown


def test_findings_end_with_1_and_say_what_to_do(octavo, broken):
    shown = octavo("check", broken, code=1).stdout
    assert "findings: 14 errors, 0 warnings, 0 suspects" in shown
    assert "Repair: state `checkpoint_format` as the zero points have it" in shown
    assert "row 0, block 0, byte" in shown


def test_many_findings_of_a_rule_are_cut(octavo, tmp_path):
    tensors, config = checkpoints.llama("ct-int4")
    for number in range(30):
        tensors[f"model.layers.0.extra{number}.weight_scale"] = tensors["model.norm.weight"] + 0
    folder = checkpoints.write(tmp_path / "x", tensors, config)
    shown = octavo("check", folder, code=1).stdout
    assert "(10 more, all with --json)" in shown and "findings: 30 errors" in shown
    assert len(json.loads(octavo("check", folder, "--json", code=1).stdout)["findings"]) == 30


def test_what_cannot_be_read_ends_with_2(octavo, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(40))
    assert "version 0" in octavo("check", tmp_path / "x.gguf", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "no safetensors files" in octavo("check", tmp_path / "empty", code=2).stderr
    octavo("check", tmp_path / "none", code=2)
    octavo("check", code=2)


def test_json_has_every_finding(octavo, broken):
    found = json.loads(octavo("check", broken, "--json", code=1).stdout)
    assert found["kind"] == "gptq" and found["layouts"] == {"gptq": 14}
    one = found["findings"][0]
    assert (one["rule"], one["severity"], one["fixable"]) == ("gptq-zero-version", "error", True)
    assert one["places"][0]["value"] == "8" and one["count"] == 128 * INNER // 32


def test_the_repaired_copy_has_no_findings(octavo, broken, tmp_path):
    before = (broken / "config.json").read_bytes()
    shown = octavo("check", broken, "--fix", tmp_path / "out", code=1).stdout
    assert "repaired: gptq-zero-version" in shown
    assert "findings: none" in octavo("check", tmp_path / "out").stdout
    assert (broken / "config.json").read_bytes() == before
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    octavo("check", broken, "--fix", tmp_path / "out", code=2)  # it is there
    octavo("check", broken, "--fix", tmp_path / "out", "--force", code=1)
    octavo("check", broken, "--fix", broken / "inside", code=2)


def test_nothing_is_written_where_nothing_is_repaired(octavo, sound, tmp_path):
    octavo("check", sound, "--fix", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def page_of(octavo, broken, tmp_path):
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    octavo("check", broken, "--html", tmp_path / "x.html", "--base", base, "--for", "vllm", code=1)
    return (tmp_path / "x.html").read_text()


def test_the_page_has_every_finding(octavo, broken, tmp_path):
    page = page_of(octavo, broken, tmp_path)
    assert page.count("gptq-zero-version") == 14 and "http" not in page.replace("http-equiv", "")


@browser
def test_the_page_shows_findings_rules_layers_and_the_reader(octavo, broken, tmp_path):
    look = (
        "document.body.textContent = JSON.stringify([...document.querySelectorAll('section.part')].map("
        "it => [it.id, it.querySelectorAll('tbody tr').length]))"
    )
    seen, console = open_in_browser(page_of(octavo, broken, tmp_path), tmp_path, look)
    assert seen == [["findings", 28], ["rules", 2], ["layers", 16], ["routes", 1]] and not console


def test_all_rules_are_listed(octavo):
    shown = octavo("check", "--rules").stdout
    assert all(rule in shown for rule in RULES)
    assert {one["id"] for one in json.loads(octavo("check", "--rules", "--json").stdout)} == set(RULES)


def test_the_original_shows_how_far_layers_are(octavo, sound, tmp_path):
    base = checkpoints.write(tmp_path / "base", *checkpoints.base())
    assert "SQNR dB" in octavo("check", sound, "--base", base).stdout
    layers = json.loads(octavo("check", sound, "--base", base, "--json").stdout)["layers"]
    assert len(layers) == 16 and all(0.99 < one["cosine"] < 1 and 18 < one["sqnr_db"] < 24 for one in layers[:14])


@pytest.mark.parametrize(
    ("layout", "reader", "verdict"),
    [
        ("gptq-4", "vllm", "takes"),
        ("gptq-4", "llama.cpp", "decodes"),
        ("gptq-3", "llama.cpp", "refuses"),
        ("awq", "llama.cpp", "refuses"),
        ("ct-int3", "llama.cpp", "refuses"),
        ("modelopt-nvfp4", "transformers", "wrong values"),
        ("ct-int3", "vllm", "takes"),
        ("ct-int4", "llama.cpp", "decodes"),
        ("nvfp4", "transformers", "takes"),
    ],
)
def test_readers_are_told_apart(octavo, layout, reader, verdict, tmp_path):
    folder = checkpoints.write(tmp_path / "x", *checkpoints.llama(layout))
    (route,) = json.loads(octavo("check", folder, "--for", reader, "--json").stdout)["routes"]
    assert (route["layers"], route["verdict"]) == (14, verdict)
    assert verdict in octavo("check", folder, "--for", reader).stdout


@pytest.mark.parametrize(
    ("layout", "verdict"), [("ct-int4", "takes"), ("awq", "takes"), ("bnb-nf4", "decodes"), ("fp8-blocks", "decodes")]
)
def test_this_package_takes_what_it_has_a_reader_of(octavo, layout, verdict, tmp_path):
    folder = checkpoints.write(tmp_path / "x", *checkpoints.llama(layout))
    (route,) = json.loads(octavo("check", folder, "--for", "octavo", "--json").stdout)["routes"]
    assert route["verdict"] == verdict and reader_of(folder) is not None


def test_an_unknown_reader_is_refused(octavo, sound):
    assert "accepted are vllm, llama.cpp" in octavo("check", sound, "--for", "ollama", code=2).stderr
