"""The folder of a language model is a model folder: what is loaded from it is what was saved, and it packs as others do."""

import json

import octavo
import pytest
import torch
from octavo.data import BytePairTokenizer
from octavo.errors import ContainerError, DataError
from octavo.lab.language.gpt import GPT, contracts, modern, modern_skips, nocap_baseline
from octavo.lab.language.model_folder import load_language_model, save_language_model
from octavo.lab.language.techniques import techniques

IDS = torch.randint(1, contracts.VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
EXAMPLES = [(one, example) for one in techniques() for example in one.examples]


def tokenizer(size=260):
    return BytePairTokenizer.train(["a cat sat on a mat, a cat sat on a hat"], size)


@pytest.mark.parametrize("make", [nocap_baseline, modern, modern_skips])
def test_a_saved_model_and_its_tokenizer_come_back_with_the_same_bits(tmp_path, make):
    torch.manual_seed(0)
    model = GPT(make(vocabulary=260, width=32, layers=3, heads=2, end_of_text=259)).eval()
    save_language_model(tmp_path / "m", model, tokenizer())
    loaded, told = load_language_model(tmp_path / "m")
    assert torch.equal(loaded(IDS), model(IDS)) and loaded.config == model.config and not loaded.training
    assert told == tokenizer()
    assert json.loads((tmp_path / "m" / "config.json").read_text())["kind"] == "gpt"


@pytest.mark.parametrize(("one", "example"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_every_technique_is_saved_with_its_tables(tmp_path, one, example):
    model = contracts.example_model(one, example).eval()
    octavo.save_model(model, tmp_path / "m")
    assert torch.equal(octavo.load_model(tmp_path / "m")(IDS), model(IDS))


def test_a_packed_model_keeps_its_tokenizer(tmp_path):
    torch.manual_seed(0)
    model = GPT(nocap_baseline(vocabulary=260, width=32, layers=2, heads=2, end_of_text=259)).eval()
    save_language_model(tmp_path / "m", model, tokenizer())
    loaded, _ = load_language_model(tmp_path / "m")
    quantized = octavo.quantize_model(loaded, "int8:channel", progress=False)
    octavo.save_model(octavo.pack_model(quantized), tmp_path / "p")
    packed, told = load_language_model(tmp_path / "p")
    assert told == tokenizer()
    assert torch.allclose(packed(IDS), quantized(IDS), atol=1e-4)


@torch.no_grad()
def test_a_tied_head_reads_the_table_as_it_is_looked_up_however_it_is_called():
    torch.manual_seed(0)
    model = GPT(nocap_baseline(vocabulary=260, width=32, layers=1, heads=2, end_of_text=259)).eval()
    quantized = octavo.quantize_model(model, "mxint4", progress=False)
    for one in (model, quantized, octavo.pack_model(quantized)):
        rows = one.embedding.table(torch.arange(260))
        wanted = torch.log_softmax(one.hidden(IDS) @ rows.T, -1)
        for found in (one(IDS), one.log_probs(IDS)):
            assert torch.allclose(found, wanted, atol=1e-5)
        assert torch.allclose(one.nll(IDS, IDS), -wanted.gather(-1, IDS[..., None])[..., 0], atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    model = GPT(nocap_baseline(vocabulary=258, width=32, layers=1, heads=2, end_of_text=None))
    with pytest.raises(DataError, match="260 ids"):
        save_language_model(tmp_path / "m", model, tokenizer())
    save_language_model(tmp_path / "m", model, tokenizer(258))
    config = tmp_path / "m" / "config.json"
    written = json.loads(config.read_text())
    for change in ({"mixers": [1]}, {"head": 5}, {"pattern": "b"}, {"width": 1 << 20}, {"octavo": 99}):
        config.write_text(json.dumps(written | change))
        with pytest.raises(ContainerError, match=r"config\.json"):
            load_language_model(tmp_path / "m")
