"""Models become GGUF files: what was read comes back byte for byte, and what is written is the model that it was."""

import filecmp
import itertools
import json
import random
import shutil
import warnings
from dataclasses import replace

import numpy as np
import octavo
import pytest
import torch
from helpers.gguf_files import gguf
from helpers.gguf_models import file_of, metadata, name_in, permuted
from helpers.models import transformer
from helpers.real_models import real_model
from helpers.token_oracles import RULES
from interchange.test_ggml_carry import KINDS as TYPES
from interchange.test_ggml_carry import random_data
from interchange.test_ggml_pack import canonical
from interchange.test_gguf_folder import TEXTS, trained
from interchange.test_gguf_model import IDS, assert_same, bert, gpt2, llama, values
from octavo import ContainerError, FormatError, ModelError, OctavoError
from octavo.interchange.conversion import Conversion
from octavo.interchange.convert import KINDS, convert
from octavo.interchange.ggml_carry import CARRIERS
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_metadata import NAME, FormerFile
from octavo.interchange.gguf_model import GgufModel
from octavo.interchange.gguf_splits import SPLITS
from octavo.interchange.gguf_tokenizer import texts_of
from octavo.interchange.gguf_tokenizer_keys import tokenizer_keys

pytest.importorskip("transformers")
MAKERS = {"llama": llama, "gpt2": gpt2, "bert": bert}
OTHER_KEYS = [
    ("general.name", "str", "größe"), ("general.tags", "str", ["a", "],["]), ("x.u8", "u8", 200), ("x.i8", "i8", -3),
    ("x.u16", "u16", 60000), ("x.i16", "i16", -9), ("x.i32", "i32", [-1, 2]), ("x.f32", "f32", [0.1, float("inf"), -0.0]),
    ("x.f64", "f64", float("nan")), ("x.u64", "u64", 2**64 - 1), ("x.i64", "i64", -(2**63)), ("x.bool", "bool", [True, False]),
    ("x.empty", "str", []), ("general.alignment", "u32", 64),
]  # fmt: skip


