"""octavo graph: a model shown whole, priced, and compared."""

import json
import re

import pytest
import torch

MODULE = """
import torch
from torch import nn

def make():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)), nn.Linear(32, 4))
    return layers.eval(), {"input": torch.zeros(2, 32)}

def less():
    model, inputs = make()
    return model[1:], inputs

def calibrated():
    return *make(), [torch.randn(8, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]

def wrong():
    return 1

def needs(argument):
    return argument

class Selects(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x[x[:, 0] > 0])

def selects():
    return Selects().eval(), {"x": torch.randn(5, 4)}
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The name of a function that makes a model; each test imports a file of its own."""
    name = f"made_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_modules_and_costs_are_shown(octavo, made):
    text = octavo("graph", f"{made}:make", "--batch", 8).stdout
    assert "8,192" not in text and "multiply-adds" in text and "costs at batch 8" in text
    assert f"{8 * (3 * 32 * 32 + 32 * 4):,}" in text
    told = json.loads(octavo("graph", f"{made}:make", "--batch", 8, "--recipe", "mxint8", "--json").stdout)
    assert told["costs"]["at_sizes"]["macs"] == 8 * (3 * 32 * 32 + 32 * 4)
    assert told["costs"]["at_sizes"]["bitops"] == told["costs"]["at_sizes"]["macs"] * 8 * 32
    assert len(told["nodes"]) == 7 and told["model"] == "Sequential"


def test_operators_and_drawings(octavo, made):
    text = octavo("graph", f"{made}:make", "--level", "operator").stdout
    assert text.count("aten.linear") == 4 and "batch x 32" in text
    drawn = octavo("graph", f"{made}:make", "--level", "operator", "--dot").stdout
    assert drawn.startswith("digraph model {") and drawn.count(" -> ") == 7


def test_nodes_of_fx_have_their_three_dictionaries(octavo, made):
    text = octavo("graph", f"{made}:calibrated", "--view", "fx", "--batch", 8).stdout
    assert "Sequential: 1 placeholder, 7 call_module, 1 output" in text and "hardware at batch 8" in text
    found = json.loads(octavo("graph", f"{made}:calibrated", "--view", "fx", "--batch", 8, "--json").stdout)
    assert [node["op"] for node in found["nodes"]] == ["placeholder", *["call_module"] * 7, "output"]
    first = found["nodes"][1]
    assert first["hardware"] == {"macs": 8 * 32 * 32, "bitops": 8 * 32**4, "bytes": 6272, "placement": "cpu"}
    assert first["common"]["args"]["0.0.weight"] == {"shape": [32, 32], "dtype": "float32", "format": None}
    assert 0.15 < first["software"]["args"]["0.0.weight"]["statistics"]["high"] < 0.18
    assert first["software"]["results"]["linear"]["statistics"] is not None, "of the batches that the function returns"
    given = ("graph", f"{made}:make", "--view")
    assert "accepted is fx" in octavo(*given, "mase", code=2).output
    assert "leave --level out" in octavo(*given, "fx", "--level", "operator", code=2).output
    assert "leave --recipe out" in octavo(*given, "fx", "--recipe", "mxint8", code=2).output
    assert "'sequence' is no size of this graph" in octavo(*given, "fx", "--sequence", 4, code=2).output


def test_differences(octavo, made):
    assert octavo("graph", f"{made}:make", "--diff", f"{made}:make").stdout == "no difference\n"
    found = json.loads(octavo("graph", f"{made}:make", "--diff", f"{made}:less", "--json").stdout)
    assert len(found["removed"]) > len(found["added"])


def test_a_folder_of_transformers_and_inputs_left_out(octavo, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=61
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    text = octavo("graph", tmp_path / "bert").stdout
    assert "bert.encoder.layer.0 ... bert.encoder.layer.1" in text and "costs at batch 1, sequence 128" in text
    found = octavo("graph", tmp_path / "bert", "--without", "labels", "--diff", tmp_path / "bert").stdout
    assert "aten.cross_entropy_loss" in found and "-" not in {line[:1] for line in found.splitlines()}
    told = octavo("graph", tmp_path / "bert", "--without", "pixels", code=2).output
    assert "no input is called 'pixels'; its inputs are input_ids, attention_mask" in told


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_packed_folder_costs_what_its_recipe_promised(octavo, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "bert":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=61), add_pooling_layer=False)
    else:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 64}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(tmp_path / "float")
    recipe = "int4:g32 input=int8:g32"
    octavo("pack", tmp_path / "float", "-o", tmp_path / "packed", "--recipe", recipe)
    promised = json.loads(octavo("graph", tmp_path / "float", "--recipe", recipe, "--json").stdout)["costs"]
    found = json.loads(octavo("graph", tmp_path / "packed", "--json").stdout)["costs"]
    assert not promised["missing"] and not found["missing"] and not found["unknown"]
    for cost in ("macs", "bitops", "weight_bytes"):
        assert found["at_sizes"][cost] == promised["at_sizes"][cost], cost
    told = octavo("graph", tmp_path / "packed" / "model.octavo.safetensors", code=2).output
    assert "a file of weights; give the folder of the model" in told


