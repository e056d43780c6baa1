"""lm-eval's backend for transformers on quantized models: a local task, without a network."""

import json
import random
from importlib import import_module

import octavo
import pytest
import torch
from helpers.models import packed, transformer

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

QUESTIONS = 200
WORDS = [f"w{number}" for number in range(47)]


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}, "<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Questions with three answers each, one of which is right by a draw."""
    folder, draw = tmp_path_factory.mktemp("task"), random.Random(0)
    rows = [
        {
            "question": " ".join(draw.choices(WORDS, k=5)),
            "choices": [" ".join(draw.choices(WORDS, k=2)) for _ in range(3)],
            "answer": draw.randrange(3),
        }
        for _ in range(QUESTIONS)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}, "cache_dir": str(folder)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def answers(model, tokenizer, task):
    """The accuracy of a model or folder on the task, and the log-likelihood of every answer."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    backend = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=64, device="cpu")
    tasks = {"local": ConfigurableTask(config=dict(task))}
    results = lm_eval.evaluate(backend, tasks, bootstrap_iters=0, log_samples=True)
    samples = sorted(results["samples"]["local"], key=lambda sample: sample["doc_id"])
    scores = [[float(score) for ((score, _),) in sample["resps"]] for sample in samples]
    return results["results"]["local"]["acc,none"], torch.tensor(scores)


@pytest.mark.parametrize(
    ("kind", "tied"), [("LlamaForCausalLM", False), ("LlamaForCausalLM", True), ("GPT2LMHeadModel", True)]
)
def test_a_packed_model_answers_as_its_simulation_does(kind, tied, tokenizer, task, tmp_path):
    model = transformer(kind, tie_word_embeddings=tied)
    accuracy, scores = answers(octavo.quantize_model(model, "int4:g32", progress=False), tokenizer, task)
    in_memory = packed(model, "int4:g32")
    found, own = answers(in_memory, tokenizer, task)
    assert scores.shape == (QUESTIONS, 3) and found == accuracy
    assert torch.allclose(own, scores, atol=1e-4)
    import_module("octavo.transformers")
    in_memory.save_pretrained(tmp_path / "packed")
    for opened in (octavo.load_model(tmp_path / "packed"), str(tmp_path / "packed")):
        assert torch.equal(answers(opened, tokenizer, task)[1], own)
    assert not torch.allclose(answers(model, tokenizer, task)[1], scores, atol=1e-3)  # the task tells formats apart
