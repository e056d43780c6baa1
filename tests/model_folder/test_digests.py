"""A tensor that stands in another's place, or whose bytes were damaged, is found by its digest, by every reader."""

import json
import re

import octavo
import pytest
import torch
from helpers.models import packed, transformer
from octavo import ContainerError
from octavo.cli import app
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.tensors import container
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")


MODELS = {
    "bert": "BertModel", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
}  # fmt: skip
RUST = {"gpt2": octavo.TextGenerator, "llama": octavo.TextGenerator}


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    model = packed(transformer(MODELS[request.param]), "mxint8")
    octavo.save_model(model, tmp_path / "m")
    return request.param, tmp_path / "m"


def twins(file):
    """Names of two tensors of one kind, packed ones first, that differ."""
    tensors = container.load(file)
    first = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: isinstance(item[1], torch.Tensor)):
        kind = (type(tensor), tuple(tensor.shape), str(getattr(tensor, "format", tensor.dtype)))
        if kind in first and tensors[first[kind]] is not tensor:
            return first[kind], name
        first[kind] = name
    raise AssertionError("no two tensors of one kind")


def rewritten(file, tensors, metadata=None):
    container.save(tensors, file, metadata=container.metadata(file) if metadata is None else metadata)


def test_two_layers_that_were_exchanged_are_found(saved):
    name, folder = saved
    file = folder / PACKED_NAME
    container.verify(file)
    one, other = twins(file)
    tensors = container.load(file)
    rewritten(file, tensors | {one: tensors[other], other: tensors[one]})
    told = rf"({re.escape(one)}|{re.escape(other)}): its bytes have the digest .* write the file again"
    with pytest.raises(ContainerError, match=told):
        octavo.load_model(folder)
    with pytest.raises(ContainerError, match=told):
        container.verify(file)
    if name in RUST:
        with pytest.raises(ContainerError, match=told):
            RUST[name].load(folder)
    result = CliRunner().invoke(app, ["unpack", str(folder), "-o", str(folder.with_name("plain"))])
    assert result.exit_code == 2 and re.search(told, " ".join(result.output.split()))
    assert not folder.with_name("plain").exists()
    octavo.load_model(folder, mmap=True)  # reads no tensor, and so compares none


def test_folders_without_digests_are_read(saved):
    _, folder = saved
    file = folder / PACKED_NAME
    metadata = container.metadata(file)
    assert json.loads(metadata.pop("digests")).keys() == {entry.name for entry in container.inspect(file)}
    rewritten(file, container.load(file), metadata)
    container.verify(file)
    octavo.load_model(folder)


def test_every_damaged_byte_of_the_data_is_found(tmp_path):
    torch.manual_seed(0)
    model = octavo.pack_model(
        octavo.quantize_model(torch.nn.Sequential(torch.nn.Linear(32, 2)), "mxint8", progress=False)
    )
    octavo.save_model(model, tmp_path / "m")
    file = tmp_path / "m" / PACKED_NAME
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    entries = container.inspect(file)
    assert sum(entry.nbytes for entry in entries) <= len(data) - start
    found = 0
    for place in range(start, len(data)):
        data[place] ^= 4
        file.write_bytes(data)
        data[place] ^= 4
        try:
            container.verify(file)
        except ContainerError:
            found += 1
    assert found == sum(entry.nbytes for entry in entries)  # all but what lies between tensors


def test_digests_of_what_was_unpacked_or_changed_do_not_stay(saved):
    _, folder = saved
    out = folder.with_name("plain")
    assert CliRunner().invoke(app, ["unpack", str(folder), "-o", str(out)]).exit_code == 0
    assert "digests" not in container.metadata(out / "model.safetensors")
    octavo.save_model(octavo.load_model(folder), folder.with_name("again"))
    assert (folder.with_name("again") / PACKED_NAME).read_bytes() == (folder / PACKED_NAME).read_bytes()


def test_the_digest_is_that_of_another_implementation():
    xxhash = pytest.importorskip("xxhash")
    tensors = {
        "a": torch.arange(7.0), "b": torch.tensor(True), "c": torch.zeros(0), "d": torch.randn(5, 4).t(),
        "e": octavo.encode(torch.randn(3, 64), "int4:g32"), "f": octavo.encode(torch.eye(64), "mxint8").to_sparse(),
    }  # fmt: skip
    for name, digest in container.digests(tensors).items():
        tensor = tensors[name]
        parts = [tensor] if isinstance(tensor, torch.Tensor) else tensor.held_parts
        data = b"".join(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts)
        assert digest == xxhash.xxh3_64_hexdigest(data)
