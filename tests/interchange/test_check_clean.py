"""Sound exports of every writer that is installed have no findings, and layers are near their originals.

Counts of files stand in the last test: together the writers make more than 40.
"""

import warnings

import numpy as np
import pytest
import torch
from helpers.models import transformer
from helpers.quick import spread
from helpers.real_models import real_model
from octavo.cli import app
from octavo.interchange.check.run_check import check_path
from typer.testing import CliRunner

FAMILIES = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "BertModel", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM",
    "GptOssForCausalLM", "OPTForCausalLM", "MambaForCausalLM", "ViTModel", "DeepseekV3ForCausalLM", "BloomForCausalLM",
    "T5ForConditionalGeneration", "BartForConditionalGeneration", "Llama4ForCausalLM", "Lfm2ForCausalLM",
)  # fmt: skip
GGUF_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
SCHEMES = (
    "W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4",
    "MXFP6A16", "MXFP8A16",
)  # fmt: skip
WIDTHS = tuple(range(2, 9))
BNB = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4 twice": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
TORCHAO = ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
FORMATS = (
    "mxint8", "int4:g32", "uint4:g64", "nvfp4", "mxfp4", "mxfp6e2m3", "nf4", "bfp8/16", "int8:channel", "e4m3", "ternary",
    "log5",
)  # fmt: skip

CONVERTED = (
    ("compressed-tensors", "int4:g32"), ("compressed-tensors", "int3:g32"), ("compressed-tensors", "uint4:g64"),
    ("compressed-tensors", "int8:channel"), ("compressed-tensors", "mxfp4"), ("compressed-tensors", "mxfp8e4m3"),
    ("compressed-tensors", "mxfp6e2m3"), ("compressed-tensors", "e4m3"), ("gguf", "int8:g32"), ("gguf", "int4:g32"),
    ("gguf", "mxfp4"), ("gguf", "nvfp4"),
)  # fmt: skip


def assert_clean(path, base=None, layers=None):
    checked = check_path(path, base=base)
    assert [(one.rule.id, one.subject, one.text) for one in checked.findings] == []
    if layers is not None:
        assert len(checked.agreements) == layers  # quantised ones, embedding and head


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a small llama whose columns are whole groups of 128."""
    folder = tmp_path_factory.mktemp("base") / "llama"
    llama().save_pretrained(folder)
    return folder


def llama():
    return transformer("LlamaForCausalLM", width=128, layers=2, heads=4, inner=256).float()


@pytest.mark.parametrize("family", spread(FAMILIES))
def test_float_models_of_transformers(family, tmp_path):
    transformer(family, width=64, layers=2, heads=4, inner=128).save_pretrained(tmp_path / "x")
    assert_clean(tmp_path / "x")


def test_shards_of_transformers(tmp_path):
    transformer("LlamaForCausalLM", width=64, layers=4, heads=4, inner=128).save_pretrained(
        tmp_path / "x", max_shard_size="100KB"
    )
    assert len(list((tmp_path / "x").glob("*.safetensors"))) > 2
    assert_clean(tmp_path / "x")


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_files_of_gguf_py(kind, tmp_path):
    gguf = pytest.importorskip("gguf")
    number = gguf.GGMLQuantizationType[kind]
    matrix = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32) / 20
    writer = gguf.GGUFWriter(tmp_path / f"x-{kind}.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quants.quantize(matrix, number), raw_dtype=number)
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(512, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_clean(tmp_path / f"x-{kind}.gguf")


def test_a_real_file_of_llama_cpp():
    assert_clean(real_model("smollm2"))


# --- compressed-tensors -------------------------------------------------------------------------------------------------


def set_scales(module):
    """Choose scales as observers of llm-compressor do, from the extremes of each group."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight, settings = module.weight.data, module.quantization_scheme.weights
    strategy = getattr(settings.strategy, "value", settings.strategy)
    factor = None
    if hasattr(module, "weight_global_scale"):  # one for all layers, as joined layers need it
        factor = generate_gparam(torch.tensor([-0.3]), torch.tensor([0.3]))
        module.weight_global_scale.data.copy_(factor.reshape(module.weight_global_scale.shape))
    if strategy in ("group", "tensor_group"):
        blocks = weight.reshape(len(weight), -1, settings.group_size)
        low, high = blocks.amin(2), blocks.amax(2)
    elif strategy == "block":
        rows, columns = settings.block_structure
        blocks = weight.reshape(len(weight) // rows, rows, -1, columns)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    scale, zero = calculate_qparams(low, high, settings, global_scale=factor)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))


def export_compressed_tensors(weights, folder):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, apply_quantization_config

    model = llama()
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            set_scales(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return folder


@pytest.mark.parametrize("scheme", spread(SCHEMES, 2))
def test_schemes_of_compressed_tensors(scheme, base, tmp_path):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import preset_name_to_scheme

    weights = preset_name_to_scheme(scheme, ["Linear"]).weights
    assert_clean(export_compressed_tensors(weights, tmp_path / "x"), base, 16)


@pytest.mark.parametrize("bits", WIDTHS)
def test_widths_of_compressed_tensors(bits, base, tmp_path):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationArgs

    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=bits % 2 == 0, strategy="group", group_size=32)
    assert_clean(export_compressed_tensors(weights, tmp_path / "x"), base, 16)


# --- bitsandbytes, torchao and our own ----------------------------------------------------------------------------------


def quantised_while_read(base, config, folder):
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config, device_map="cpu")
        model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", BNB)
def test_folders_of_bitsandbytes(kind, base, tmp_path):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    from transformers import BitsAndBytesConfig

    assert_clean(quantised_while_read(base, BitsAndBytesConfig(**BNB[kind]), tmp_path / "x"), base, 16)


@pytest.mark.parametrize("kind", TORCHAO)
def test_folders_of_torchao(kind, base, tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    pytest.importorskip("accelerate")
    from transformers import TorchAoConfig

    config = TorchAoConfig(getattr(quantization, kind)())
    assert_clean(quantised_while_read(base, config, tmp_path / "x"), base, 16)


@pytest.mark.parametrize("text", spread(FORMATS))
def test_folders_of_octavo(text, base, tmp_path):
    arguments = ["pack", str(base), "-o", str(tmp_path / "x"), "--recipe", text]
    result = CliRunner().invoke(app, arguments, prog_name="octavo")
    assert result.exit_code == 0, result.output
    assert_clean(tmp_path / "x", base, 16)


@pytest.mark.parametrize(("kind", "text"), spread(CONVERTED))
def test_files_of_octavo_convert(kind, text, base, tmp_path):
    out = tmp_path / ("x.gguf" if kind == "gguf" else "x")
    arguments = ["convert", str(base), str(out), "--to", kind, "--recipe", f"type:Linear {text}; lm_head=keep"]
    result = CliRunner().invoke(app, arguments, prog_name="octavo")
    assert result.exit_code == 0, result.output
    assert_clean(out, base, 16)


def test_the_writers_make_more_than_40_files():
    files = (FAMILIES, GGUF_TYPES, SCHEMES, WIDTHS, BNB, TORCHAO, FORMATS, CONVERTED)
    assert sum(map(len, files)) + 2 > 40
