"""ONNX files of weights: ONNX Runtime multiplies them, and codes, scales and zero points decode to the same values."""

import numpy as np
import octavo
import pytest
import torch
from helpers.models import transformer
from interchange.test_gguf_model import gpt2, llama
from octavo import ContainerError, FormatError
from octavo.interchange.convert import convert
from octavo.interchange.onnx_file import FLOAT, Initializer, Product, write_graph

pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
RECIPES = [
    "int4:g32", "int4:g32,full", "int8:g64,full", "uint4:g32", "int8:g32", "uint8:g64", "int8:channel", "int4:g48", "mxint8", "mxint4", "bfp8/32", "fixed8:channel",
    "uint7:g32", "uint3:g16", "int5:g128", "int2:g32", "uint2:g64", "ternary", "binary", "ufixed8.7", "int4", "uint4:channel",
]  # fmt: skip
FORMAT_ERROR = 2e-5
"""Of sums of products of magnitudes: ONNX Runtime sums in another order."""


def initializers(path):
    model = onnx.load(path)
    onnx.checker.check_model(model)
    return model, {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def decoded(node, found):
    """The weight of a product by the operator's definition."""
    settings = {one.name: one.i for one in node.attribute}
    bits, block, n, k = (settings[name] for name in ("bits", "block_size", "N", "K"))
    codes, scales, *zeros = (found[name] for name in node.input[1:])

    def unpacked(data, count):
        stream = np.unpackbits(data.reshape(n, -1), axis=1, bitorder="little").reshape(n, -1, bits)
        return (stream * (1 << np.arange(bits))).sum(2)[:, :count]

    blocks = scales.shape[1]
    points = unpacked(zeros[0], blocks) if zeros else np.full((n, blocks), 1 << bits - 1)
    values = unpacked(codes, blocks * block).reshape(n, blocks, block) - points[:, :, None]
    return (values.astype(np.float32) * scales[:, :, None]).reshape(n, -1)[:, :k]


@pytest.mark.parametrize("recipe", RECIPES)
def test_products_have_the_values_of_the_packed_layers(tmp_path, recipe):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "in")
    report = convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits", recipe=recipe)
    assert all(tensor.exact for tensor in report.tensors) and report.nbytes == (tmp_path / "x.onnx").stat().st_size
    packed = octavo.pack_model(octavo.quantize_model(octavo.load_model(tmp_path / "in"), recipe, progress=False))
    model, found = initializers(tmp_path / "x.onnx")
    assert len(model.graph.node) == 15  # the head is the table
    for node in model.graph.node:
        weight = packed.get_submodule(node.name).weight.decode()
        assert np.array_equal(decoded(node, found), weight.numpy()), node.name
    assert np.array_equal(found["model.norm.weight"], packed.model.norm.weight.detach().numpy())


@pytest.mark.parametrize("recipe", ["int4:g32", "uint4:g32", "int8:g32", "mxint4", "int8:channel", "uint8:g64"])
@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_onnx_runtime_multiplies_what_was_written(tmp_path, make, recipe):
    runtime = pytest.importorskip("onnxruntime")
    make(tie_word_embeddings=True).save_pretrained(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits", recipe=recipe, decode=True)
    packed = octavo.load_model(tmp_path / "in")
    packed = octavo.pack_model(octavo.quantize_model(packed, recipe, progress=False))
    session = runtime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {one.name: rng.standard_normal((3, one.shape[1])).astype(np.float32) for one in session.get_inputs()}
    assert len(inputs) > 5
    for one, value in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        path = one.name.removesuffix(".output")
        weight = packed.get_submodule(path).weight.decode().double().numpy()
        x = inputs[f"{path}.input"].astype(np.float64)
        assert (abs(value - x @ weight.T) <= FORMAT_ERROR * (abs(x) @ abs(weight).T)).all(), path


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("nf4", "MatMulNBits has integers of up to 8 bits times scales, which 'nf4' is not; --decode writes"),
        ("mxfp4", "which 'mxfp4' is not"),
        ("int9:g32", "which 'int9:g32' is not"),
        ("int4:g8", "groups of 8; MatMulNBits has blocks of 16 and more"),
        ("type:Embedding int8:g32", "'int8:g32', and no weight of a linear layer, which MatMulNBits multiplies"),
    ],
)
def test_what_no_product_takes_is_refused_or_decoded(tmp_path, recipe, told):
    llama(tie_word_embeddings=False).save_pretrained(tmp_path / "in")
    with pytest.raises(FormatError) as error:
        convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits", recipe=recipe)
    assert told in str(error.value) and not (tmp_path / "x.onnx").exists()
    convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits", recipe=recipe, decode=True)
    _, found = initializers(tmp_path / "x.onnx")
    packed = octavo.pack_model(octavo.quantize_model(octavo.load_model(tmp_path / "in"), recipe, progress=False))
    assert np.array_equal(found["model.embed_tokens.weight"], packed.model.embed_tokens.weight.decode().numpy())
    convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits", recipe="type:Linear int4:g32", overwrite=True)


def test_floats_keep_their_dtypes(tmp_path):
    model = transformer("LlamaForCausalLM", width=64, heads=4, inner=96).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "in")
    report = convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits")
    assert {tensor.type for tensor in report.tensors} == {"BFLOAT16"}
    found = {one.name: one for one in onnx.load(tmp_path / "x.onnx").graph.initializer}
    stored = torch.frombuffer(bytearray(found["lm_head.weight"].raw_data), dtype=torch.bfloat16).view(50, 64)
    assert torch.equal(stored, model.lm_head.weight.detach())


def test_targets_are_checked_and_files_are_bounded(tmp_path):
    llama().save_pretrained(tmp_path / "in")
    with pytest.raises(ContainerError, match="a folder; the output is a file"):
        convert(tmp_path / "in", tmp_path, "onnx-matmulnbits")
    (tmp_path / "x.onnx").write_text("old")
    with pytest.raises(FileExistsError):
        convert(tmp_path / "in", tmp_path / "x.onnx", "onnx-matmulnbits")
    huge = Initializer("x", FLOAT, (1 << 15, 1 << 14), lambda: iter(()))
    with pytest.raises(ContainerError, match="an ONNX file has up to 2147483647"):
        write_graph(tmp_path / "y.onnx", [huge], [], {})
    with pytest.raises(ContainerError, match="initializer 'x' twice"):
        write_graph(tmp_path / "y.onnx", [huge, huge], [Product("p", 1, 1, 4, 32, ["x"])], {})
    assert not (tmp_path / "y.onnx").exists() and (tmp_path / "x.onnx").read_text() == "old"
