"""The plug-in of transformers: from_pretrained packs what it reads, and opens what Octavo wrote."""

import json
import re
import subprocess
import sys

import octavo
import pytest
import torch
from helpers.architectures import ARCHITECTURES, IDS, build, gap, outputs, same
from octavo.errors import CalibrationError, ContainerError, ModelError, NonFiniteError, SettingError
from octavo.nn import PackedEmbedding, PackedLinear

transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")

import octavo.transformers  # noqa: E402 - transformers may be missing
from octavo.transformers import OctavoConfig  # noqa: E402

RECIPE = "int4:g32"
ALIGNED = 1e-5  # torch adds float weights in another order where they lie at other addresses, as in a mapped file
QUICK = ("Llama", "GPT2", "GptOss", "Bert", "Whisper")
# With those: the quick tenth of the sweep (tests/quant/test_sweep.py), and what transformers reads in another way.
MORE = (
    "Gemma3", "OPT", "Falcon", "Mamba", "XLNet", "Bart", "ViT", "CLIP", "Blip2", "Qwen2", "Qwen3", "Phi", "GPTNeoX",
    "Bloom", "Mixtral", "DeepseekV3", "Llama4", "JetMoe", "RWKV", "Jamba", "ModernBert", "DebertaV2", "Electra", "T5",
    "SwitchTransformers", "Marian", "ConvNext", "Wav2Vec2", "PatchTST", "Llava",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama with one table for ids and head, in float32."""
    path = tmp_path_factory.mktemp("llama")
    model, _ = build("Llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(path)
    return path


def llama(folder, recipe=RECIPE, **options):
    config = {} if recipe is None else {"quantization_config": OctavoConfig(recipe)}
    return transformers.LlamaForCausalLM.from_pretrained(folder, **config, **options)


def packed(model, recipe=RECIPE):
    return octavo.pack_model(octavo.quantize_model(model, recipe, progress=False))


def assert_same_model(model, expected, inputs=None):
    assert_same_state(model, expected)
    inputs = inputs or {"input_ids": IDS}
    assert all(same(a, b) for a, b in zip(outputs(model, inputs), outputs(expected, inputs), strict=True))


def assert_same_state(model, expected):
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and same(found[name], value), name


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_reading_packs_what_quantize_and_pack_do_and_the_folder_opens_again(name, tmp_path):
    model, inputs = build(name)
    model.save_pretrained(tmp_path / "float")
    kind = getattr(transformers, type(model).__name__)
    plain = kind.from_pretrained(tmp_path / "float")
    expected = packed(plain)
    made = kind.from_pretrained(tmp_path / "float", quantization_config=OctavoConfig(RECIPE))
    assert_same_model(made, expected, inputs)
    made.save_pretrained(tmp_path / "packed")
    assert_same_model(kind.from_pretrained(tmp_path / "packed"), expected, inputs)
    assert_same_model(octavo.load_model(tmp_path / "packed"), expected, inputs)
    simulated = kind.from_pretrained(tmp_path / "float", quantization_config=OctavoConfig(RECIPE, simulate=True))
    assert_same_state(simulated, expected := octavo.quantize_model(plain, RECIPE, progress=False))
    pairs = zip(outputs(simulated, inputs), outputs(expected, inputs), strict=True)
    assert all(gap(a, b) <= ALIGNED for a, b in pairs)
    again = made.dequantize()
    assert again is made and not any(type(module).__module__.startswith("octavo.") for module in again.modules())
    again.save_pretrained(tmp_path / "again")
    if not again._keys_to_ignore_on_save:  # tables that transformers computes anew
        assert_same_state(kind.from_pretrained(tmp_path / "again"), again)


@pytest.mark.parametrize(
    "recipe",
    ["int4:g32@hqq", "int3:g32@mse", "mxint8; lm_head keep; model.embed_tokens keep", "int8:channel input=int8"],
)
def test_weights_are_those_of_any_recipe_without_calibration_data(folder, recipe):
    assert_same_model(llama(folder, recipe), packed(llama(folder, None), recipe))


def test_what_needs_calibration_data_is_refused_with_the_lines_to_type(folder):
    for recipe in ("int4:g32@gptq; model.embed_tokens int4:g32; lm_head int4:g32", "int8:channel input=int8@mse"):
        with pytest.raises(CalibrationError) as caught:
            llama(folder, recipe)
        line = re.search(r"octavo\.quantize_model\(.*calibration=batches\)", str(caught.value)).group()
        quantized = eval(line, {"octavo": octavo, "model": llama(folder, None), "batches": [IDS]})
        assert isinstance(octavo.pack_model(quantized).model.layers[0].mlp.up_proj, PackedLinear)
        with pytest.raises(CalibrationError, match="calibration=batches"):
            llama(folder, None, quantization_config=OctavoConfig(recipe, simulate=True))


def test_weights_that_are_not_finite_are_refused_by_name(folder, tmp_path):
    model = llama(folder, None)
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(NonFiniteError, match=r"model\.layers\.1\.mlp\.up_proj"):
        llama(tmp_path)


def test_a_table_that_is_head_too_is_packed_once(folder):
    model = llama(folder)
    assert isinstance(model.lm_head, PackedLinear) and isinstance(model.model.embed_tokens, PackedEmbedding)
    assert model.lm_head.weight_codes is model.model.embed_tokens.weight_codes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_checkpoints_in_half_precision_in_shards_and_with_a_device_map(folder, tmp_path, dtype):
    llama(folder, None).to(dtype).save_pretrained(tmp_path / "float", max_shard_size="20KB")
    assert len(list((tmp_path / "float").glob("*.safetensors"))) > 2
    expected = packed(llama(tmp_path / "float", None))
    made = llama(tmp_path / "float", device_map="cpu")
    assert made.dtype == dtype
    assert_same_model(made, expected)
    assert_same_model(
        llama(tmp_path / "float", dtype=torch.float32), packed(llama(tmp_path / "float", None, dtype=torch.float32))
    )
    made.save_pretrained(tmp_path / "packed")
    assert_same_model(llama(tmp_path / "packed", None), expected)
    cast = llama(tmp_path / "packed", None, dtype=torch.float32, device_map="cpu")
    assert cast.dtype == torch.float32 and cast.lm_head.dtype == torch.float32
    assert torch.equal(cast.lm_head.weight_scales, made.lm_head.weight_scales)


def test_a_folder_gives_its_body_to_another_class_and_a_new_head_is_drawn(folder, tmp_path):
    made = llama(folder)
    made.save_pretrained(tmp_path)
    body = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(body).__name__ == "LlamaModel"
    assert torch.equal(body(IDS)[0], made.model(IDS)[0])
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(classifier.model(IDS)[0], made.model(IDS)[0])
    assert classifier.score.weight.shape == (3, 64) and 0 < classifier.score.weight.std() < 0.1
    with pytest.raises(ContainerError, match="open it with LlamaForCausalLM"):
        transformers.BertModel.from_pretrained(
            tmp_path, config=transformers.BertConfig(quantization_config={"quant_method": "octavo"})
        )


def test_an_encoder_without_its_pooler_opens_without_it(tmp_path):
    model = packed(build("Bert")[0].base_model)
    octavo.save_model(model, tmp_path)
    body = transformers.AutoModel.from_pretrained(tmp_path)
    assert body.pooler is None
    assert_same_model(body, model)


def test_configurations_name_the_plug_in_and_no_file(folder, tmp_path):
    made = llama(folder, "int4:g32; lm_head keep; model.embed_tokens keep")
    made.save_pretrained(tmp_path / "packed")
    again = llama(tmp_path / "packed", None)
    again.save_pretrained(tmp_path / "again")
    again.config.save_pretrained(tmp_path / "config")
    for place in ("packed", "again", "config"):
        values = json.loads((tmp_path / place / "config.json").read_text())
        assert values["quantization_config"] == {
            "quant_method": "octavo",
            "recipe": "int4:g32; lm_head keep; model.embed_tokens keep",
        }
        assert "transformers_weights" not in values
    octavo.load_model(tmp_path / "packed").dequantize().save_pretrained(tmp_path / "float")
    assert "quantization_config" not in json.loads((tmp_path / "float" / "config.json").read_text())


def test_folders_of_before_open_with_a_configuration_without_a_recipe(folder, tmp_path):
    octavo.save_model(packed(llama(folder, None)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=OctavoConfig())
    assert_same_model(made, octavo.load_model(tmp_path))
    with pytest.raises(ContainerError, match=r"OctavoConfig\(\"int4:g32\"\)"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=OctavoConfig())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_configuration_without_a_dtype_leaves_that_of_the_file(folder, tmp_path, dtype):
    """Also of formats whose scales transformers cannot read."""
    model = packed(llama(folder, None, dtype=dtype), "mxint8")
    model.config.dtype = None
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values.pop("dtype") == str(dtype).removeprefix("torch.")
    (tmp_path / "config.json").write_text(json.dumps(values))
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same_model(made, model)
    assert made.config.dtype == dtype
    assert llama(tmp_path, None, dtype=torch.float16).lm_head.dtype == torch.float16


def test_checkpoints_of_a_simulated_model_stay_those_of_transformers(folder, tmp_path):
    made = transformers.LlamaForCausalLM.from_pretrained(
        folder, quantization_config=OctavoConfig("int4:g32@lsq", simulate=True)
    )
    assert not getattr(made, "hf_quantizer", None) and not getattr(made, "is_quantized", False)
    made.save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    plain = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(plain.lm_head.weight, made.lm_head.weight)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=OctavoConfig(simulate=True))
    assert_same_model(again, made)


WITHOUT = """
import sys, transformers
try:
    transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
except OSError as error:
    print("refused:", error)
"""


def test_a_folder_is_refused_where_the_plug_in_was_not_imported(folder, tmp_path):
    """Else transformers would start from random weights."""
    llama(folder).save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("refused:")
    assert "got octavo" in done.stderr  # transformers' own warning names whom to ask


def test_the_package_loads_nothing_of_transformers():
    code = "import octavo, sys; print('transformers' in sys.modules, 'octavo.transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("sys.modules['transformers'] = None", "needs transformers 5.24 or later; pip install"),
        ("import transformers.core_model_loading as loading; del loading.ConversionOps", "is installed; pip install"),
    ],
    ids=["none", "an early one"],
)
def test_a_missing_transformers_is_told_with_the_line_that_installs_it(before, told):
    code = f"import sys; {before}\ntry:\n    import octavo.transformers\nexcept Exception as error:\n    print(type(error).__name__, error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("ModelError") and told in done.stdout and '"octavo[transformers]"' in done.stdout


def test_what_a_configuration_does_not_know_is_refused(folder):
    with pytest.raises(SettingError, match="quant_method"):
        OctavoConfig("int4", quant_method="gptq")
    for values in ({"colour": "red"}, {"weights": "a.bin"}, {"weights": 3}):
        with pytest.raises(SettingError):
            transformers.quantizers.AutoQuantizationConfig.from_dict({"quant_method": "octavo", **values})
    with pytest.raises(octavo.FormatError):
        OctavoConfig("int99x")
    with pytest.raises(octavo.FormatError, match="sparse"):
        OctavoConfig("int4", simulate=True, sparse=True)
    with pytest.raises(ModelError, match="state_dict"):
        transformers.LlamaForCausalLM.from_pretrained(
            None, config=transformers.LlamaConfig(), state_dict={}, quantization_config=OctavoConfig()
        )
    with pytest.raises(ModelError, match="disk"):
        llama(folder, device_map={"": "disk"})


def test_every_architecture_of_the_slow_list_is_one_of_the_sweep():
    assert not {*QUICK, *MORE} - ARCHITECTURES.keys()
