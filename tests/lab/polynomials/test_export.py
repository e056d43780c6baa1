"""The folder of a model: what was exported is what is loaded, and nothing else is accepted."""

import json
from dataclasses import replace

import octavo
import pytest
import torch
from octavo.data import CharTokenizer
from octavo.errors import (
    ContainerError,
    DataError,
    DTypeError,
    FormatError,
    NonFiniteError,
    OctavoError,
    ShapeError,
)
from octavo.lab.polynomials import export, shipped, static
from octavo.lab.polynomials.seq2seq import ARCHITECTURES, Seq2SeqConfig, build
from octavo.tensors import container

CONFIG = Seq2SeqConfig(embedding=8, encoder=6, hidden=12, heads=3, layers=2, feedforward=20)
TOKENIZER = CharTokenizer.polynomials()
WEIGHTS = "model.octavo.safetensors"


def made(architecture="hybrid", seed=0):
    torch.manual_seed(seed)
    return build(replace(CONFIG, architecture=architecture)).eval()


@pytest.fixture
def folder(tmp_path):
    return export.export_model(made(), TOKENIZER, tmp_path / "model")


def rewrite(folder, **changes):
    """Change fields of config.json; None removes one."""
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in values.items() if value is not None})
    )


def rewrite_weights(folder, change):
    tensors = octavo.load(folder / WEIGHTS)
    change(tensors)
    octavo.save(tensors, folder / WEIGHTS)


