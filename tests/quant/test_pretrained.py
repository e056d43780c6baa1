"""What models of transformers do with quantized layers: what they write octavo.load_model reads; ties, sizes, counts."""

import copy
import gc
import pickle
import weakref

import octavo
import pytest
import torch
from helpers.models import packed, transformer
from octavo import ContainerError, ModelError
from octavo.nn.transformers_methods import OurMethods

transformers = pytest.importorskip("transformers")

IDS = torch.arange(16).view(2, 8)


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def simulated():
    return octavo.quantize_model(transformer("BertForMaskedLM", heads=4), "mxint8", progress=False)


WAYS = {
    "simulated": simulated,
    "packed": lambda: octavo.pack_model(simulated()),
    "packed in place": lambda: octavo.pack_model(simulated(), inplace=True),
    "copied": lambda: copy.deepcopy(octavo.pack_model(simulated())),
    "pickled": lambda: pickle.loads(pickle.dumps(octavo.pack_model(simulated()))),
    "moved": lambda: octavo.pack_model(simulated()).to("cpu").to(torch.float32),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_loads_with_the_same_outputs(way, tmp_path, monkeypatch):
    # As in a process that has not imported octavo.transformers.
    monkeypatch.delitem(transformers.quantizers.auto.AUTO_QUANTIZATION_CONFIG_MAPPING, "octavo", raising=False)
    model = WAYS[way]()
    model.save_pretrained(tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model")
    assert torch.equal(logits(loaded), logits(model))
    loaded.save_pretrained(tmp_path / "again", max_shard_size="50GB")
    assert torch.equal(logits(octavo.load_model(tmp_path / "again")), logits(model))
    if way == "simulated":
        plain = transformers.BertForMaskedLM.from_pretrained(tmp_path / "model")
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in plain.state_dict().items())
    else:
        with pytest.raises(OSError, match="no file named"):  # nothing to start from random weights with
            transformers.BertForMaskedLM.from_pretrained(tmp_path / "model")


def test_a_copy_writes_itself(tmp_path):
    model = simulated()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.bert.embeddings.word_embeddings.weight.mul_(2)
    twin.save_pretrained(tmp_path / "twin")
    assert torch.equal(logits(octavo.load_model(tmp_path / "twin")), logits(twin))
    assert not torch.equal(logits(twin), logits(model))


def test_parts_that_are_models_write_themselves(tmp_path):
    packed = octavo.pack_model(simulated())
    packed.bert.save_pretrained(tmp_path / "part")
    with torch.no_grad():
        expected = packed.bert(IDS).last_hidden_state
        loaded = octavo.load_model(tmp_path / "part", lambda: type(packed.bert)(packed.config, add_pooling_layer=False))
        assert torch.equal(loaded(IDS).last_hidden_state, expected)


def test_what_would_change_the_file_is_refused(tmp_path):
    model = octavo.pack_model(simulated())
    for options in ({"state_dict": model.state_dict()}, {"push_to_hub": True}, {"variant": "fp16"}):
        with pytest.raises(ModelError, match=f"without {next(iter(options))}; .*octavo.load_model"):
            model.save_pretrained(tmp_path / "model", **options)
    with pytest.raises(ModelError, match="without push_to_hub"):
        simulated().save_pretrained(tmp_path / "model", push_to_hub=True)
    model.save_pretrained(tmp_path / "model", is_main_process=False)
    assert not (tmp_path / "model").exists()
    transformer("BertForMaskedLM", heads=4).save_pretrained(tmp_path / "float")
    with pytest.raises(ContainerError, match="ambiguous"):
        model.save_pretrained(tmp_path / "float")
    model.save_pretrained(tmp_path / "packed")
    with pytest.raises(ContainerError, match="ambiguous"):
        simulated().save_pretrained(tmp_path / "packed")


def test_a_model_that_nobody_holds_writes_itself(tmp_path):
    expected = logits(octavo.pack_model(simulated()))
    octavo.pack_model(simulated()).save_pretrained(tmp_path / "packed")
    simulated().save_pretrained(tmp_path / "simulated")
    octavo.load_model(tmp_path / "packed").save_pretrained(tmp_path / "again")
    assert torch.equal(logits(octavo.load_model(tmp_path / "packed")), expected)
    assert torch.equal(logits(octavo.load_model(tmp_path / "again")), expected)
    assert torch.equal(logits(octavo.load_model(tmp_path / "simulated")), logits(simulated()))


def test_a_state_dict_that_is_given_is_written(tmp_path):
    """As Trainer does it where a model is spread over processes."""
    model = simulated()
    other = {name: value + 1 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=dict(other))
    assert torch.equal(
        octavo.load_model(tmp_path).bert.embeddings.LayerNorm.weight, other["bert.embeddings.LayerNorm.weight"]
    )


def test_push_to_hub_uploads_our_folder(monkeypatch):
    model, uploaded = octavo.pack_model(simulated()), []

    class Hub:
        repo_id = "somebody/something"

        def __init__(self, **_):
            pass

        def create_repo(self, *_, **__):
            return self

        def upload_folder(self, *, folder_path, **_):
            uploaded.append(torch.equal(logits(octavo.load_model(folder_path)), logits(model)))

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    model.push_to_hub("somebody/something")
    assert uploaded == [True]


def test_models_are_freed_as_soon_as_nobody_holds_them():
    model = octavo.pack_model(simulated())
    weight = weakref.ref(model.bert.embeddings.word_embeddings.weight_codes)
    gc.disable()
    try:
        del model
        assert weight() is None
    finally:
        gc.enable()


def test_models_of_other_libraries_around_it_keep_their_own():
    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.config = transformer("BertForMaskedLM", heads=4), None

        def save_pretrained(self, folder):
            return "mine"

    around = octavo.quantize_model(Around(), "mxint8", progress=False)
    assert around.save_pretrained("nowhere") == "mine" and isinstance(around.model, OurMethods)


def test_float_models_and_failures_keep_their_own():
    model = transformer("BertForMaskedLM", heads=4)
    with pytest.raises(octavo.CalibrationError):
        octavo.quantize_model(model, "int8 ; type:Linear int8 input=int8@minmax", inplace=True, progress=False)
    octavo.quantize_model(model, "", inplace=True, progress=False)
    assert type(model) is transformers.BertForMaskedLM


MODELS = {
    "bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
}  # fmt: skip


def model_of(name):
    tied = {} if name in ("bert", "vit") else {"tie_word_embeddings": True}
    return transformer(MODELS[name], layers=2 if name == "bert" else 1, heads=4, **tied)


WITH_TOKENS = [name for name in MODELS if name != "vit"]


def inputs(name):
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    return {"input_ids": IDS, "decoder_input_ids": IDS} if name == "t5" else {"input_ids": IDS}


@pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_what_other_packages_ask_of_a_model_is_answered(name):
    """As lm-eval, Trainer and pipelines do: ties, counts, devices, dtypes, copies."""
    model = model_of(name)
    small = packed(model, "mxint8")
    expected = small(**inputs(name)).logits
    small.tie_weights()  # lm-eval does it
    small.tie_weights(recompute_mapping=False)
    assert torch.equal(small(**inputs(name)).logits, expected)
    more = 50 if name == "bert" else 0  # packing ends the tie of two biases of its head
    assert small.num_parameters() == model.num_parameters() + more
    assert small.num_parameters(exclude_embeddings=True) == model.num_parameters(exclude_embeddings=True) + more
    assert small.num_parameters(only_trainable=True) < model.num_parameters()
    assert (small.device, small.dtype) == (model.device, model.dtype)
    assert small.get_memory_footprint() < 0.5 * model.get_memory_footprint()
    for copied in (copy.deepcopy(small), pickle.loads(pickle.dumps(small)), copy.copy(small)):
        assert isinstance(copied, type(model)) and torch.equal(copied(**inputs(name)).logits, expected)
    half = copy.deepcopy(small).to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    whole = {key: x.bfloat16() if x.is_floating_point() else x for key, x in inputs(name).items()}
    assert half(**whole).logits.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")
@pytest.mark.parametrize("recipe", ["mxint8", "nvfp4", "int8", "uint4:g16"])
@pytest.mark.parametrize("name", WITH_TOKENS)
def test_tables_of_tokens_take_another_number_of_rows_and_old_rows_keep_their_bits(name, recipe, tmp_path):
    model = model_of(name)
    for quantized in (packed(model, recipe), octavo.quantize_model(model, recipe, progress=False)):
        table, head = quantized.get_input_embeddings(), quantized.get_output_embeddings()
        weight = table.weight
        assert (weight.shape, weight.device, weight.dtype) == ((50, 32), model.device, model.dtype)
        assert (
            weight.size(0) == 50
            and weight.size() == (50, 32)
            and not weight.is_meta
            and weight.requires_grad is not hasattr(table, "packed_weight")
        )
        if hasattr(model, "_resize_final_logits_bias"):
            with pytest.raises(ModelError, match=r"its class resizes more .*float model, then octavo.quantize_model"):
                quantized.resize_token_embeddings(60)
            continue
        for same in ((), (50,)):
            assert quantized.resize_token_embeddings(*same) is table
        before = quantized(**inputs(name))[0].detach()
        assert quantized.resize_token_embeddings(60) is table and len(table.weight) == 60
        rows = table(torch.arange(60)).detach()
        after = quantized(**inputs(name))[0].detach()
        if recipe != "int8" or hasattr(table, "packed_weight"):  # a simulated table chooses its one scale anew
            assert torch.equal(after[..., : before.shape[-1]], before)
            mean = rows[:50].mean(0)
            assert torch.allclose(rows[50:], mean.expand(10, -1), atol=0.2 * float(mean.abs().max()))  # steps of 4 bits
        assert quantized.config.vocab_size == 60 and (head is None or after.shape[-1] == 60)
        assert quantized.resize_token_embeddings(pad_to_multiple_of=64) is table and len(table.weight) == 64
        if hasattr(table, "packed_weight"):
            octavo.save_model(quantized, tmp_path / "wider")
            loaded = octavo.load_model(tmp_path / "wider")
            assert torch.equal(loaded(**inputs(name))[0], quantized(**inputs(name))[0])
        quantized.resize_token_embeddings(50)
        if recipe != "int8" or hasattr(table, "packed_weight"):
            assert torch.equal(quantized(**inputs(name))[0], before)


def test_rows_that_come_may_be_drawn():
    small = packed(model_of(WITH_TOKENS[0]), "mxint8")
    small.resize_token_embeddings(1000, mean_resizing=False)
    rows = small.get_input_embeddings()(torch.arange(50, 1000))
    assert float(rows.detach().std()) == pytest.approx(small.config.initializer_range, rel=0.05)


def test_tables_with_fixed_scales_keep_their_rows():
    model = octavo.quantize_model(model_of(WITH_TOKENS[0]), "int4:g16@mse", progress=False)
    with pytest.raises(ModelError, match=r"has fixed scales, of 50 rows; call resize_token_embeddings on the float"):
        model.resize_token_embeddings(60)


@pytest.mark.parametrize("name", MODELS)
def test_models_without_values_are_refused_by_name(name):
    """Tensors on the meta device, before any work."""
    empty = model_of(name).to("meta")
    first = next(key for key, _ in empty.named_parameters())
    batch = [inputs(name)]
    doors = [
        lambda: octavo.quantize_model(empty, "mxint8", progress=False),
        lambda: octavo.save_model(empty, "nowhere"),
        lambda: octavo.prune_model(empty, 0.5, progress=False),
        lambda: octavo.prune.compact_model(empty, batch[0]),
        lambda: octavo.compress_model(empty, data=batch, progress=False),
        lambda: octavo.search.measure_sensitivity(empty, batch, formats=["mxint8"], progress=False),
    ]
    for door in doors:
        with pytest.raises(ModelError, match=f"{first}: on the meta device.*load_model"):
            door()
    small = packed(model_of(name), "mxint8")
    rounded = octavo.quantize_model(model_of(name), "mxint8", progress=False)
    part = next(key for key, layer in rounded.named_modules() if isinstance(layer, octavo.nn.QuantLayer))
    rounded.get_submodule(part).to("meta")
    with pytest.raises(ModelError, match=f"{part}.weight: on the meta device"):
        octavo.pack_model(rounded)
    with pytest.raises(ModelError, match="on the meta device"):
        octavo.save_model(small.to("meta"), "nowhere")