def of_all_types(architecture):
    """A file whose matrices are random blocks of all types that are carried, and floats of all kinds."""
    model = transformer("LlamaForCausalLM", width=256, layers=3, heads=4, inner=256, num_key_value_heads=2, vocab_size=32) if (
        architecture == "llama"
    ) else transformer("GPT2LMHeadModel", width=256, layers=6, heads=4, inner=256, vocab_size=32)  # fmt: skip
    turns, tensors = itertools.cycle(["F16", "BF16", "F32", *CARRIERS]), []
    rng = np.random.default_rng(0)
    for name, value in model.state_dict().items():
        own = name_in(architecture, name)
        if own is None:
            continue
        shape = tuple(value.shape)
        if architecture == "gpt2" and own.startswith("blk.") and len(shape) == 2:
            shape = shape[::-1]
        if len(shape) < 2 or "position" in own:
            tensors.append((own, 0, shape, rng.standard_normal(shape).astype(np.float32).tobytes()))
            continue
        kind = next(turns)
        if kind in CARRIERS:
            data = canonical(kind, random_data(kind, len(tensors), shape[0], shape[1] // TYPES[kind].elements))
            tensors.append((own, TYPES[kind].number, shape, data.numpy().tobytes()))
            if kind == "NVFP4":
                tensors.append((own.replace(".weight", ".scale"), 0, (1,), np.float32(0.37).tobytes()))
        else:
            content = torch.randn(shape).to({"F16": torch.half, "BF16": torch.bfloat16, "F32": torch.float}[kind])
            tensors.append((own, TYPES[kind].number, shape, content.view(torch.uint8).numpy().tobytes()))
    keys = [*metadata(model, architecture), *OTHER_KEYS]
    return gguf(keys, tensors, alignment=64)


def round_trip(path, folder):
    """The bytes of a file that became a model folder and a file again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Conversion.of(GgufModel.open(path), packed=True).write(folder, overwrite=True)
    report = convert(folder, folder.parent / "again.gguf", "gguf", overwrite=True)
    return (folder.parent / "again.gguf").read_bytes(), report


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_file_of_all_types_comes_back_byte_for_byte(file, tmp_path, architecture):
    path = file(of_all_types(architecture))
    assert len({tensor.type.name for tensor in GgufFile(path).tensors.values()}) >= len(CARRIERS)
    again, report = round_trip(path, tmp_path / "folder")
    assert again == path.read_bytes()
    moved = [tensor for tensor in report.tensors if not tensor.exact]
    assert {tensor.type for tensor in moved} <= {"NVFP4"} and all("one unit" in tensor.note for tensor in moved)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_files_of_models_come_back_byte_for_byte(file, tmp_path, name, kind):
    path = file(file_of(MAKERS[name](), name, lambda part: kind, trained("smollm")[1] if name == "gpt2" else []))
    assert round_trip(path, tmp_path / "folder")[0] == path.read_bytes()
    octavo.save_model(octavo.load_model(tmp_path / "folder"), tmp_path / "saved")  # its files go along
    convert(tmp_path / "saved", tmp_path / "saved.gguf", "gguf")
    assert (tmp_path / "saved.gguf").read_bytes() == path.read_bytes()


def test_a_file_that_becomes_one_again_is_copied_block_by_block(file, tmp_path):
    """Types that no format holds, architectures that no model is built of; gaps and version 2 go."""
    data = bytes(range(256)) + bytes(range(164))
    tensors = [
        ("k", 12, (1, 256), data[:144]),
        ("q", 16, (1, 256), data[:66]),
        ("i", 26, (3,), data[:12]),
        ("s", 0, (), data[:4]),
    ]
    for version in (2, 3):
        path = file(
            gguf([("general.architecture", "str", "other"), *OTHER_KEYS], tensors, version=version, alignment=64)
        )
        report = convert(path, tmp_path / "y.gguf", "gguf", overwrite=True)
        copied, first = GgufFile(tmp_path / "y.gguf"), GgufFile(path)
        assert all(tensor.exact for tensor in report.tensors) and report.nbytes == copied.nbytes
        assert copied.version == 3 and copied.kinds == first.kinds and list(copied.tensors) == list("kqis")
        assert all(torch.equal(copied.read(name), first.read(name)) for name in "kqis")
        if version == 3:
            assert path.read_bytes() == (tmp_path / "y.gguf").read_bytes()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_folders_become_the_model_that_they_are(tmp_path, name, dtype):
    model = MAKERS[name]().to(dtype)
    model.save_pretrained(tmp_path / "in")
    report = convert(tmp_path / "in", tmp_path / "x.gguf", "gguf")
    assert all(tensor.exact for tensor in report.tensors)
    assert report.notes == ["no tokenizer: the folder has no tokenizer.json"]
    types = {tensor.name: tensor.type for tensor in report.tensors}
    assert types["blk.0.ffn_up.weight"] == ("F32" if dtype == torch.float32 else "BF16")
    assert types["blk.0.ffn_down.bias" if name != "llama" else "output_norm.weight"] == "F32"
    assert_same(values(octavo.load_model(tmp_path / "x.gguf")), values(model.float()))
    again, _ = round_trip(tmp_path / "x.gguf", tmp_path / "folder")  # a file of our own writer
    assert again == (tmp_path / "x.gguf").read_bytes()


def test_rows_biases_heads_and_ties_of_a_llama_are_its_own(tmp_path):
    model = llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True, head_dim=32, rope_theta=5000.0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf")
    file = GgufFile(tmp_path / "x.gguf")
    q = model.model.layers[0].self_attn.q_proj
    stored = file.read("blk.0.attn_q.weight").contiguous().view(torch.float32).numpy()
    assert np.array_equal(stored, permuted(q.weight.detach().numpy(), 4))
    bias = file.read("blk.0.attn_q.bias").contiguous().view(torch.float32).flatten().numpy()
    assert np.array_equal(bias, permuted(q.bias.detach().numpy(), 4))
    assert file.metadata["llama.attention.key_length"] == 32 and file.metadata["llama.rope.freq_base"] == 5000
    loaded = octavo.load_model(tmp_path / "x.gguf")
    assert_same(values(loaded), values(model))
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    for recipe in (None, "int8:g32"):
        convert(tmp_path / "tied", tmp_path / "tied.gguf", "gguf", recipe=recipe, overwrite=True)
        assert "output.weight" not in GgufFile(tmp_path / "tied.gguf").tensors
        assert octavo.load_model(tmp_path / "tied.gguf").config.tie_word_embeddings


def test_rotations_of_llama_3_come_back(tmp_path):
    scaled = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = llama(rope_parameters=scaled)
    model.save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf")
    with torch.no_grad():
        assert torch.equal(octavo.load_model(tmp_path / "x.gguf")(IDS)[0], model(IDS)[0])
    assert round_trip(tmp_path / "x.gguf", tmp_path / "folder")[0] == (tmp_path / "x.gguf").read_bytes()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("recipe", ["int8:g32", "uint4:g32", "int4:g64; **.0.**=mxfp4", "mxint8"])
def test_a_recipe_writes_the_codes_of_the_packed_model(tmp_path, name, recipe):
    MAKERS[name]().save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe)
    packed = octavo.pack_model(octavo.quantize_model(octavo.load_model(tmp_path / "in"), recipe, progress=False))
    assert_same(values(octavo.load_model(tmp_path / "x.gguf")), values(packed))
    octavo.save_model(packed, tmp_path / "packed")
    convert(tmp_path / "packed", tmp_path / "y.gguf", "gguf")
    mine, theirs = GgufFile(tmp_path / "x.gguf"), GgufFile(tmp_path / "y.gguf")
    assert list(mine.tensors) == list(theirs.tensors)
    assert all(torch.equal(mine.read(name), theirs.read(name)) for name in mine.tensors)


def test_transformers_loads_the_values_that_were_written(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    for model in (
        llama(),
        transformer("GPT2LMHeadModel", width=32, heads=4, inner=128, vocab_size=50257, n_positions=1024),
    ):
        model.save_pretrained(tmp_path / "in")
        for recipe in (None, "int8:g32", "int4:g32"):
            convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe, overwrite=True)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                tmp_path, gguf_file="x.gguf", dtype=torch.float32
            )
            assert_same(values(loaded.eval()), values(octavo.load_model(tmp_path / "x.gguf")))
        shutil.rmtree(tmp_path / "in")


def test_gguf_py_reads_the_blocks_and_the_metadata(tmp_path):
    reader = pytest.importorskip("gguf")
    llama().save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe="int8:g32; **.v_proj=mxfp4")
    theirs, mine = reader.GGUFReader(tmp_path / "x.gguf"), GgufFile(tmp_path / "x.gguf")
    assert [tensor.name for tensor in theirs.tensors] == list(mine.tensors)
    loaded = octavo.load_model(tmp_path / "x.gguf").model.layers[1]
    for tensor in theirs.tensors:
        if tensor.name in ("blk.1.attn_v.weight", "blk.1.ffn_up.weight"):
            layer = loaded.self_attn.v_proj if "attn" in tensor.name else loaded.mlp.up_proj
            decoded = reader.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(decoded, layer.weight.decode().numpy())
    assert theirs.fields["general.architecture"].contents() == "llama"
    assert theirs.fields["general.file_type"].contents() == 7


# --- llama.cpp --------------------------------------------------------------------------------------------------------


def logits_of(path, ids=(3, 1, 4, 1, 5, 9, 2, 6)):
    peer = pytest.importorskip("llama_cpp")
    model = peer.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=1, n_gpu_layers=0)
    model.eval(list(ids))
    found = torch.tensor(np.array(model.scores[: len(ids)]))
    model.close()
    return found


LLAMA_CPP_ROUNDS = 0.01
"""Of the largest logit: llama.cpp rounds inputs to 8 bits for each 32, and keys and values to float16."""


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("recipe", [None, "int8:g32", "int4:g32", "mxfp4", "uint4:g32"])
def test_llama_cpp_runs_what_was_written(tmp_path, name, recipe):
    pytest.importorskip("llama_cpp")
    MAKERS[name]().save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe)
    with torch.no_grad():
        mine = octavo.load_model(tmp_path / "x.gguf")(IDS).logits[0]
    assert (logits_of(tmp_path / "x.gguf", IDS[0].tolist()) - mine).abs().max() <= LLAMA_CPP_ROUNDS * mine.abs().max()


def test_factors_of_nvfp4_are_those_that_llama_cpp_reads(tmp_path):
    pytest.importorskip("llama_cpp")
    transformer("LlamaForCausalLM", width=64, heads=4, inner=128).save_pretrained(tmp_path / "in")
    report = convert(
        tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe="nvfp4; type:Embedding int8:g32; lm_head=int8:g32"
    )
    assert {tensor.type for tensor in report.tensors} == {"F32", "Q8_0", "NVFP4"}
    assert "blk.0.attn_q.scale" in {tensor.name for tensor in report.tensors}
    with torch.no_grad():
        mine = octavo.load_model(tmp_path / "x.gguf")(IDS).logits[0]
    assert (logits_of(tmp_path / "x.gguf", IDS[0].tolist()) - mine).abs().max() <= LLAMA_CPP_ROUNDS * mine.abs().max()


@pytest.mark.parametrize(
    "kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q4_K_S", "Q5_K_S", "Q6_K", "TQ1_0", "TQ2_0"]
)
def test_what_llama_cpp_quantized_comes_back_byte_for_byte(tmp_path, kind):
    """Its own encoder, of a file that we wrote; so the logits of both files are the same to the bit."""
    peer = pytest.importorskip("llama_cpp")
    sizes = {"width": 256, "heads": 4, "inner": 256, "num_key_value_heads": 2}  # K-quants have blocks of 256
    transformer("LlamaForCausalLM", **sizes).save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "f32.gguf", "gguf")
    settings = peer.llama_model_quantize_default_params()
    settings.ftype = getattr(peer, f"LLAMA_FTYPE_MOSTLY_{kind}")
    settings.pure, settings.nthread = True, 1
    path = tmp_path / "x.gguf"
    assert peer.llama_model_quantize(str(tmp_path / "f32.gguf").encode(), str(path).encode(), settings) == 0
    assert kind.removesuffix("_S") in {tensor.type.name for tensor in GgufFile(path).tensors.values()}
    again, _ = round_trip(path, tmp_path / "folder")
    assert again == path.read_bytes()


@pytest.mark.slow
def test_a_real_file_has_equal_tensors_after_a_model_folder(tmp_path):
    path = real_model("smollm2")
    convert(path, tmp_path / "copy.gguf", "gguf")
    assert filecmp.cmp(path, tmp_path / "copy.gguf", shallow=False)
    Conversion.of(GgufModel.open(path), packed=True).write(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "again.gguf", "gguf")
    assert filecmp.cmp(path, tmp_path / "again.gguf", shallow=False)


@pytest.mark.slow
def test_metadata_of_a_real_file_are_made_anew_as_llama_cpp_has_them(tmp_path):
    """Of the folder alone: sizes, tokens, pairs, kinds, special tokens and the template, made from its files."""
    path = real_model("smollm2")
    Conversion.of(GgufModel.open(path), packed=False).write(tmp_path / "folder")
    (tmp_path / "folder" / NAME).unlink()
    report = convert(tmp_path / "folder", tmp_path / "x.gguf", "gguf")
    found, first = GgufFile(tmp_path / "x.gguf"), GgufFile(path)
    assert report.notes == []
    keys = [key for key in first.metadata if key.startswith(("llama.", "tokenizer."))]
    keys.remove("tokenizer.ggml.add_space_prefix")  # byte pairs have none
    assert len(keys) > 15 and all(found.metadata[key] == first.metadata[key] for key in keys)
    assert all(found.kinds[key] == first.kinds[key] for key in keys)


@pytest.mark.slow
def test_llama_cpp_continues_a_text_as_we_do(tmp_path):
    """Floats: it rounds no inputs then. Codes: every token of ours is among its two best, near the best."""
    pytest.importorskip("llama_cpp")
    path = real_model("smollm2")
    Conversion.of(GgufModel.open(path), packed=False).write(tmp_path / "float")
    for recipe, bound in ((None, 0.1), ("int8:g32", 2.5)):
        convert(tmp_path / "float", tmp_path / "x.gguf", "gguf", recipe=recipe, overwrite=True)
        model = octavo.load_model(tmp_path / "x.gguf")
        ids = torch.tensor([[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]])
        with torch.no_grad():
            text = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=2)
            mine = model(text).logits[0]
        theirs = logits_of(tmp_path / "x.gguf", text[0].tolist())
        assert (theirs - mine).abs().max() <= bound
        begin = ids.shape[1] - 1
        best = theirs.topk(2).indices[begin:-1]
        assert (best == text[0, begin + 1 :, None]).any(1).all()
        if recipe is None:
            assert torch.equal(best[:, 0], text[0, begin + 1 :])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("nf4", "lm_head.weight: 'nf4': no type of ggml holds 'nf4' (16 such tensors); --decode writes"),
        ("mxfp8e4m3", "no type of ggml holds 'mxfp8e4m3'"),
        ("int8:g48", "scales for each 48 elements; Q8_0 has one for 32"),
        ("**.down_proj=nvfp4", "'nvfp4': 96 columns; NVFP4 has blocks of 64"),
        ("int8:channel", "row 0, group 0: scale 0.0"),
        ("lm_head=nvfp4", "lm_head.weight: 'nvfp4': llama.cpp reads a factor of a tensor only in layers"),
    ],
)
def test_what_no_type_holds_is_refused_before_it_is_written(tmp_path, recipe, told):
    llama(tie_word_embeddings=False).save_pretrained(tmp_path / "in")
    with pytest.raises(FormatError) as error:
        convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe)
    assert told in str(error.value) and not (tmp_path / "x.gguf").exists()
    report = convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe, decode=True)
    decoded = [tensor for tensor in report.tensors if tensor.note and tensor.note.startswith("decoded: ")]
    assert decoded and all(tensor.type in ("F16", "BF16", "F32") for tensor in decoded)
    packed = octavo.pack_model(octavo.quantize_model(octavo.load_model(tmp_path / "in"), recipe, progress=False))
    mine, theirs = values(octavo.load_model(tmp_path / "x.gguf")), values(packed)
    for tensor in decoded:
        assert torch.equal(mine[tensor.source], theirs[tensor.source])


@pytest.mark.parametrize(("columns", "is_told"), [(40, False), (96, True)])
def test_a_recipe_is_told_where_its_blocks_fit_the_columns(tmp_path, columns, is_told):
    llama(intermediate_size=columns).save_pretrained(tmp_path / "in")
    with pytest.raises(FormatError, match=f"{columns} columns.*--decode writes the same values as floats") as error:
        convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe="**.down_proj=nvfp4")
    assert ("packs them for Q8_0" in str(error.value)) == is_told


def test_formats_are_refused_before_anything_is_packed(tmp_path, monkeypatch):
    from octavo.model_folder.pack_folder import OpenFolder

    monkeypatch.setattr(OpenFolder, "pack", None)
    llama().save_pretrained(tmp_path / "in")
    for recipe in ("nf4", "int8:g48", "int9:g32"):
        with pytest.raises(FormatError, match="--decode writes"):
            convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe=recipe)
    gpt2(activation_function="relu").save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="activation_function of the configuration is 'relu'"):
        convert(tmp_path / "other", tmp_path / "x.gguf", "gguf", recipe="int8:g32")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: llama(hidden_act="gelu"), "hidden_act of the configuration is 'gelu'; GGUF files hold 'silu'"),
        (lambda: gpt2(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx of the configuration is True"),
        (lambda: bert(hidden_act="relu"), "hidden_act of the configuration is 'relu'"),
        (lambda: llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "rope_type of the configuration is 'dynamic'"),
        (lambda: transformer("OPTForCausalLM", heads=4, ffn_dim=96), "a OPTForCausalLM; GGUF files are written of LlamaForCausalLM, MistralForCausalLM"),
        (lambda: transformer("BertForMaskedLM", width=64, heads=4, inner=96), "a BertForMaskedLM; GGUF files"),
    ],
)  # fmt: skip
def test_models_that_no_file_can_say_are_refused(tmp_path, make, told):
    make().save_pretrained(tmp_path / "in")
    with pytest.raises(ModelError) as error:
        convert(tmp_path / "in", tmp_path / "x.gguf", "gguf")
    assert told in str(error.value) and not (tmp_path / "x.gguf").exists()


def test_targets_and_kinds_are_checked(file, tmp_path):
    path = file(file_of(llama(), "llama", lambda name: "Q8_0"))
    with pytest.raises(FormatError, match="unknown kind 'ggml'; accepted are gguf"):
        convert(path, tmp_path / "y.gguf", "ggml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ContainerError, match="a folder; the output is a file"):
        convert(path, tmp_path / "folder", "gguf")
    with pytest.raises(ContainerError, match="the output would lie in the input"):
        convert(path, path, "gguf", overwrite=True)
    (tmp_path / "y.gguf").write_text("old")
    with pytest.raises(FileExistsError):
        convert(path, tmp_path / "y.gguf", "gguf")
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "missing", tmp_path / "z.gguf", "gguf")
    octavo.save({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="give the folder of the model"):
        convert(tmp_path / "x.safetensors", tmp_path / "z.gguf", "gguf")
    assert "gguf" in KINDS and (tmp_path / "y.gguf").read_text() == "old"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from octavo.interchange import gguf_plan

    llama().save_pretrained(tmp_path / "in")
    (tmp_path / "x.gguf").write_text("old")
    parts = gguf_plan._parts
    monkeypatch.setattr(
        gguf_plan,
        "_parts",
        lambda one: parts(one) if "blk.1" not in one.place.name else (_ for _ in ()).throw(OSError(28, "full")),
    )
    with pytest.raises(OSError, match="full"):
        convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", overwrite=True)
    assert (tmp_path / "x.gguf").read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "x.gguf"]


def test_one_tensor_is_read_at_a_time(tmp_path, monkeypatch):
    """Progress tells every tensor twice: once when it is looked at, once when it is written."""
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "in")
    from contextlib import contextmanager

    told = []

    @contextmanager
    def bar(work, total):
        told.append((work, total))
        yield lambda name, nbytes: told.append((work, nbytes))

    convert(tmp_path / "in", tmp_path / "x.gguf", "gguf", recipe="int8:g32", bar=bar)
    for work in ("packing", "looking", "writing"):
        first, *rest = [nbytes for one, nbytes in told if one == work]
        assert sum(rest) == first and len(rest) > 10 if work != "packing" else rest


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_what_was_changed_in_a_folder_is_written_anew(file, tmp_path):
    _, keys = trained("smollm")
    model = llama(vocab_size=400, tie_word_embeddings=True)
    path = file(file_of(model, "llama", lambda name: "Q8_0", [*keys, ("general.name", "str", "mine")]))
    Conversion.of(GgufModel.open(path), packed=True).write(tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 70000.0
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((tmp_path / "folder" / "tokenizer.json").read_text())
    last = len(tokenizer["model"]["vocab"]) - 1
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": last, "content": "<|new|>"})
    tokenizer["model"]["vocab"] = {token: one for token, one in tokenizer["model"]["vocab"].items() if one != last}
    tokenizer["model"]["merges"] = [
        one for one in tokenizer["model"]["merges"] if "".join(one) in tokenizer["model"]["vocab"]
    ]
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "folder" / "chat_template.jinja").write_text("new")
    convert(tmp_path / "folder", tmp_path / "y.gguf", "gguf")
    found, first = GgufFile(tmp_path / "y.gguf").metadata, GgufFile(path).metadata
    assert found["llama.rope.freq_base"] == 70000 and found["general.name"] == "mine"
    assert found["tokenizer.ggml.tokens"][: last + 1] == [*first["tokenizer.ggml.tokens"][:last], "<|new|>"]
    assert found["tokenizer.chat_template"] == "new" and found["tokenizer.ggml.pre"] == "smollm"


def test_a_recipe_packs_a_file_anew_and_keeps_its_metadata(file, tmp_path):
    path = file(file_of(llama(), "llama", lambda name: "Q8_0", [("general.name", "str", "mine"), *OTHER_KEYS[1:-1]]))
    report = convert(path, tmp_path / "y.gguf", "gguf", recipe="int4:g32")
    assert {tensor.type for tensor in report.tensors} == {"F32", "Q4_0"}
    found, first = GgufFile(tmp_path / "y.gguf"), GgufFile(path)
    assert found.metadata["general.name"] == "mine" and found.metadata["general.file_type"] == 2
    assert {key: found.metadata[key] for key in first.metadata if key != "x.f64"} == {
        key: value
        for key, value in first.metadata.items()
        if key != "x.f64"  # NaN
    }
    assert list(found.tensors) == list(first.tensors)


def test_decoded_tensors_are_floats_in_the_file_again(file, tmp_path):
    """Blocks that no format holds are float32 in the folder; their type is made anew, and what it says of the file."""
    path = file(
        file_of(
            llama(), "llama", lambda name: "IQ4_NL" if "ffn" in name else "Q8_0", [("general.file_type", "u32", 25)]
        )
    )
    again, report = round_trip(path, tmp_path / "folder")
    (tmp_path / "again.gguf").write_bytes(again)
    assert {tensor.type for tensor in report.tensors} == {"F32", "Q8_0"}
    assert GgufFile(tmp_path / "again.gguf").metadata["general.file_type"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(values(octavo.load_model(tmp_path / "again.gguf")), values(octavo.load_model(path)))


def damaged(text, rng):
    """A text with a few characters, or parts, exchanged."""
    text = list(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        text[at : at + rng.randrange(1, 5)] = rng.choice(
            ['"', "9", "[]", "null", "-1", "{}", "1e999", "Q8_0", "", "\\ud800", "true"]
        )
    return "".join(text)


def test_a_damaged_gguf_json_is_an_error_or_another_file(file, tmp_path):
    path = file(of_all_types("llama"))
    Conversion.of(GgufModel.open(path), packed=True).write(tmp_path / "folder")
    place = tmp_path / "folder" / NAME
    good, rng = place.read_text(), random.Random(0)
    refused = 0
    for _ in range(300):
        place.write_text(damaged(good, rng), encoding="utf-8", errors="replace")
        try:
            FormerFile.read(tmp_path / "folder")
        except ContainerError as error:
            refused += 1
            assert str(error).startswith(str(place))
    assert 100 < refused < 300
    for text, told in {
        '{"version":2}': "version is 2; this Octavo reads 1",
        '{"version":1,"metadata":[["a",[8],1]],"tensors":{},"extra":{}}': "'a': type [8] and value 1; accepted are those of GGUF; remove the file",
        '{"version":1,"metadata":[["a",[0],256]],"tensors":{},"extra":{}}': "'a': type [0] and value 256",
        '{"version":1,"metadata":[["a",[9,9],[]]],"tensors":{},"extra":{}}': "type [9, 9]",
        '{"version":1,"metadata":[["a",[8],"x"],["a",[8],"x"]],"tensors":{},"extra":{}}': "key 'a' appears twice",
        '{"version":1,"metadata":[["general.alignment",[4],3]],"tensors":{},"extra":{}}': "general.alignment is 3; accepted are powers of two",
        '{"version":1,"metadata":[],"tensors":{"x":"Q9"},"extra":{}}': "tensor 'x' is of 'Q9'",
        '{"version":1,"metadata":[],"tensors":{},"extra":{"x":{"shape":[2],"float32":[1]}}}': "tensor 'x': ",
        '{"version":1,"metadata":[],"tensors":{},"extra":{"x":{"shape":[1],"float32":["a"]}}}': "tensor 'x': ",
    }.items():
        place.write_text(text)
        with pytest.raises(ContainerError) as error:
            convert(tmp_path / "folder", tmp_path / "y.gguf", "gguf")
        assert told in str(error.value)


def test_folders_whose_parts_do_not_fit_are_refused(file, tmp_path):
    path = file(file_of(llama(), "llama", lambda name: "Q8_0"))
    Conversion.of(GgufModel.open(path), packed=True).write(tmp_path / "folder")
    place = tmp_path / "folder" / "config.json"
    good = json.loads(place.read_text())
    for change in (
        {"intermediate_size": 64}, {"num_attention_heads": 3}, {"num_hidden_layers": 1}, {"num_hidden_layers": 3},
        {"vocab_size": 49}, {"head_dim": 7}, {"num_key_value_heads": 0}, {"hidden_size": "x"}, {"rms_norm_eps": 0},
        {"num_attention_heads": 0}, {"rope_parameters": {"rope_type": "llama3", "factor": -1}}, {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
        {"max_position_embeddings": -1},
    ):  # fmt: skip
        place.write_text(json.dumps(good | change))
        with pytest.raises(OctavoError):
            convert(tmp_path / "folder", tmp_path / "y.gguf", "gguf")
        assert not (tmp_path / "y.gguf").exists(), change


# --- tokenizers -------------------------------------------------------------------------------------------------------


def folder_of(tmp_path, tokenizer, **settings):
    model = llama(vocab_size=410, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "tokenizer.json").write_text(tokenizer)
    (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "in"


@pytest.mark.parametrize("pre", RULES)
def test_tokenizers_of_byte_pairs_go_to_a_file_and_back(tmp_path, pre):
    tokenizers = pytest.importorskip("tokenizers")
    own, _ = trained(pre)
    folder = folder_of(
        tmp_path, own.to_str(), bos_token="<|user|>", eos_token={"content": "<|end|>"}, chat_template="{{ x }}"
    )
    report = convert(folder, tmp_path / "x.gguf", "gguf")
    assert report.notes == []
    found = GgufFile(tmp_path / "x.gguf").metadata
    ways = [replace(SPLITS[name], begins=False) for name in (found["tokenizer.ggml.pre"], pre)]
    assert ways[0] == ways[1] and found["tokenizer.ggml.eos_token_id"] == 0
    assert found["tokenizer.chat_template"] == "{{ x }}" and found["tokenizer.ggml.add_bos_token"] is False
    assert len(found["tokenizer.ggml.tokens"]) == 410 and found["tokenizer.ggml.token_type"][:2] == [3, 3]
    Conversion.of(GgufModel.open(tmp_path / "x.gguf"), packed=True).write(tmp_path / "out")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in (*TEXTS, "<|user|>the rain<|end|>"):
        assert read.encode(text).ids == own.encode(text).ids


def test_pieces_of_sentencepiece_go_to_a_file_and_back(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(0)
    words = sorted({"".join(rng.choices("ab▁", k=rng.randrange(2, 6))) for _ in range(60)})
    rng.shuffle(words)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "a", "b", "▁"]
    places = {token: number for number, token in enumerate(tokens)}
    merges = [
        (word[:cut], word[cut:])
        for word in words
        for cut in range(1, len(word))
        if word[:cut] in places and word[cut:] in places
    ]
    steps = tokenizers.normalizers
    own = tokenizers.Tokenizer(
        tokenizers.models.BPE(places, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    own.normalizer = steps.Sequence([steps.Prepend("▁"), steps.Replace(" ", "▁")])
    own.add_special_tokens(["<unk>", "<s>", "</s>"])
    own.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    folder = folder_of(tmp_path, own.to_str(), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    assert convert(folder, tmp_path / "x.gguf", "gguf").notes == []
    found = GgufFile(tmp_path / "x.gguf").metadata
    assert found["tokenizer.ggml.model"] == "llama" and found["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 6]
    assert found["tokenizer.ggml.add_bos_token"] is True and found["tokenizer.ggml.add_space_prefix"] is True
    Conversion.of(GgufModel.open(tmp_path / "x.gguf"), packed=True).write(tmp_path / "out")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for length in range(1, 60):
        text = "".join(rng.choices("abab é", k=length))
        assert read.encode(text).ids == own.encode(text).ids


def test_white_space_beside_special_tokens_goes_to_a_file_of_phi_3_alone(tmp_path):
    """No key tells it. The family of the model does, to llama.cpp and to us."""
    content = json.loads(trained("smollm")[0].to_str())
    content["added_tokens"][0]["rstrip"] = True
    report = convert(folder_of(tmp_path, json.dumps(content)), tmp_path / "x.gguf", "gguf")
    assert report.notes == ["no tokenizer: rstrip of its token '<|end|>' is True, which no file says"]
    tokenizers = pytest.importorskip("tokenizers")
    places = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|end|>": 3, "a": 4, "▁": 5, "▁a": 6}
    pairs = [("▁", "a"), ("<|end|", ">")]  # the second one makes a special token, which no text reaches by it
    own = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {**places, "<|end|": 7, ">": 8}, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    steps = tokenizers.normalizers
    own.normalizer = steps.Sequence([steps.Prepend("▁"), steps.Replace(" ", "▁")])
    own.add_special_tokens(["<unk>", "<s>", *(tokenizers.AddedToken(one, rstrip=True) for one in ("</s>", "<|end|>"))])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    report = convert(folder_of(tmp_path / "llama", own.to_str(), **names), tmp_path / "y.gguf", "gguf")
    assert report.notes == ["no tokenizer: rstrip of its token '</s>' is True, which no file says"]
    folder = folder_of(tmp_path / "phi3", own.to_str(), **names)
    keys, problem = tokenizer_keys(folder, 410, {"model_type": "phi3"})
    assert problem is None
    metadata = {"general.architecture": "phi3", **{key: one.value for key, one in keys.items()}}
    read = tokenizers.Tokenizer.from_str(texts_of(metadata, 32)[0]["tokenizer.json"])
    for text in ("a<|end|> \n a", "<s> a </s>  a", "a a"):
        assert read.encode(text, add_special_tokens=False).ids == own.encode(text).ids


def test_pieces_of_words_go_to_a_file_and_back(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "rain", "##s", ".", "[", "##]"]
    own = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    own.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    own.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    own.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    folder = folder_of(tmp_path, own.to_str(), **names)
    bert(vocab_size=11).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert convert(folder, tmp_path / "x.gguf", "gguf").notes == []
    found = GgufFile(tmp_path / "x.gguf").metadata
    assert found["tokenizer.ggml.tokens"][5:] == ["▁the", "▁rain", "s", "▁.", "▁[", "]"]
    assert found["tokenizer.ggml.seperator_token_id"] == 3 and found["bert.pooling_type"] == 1
    assert found["tokenizer.ggml.bos_token_id"] == 2  # llama.cpp begins a text with it
    assert found["tokenizer.ggml.token_type_count"] == 2
    Conversion.of(GgufModel.open(tmp_path / "x.gguf"), packed=True).write(tmp_path / "out")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert read.encode("The rains.", "[ x").ids == own.encode("The rains.", "[ x").ids


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "it changes texts before they are split, which llama.cpp does not"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}}, "llama.cpp has no name for how it splits texts"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pairs are of characters"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}}, "it puts ['<|end|>'] around a text, which is no bos_token"),
        ({"model": {"type": "Unigram"}}, "its model is 'Unigram'; written are BPE and WordPiece"),
        ({"model": {}}, "tokenizer.json has another shape than that of tokenizers"),
        ({"model": 3}, "tokenizer.json has another shape than that of tokenizers"),
    ],
)  # fmt: skip
def test_tokenizers_that_files_lack_are_told(tmp_path, change, told):
    own, _ = trained("gpt-2")
    folder = folder_of(tmp_path, json.dumps(json.loads(own.to_str()) | change), bos_token="<|user|>")
    report = convert(folder, tmp_path / "x.gguf", "gguf")
    assert report.notes[0].startswith(f"no tokenizer: {told}")
    assert GgufFile(tmp_path / "x.gguf").metadata["tokenizer.ggml.model"] == "none"
    logits_of(tmp_path / "x.gguf")  # llama.cpp runs it with numbers of tokens


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_damaged_tokenizers_are_told_or_read_as_they_are(tmp_path, kind):
    """Nothing but a reason or keys that are read as the same tokenizer."""
    rng = random.Random(0)
    if kind == "gpt2":
        good = trained("gpt-2")[0].to_str()
    else:
        good = json.dumps({"added_tokens": [], "normalizer": {"type": "BertNormalizer", "lowercase": True}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0]}, "model": {"type": "WordPiece", "vocab": {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3}}})  # fmt: skip
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "bos_token": "<|user|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "tokenizer.json").write_text(good)
    assert tokenizer_keys(tmp_path, 410, {})[1] is None
    problems = 0
    for _ in range(300):
        (tmp_path / "tokenizer.json").write_text(damaged(good, rng), encoding="utf-8", errors="replace")
        keys, problem = tokenizer_keys(tmp_path, 410, {"bos_token_id": [1], "pad_token_id": "x"})
        assert (keys["tokenizer.ggml.model"].value == "none") == (problem is not None)
        problems += problem is not None
    assert problems > 100
    (tmp_path / "tokenizer.json").write_text(good)
    for text in ("[", "{}", '{"bos_token": 3}', '{"bos_token": {"content": []}}', "null"):
        (tmp_path / "tokenizer_config.json").write_text(text)
        try:
            tokenizer_keys(tmp_path, 410, {})
        except ContainerError as error:
            assert "tokenizer_config.json" in str(error)


def test_vocabularies_that_do_not_fit_are_told(tmp_path):
    own, _ = trained("gpt-2")
    tokenizer = json.loads(own.to_str())
    for entry, told in {
        ("new", 410): "token 'new' is number 410; the model has 410",
        ("new", 5): "are both number 5",
    }.items():
        tokenizer["added_tokens"] = [{"id": entry[1], "content": entry[0], "special": True}]
        report = convert(folder_of(tmp_path, json.dumps(tokenizer)), tmp_path / "x.gguf", "gguf", overwrite=True)
        assert told in report.notes[0]
