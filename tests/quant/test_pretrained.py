"""save_pretrained of quantized models of transformers: the folder that octavo.load_model reads, or an error."""

import copy
import gc
import pickle
import weakref

import octavo
import pytest
import torch
from octavo import ContainerError, ModelError

transformers = pytest.importorskip("transformers")

IDS = torch.arange(16).view(2, 8)


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.BertForMaskedLM(config).eval()


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def simulated():
    return octavo.quantize_model(bert(), "mxint8", progress=False)


WAYS = {
    "simulated": simulated,
    "packed": lambda: octavo.pack_model(simulated()),
    "packed in place": lambda: octavo.pack_model(simulated(), inplace=True),
    "copied": lambda: copy.deepcopy(octavo.pack_model(simulated())),
    "pickled": lambda: pickle.loads(pickle.dumps(octavo.pack_model(simulated()))),
    "moved": lambda: octavo.pack_model(simulated()).to("cpu").to(torch.float32),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_loads_with_the_same_outputs(way, tmp_path):
    model = WAYS[way]()
    model.save_pretrained(tmp_path / "model")
    loaded = octavo.load_model(tmp_path / "model")
    assert torch.equal(logits(loaded), logits(model))
    loaded.save_pretrained(tmp_path / "again", max_shard_size="50GB")
    assert torch.equal(logits(octavo.load_model(tmp_path / "again")), logits(model))
    with pytest.raises(OSError, match="no file named"):  # nothing for transformers to start from random weights with
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
    model = simulated()
    for options in ({"state_dict": model.state_dict()}, {"push_to_hub": True}, {"variant": "fp16"}):
        with pytest.raises(ModelError, match=f"without {next(iter(options))}; .*octavo.load_model"):
            model.save_pretrained(tmp_path / "model", **options)
    model.save_pretrained(tmp_path / "model", is_main_process=False)
    assert not (tmp_path / "model").exists()
    bert().save_pretrained(tmp_path / "float")
    with pytest.raises(ContainerError, match="ambiguous"):
        model.save_pretrained(tmp_path / "float")


def test_push_to_hub_uploads_our_folder(monkeypatch):
    model, uploaded = octavo.pack_model(simulated()), []
    hub = transformers.utils.hub
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *_, **__: _Card())
    for place in ("hf_api", "create_repo"):
        if hasattr(hub, place):
            monkeypatch.setattr(hub, place, lambda *_, **__: _Api())

    def upload(self, folder, *_, **__):
        uploaded.append(torch.equal(logits(octavo.load_model(folder)), logits(model)))

    monkeypatch.setattr(type(model), "_upload_modified_files", upload)
    model.push_to_hub("somebody/something")
    assert uploaded == [True]


class _Card:
    def save(self, path):
        pass


class _Api:
    repo_id = "somebody/something"

    def create_repo(self, *_, **__):
        return self


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
            self.model, self.config = bert(), None

        def save_pretrained(self, folder):
            return "mine"

    around = octavo.quantize_model(Around(), "mxint8", progress=False)
    assert around.save_pretrained("nowhere") == "mine" and "save_pretrained" in vars(around.model)


def test_float_models_and_failures_keep_their_own():
    model = bert()
    with pytest.raises(octavo.CalibrationError):
        octavo.quantize_model(model, "int8 ; type:Linear int8 input=int8@minmax", inplace=True, progress=False)
    octavo.quantize_model(model, "", inplace=True, progress=False)
    assert "save_pretrained" not in vars(model)