# --- round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("fmt", [None, "mxint8", "int8:channel", "nf4", "fp16", "mxfp4; output.weight=keep"])
def test_what_is_loaded_is_what_the_format_holds(tmp_path, architecture, fmt):
    model = made(architecture)
    path = export.export_model(model, TOKENIZER, tmp_path / "model", format=fmt)
    loaded, tokenizer = export.load_model(path)
    assert tokenizer == TOKENIZER
    assert loaded.config == model.config
    assert not loaded.training
    weights = loaded.state_dict()
    assert list(weights) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        packed = fmt is not None and tensor.ndim == 2 and not (name == "output.weight" and "keep" in fmt)
        expected = octavo.quantize(tensor, fmt.split(";")[0]) if packed else tensor
        assert torch.equal(weights[name], expected), name
        assert weights[name].dtype == torch.float32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_loaded_model_runs_and_trains(tmp_path, architecture):
    model = made(architecture)
    loaded, _ = export.load_model(export.export_model(model, TOKENIZER, tmp_path / "model", format=None))
    source = torch.randint(3, 31, (3, 9))
    target = torch.randint(3, 31, (3, 7))
    assert torch.equal(loaded(source, target), model(source, target))
    assert torch.equal(loaded.generate(source)[0], model.generate(source)[0])
    loaded.train()(source, target).sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_loading_draws_no_random_numbers(folder):
    before = torch.get_rng_state()
    export.load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_folder_holds_what_was_given(tmp_path):
    model = made()
    scales = static.calibrate(model, [torch.randint(3, 31, (4, 9))])
    integer = static.quantize_static(model, scales)
    metadata = {"exact_share": 0.5, "by_kind": {"square": {"exact": 1, "lines": 2}}}
    path = export.export_model(model, TOKENIZER, tmp_path / "m", integer=integer, metadata=metadata)
    names = ["README.md", "accuracy.json", "config.json", "integer.octavo.safetensors", WEIGHTS, "tokenizer.json"]
    assert sorted(file.name for file in path.iterdir()) == names
    assert json.loads((path / "config.json").read_text()) == {
        "octavo": 2,
        "kind": "seq2seq",
        **model.config.as_dict(),
        "variants": {"integer": "integer.octavo.safetensors"},
    }
    assert json.loads((path / "accuracy.json").read_text()) == metadata
    assert "| exact_share | 0.5 |" in (path / "README.md").read_text()
    loaded, tokenizer = export.load_integer(path)
    assert tokenizer == TOKENIZER
    source, target = torch.randint(3, 31, (3, 9)), torch.randint(3, 31, (3, 7))
    assert torch.equal(loaded(source, target), integer(source, target))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_octavo_load_model_multiplies_the_codes_of_the_folder(tmp_path, architecture):
    """Weights of layers stay codes; those of LSTMs, which no layer multiplies, are decoded."""
    path = export.export_model(made(architecture), TOKENIZER, tmp_path / "m", format="mxint8")
    packed, (decoded, _) = octavo.load_model(path), export.load_model(path)
    linear = {name for name, layer in decoded.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert linear == {name for name, layer in packed.named_modules() if isinstance(layer, octavo.nn.PackedLinear)}
    source, target = torch.randint(3, 31, (3, 9)), torch.randint(3, 31, (3, 7))
    assert torch.allclose(packed(source, target), decoded(source, target), atol=1e-5)
    assert torch.equal(packed.generate(source)[0], decoded.generate(source)[0])
    assert container.metadata(path / WEIGHTS)["recipe"]
    stored = {entry.name: entry.format for entry in container.inspect(path / WEIGHTS)}
    assert stored == {name: "mxint8" if value.ndim == 2 else None for name, value in decoded.state_dict().items()}


def as_0_1(folder, to):
    """The same model as 0.1 wrote it."""
    to.mkdir()
    (to / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    values = json.loads((folder / "config.json").read_text()) | {"octavo": 1}
    named = values.pop("variants", {})
    (to / "config.json").write_text(json.dumps(values))
    container.save(container.load(folder / WEIGHTS), to / "model.safetensors")
    if named:
        (to / "integer.safetensors").write_bytes((folder / named["integer"]).read_bytes())
    return to


def test_folders_of_0_1_are_read(tmp_path):
    model = made()
    integer = static.quantize_static(model, static.calibrate(model, [torch.randint(3, 31, (4, 9))]))
    path = export.export_model(model, TOKENIZER, tmp_path / "new", integer=integer)
    former = as_0_1(path, tmp_path / "old")
    source, target = torch.randint(3, 31, (3, 9)), torch.randint(3, 31, (3, 7))
    for read in (lambda folder: export.load_model(folder)[0], lambda folder: export.load_integer(folder)[0]):
        assert torch.equal(read(former)(source, target), read(path)(source, target))
    assert torch.equal(octavo.load_model(former)(source, target), octavo.load_model(path)(source, target))


def test_equal_models_give_equal_bytes(tmp_path):
    first, second = (export.export_model(made(), TOKENIZER, tmp_path / name) for name in "ab")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


# --- writing whole or not at all ------------------------------------------------------------------------------------


def test_a_folder_that_is_there_is_replaced_only_if_asked_and_then_wholly(folder):
    (folder / "integer.safetensors").write_bytes(b"of a model of 0.1")
    (folder / "integer.octavo.safetensors").write_bytes(b"of the old model")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(FileExistsError):
        export.export_model(made(seed=1), TOKENIZER, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    export.export_model(made(seed=1), TOKENIZER, folder, overwrite=True)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", WEIGHTS, "tokenizer.json"]
    assert (folder / WEIGHTS).read_bytes() != before[WEIGHTS]
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]


def test_an_empty_folder_is_no_obstacle(tmp_path):
    (tmp_path / "model").mkdir()
    export.export_model(made(), TOKENIZER, tmp_path / "model")
    assert export.load_model(tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_while_writing_leaves_nothing_and_changes_nothing(tmp_path, monkeypatch, there):
    path = tmp_path / "model"
    if there:
        export.export_model(made(), TOKENIZER, path)
    before = {file.name: file.read_bytes() for file in path.iterdir()} if there else None

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "save", fails)
    with pytest.raises(OSError, match="No space"):
        export.export_model(made(seed=1), TOKENIZER, path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == (["model"] if there else [])
    if there:
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def refused():
    broken = made()
    broken.output.bias.data[3] = torch.nan
    other = static.quantize_static(made(), static.calibrate(made(), [torch.randint(3, 31, (4, 9))]))
    wider = build(replace(CONFIG, feedforward=24))
    yield "no model", DTypeError, (torch.nn.Linear(2, 2), TOKENIZER), {}
    yield "an integer model", DTypeError, (other, TOKENIZER), {}
    yield "no tokenizer", DTypeError, (made(), None), {}
    yield "another vocabulary", ShapeError, (made(), CharTokenizer("abc")), {}
    yield "NaN", NonFiniteError, (broken, TOKENIZER), {}
    yield "no format", FormatError, (made(), TOKENIZER), {"format": "mxint99"}
    yield "a rule that matches nothing", FormatError, (made(), TOKENIZER), {"format": "nothing*=mxint8"}
    yield "metadata", DataError, (made(), TOKENIZER), {"metadata": {"a": object()}}
    yield "NaN in metadata", DataError, (made(), TOKENIZER), {"metadata": {"a": float("nan")}}
    yield "no integer model", DTypeError, (made(), TOKENIZER), {"integer": made()}
    yield "the integer model of another", ShapeError, (wider, TOKENIZER), {"integer": other}


@pytest.mark.parametrize(("error", "args", "options"), [pytest.param(*case[1:], id=case[0]) for case in refused()])
def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path, error, args, options):
    with pytest.raises(error):
        export.export_model(*args, tmp_path / "model", **options)
    assert not any(tmp_path.iterdir())


# --- wrong folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        export.load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 70_000, b"[" * 20_000, b" " * 70_000])
def test_a_file_of_other_content_is_refused(folder, name, data):
    (folder / name).write_bytes(data)
    with pytest.raises(ContainerError):
        export.load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"octavo": 3}, "version 3; this Octavo reads 1 and 2; update it"),
        ({"octavo": True}, "version True"),
        ({"octavo": None}, "version None"),
        ({"kind": "gpt"}, "kind 'gpt'"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"heads": None}, "missing field 'heads'"),
        ({"heads": 5}, "must divide hidden"),
        ({"hidden": 10**30}, "hidden is 1000"),
        ({"hidden": 12.0}, "hidden is 12.0"),
        ({"architecture": ["hybrid"]}, "architecture is"),
        ({"vocabulary": 32}, r"tokenizer\.json: 31 ids; the vocabulary of config\.json has 32"),
        ({"layers": 3}, r"blocks\.2\..* is missing"),
        ({"layers": 1}, r"blocks\.1\..* is no weight of the model"),
        ({"feedforward": 24}, r"has shape \(12, 20\); the model's is \(12, 24\)"),
        # Refused from the header alone: the model itself would take 17 GB.
        ({"hidden": 4096, "heads": 1, "feedforward": 16384, "layers": 64}, "describes weights of more than"),
        ({"architecture": "lstm"}, "is missing"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused(folder, changes, message):
    rewrite(folder, **changes)
    with pytest.raises(ContainerError, match=message):
        export.load_model(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop("bridge.bias"), ContainerError, "bridge.bias is missing"),
        (lambda t: t.update(extra=torch.zeros(3)), ContainerError, "extra is no weight"),
        (lambda t: t.update({"bridge.bias": torch.zeros(5)}), ContainerError, r"bridge.bias has shape \(5,\)"),
        (lambda t: t.update({"bridge.bias": torch.zeros(24).long()}), ContainerError, "bridge.bias has dtype int64"),
        (lambda t: t.update({"bridge.bias": torch.full((24,), torch.inf)}), NonFiniteError, "bridge.bias"),
    ],
)
def test_weights_that_are_not_the_models_are_refused(folder, change, error, message):
    rewrite_weights(folder, change)
    with pytest.raises(error, match=message):
        export.load_model(folder)