def test_a_size_that_the_model_fixes_is_not_asked_for(octavo, made):
    assert (
        "'sequence' is no size of this graph; its sizes are batch"
        in octavo("graph", f"{made}:make", "--sequence", 8, code=2).output
    )


def test_a_size_that_depends_on_values_is_asked_for_and_taken(octavo, made):
    told = octavo("graph", f"{made}:selects", code=2).output
    (name,) = set(re.findall(r"the size '(\w+)' is not given", told))
    assert "costs at batch 1" in octavo("graph", f"{made}:selects", "--size", f"{name}=3").stdout
    found = json.loads(octavo("graph", f"{made}:selects", "--size", f"{name}=3", "--json").stdout)
    assert found["costs"]["at_sizes"]["macs"] == 3 * 16
    for wrong in (name, f"{name}=x", f"{name}=-1", "=3"):
        assert "give a name and a whole number" in octavo("graph", f"{made}:selects", "--size", wrong, code=2).output


def test_what_is_wrong_is_said(octavo, made):
    assert "missing a required argument: 'argument'" in octavo("graph", f"{made}:needs", code=2).output
    assert "no module before the colon" in octavo("graph", ":make", code=2).output
    assert "accepted are module and operator" in octavo("graph", f"{made}:make", "--level", "layer", code=2).output
    assert "has no function 'none'" in octavo("graph", f"{made}:none", code=2).output
    assert "return a model and its inputs, as a pair" in octavo("graph", f"{made}:wrong", code=2).output
    assert "name a module of this folder" in octavo("graph", "no_such_module:make", code=2).output
    assert "unknown model" in octavo("graph", "gpt5", code=2).output
    assert "matches no layer" in octavo("graph", f"{made}:make", "--recipe", "x.* int8", code=2).output


def test_a_page_is_written_whole(octavo, made, tmp_path):
    octavo("graph", f"{made}:make", "--html", tmp_path / "page.html", "--recipe", "mxint8", "--batch", 8)
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "as packed by: mxint8" in page and "costs at batch 8" in page
    assert (
        "x.* int8"
        in octavo("graph", f"{made}:make", "--html", tmp_path / "no.html", "--recipe", "x.* int8", code=2).output
    )
    for other in (("--dot",), ("--diff", f"{made}:make")):
        told = octavo("graph", f"{made}:make", "--html", tmp_path / "no.html", *other, code=2).output
        assert "--html shows the model alone" in told
    assert not (tmp_path / "no.html").exists()


def test_a_pipeline_runs_and_its_model_is_shown_and_written(octavo, made, tmp_path):
    import octavo as package

    (tmp_path / "p.toml").write_text("[[passes]]\npass = 'quantize'\nrecipe = 'int8'\n\n[[passes]]\npass = 'pack'\n")
    given = ("graph", f"{made}:make", "--pipeline", tmp_path / "p.toml")
    text = octavo(*given).stdout
    assert "quantize:" in text and "pack:" in text and "PackedLinear" in text
    told = json.loads(octavo(*given, "--json", "--out", tmp_path / "packed").stdout)
    assert [report["pass"] for report in told["reports"]] == ["quantize", "pack"]
    assert told["pipeline"]["passes"][0] == {"pass": "quantize", "recipe": "int8", "samples": 512}
    assert (
        "PackedLinear"
        in octavo("graph", f"{made}:make", "--diff", f"{made}:make", "--pipeline", tmp_path / "p.toml").stdout
    )
    assert (tmp_path / "packed" / "model.octavo.safetensors").exists()
    assert package.inspect(tmp_path / "packed" / "model.octavo.safetensors")
    assert "give the file of a pipeline" in octavo("graph", f"{made}:make", "--out", tmp_path / "x", code=2).output
    (tmp_path / "p.toml").write_text("[[passes]]\npass = 'pack'\n\n[[passes]]\npass = 'quantize'\nrecipe = 'int8'\n")
    assert "move quantize before pack" in octavo(*given, code=2).output


