"""Small chat models: random weights, a tokenizer, a chat template."""

import json

import pytest
from octavo.data import BytePairTokenizer
from octavo.data.foreign_tokenizer import load_tokenizer

from helpers.chat_templates import CHATML

TEXT = "the cat sat on the mat. the dog ran in the fog. user assistant system " * 40
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def chat_model(path, *, positions=400, template=CHATML, tokenizer=None, generation=None, settings=None, seed=1):
    """Write a Llama of random weights with a tokenizer and a chat template; return the model of transformers."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    path.mkdir()
    if tokenizer is None:
        BytePairTokenizer.train(TEXT, 300, pattern="llama3", special=SPECIAL).save(path)
    else:
        tokenizer.save(str(path / "tokenizer.json"))
    ids = {token["content"]: token["id"] for token in json.loads((path / "tokenizer.json").read_text())["added_tokens"]}
    config = transformers.LlamaConfig(
        vocab_size=load_tokenizer(path).size, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=positions, initializer_range=0.3,
        bos_token_id=None, eos_token_id=ids.get("<|endoftext|>"),
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(path)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(named | (settings or {})))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return model
