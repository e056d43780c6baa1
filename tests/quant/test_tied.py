"""A head that is the table of the embedding: one tensor, told, and untied where that is asked for."""

import json
import re

import octavo
import pytest
import torch
from helpers.models import transformer
from helpers.text_folders import labelled_rows, text_folder
from octavo.cli import app
from octavo.model_folder.save_load import file_bytes
from octavo.model_folder.tied_tensors import tied_sentences
from octavo.nn.tied_weights import tied_heads, untie_heads
from octavo.report.compression_report import read_report
from torch import nn
from typer.testing import CliRunner

RECIPE = "int4:g32; lm_head int8:g32"
HEAD, TABLE = "lm_head.weight", "transformer.wte.weight"
IDS = torch.arange(12).reshape(2, 6)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.inner(self.table(ids)))


def gpt2():
    return transformer("GPT2LMHeadModel", tie_word_embeddings=True)


def test_one_decision_is_told_for_both_names():
    model = Tied()
    packed = octavo.pack_model(octavo.quantize_model(model, "int4:g32", progress=False))
    told = "tied: table.weight and head.weight are one tensor, counted once; format int4:g32"
    assert tied_sentences(packed) == (told,) and told in str(octavo.explain(packed))
    assert octavo.explain(packed).tied == (told,)
    assert "one tensor, counted once; format int4:g32" in str(octavo.Recipe.parse("int4:g32").explain(model))
    assert tied_sentences(octavo.pack_model(octavo.quantize_model(model, "int4:g32", untie=True, progress=False))) == ()


def test_an_untied_head_has_a_format_of_its_own_and_its_bytes_are_told():
    model = Tied()
    with pytest.raises(octavo.FormatError):
        octavo.quantize_model(model, "int4:g32; head int8:g32", progress=False)
    quantized = octavo.quantize_model(model, "int4:g32; head int8:g32", untie=True, progress=False)
    packed = octavo.pack_model(quantized)
    assert str(packed.head.format) == "int8:g32" and str(packed.table.format) == "int4:g32"
    assert model.head.weight is model.table.weight  # the caller's
    untied = untie_heads(model)
    assert untied.tables == {"head.weight": "table.weight"} and untied.nbytes == 40 * 32 * 4
    assert torch.equal(model.head.weight, model.table.weight) and not tied_heads(model)
    untied.undo()
    assert tied_heads(model) == {"head.weight": "table.weight"}
    with pytest.raises(octavo.ModelError, match="there is nothing to untie"):
        octavo.quantize_model(nn.Sequential(nn.Linear(4, 4)), "int8", untie=True, progress=False)


def test_a_model_is_as_it_was_where_a_recipe_fails():
    model = gpt2()
    with pytest.raises(octavo.FormatError, match="matches no"):
        octavo.quantize_model(model, "name:nothing int8", untie=True, inplace=True, progress=False)
    assert tied_heads(model) == {HEAD: TABLE} and model.config.tie_word_embeddings is True
    assert model.all_tied_weights_keys == {HEAD: TABLE}


def test_untied_heads_of_transformers_stay_so_through_files(tmp_path):
    model = gpt2()
    packed = octavo.pack_model(octavo.quantize_model(model, RECIPE, untie=True, progress=False))
    packed.tie_weights()
    assert str(packed.lm_head.format) == "int8:g32" and packed.config.tie_word_embeddings is False
    assert model.config.tie_word_embeddings is True
    octavo.save_model(packed, tmp_path / "small")
    assert json.loads((tmp_path / "small" / "config.json").read_text())["tie_word_embeddings"] is False
    loaded = octavo.load_model(tmp_path / "small")
    loaded.tie_weights()
    assert torch.equal(loaded(IDS).logits, packed(IDS).logits) and str(loaded.lm_head.format) == "int8:g32"
    assert file_bytes(packed) == (tmp_path / "small" / "model.octavo.safetensors").stat().st_size


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_folders_are_packed_untied(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "m"
    if family == "GPT2":
        text_folder(folder, "GPT2", "LMHeadModel")
        table = TABLE
    else:
        transformer("LlamaForCausalLM", tie_word_embeddings=True, num_key_value_heads=2).save_pretrained(folder)
        table = "model.embed_tokens.weight"
    run = CliRunner().invoke(app, ["pack", str(folder), "-o", str(tmp_path / "tied"), "--recipe", "int4:g32"])
    assert re.search(r"tied: \S+ and \S+ are one tensor, counted once; format int4:g32", " ".join(run.output.split()))
    args = ["pack", str(folder), "-o", str(tmp_path / "small"), "--untie", "--recipe", RECIPE]
    run = CliRunner().invoke(app, args)
    assert run.exit_code == 0, run.output
    told = " ".join(run.output.split())
    assert f"untied: {HEAD} is a tensor of its own, no longer {table}; format int8:g32" in told
    assert json.loads((tmp_path / "small" / "config.json").read_text())["tie_word_embeddings"] is False
    loaded, given = octavo.load_model(tmp_path / "small"), octavo.load_model(folder)
    by_hand = octavo.pack_model(octavo.quantize_model(given, RECIPE, untie=True, progress=False))
    assert torch.equal(loaded(IDS).logits, by_hand(IDS).logits)
    assert CliRunner().invoke(app, ["unpack", str(tmp_path / "small"), "-o", str(tmp_path / "plain")]).exit_code == 0
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    assert plain.lm_head.weight is not plain.get_input_embeddings().weight
    assert torch.allclose(plain(IDS).logits, loaded(IDS).logits, atol=1e-4)


def test_compressions_choose_a_format_for_an_untied_head(tmp_path):
    pytest.importorskip("transformers")
    folder = text_folder(tmp_path / "m", "GPT2", "LMHeadModel")
    (tmp_path / "a.txt").write_text("\n".join(text for text, _ in labelled_rows(120)))
    args = ["compress", "--model", str(folder), "--data", str(tmp_path / "a.txt"), "--fast", "--tokens", "16",
            "--formats", "mxint8", "--budget", "20"]  # fmt: skip
    for name, more, told in (("tied", [], "tied: "), ("untied", ["--untie"], "untied: ")):
        run = CliRunner().invoke(app, [*args, *more, "-o", str(tmp_path / name)])
        assert run.exit_code == 0, run.output
        report = read_report(tmp_path / name)
        assert any(note.startswith(told) for note in report["notes"])
        groups = {path for group in report["sensitivity"]["groups"] for path in group["paths"]}
        assert {"lm_head", "transformer.wte"} <= groups
    single = [group["paths"] for group in report["sensitivity"]["groups"] if "lm_head" in group["paths"]]
    assert single == [["lm_head"]]
    loaded = octavo.load_model(tmp_path / "untied")
    assert loaded.config.tie_word_embeddings is False and not hasattr(loaded.lm_head.weight, "data_ptr")