STATIC = "[[passes]]\npass = 'quantize'\nrecipe = 'type:Linear int8:channel input=int8@minmax'\n\n[[passes]]\npass = 'pack'\n"
WEIGHTS = "model.octavo.safetensors"


def classifier_folder(path):
    """A classifier of texts with its vocabulary, and beside it the texts, with labels and without."""
    from octavo.lab.classifiers import Classifier, ClassifierConfig
    from octavo.lab.classifiers.kinds import tiny_classifier, vocabulary_of

    texts = [f"a {first} film with {second} pictures" for first in ("good", "bad", "long") for second in ("no", "few")]
    vocabulary = vocabulary_of(texts)
    config = ClassifierConfig(vocabulary=len(vocabulary), width=32, layers=1, heads=2, feed_forward=64, positions=32)
    tiny_classifier(vocabulary, Classifier(config).eval()).save(path, {})
    (path.parent / "texts.txt").write_text("\n".join(texts) + "\n")
    (path.parent / "texts.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    return path


def test_a_calibrated_pipeline_reads_texts_and_replays_to_the_same_bytes(octavo, tmp_path):
    folder = classifier_folder(tmp_path / "classifier")
    (tmp_path / "p.toml").write_text(STATIC)
    written = []
    for out, data in (("first", "texts.txt"), ("again", "texts.txt"), ("labelled", "texts.tsv")):
        octavo("graph", folder, "--pipeline", tmp_path / "p.toml", "--data", tmp_path / data, "-o", tmp_path / out)
        written.append((tmp_path / out / WEIGHTS).read_bytes())
    assert written[0] == written[1] == written[2]
    told = octavo("graph", folder, "--pipeline", tmp_path / "p.toml", "-o", tmp_path / "no", code=2).output
    assert "'int8@minmax' is calibrated from data" in told and "--data FILE" in told
    assert not (tmp_path / "no").exists()
    told = octavo("graph", folder, "--data", tmp_path / "texts.txt", code=2).output
    assert "--data calibrates passes of --pipeline" in told


def test_calibration_batches_of_a_function_are_its_third_value(octavo, made, tmp_path):
    (tmp_path / "p.toml").write_text(STATIC)
    (tmp_path / "texts.txt").write_text("a text\n")
    given = ("--pipeline", tmp_path / "p.toml", "-o")
    text = octavo("graph", f"{made}:calibrated", *given, tmp_path / "static").stdout
    assert "int8@minmax" in text or "PackedLinear" in text
    assert (tmp_path / "static" / WEIGHTS).exists()
    assert "give --force" in octavo("graph", f"{made}:calibrated", *given, tmp_path / "static", code=2).output
    octavo("graph", f"{made}:calibrated", *given, tmp_path / "static", "--force")
    assert "third value" in octavo("graph", f"{made}:make", *given, tmp_path / "no", code=2).output
    told = octavo("graph", f"{made}:make", *given, tmp_path / "no", "--data", tmp_path / "texts.txt", code=2).output
    assert "tokenizer" in told and not (tmp_path / "no").exists()


def test_lines_calibrate_a_polynomial_model(octavo, tmp_path):
    from octavo.data import CharTokenizer
    from octavo.lab.polynomials.export import export_model
    from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build

    small = {"embedding": 8, "encoder": 8, "hidden": 16, "heads": 2, "layers": 1, "feedforward": 16}
    export_model(build(Seq2SeqConfig(**small)), CharTokenizer.polynomials(), tmp_path / "model", format=None)
    (tmp_path / "p.toml").write_text(STATIC)
    (tmp_path / "lines.txt").write_text("(n-3)*(4-n)=-n**2+7*n-12\n5*z*(3*z+3)=15*z**2+15*z\n")
    octavo(
        "graph", tmp_path / "model", "--pipeline", tmp_path / "p.toml", "--data", tmp_path / "lines.txt",
        "-o", tmp_path / "static",
    )  # fmt: skip
    assert (tmp_path / "static" / WEIGHTS).exists()
