"""Commands take folders of GPTQ, AWQ, ModelOpt, bitsandbytes and torchao where they take the folder of a model."""

import json
import os
import subprocess
import sys
import warnings

import octavo as package
import pytest
import torch
from helpers.checkpoints import base, llama, write
from helpers.packed_folders import values_in

pytest.importorskip("transformers")
TEXT = "the rain in the north, the wind in the south. " * 60
FORMATS = {
    "gptq-3": "uint3:g32", "gptq-v2": "uint4:g32", "awq": "uint4:g64", "modelopt-nvfp4": "nvfp4", "torchao": "mxfp4",
    "bnb-nf4": None, "gptq-act": None,
}  # fmt: skip
WEIGHT = "model.layers.0.mlp.up_proj.weight"


def torchao():
    """A folder of MXTensor, by the layout of torchao's safetensors."""
    tensors, config = base()
    metadata = {"format": "pt"}
    for name in [name for name in tensors if "proj" in name]:
        packed = package.encode(tensors.pop(name), "mxfp4")
        path, record = name.removesuffix(".weight"), {"block_size": 32, "is_swizzled_scales": False}
        for key, dtype in (("elem_dtype", "float4_e2m1fn_x2"), ("orig_dtype", "float32")):
            record[key] = {"_type": "torch.dtype", "_data": dtype}
        tensors |= {f"{path}._weight_qdata": packed.codes, f"{path}._weight_scale": packed.scales}
        metadata[name] = json.dumps({"_type": "MXTensor", "_data": record, "_tensor_data_names": ["qdata", "scale"]})
    return tensors, {**config, "quantization_config": {"quant_method": "torchao"}}, metadata


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small llama in each layout, with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    top = tmp_path_factory.mktemp("packed")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    for layout in FORMATS:
        tensors, config, *metadata = torchao() if layout == "torchao" else llama(layout)
        folder = write(top / layout, tensors, {**config, "max_position_embeddings": 64})
        if metadata:
            package.save(tensors, folder / "model.safetensors", metadata=metadata[0])
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (top / "text.txt").write_text(TEXT)
    return top


def loaded(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", package.OctavoWarning)
        return package.load_model(folder).state_dict()


@pytest.mark.parametrize("layout", FORMATS)
def test_pack_without_a_recipe_keeps_the_codes(octavo, folders, layout, tmp_path):
    packed = json.loads(octavo("pack", folders / layout, "-o", tmp_path / "out", "--json").stdout)
    formats = {one["name"]: one["format"] for one in packed["tensors"]}
    assert formats[WEIGHT] == FORMATS[layout]
    assert bool(packed["notes"]) == (FORMATS[layout] is None)
    theirs, mine = loaded(folders / layout), loaded(tmp_path / "out")
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize("layout", FORMATS)
def test_inspect_recipe_and_compare_take_the_folder(octavo, folders, layout):
    listed = {one["name"]: one for one in json.loads(octavo("inspect", folders / layout, "--json").stdout)["tensors"]}
    assert len(listed) == 21 and listed[WEIGHT]["shape"] == [256, 128]
    assert listed[WEIGHT]["format"].split()[0] in ("gptq", "awq", "modelopt", "torchao", "bitsandbytes")
    rows = json.loads(octavo("recipe", "mxint8", "--model", folders / layout, "--json").stdout)["rows"]
    assert any(row["module"].endswith("mlp.up_proj") for row in rows)
    options = ("--formats", "int8:g32", "--tensor", "**.q_proj.weight", "--json")
    assert json.loads(octavo("compare", folders / layout, *options).stdout)[0]["sqnr_db"] > 40


@pytest.mark.parametrize("layout", ["gptq-v2", "awq", "modelopt-nvfp4", "bnb-nf4"])
def test_eval_measures_the_model_of_a_folder(octavo, folders, layout, tmp_path):
    options = ("--data", folders / "text.txt", "--context", "16", "--tokens", "200", "--guard-calls", "2", "--json")
    value = json.loads(octavo("eval", folders / layout, *options).stdout)["value"]
    octavo("pack", folders / layout, "-o", tmp_path / "out")
    assert json.loads(octavo("eval", tmp_path / "out", *options).stdout)["value"] == value


def test_compress_takes_the_weights_of_a_folder(octavo, folders, tmp_path):
    options = ("--data", folders / "text.txt", "--recipe", "int8:g32", "--samples", "4", "--tokens", "16", "--fast")
    octavo("compress", "--model", folders / "gptq-v2", "-o", tmp_path / "out", *options)
    assert str(package.load_model(tmp_path / "out").model.layers[0].mlp.up_proj.weight.format) == "int8:g32"


@pytest.mark.parametrize(("layout", "kind"), [("gptq-3", "compressed-tensors"), ("awq", "gguf"), ("awq", "octavo")])
def test_convert_writes_the_codes_of_a_folder(octavo, folders, layout, kind, tmp_path):
    out = tmp_path / ("out.gguf" if kind == "gguf" else "out")
    octavo("convert", folders / layout, out, "--to", kind)
    theirs, mine = (values_in(package.load_model(place)) for place in (folders / layout, out))
    assert len(theirs) == 21 and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_unpack_decodes_the_weights(octavo, folders, tmp_path):
    octavo("unpack", folders / "gptq-3", "-o", tmp_path / "out")
    packed = package.load_model(folders / "gptq-3").get_submodule(WEIGHT.removesuffix(".weight")).weight
    assert torch.equal(loaded(tmp_path / "out")[WEIGHT], packed.decode())


@pytest.mark.parametrize("layout", FORMATS)
def test_check_says_into_which_format_layers_are_carried(octavo, folders, layout):
    if layout == "torchao":
        pytest.skip("octavo check knows no MXTensor")
    report = json.loads(octavo("check", folders / layout, "--for", "octavo", "--json").stdout)
    (route,) = report["routes"]
    expected = "decodes" if FORMATS[layout] is None else "takes"
    assert route["verdict"] == expected and (FORMATS[layout] or "") in route["how"]


def test_tables_of_contents_are_listed_without_torch(folders):
    code = (
        "import sys; from octavo.interchange.foreign_readers import reader_of\n"
        "for path in sys.argv[1:]: assert len(reader_of(path).contents(path)[0]) == 21, path\n"
        "assert 'torch' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, *(folders / layout for layout in FORMATS)], env=env, check=True)
