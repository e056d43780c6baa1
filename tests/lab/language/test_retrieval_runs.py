"""Runs with stores of text: what validation holds is in no store, and one that is planted is refused by name."""

import pytest
import torch
from data.byte_pair_texts import corpus
from lab.language.language_worker import run, tokens
from octavo.data import read_shard
from octavo.errors import ContractError, DataError, ModelError
from octavo.lab.language.gpt.copied_text import run_hashes
from octavo.lab.language.language_presets import PRESETS
from octavo.lab.language.language_run import build
from octavo.lab.language.language_task import LanguageTask
from octavo.lab.language.model_folder import load_language_model
from octavo.train import exact_nll


def task_and_model(folder, name):
    data, scale = tokens(folder)
    config = PRESETS[name].make(scale)
    model = build(config, data, seed=0).eval()
    return LanguageTask(data, config, config.train_config(device="cpu"), {}), model, data


@pytest.mark.parametrize("name", ["retro", "knn_lm"])
def test_no_store_of_a_run_holds_validation_text_and_a_planted_one_is_refused(tmp_path, name):
    task, model, data = task_and_model(tmp_path, name)
    held_out = torch.from_numpy(data.validation_ids(1 << 20))
    task.validate(model)
    if name == "retro":
        store = model.stores[0]
        assert not store.is_empty
        joined, _ = store._joined()
        assert not torch.isin(run_hashes(joined[None], 13), run_hashes(held_out[None], 13)).any()
        store.fill(torch.cat([held_out[:20], torch.tensor([data.end]), held_out[:60]]), data.end)
    else:
        assert (model.head.next_S >= 0).any()
        task._remembered = held_out
    with pytest.raises(ContractError, match=r"^store of (chunks|states).* tokens in a row of the held-out text"):
        task.validate(model)


@pytest.mark.parametrize(("name", "error"), [("knn_lm", DataError), ("test_time_training", ModelError)])
def test_a_store_that_nothing_is_left_for_is_refused_before_training(tmp_path, name, error):
    """All of the text is one document, which validation is a part of."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "text.txt").write_text(corpus(6000, 1))
    with pytest.raises(error, match=r"^store of "):
        run(tmp_path / "run", name, text=tmp_path / "text")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_with_retrieval_ends_in_a_folder_that_gives_its_loss(tmp_path):
    """The store is in the folder; the loss is that of the run to the bit."""
    report = run(tmp_path / "run", "retro", text=tmp_path / "text")
    model, _ = load_language_model(tmp_path / "run" / "model")
    data, scale = tokens(tmp_path / "text")
    again = exact_nll(model, data.validation_ids(scale.validation_tokens), context=scale.context, batch_size=256)
    assert again.nats == report.validation.nats and again.source_hash == report.validation.source_hash
    assert sum(len(read_shard(path)) for path in data.train) > 0 and not model.stores[0].is_empty
