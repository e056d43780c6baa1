"""QLoRA from end to end: a packed folder, adapters of PEFT, Trainer, a checkpoint, and the adapter on another copy."""

import octavo
import pytest
import torch
from helpers.models import transformer

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TEXTS = torch.randint(3, 50, (8, 8), generator=torch.Generator().manual_seed(0))
OPTIONS = {"r": 4, "task_type": "CAUSAL_LM"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A packed folder."""
    import octavo.transformers

    place = tmp_path_factory.mktemp("models")
    transformer("LlamaForCausalLM", layers=1).save_pretrained(place / "float")
    config = octavo.transformers.OctavoConfig("int4:g32")
    model = transformers.AutoModelForCausalLM.from_pretrained(place / "float", quantization_config=config)
    model.save_pretrained(place / "packed")
    return place / "packed"


def opened(folder):
    import octavo.transformers  # noqa: F401 transformers opens packed folders with it

    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def adapted(folder):
    base = opened(folder)
    targets = octavo.peft.target_modules(base)
    torch.manual_seed(0)
    return peft.get_peft_model(base, octavo.peft.prepare(peft.LoraConfig(target_modules=targets, **OPTIONS)))


def trainer(model, place):
    arguments = transformers.TrainingArguments(
        str(place), max_steps=4, save_steps=2, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in TEXTS]
    return transformers.Trainer(model, arguments, train_dataset=rows)


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TEXTS).logits


def test_trainer_trains_resumes_and_saves_adapters_of_a_packed_folder(folder, tmp_path):
    with pytest.raises(ValueError, match="attach trainable adapters"):
        trainer(opened(folder), tmp_path)
    model = adapted(folder)
    before = logits(model)
    trainer(model, tmp_path).train()
    after = logits(model)
    assert not torch.allclose(after, before, atol=1e-3)
    resumed = adapted(folder)
    trainer(resumed, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(logits(resumed), after)
    names = {path.name for path in (tmp_path / "checkpoint-4").iterdir()}
    assert "adapter_model.safetensors" in names and not any(name.startswith("model") for name in names)
    config = octavo.peft.prepare(peft.LoraConfig.from_pretrained(tmp_path / "checkpoint-4"))
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4", config=config)
    assert torch.equal(logits(again), after)


def test_an_adapted_packed_model_generates_and_compiles_without_a_break(folder):
    model = adapted(folder).eval()
    assert model.generate(TEXTS[:1], max_new_tokens=3, do_sample=False).shape == (1, 11)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(logits(compiled), logits(model))


def test_a_merged_model_is_a_packed_folder_again(folder, tmp_path):
    merged, _ = octavo.peft.merge(adapted(folder))
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(opened(tmp_path / "merged")), logits(merged))
