"""Trainer of transformers on simulated models: it resumes, and ends with the best weights, bit for bit."""

import copy

import octavo
import pytest
import torch
from helpers.models import copied_state, same_tensors, transformer

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")


MODELS = {
    "bert": "BertForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "mixtral": "MixtralForCausalLM",
}
OPTIONS = {"llama": {"tie_word_embeddings": True}, "mixtral": {"num_local_experts": 4, "num_key_value_heads": 2}}  # fmt: skip
EXPERTS = "model.layers.0.mlp.experts"
RECIPES = {"rounded": "mxint8; type:{} mxint8 input=mxint8", "learned": "type:{} int4:channel@lsq"}


def data(name, count=24):
    """Samples as data sets of Trainer give them."""
    made = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 50, (count, 8), generator=made)
    label = (ids[:, 0] > 25).long()
    images = torch.randn(count, 3, 16, 16, generator=made)
    of = {"vit": lambda i: {"pixel_values": images[i], "labels": label[i]},
          "bert": lambda i: {"input_ids": ids[i], "labels": label[i]}}  # fmt: skip
    return [of.get(name, lambda i: {"input_ids": ids[i], "labels": ids[i]})(i) for i in range(count)]


def simulated(name, recipe="rounded"):
    model = transformer(MODELS[name], layers=1, inner=48, **OPTIONS.get(name, {}))
    layers = "Conv1D" if name == "gpt2" else "Linear"
    return octavo.quantize_model(model, RECIPES[recipe].format(layers), progress=False)


def trainer(model, folder, name, **options):
    arguments = transformers.TrainingArguments(
        folder, max_steps=6, save_steps=3, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, seed=1,
        report_to=[], disable_tqdm=True, logging_strategy="no", **{"save_strategy": "steps", **options},
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=data(name), eval_dataset=data(name, 8))


RESUMED = [
    pytest.param(
        name,
        recipe,
        marks=() if (recipe == "learned") == (name not in ("bert", "vit", "mixtral")) else pytest.mark.slow,
    )
    for name in MODELS
    for recipe in RECIPES
]


@pytest.mark.parametrize(("name", "recipe"), RESUMED)
def test_a_resumed_run_ends_with_the_bits_of_the_whole_one(name, recipe, tmp_path):
    whole = trainer(simulated(name, recipe), tmp_path / "whole", name)
    whole.train()
    resumed = trainer(simulated(name, recipe), tmp_path / "resumed", name)
    before = copied_state(resumed.model)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert same_tensors(copied_state(resumed.model), copied_state(whole.model))
    assert any(not torch.equal(before[key], value) for key, value in copied_state(whole.model).items())


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_read_with_its_quantizers_and_by_transformers(name, tmp_path):
    model = simulated(name, "learned")
    trainer(model, tmp_path / "run", name).train()
    loaded = octavo.load_model(tmp_path / "run" / "checkpoint-6")
    assert same_tensors(copied_state(loaded), copied_state(model))
    again = octavo.pack_model(loaded)
    assert same_tensors(copied_state(again), copied_state(octavo.pack_model(copy.deepcopy(model).eval())))
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("model*.safetensors"))) > 1
    assert same_tensors(copied_state(octavo.load_model(tmp_path / "saved")), copied_state(model))
    plain = getattr(transformers, MODELS[name]).from_pretrained(tmp_path / "saved")
    state = model.state_dict()
    for part in ("gate_up_proj", "down_proj") if name == "mixtral" else ():
        state[f"{EXPERTS}.{part}"] = torch.stack([state[f"{EXPERTS}.{number}.{part}.weight"] for number in range(4)])
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())


def test_the_best_weights_are_loaded_at_the_end(tmp_path):
    model = simulated("bert", "learned")
    run = trainer(
        model, tmp_path / "run", "bert", eval_strategy="steps", eval_steps=3, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,  # the worst: of the first checkpoint
    )  # fmt: skip
    run.train()
    best = run.state.best_model_checkpoint
    losses = {row["step"]: row["eval_loss"] for row in run.state.log_history if "eval_loss" in row}
    assert best.endswith(f"checkpoint-{max(losses, key=losses.get)}")
    assert same_tensors(copied_state(model), copied_state(octavo.load_model(best)))
    other = "checkpoint-3" if best.endswith("6") else "checkpoint-6"
    kept = copied_state(octavo.load_model(tmp_path / "run" / other))
    assert any(not torch.equal(kept[key], value) for key, value in copied_state(model).items())


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(it, marks=pytest.mark.slow) for it in ("bert", "gpt2", "mixtral", "vit"))]
)  # gradients of T5 differ in the last bit in float, too: its shared biases add theirs up in another order
def test_gradient_checkpointing_changes_no_bit(name, tmp_path):
    ends = []
    for checkpoints in (False, True):
        model = simulated(name, "learned")
        if checkpoints:
            model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing == checkpoints
        trainer(model, tmp_path / str(checkpoints), name, save_strategy="no").train()
        ends.append(copied_state(model))
    assert same_tensors(*ends)


def test_adapters_on_a_simulated_model_train_and_resume(tmp_path):
    def adapted():
        model = simulated("bert")
        return octavo.lora.insert(model, octavo.lora.LoraConfig(rank=2, targets=("type:QuantLinear",)))

    whole = trainer(adapted(), tmp_path / "whole", "bert")
    before = copied_state(whole.model)
    whole.train()
    resumed = trainer(adapted(), tmp_path / "resumed", "bert")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert same_tensors(copied_state(resumed.model), copied_state(whole.model))
    assert any(not torch.equal(before[key], value) for key, value in copied_state(whole.model).items())
    with pytest.raises(octavo.ContainerError, match="adapters"):
        octavo.load_model(tmp_path / "whole" / "checkpoint-6")
