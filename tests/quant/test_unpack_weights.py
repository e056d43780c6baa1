"""What octavo pack and unpack make of folders that save_model wrote."""

import octavo
import pytest
import torch
from octavo.cli import app
from octavo.errors import ContainerError
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")


def run(*arguments, code=0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16, bos_token_id=None, eos_token_id=None
    )
    return transformers.GPT2Model(config).eval()


@pytest.mark.parametrize("recipe", ["mxint8", "**.attn.c_proj mxint8"])
def test_unpacked_weights_are_the_models_square_ones_of_conv1d_too(tmp_path, model, recipe):
    packed = octavo.pack_model(octavo.quantize_model(model, recipe))
    octavo.save_model(packed, tmp_path / "small")
    run("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    again = transformers.GPT2Model.from_pretrained(tmp_path / "plain").eval()
    for name, weight in model.state_dict().items():
        assert (again.state_dict()[name] - weight).abs().max() < 0.01, name
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.allclose(again(ids)[0], packed(ids)[0], atol=1e-4)
    with pytest.raises(ContainerError, match="holds tensors but no model"):
        octavo.load_model(tmp_path / "plain")


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_simulated_layers_are_refused_before_anything_is_written(tmp_path, model, command):
    octavo.save_model(octavo.quantize_model(model, "weight=mxint8 input=mxint8"), tmp_path / "m")
    told = run(command, tmp_path / "m", "-o", tmp_path / "out", code=2)
    assert "simulated layer" in told and "octavo.pack_model" in told and not (tmp_path / "out").exists()


def test_a_model_without_quantized_layers_is_packed_and_unpacked(tmp_path, model):
    octavo.save_model(model, tmp_path / "m")
    run("unpack", tmp_path / "m", "-o", tmp_path / "plain")
    assert type(octavo.load_model(tmp_path / "plain")) is transformers.GPT2Model
    run("pack", tmp_path / "m", "-o", tmp_path / "small")
    with pytest.raises(ContainerError, match="holds tensors but no model"):
        octavo.load_model(tmp_path / "small")


def test_a_folder_that_is_missing_is_told_by_the_name_given(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        octavo.save({"a": torch.ones(2)}, tmp_path / "none" / "f.safetensors")
    assert caught.value.filename == str(tmp_path / "none" / "f.safetensors") and ".tmp" not in str(caught.value)
