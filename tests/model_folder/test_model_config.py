"""Networks of our own in folders: config.json says which and how large, load_model needs nothing else."""

import json

import octavo
import pytest
import torch
from helpers.quick import spread
from octavo import ContainerError
from octavo.cli import app
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.polynomials.seq2seq import ARCHITECTURES, Seq2SeqConfig, build
from octavo.model_folder.features.decoded_tensors import DECODED
from octavo.model_folder.model_config import own_model
from octavo.model_folder.structure import KEY
from octavo.tensors import container
from torch import nn
from typer.testing import CliRunner

SIZES = {"embedding": 8, "encoder": 6, "hidden": 12, "heads": 3, "layers": 1, "feedforward": 20}
IDS = torch.randint(3, 31, (3, 9), generator=torch.Generator().manual_seed(0))


def classifier():
    return Classifier(ClassifierConfig(vocabulary=40, width=32, layers=1, heads=2, feed_forward=64))


NETWORKS = {
    "classifier": (classifier, (IDS,)),
    **{
        kind: (lambda kind=kind: build(Seq2SeqConfig(architecture=kind, **SIZES)), (IDS, IDS)) for kind in ARCHITECTURES
    },
}


def made(kind):
    torch.manual_seed(0)
    return NETWORKS[kind][0]().eval()


def rewrite(folder, **changes):
    """Change fields of config.json; None removes one."""
    values = json.loads((folder / "config.json").read_text()) | changes
    kept = {name: value for name, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("form", ["float", "bfloat16", "simulated", "packed"])
@pytest.mark.parametrize("kind", NETWORKS)
@torch.no_grad()
def test_what_is_loaded_by_its_folder_alone_computes_what_was_saved(tmp_path, kind, form):
    model = made(kind)
    if form == "bfloat16":
        model = model.bfloat16()
    elif form != "float":
        model = octavo.quantize_model(model, "mxint8; type:Linear mxint8 input=mxint8", progress=False)
    if form == "packed":
        model = octavo.pack_model(model)
    octavo.save_model(model, tmp_path / "m")
    loaded = octavo.load_model(tmp_path / "m")
    assert [type(part) for part in loaded.modules()] == [type(part) for part in model.modules()]
    assert torch.equal(loaded(*NETWORKS[kind][1]), model(*NETWORKS[kind][1])) and loaded.config == model.config
    assert json.loads((tmp_path / "m" / "config.json").read_text())["octavo"] == 2


def test_tensors_packed_for_their_bytes_alone_are_decoded(tmp_path):
    model = nn.LSTM(32, 16)
    packed = {
        name: octavo.encode(value, "mxint8") if value.ndim == 2 else value for name, value in model.state_dict().items()
    }
    names = [name for name, value in packed.items() if isinstance(value, octavo.PackedTensor)]
    structure = {"version": 1, "class": "LSTM", "layers": {}, "ties": {}, DECODED.key: names}
    container.save(packed, tmp_path / "m.safetensors", metadata={KEY: json.dumps(structure)})
    loaded = octavo.load_model(tmp_path / "m.safetensors", lambda: nn.LSTM(32, 16))
    assert all(torch.equal(getattr(loaded, name), packed[name].decode()) for name in names)
    for wrong, told in [
        (["bias_ih_l0"], "not packed"),
        (["x"], "x: missing"),
        ([1], "parts of other types"),
        ("x", "types"),
    ]:
        text = json.dumps(structure | {DECODED.key: wrong})
        container.save(packed, tmp_path / "m.safetensors", metadata={KEY: text})
        with pytest.raises(ContainerError, match=told):
            octavo.load_model(tmp_path / "m.safetensors", lambda: nn.LSTM(32, 16))


def test_a_network_of_somebody_else_has_no_configuration_of_ours(tmp_path):
    class Mine(Classifier):
        pass

    octavo.save_model(Mine(classifier().config), tmp_path / "m")
    assert {file.name for file in (tmp_path / "m").iterdir()} == {"model.octavo.safetensors"}
    octavo.save_model(classifier(), tmp_path / "m")
    octavo.save_model(nn.Linear(2, 2), tmp_path / "m")
    assert {file.name for file in (tmp_path / "m").iterdir()} == {"model.octavo.safetensors"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"octavo": 3}, "version 3; this Octavo reads 1 and 2; update it"),
        ({"octavo": None}, "version None"),
        ({"kind": "bert"}, "kind 'bert'; accepted is 'classifier' or 'gpt' or 'seq2seq'"),
        ({"width": 2**40}, "width is 1099511627776"),
        ({"width": 4096}, "with width = 4096 it describes weights"),
        ({"layers": 4000}, "with layers = 4000 it describes"),
        ({"layers": 2}, "missing"),
        ({"heads": 3}, "heads is 3"),
        ({"colour": 1}, "colour"),
        ({"variants": []}, "variants is"),
        ({"variants": {"integer": "../x.safetensors"}}, "accepted is the name of another safetensors file"),
        ({"variants": {"integer": "model.safetensors"}}, "accepted is the name of another"),
        ({"variants": {"integer": "x.bin"}}, "accepted is the name of another"),
        ({"variants": {"integer": 5}}, "accepted is the name of another"),
    ],
)
def test_a_configuration_that_is_none_is_refused_by_field(tmp_path, changes, told):
    octavo.save_model(classifier(), tmp_path / "m")
    rewrite(tmp_path / "m", **changes)
    with pytest.raises(ContainerError, match=told):
        octavo.load_model(tmp_path / "m")


