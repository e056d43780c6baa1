"""Language models in folders of other packages run natively: scores and tokens are those of the decoded model."""

import json

import octavo
import pytest
import torch
from helpers.foreign_decoders import ARCHITECTURES, FOLDERS, VOCABULARY, decoded_model, float_model, write_folder
from helpers.quick import spread
from octavo import ContainerError, OctavoWarning, Sampling, TextGenerator

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore::octavo.CoverageWarning"),
    pytest.mark.filterwarnings("ignore:.*are decoded to:octavo.OctavoWarning"),
]
CLOSE = 1e-4
"""Of log-probabilities: float32 sums, against float64."""
IDS = torch.randint(1, VOCABULARY, (100,), generator=torch.Generator().manual_seed(1)).tolist()
CASES = [(architecture, layout) for layout in FOLDERS for architecture in ARCHITECTURES]
OSS = ("gpt_oss", "gpt-oss")


@torch.no_grad()
def log_probs(model, ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


@pytest.mark.parametrize(("architecture", "layout"), [*spread(CASES, 3), OSS])
def test_scores_and_greedy_tokens_are_those_of_the_decoded_model(tmp_path, architecture, layout):
    path = write_folder(tmp_path / "m", architecture, layout)
    decoder, model = TextGenerator.load(path), decoded_model(path, tmp_path / "decoded")
    scores = torch.from_numpy(decoder.scores(IDS).copy()).double()
    assert (torch.log_softmax(scores, -1) - log_probs(model, IDS)).abs().max() < CLOSE
    for prompt in (IDS[:3], IDS[:70]):
        row = [token for (token,) in decoder.generate_ids([prompt], Sampling(), tokens=20, stop=())]
        found = log_probs(model, prompt + row)[len(prompt) - 1 : -1]
        best = found.amax(-1) - found.gather(1, torch.tensor(row)[:, None])[:, 0]
        assert best.max() < CLOSE  # equal, but for ties


SCHEMES = {
    "int4 groups": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    "int8 channels": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "fp8 channels": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "fp8 one scale": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    "fp8 blocks": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_models_that_compressed_tensors_packed_run(tmp_path, architecture, scheme):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.compressors import ModelCompressor

    weights = quantization.QuantizationArgs(**SCHEMES[scheme], symmetric=True)
    group = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    model = float_model(architecture)
    settings = quantization.QuantizationConfig(config_groups={"group": group}, ignore=["lm_head"])
    quantization.apply_quantization_config(model, settings)
    for layer in model.modules():
        if hasattr(layer, "quantization_scheme"):
            scales, (rows, columns) = layer.weight_scale, layer.weight.shape
            count = (scales.shape[0], scales.shape[1]) if scales.ndim == 2 else (1, 1)
            blocks = layer.weight.detach().reshape(count[0], rows // count[0], count[1], columns // count[1])
            most = {"int": 2 ** (weights.num_bits - 1) - 0.5, "float": 448}[SCHEMES[scheme]["type"]]
            scales.data.copy_((blocks.abs().amax((1, 3)) / most).half().reshape(scales.shape))
            layer.quantization_status = quantization.QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "m")
    compressor.update_config(tmp_path / "m")
    scores = torch.from_numpy(TextGenerator.load(tmp_path / "m").scores(IDS).copy()).double()
    wanted = log_probs(decoded_model(tmp_path / "m", tmp_path / "decoded"), IDS)
    assert (torch.log_softmax(scores, -1) - wanted).abs().max() < CLOSE
    assert (wanted - log_probs(float_model(architecture).double(), IDS)).abs().max() > CLOSE


PACKED = [
    "ct-int4", "ct-int8-channel", "ct-uint4", "mxfp4", "mxfp8", "nvfp4", "gptq-4", "gptq-8", "awq", "modelopt-nvfp4",
    "torchao-mxfp4", "torchao-nvfp4",
]  # fmt: skip


@pytest.mark.filterwarnings("error:.*are decoded to:octavo.OctavoWarning")
@pytest.mark.parametrize(
    ("architecture", "layout"),
    [*spread([(architecture, layout) for layout in PACKED for architecture in ("llama", "qwen3_moe")], 3), OSS],
)
def test_weights_that_a_format_holds_stay_packed(tmp_path, architecture, layout):
    float_model(architecture).save_pretrained(tmp_path / "float")
    plain = TextGenerator.load(tmp_path / "float").nbytes
    packed = TextGenerator.load(write_folder(tmp_path / "m", architecture, layout)).nbytes
    assert packed < plain / 2


@pytest.mark.filterwarnings("default:.*are decoded to:octavo.OctavoWarning")
@pytest.mark.parametrize("layout", ["fp8-blocks", "ct-fp8", "bnb-nf4", "bnb-int8", "gptq-act"])
def test_weights_that_no_format_holds_are_decoded_and_told(tmp_path, layout):
    path = write_folder(tmp_path / "m", "qwen3", layout)
    with pytest.warns(OctavoWarning, match=f"^{path}: 14 of 25 tensors are decoded to float32: 14 of ") as caught:
        TextGenerator.load(path)
    assert caught[0].filename == __file__


REFUSED = [
    (
        "hqq",
        {},
        r"config.json: quantization_config: quant_method is 'hqq'; read are compressed-tensors, gptq, .*dequantize",
    ),
    (None, {}, r"config.json: quantization_config: quant_method is missing; read are .*dequantize"),
    ("gptq", {"bits": 5}, r"config.json: bits is 5; read are 2, 3, 4, 8"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; read are gptq, gptq_v2"),
    ("awq", {"version": "gemv"}, "version is 'gemv'; read are gemm"),
    ("modelopt", {"quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'; read are nvfp4"),
    ("fp8", {"weight_block_size": "all"}, "weight_block_size is 'all'; read are two sizes"),
    ("compressed-tensors", {"format": "marlin-24"}, "format is 'marlin-24'"),
    ("compressed-tensors", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
]


@pytest.mark.parametrize(("method", "fields", "message"), REFUSED)
def test_what_is_not_read_is_refused_by_its_field(tmp_path, method, fields, message):
    layout = {"awq": "awq", "modelopt": "modelopt-nvfp4", "fp8": "fp8-blocks", "compressed-tensors": "ct-int4"}
    path = write_folder(tmp_path / "m", "llama", layout.get(method, "gptq-4"), quant_method=method, **fields)
    with pytest.raises(ContainerError, match=message) as caught:
        TextGenerator.load(path)
    assert str(path) in str(caught.value)
    assert "model.dequantize()" in str(caught.value) or {"weight_block_size", "sparsity_config"} & {*fields}
    with pytest.raises(octavo.OctavoError, match=message):
        octavo.load_model(path)


@pytest.mark.parametrize(
    ("layout", "part"),
    [("gptq-4", "scales"), ("awq", "qzeros"), ("fp8-blocks", "weight_scale_inv"), ("bnb-int8", "SCB")],
)
def test_a_tensor_that_is_missing_or_of_another_size_is_refused_by_name(tmp_path, layout, part):
    path = write_folder(tmp_path / "m", "llama", layout)
    file, name = path / "model.safetensors", f"model.layers.1.mlp.up_proj.{part}"
    tensors = octavo.load(file)
    for change in (lambda value: None, lambda value: value[:-1].clone()):
        changed = {**tensors, name: change(tensors[name])}
        octavo.save({key: value for key, value in changed.items() if value is not None}, file)
        with pytest.raises(ContainerError, match=r"model\.layers\.1\.mlp\.up_proj"):
            TextGenerator.load(path)


def test_a_layer_of_another_size_than_the_configuration_says_is_refused_by_name(tmp_path):
    path = write_folder(tmp_path / "m", "qwen3", "gptq-4")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 512}))
    with pytest.raises(ContainerError, match=r"mlp\.\w+_proj.*shape \[\d+, \d+\]; by the configuration"):
        TextGenerator.load(path)
