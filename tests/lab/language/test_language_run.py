"""A run from any text: exact stages, exact resume, a record that says what was trained, every preset."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from helpers.quick import spread
from lab.language.language_worker import PHASES, TINY, run, staged, text_file, tokens
from octavo.data import read_shard
from octavo.errors import CheckpointError, ConfigError, DataError, ModelError, SettingError
from octavo.lab.language.gpt import GPT, RowSmoothing
from octavo.lab.language.language_config import AdamW, LanguageConfig, Muon, Phase, differing
from octavo.lab.language.language_presets import PRESETS, preset
from octavo.lab.language.language_run import REPORT, build, source_hash
from octavo.lab.language.language_scales import SCALES
from octavo.lab.language.language_task import LanguageTask, Progress, Reallocation
from octavo.lab.language.model_folder import load_language_model
from octavo.lab.language.techniques import techniques
from octavo.lab.language.token_data import prepare, read_folder
from octavo.train import exact_nll, read_metrics

WORKER = Path(__file__).with_name("language_worker.py")
GPU_ONLY = {"tf32"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def task_of(text, config):
    data, _ = tokens(text)
    return LanguageTask(data, config, config.train_config(device="cpu"), {})


def small(text, name="nocap_baseline", **changes):
    return replace(PRESETS[name].make(tokens(text)[1]), **changes)


# --- tokens, stages ---------------------------------------------------------------------------------------------------


def test_every_stage_consumes_its_tokens_none_skipped_and_none_repeated(text):
    config = small(text, phases=PHASES, tokens=1500)
    task, loop = task_of(text, config), config.train_config(device="cpu")
    read = []
    for step in range(loop.steps):
        stage = loop.stage(step)
        for micro in range(stage.accumulation):
            rows = stage.batch_size // stage.accumulation
            batch = task.batch(step, micro, micro * rows, rows)
            assert batch["ids"].shape == (rows, stage.context) and batch["window"] == stage.window
            assert torch.equal(batch["ids"].flatten()[1:], batch["targets"].flatten()[:-1])
            read.append(batch["ids"].flatten().numpy())
    ids = np.concatenate(read)
    wanted = np.concatenate([read_shard(path) for path in tokens(text)[0].train])[: len(ids)]
    assert len(ids) == sum(stage.tokens for stage in loop.stages) and np.array_equal(ids, wanted)


def test_a_batch_is_a_function_of_its_place_alone(text):
    config = small(text, phases=PHASES, tokens=1500, order="documents")
    task, loop = task_of(text, config), config.train_config(device="cpu")
    forward = [task.batch(step, 0, 0, 2)["ids"] for step in range(loop.steps)]
    other = task_of(text, config)
    for step in reversed(range(loop.steps)):
        assert torch.equal(other.batch(step, 0, 0, 2)["ids"], forward[step])
    halves = [task.batch(3, 0, start, 2)["ids"] for start in (0, 2)]
    assert torch.equal(torch.cat(halves), task.batch(3, 0, 0, 4)["ids"])


def test_equal_stages_are_one(tmp_path, text):
    whole = run(tmp_path / "a", text=text)
    parts = tuple(replace(PHASES[0], share=share, context=16, batch=4) for share in (0.25, 0.75))
    staged = run(tmp_path / "b", text=text, phases=parts)
    assert staged.validation.nats == whole.validation.nats and staged.result.tokens == whole.result.tokens == 12 * 64


def test_a_text_becomes_a_vocabulary_shards_and_a_split_once(tmp_path):
    made, _ = tokens(tmp_path)
    held = {path: path.stat().st_mtime_ns for path in (*made.train, *made.validation)}
    again, _ = tokens(tmp_path)
    assert again.digest == made.digest and all(path.stat().st_mtime_ns == held[path] for path in held)
    assert made.tokenizer is not None and made.vocabulary <= 300
    ids = made.validation_ids(50)
    assert len(ids) == 51 and made.nbytes(ids) == len(made.tokenizer.decode_bytes(ids[ids != made.end]))
    with pytest.raises(DataError, match="other files or options"):
        prepare(text_file(tmp_path), tmp_path / "data", vocabulary=280, validation_tokens=128)
    assert read_folder(tmp_path / "data" / "shards").digest == made.digest


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_writes_a_model_whose_exact_loss_is_the_reported_one(tmp_path, text):
    report = run(tmp_path / "run", text=text)
    model, tokenizer = load_language_model(tmp_path / "run" / "model")
    data, _ = tokens(text)
    ids = data.validation_ids(TINY.validation_tokens)
    again = exact_nll(model, ids, context=16, nbytes=data.nbytes(ids))
    assert again.nats == pytest.approx(report.validation.nats, abs=1e-6) and again.minus(report.validation) < 1e-6
    assert tokenizer == data.tokenizer
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "evaluation"]
    assert lines[-1]["metrics"]["validation_nats"] == pytest.approx(report.validation.nats, abs=1e-6)
    assert json.loads((tmp_path / "run" / REPORT).read_text())["validation"]["nats"] == report.validation.nats


def test_the_record_holds_source_configuration_data_and_versions(tmp_path, text):
    run(tmp_path / "run", text=text)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["source_sha256"] == source_hash() and record["data"]["sha256"] == tokens(text)[0].digest
    assert record["language"] == small(text).as_dict() and record["config"]["stages"]
    assert record["starts"][0]["versions"]["torch"] == torch.__version__


def test_a_run_does_not_go_on_as_another_one(tmp_path, text):
    run(tmp_path / "run", text=text, length=200)
    with pytest.raises(CheckpointError, match=r"optimizer\.betas"):
        run(tmp_path / "run", "muon", text=text, length=200)


def test_a_run_from_before_a_field_of_the_model_goes_on_at_its_default(tmp_path, text):
    run(tmp_path / "run", text=text, length=200)
    record = tmp_path / "run" / "language.json"
    told = json.loads(record.read_text())
    del told["model"]["in_training"]["autocast_stream"]
    record.write_text(json.dumps(told))
    run(tmp_path / "run", text=text, length=200)
    assert json.loads(record.read_text())["model"]["in_training"]["autocast_stream"] is False
    told["model"]["in_training"]["autocast_stream"] = True
    record.write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="autocast_stream was True, is False"):
        run(tmp_path / "run", text=text, length=200)


def worked(tmp_path, kills, seed):
    path = os.pathsep.join(sys.path)
    command = [sys.executable, str(WORKER), "kill", str(tmp_path / "killed"), str(kills), str(seed)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    reached = [line.split() for line in done.stdout.splitlines()]
    assert [code for _, code in reached].count("-9") == kills and reached[-1][1] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_staged_run_killed_at_random_moments_ends_with_the_same_weights(tmp_path, kills):
    worked(tmp_path, kills, seed=kills)
    staged(tmp_path / "whole")
    found, wanted = (octavo.load(tmp_path / name / "last.safetensors") for name in ("killed", "whole"))
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", spread(sorted(PRESETS.keys() - GPU_ONLY), 10))
def test_every_preset_trains_and_is_measured(tmp_path, text, name):
    report = run(tmp_path / name, name, text=text, length=3 * 64, evaluate_every=None)
    assert report.validation.nats < 8 and report.validation.guard < 1e-3
    assert report.result.tokens >= 3 * 64


def test_presets_are_one_small_difference_from_a_base_and_fit_every_scale():
    for scale in SCALES.values():
        base = preset("nocap_baseline", replace(scale, end_of_text=0)).as_dict()
        for name, one in PRESETS.items():
            made = one.make(replace(scale, end_of_text=0))
            assert one.predicted in ("better", "even", "worse") and one.summary
            is_base = name in ("nocap_baseline", scale.precision)  # the preset bf16, where the baseline is in bf16
            assert is_base or differing(base, made.as_dict()), name
            made.train_config()


def test_the_baseline_at_full_size_is_the_benchmark_s():
    config = preset("nocap_baseline")
    loop = config.train_config(device="cpu")
    assert (loop.steps, loop.warmup, round(loop.cooldown * loop.steps)) == (4768, 256, 1024)
    assert loop.stages[0].accumulation == 32 and loop.stages[0].batch_size * loop.stages[0].context == 524_288
    assert config.optimizer == AdamW(learning_rate=0.0018, betas=(0.9, 0.95), weight_decay=0.1)


def test_the_embedding_has_gpt_2_s_share_at_every_scale():
    for name, scale in SCALES.items():
        table = scale.vocabulary * scale.width
        assert table / (table + 12 * scale.layers * scale.width**2) == pytest.approx(0.312, abs=0.012), name


def test_every_registered_technique_is_in_a_preset():
    used = set()
    for one in PRESETS.values():
        model = one.make(replace(SCALES["micro"], end_of_text=0)).model.as_dict()
        used |= {(kind, model[kind]["name"]) for kind in ("embedding", "ffn", "head", "objective")}
        used |= {("mixer", mixer["name"]) for mixer in model["mixers"].values()}
    assert {(one.kind, one.name) for one in techniques()} <= used


def test_blocks_are_not_left_out_in_several_processes(tmp_path, text, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="layer_drop leaves other blocks out"):
        run(tmp_path / "run", "layer_drop", text=text)


def test_noise_follows_the_stages_of_a_run(text):
    for name, first in (("layer_drop", 0.1), ("token_dropout", None), ("random_ltd", None)):
        config = small(text, name, tokens=40 * 64)
        data, _ = tokens(text)
        model, loop = build(config, data, 0), config.train_config(device="cpu")
        tell, found = Progress(loop), []
        for step in range(loop.steps):
            tell(model, step)
            found.append(model.noise)
        assert found == [1.0] * 32 + [0.0] * 8, name
        assert first is None or model.config.in_training.layer_drop == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", spread(["layer_drop", "random_ltd", "token_dropout", "r_drop", "adam_8bit", "recomputed_context"])
)
def test_a_noisy_run_that_was_stopped_ends_with_the_same_weights(tmp_path, text, name):
    class Stop(Exception):
        pass

    def stop(model, step):
        if step == 5:
            raise Stop

    settings = dict(text=text, length=10 * 128, checkpoint_every=2, evaluate_every=None)
    whole = run(tmp_path / "whole", name, **settings)
    with pytest.raises(Stop):
        run(tmp_path / "stopped", name, **settings, callbacks=(stop,))
    again = run(tmp_path / "stopped", name, **settings)
    assert whole.result.step > 5 and again.validation.nats == whole.validation.nats
    found, wanted = (octavo.load(tmp_path / folder / "last.safetensors") for folder in ("stopped", "whole"))
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_easy_documents_are_those_of_the_run(text):
    """The run trains on the tokens of the baseline's run in another order."""
    config = small(text, "easy_documents_first", tokens=100 * 64)
    found = []
    for one in (config, replace(config, order="reference")):
        task, loop = task_of(text, one), one.train_config(device="cpu")
        places = [(step, micro) for step in range(loop.steps) for micro in range(loop.stages[0].accumulation)]
        found.append(np.concatenate([task.batch(*place, 2 * place[1], 2)["ids"].flatten().numpy() for place in places]))
    ordered, read = found
    last = task._starts[0].total
    assert last > len(read) == len(ordered) == 100 * 64 and not np.array_equal(ordered, read)
    moved = np.abs(np.bincount(ordered, minlength=300) - np.bincount(read, minlength=300)).sum()
    assert moved <= 2  # the token past the last input, which is a target alone, is another one