def test_variants_are_files_that_the_configuration_names(tmp_path):
    octavo.save_model(classifier(), tmp_path / "m")
    with pytest.raises(ContainerError, match="names no variant 'integer' of the model; it has none"):
        own_model(tmp_path / "m").variant("integer")
    rewrite(tmp_path / "m", variants={"half": "half.octavo.safetensors"})
    assert own_model(tmp_path / "m").variant("half") == tmp_path / "m" / "half.octavo.safetensors"
    with pytest.raises(ContainerError, match="it has 'half'"):
        own_model(tmp_path / "m").variant("integer")


@pytest.mark.parametrize("kind", NETWORKS)
@torch.no_grad()
def test_what_octavo_pack_writes_runs_on_codes(tmp_path, kind):
    """Linear layers and embeddings multiply codes; weights of an LSTM, which is no layer of a recipe, stay float."""
    model = made(kind)
    octavo.save_model(model, tmp_path / "m")
    told = CliRunner().invoke(app, ["pack", str(tmp_path / "m"), "-o", str(tmp_path / "x"), "--recipe", "mxint8"])
    assert told.exit_code == 0 and "alone" not in told.output, told.output
    loaded = octavo.load_model(tmp_path / "x")
    assert type(loaded) is type(model)
    assert not any(isinstance(layer, nn.Linear | nn.Embedding) for layer in loaded.modules())
    assert container.metadata(tmp_path / "x" / "model.octavo.safetensors")["recipe"] == "mxint8"
    for name, value in container.load(tmp_path / "m" / "model.octavo.safetensors").items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear | nn.Embedding) and value.ndim == 2:
            model.get_parameter(name).copy_(octavo.quantize(value, "mxint8"))
    assert torch.allclose(loaded(*NETWORKS[kind][1]), model(*NETWORKS[kind][1]), atol=1e-5)


RECIPES = (
    "mxint8", "nf4; **embed**=mxint8", "fp32; type:Embedding bf16", "int4:g32; type:Linear mxint8", "int4:g32@hqq",
    "mxint8; type:Linear mxint8 input=mxint8",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")
@pytest.mark.parametrize("recipe", spread(RECIPES))
@pytest.mark.parametrize("kind", NETWORKS)
def test_plan_report_and_file_are_those_of_pack_model(tmp_path, kind, recipe):
    """octavo recipe --model, pack --dry-run, pack, and quantize_model with pack_model: one answer, to the byte."""
    half = (list(NETWORKS).index(kind) + RECIPES.index(recipe)) % 2  # each recipe and each kind has both
    model = made(kind).to([torch.float32, torch.bfloat16][half])
    octavo.save_model(model, tmp_path / "m")
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, recipe, progress=False)), tmp_path / "y")

    def told(*arguments):
        done = CliRunner().invoke(app, [*map(str, arguments)])
        assert done.exit_code == 0 and "alone" not in done.output, done.output
        return done.output

    plan = json.loads(told("recipe", recipe, "--model", tmp_path / "m", "--json"))
    assert plan == json.loads(octavo.Recipe.parse(recipe).explain(model).to_json())
    options = ("pack", tmp_path / "m", "-o", tmp_path / "x", "--recipe", recipe)
    planned, report = told(*options, "--dry-run"), told(*options)
    files = [tmp_path / name / "model.octavo.safetensors" for name in ("x", "y")]
    assert files[0].read_bytes() == files[1].read_bytes()
    found = container.inspect(files[0])
    assert sum(entry.nbytes for entry in found) == plan["totals"]["bytes_after"]
    packed = {(entry.name, entry.format) for entry in found if entry.kind == "packed"}
    weights = [row for row in plan["rows"] if row["format"] and row["role"] == "weight"]
    assert packed == {(f"{row['module']}.weight", row["format"]) for row in weights}
    for text in (planned, report):
        lines = [line.split() for line in text.splitlines()]
        assert packed == {(line[0], line[1]) for line in lines if len(line) > 4 and line[0].endswith("weight")}
    octavo.load_model(tmp_path / "x")
    again = json.loads(told("recipe", recipe, "--model", tmp_path / "x", "--json"))
    assert again == plan


def test_a_network_without_one_of_its_weights_is_named(tmp_path):
    octavo.save_model(made("classifier"), tmp_path / "m")
    file = tmp_path / "m" / "model.octavo.safetensors"
    tensors, metadata = container.load(file), container.metadata(file)
    lost = sorted(tensors)[0]
    del tensors[lost]
    container.save(tensors, file, metadata=metadata)
    given = ["pack", str(tmp_path / "m"), "-o", str(tmp_path / "x"), "--recipe", "type:Linear mxint8"]
    assert lost in CliRunner().invoke(app, given).output


@pytest.mark.parametrize("kind", NETWORKS)
def test_octavo_recipe_explains_folders_of_our_networks(tmp_path, kind):
    model = made(kind)
    octavo.save_model(model, tmp_path / "m")
    CliRunner().invoke(app, ["pack", str(tmp_path / "m"), "-o", str(tmp_path / "x")])
    wanted = json.loads(octavo.Recipe.parse("mxint8").explain(model).to_json())
    for folder in ("m", "x"):
        told = CliRunner().invoke(app, ["recipe", "mxint8", "--model", str(tmp_path / folder), "--json"])
        assert told.exit_code == 0 and json.loads(told.output) == wanted, told.output
