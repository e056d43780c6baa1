"""Trainer of transformers on simulated models: it resumes, and ends with the best weights, bit for bit."""

import copy

import octavo
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16,
    ))  # fmt: skip


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=32, n_head=2, n_layer=1, n_positions=16, bos_token_id=1,
                                eos_token_id=2)
    )  # fmt: skip


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, tie_word_embeddings=True,
    ))  # fmt: skip


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2, decoder_start_token_id=0,
    ))  # fmt: skip


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=16, patch_size=8, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
    ))  # fmt: skip


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": t5, "vit": vit}
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
    torch.manual_seed(0)
    layers = "Conv1D" if name == "gpt2" else "Linear"
    return octavo.quantize_model(MODELS[name](), RECIPES[recipe].format(layers), progress=False)


def trainer(model, folder, name, **options):
    arguments = transformers.TrainingArguments(
        folder, max_steps=6, save_steps=3, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, seed=1,
        report_to=[], disable_tqdm=True, logging_strategy="no", **{"save_strategy": "steps", **options},
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=data(name), eval_dataset=data(name, 8))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


RESUMED = [
    pytest.param(name, recipe, marks=() if (recipe == "learned") == (name not in ("bert", "vit")) else pytest.mark.slow)
    for name in MODELS
    for recipe in RECIPES
]


@pytest.mark.parametrize(("name", "recipe"), RESUMED)
def test_a_resumed_run_ends_with_the_bits_of_the_whole_one(name, recipe, tmp_path):
    whole = trainer(simulated(name, recipe), tmp_path / "whole", name)
    whole.train()
    resumed = trainer(simulated(name, recipe), tmp_path / "resumed", name)
    before = state(resumed.model)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert_same(state(resumed.model), state(whole.model))
    assert any(not torch.equal(before[key], value) for key, value in state(whole.model).items())


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_read_with_its_quantizers_and_by_transformers(name, tmp_path):
    model = simulated(name, "learned")
    trainer(model, tmp_path / "run", name).train()
    loaded = octavo.load_model(tmp_path / "run" / "checkpoint-6")
    assert_same(state(loaded), state(model))
    again = octavo.pack_model(loaded)
    assert_same(state(again), state(octavo.pack_model(copy.deepcopy(model).eval())))
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("model*.safetensors"))) > 1
    assert_same(state(octavo.load_model(tmp_path / "saved")), state(model))
    plain = type(MODELS[name]()).from_pretrained(tmp_path / "saved")
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in plain.state_dict().items())


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
    assert_same(state(model), state(octavo.load_model(best)))
    other = "checkpoint-3" if best.endswith("6") else "checkpoint-6"
    kept = state(octavo.load_model(tmp_path / "run" / other))
    assert any(not torch.equal(kept[key], value) for key, value in state(model).items())


def test_gradient_checkpointing_changes_no_bit(tmp_path):
    ends = []
    for checkpoints in (False, True):
        model = simulated("llama", "learned")
        if checkpoints:
            model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing == checkpoints
        trainer(model, tmp_path / str(checkpoints), "llama", save_strategy="no").train()
        ends.append(state(model))
    assert_same(*ends)


def test_adapters_on_a_simulated_model_train_and_resume(tmp_path):
    def adapted():
        model = simulated("bert")
        return octavo.lora.insert(model, octavo.lora.LoraConfig(rank=2, targets=("type:QuantLinear",)))

    whole = trainer(adapted(), tmp_path / "whole", "bert")
    before = state(whole.model)
    whole.train()
    resumed = trainer(adapted(), tmp_path / "resumed", "bert")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert_same(state(resumed.model), state(whole.model))
    assert any(not torch.equal(before[key], value) for key, value in state(whole.model).items())
    with pytest.raises(octavo.ContainerError, match="adapters"):
        octavo.load_model(tmp_path / "whole" / "checkpoint-6")