@pytest.mark.parametrize("name", ["micro", "mini"])
def test_twice_the_context_is_kept_in_the_memory_of_one(name):
    """Bytes that a micro-batch keeps for its backward pass, of the arm and of the baseline, in a model as deep."""
    sizes = replace(SCALES[name], end_of_text=0, micro_tokens=2 * SCALES[name].context)
    if name == "mini":  # a twentieth of its vocabulary and width, in its proportion
        sizes = replace(sizes, vocabulary=512, width=20, context=64, batch=8, micro_tokens=128)
    held = {}
    for arm in ("nocap_baseline", "recomputed_context"):
        config = preset(arm, sizes)
        stage = config.stages()[0]
        model = GPT(config.model)
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept = {}

        def keep(tensor, own=own, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        ids = torch.randint(1, sizes.vocabulary, (stage.batch_size // stage.accumulation, stage.context))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            total, _ = model(ids, ids)
        assert total.requires_grad
        held[arm] = ids.shape, sum(nbytes for nbytes, _ in kept.values())
    (plain, before), (long, after) = held.values()
    assert long == (plain[0], 2 * plain[1]) and after <= before


@pytest.mark.slow
def test_reallocation_moves_words_and_keeps_them_apart(text):
    config = small(text, "lightrnn_reallocated")
    data, _ = tokens(text)
    model, loop = build(config, data, 0), config.train_config(device="cpu")
    grid = model.head.grid
    before = grid.cell_V.clone()
    move = Reallocation(task_of(text, config), loop, config.reallocations)
    for step in range(loop.steps):
        move(model, step)
    assert not torch.equal(grid.cell_V, before) and len(grid.cell_V.unique()) == len(before) and model.training


def test_too_little_text_and_a_damaged_index_are_refused_by_name(tmp_path, text):
    (tmp_path / "one.txt").write_text("a")
    for _ in range(2):  # the refused call leaves nothing that another would take
        with pytest.raises(DataError, match=r"one.txt: 2 tokens, and all of them are for validation"):
            prepare(tmp_path / "one.txt", tmp_path / "made", vocabulary=300, validation_tokens=128)
    tokens(text)
    shutil.copytree(text / "data" / "shards", tmp_path / "shards")
    for damaged, told in (
        ("{}", "vocabulary is missing"),
        ('{"vocabulary": "many", "end": 0}', "vocabulary is 'many'"),
    ):
        (tmp_path / "shards" / "shards.json").write_text(damaged)
        with pytest.raises(DataError, match=told):
            read_folder(tmp_path / "shards")


def test_what_does_not_fit_is_refused_before_work(tmp_path, text):
    with pytest.raises(SettingError, match="accepted are nocap_baseline"):
        preset("nocap_baselin")
    with pytest.raises(SettingError, match="micro, mini, true"):
        preset("muon", "huge")
    with pytest.raises(ConfigError, match="add to 1"):
        small(text, phases=(Phase(share=0.4, context=8, batch=2),))
    with pytest.raises(ConfigError, match="tf32"):
        run(tmp_path / "a", "tf32", text=text)
    data, _ = tokens(text)
    with pytest.raises(ConfigError, match="grid of words"):
        octavo_run(small(text, reallocations=1), data, tmp_path / "b")
    with pytest.raises(ModelError, match="rows to smooth"):
        build(small(text, model=replace(small(text).model, objective=RowSmoothing())), data, 0)
    with pytest.raises(ConfigError, match="validations"):
        LanguageConfig(model=small(text).model, tokens=1, phases=PHASES, optimizer=Muon(), validations=-1)


def octavo_run(config, data, folder):
    from octavo.lab.language.language_run import train_language

    return train_language(config, data, folder, device="cpu", progress=False)