def test_a_file_that_is_cut_off_is_refused(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-1])
    with pytest.raises(ContainerError):
        export.load_model(folder)


def test_a_folder_without_an_integer_model_says_so(folder):
    with pytest.raises(ContainerError, match=r"config\.json: names no variant 'integer' of the model; it has none"):
        export.load_integer(folder)
    rewrite(folder, variants={"integer": "integer.octavo.safetensors"})
    with pytest.raises(FileNotFoundError, match=r"integer\.octavo\.safetensors"):
        export.load_integer(folder)
    rewrite(folder, octavo=1, variants=None)
    with pytest.raises(FileNotFoundError, match=r"integer\.safetensors"):
        export.load_integer(folder)


# --- the shipped model ----------------------------------------------------------------------------------------------


def test_an_installation_without_the_shipped_model_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "shipped.py"))
    with pytest.raises(
        OctavoError, match=r"comes without the polynomial model: .*config\.json is absent; give the path"
    ):
        shipped.load_shipped()


def test_the_shipped_model_is_loaded_from_the_folder_beside_its_module(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "shipped.py"))
    export.export_model(made(), TOKENIZER, tmp_path / "shipped")
    assert shipped.shipped_folder() == tmp_path / "shipped"
    model, tokenizer = shipped.load_shipped()
    assert model.config == CONFIG
    assert tokenizer == TOKENIZER
