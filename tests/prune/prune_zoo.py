"""Small models of many shapes, with random sizes, for tests of pruning."""

import random

import torch
from helpers.models import transformer
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, network
from torch import nn


def _sizes(seed):
    chosen = random.Random(seed)
    return chosen.choice([8, 16]), chosen.choice([2, 4]), chosen.choice([12, 20]), chosen.choice([2, 3])


def of_transformers(kind, seed, **config):
    head, heads, inner, layers = _sizes(seed)
    return transformer(kind, seed=seed, width=head * heads, heads=heads, inner=inner, layers=layers, **config)


def bert(seed):
    return of_transformers("BertForSequenceClassification", seed, max_position_embeddings=32)


def gpt2(seed):
    return of_transformers("GPT2LMHeadModel", seed)


def _grouped(kind, seed, **config):
    """A decoder with two heads of queries for each of keys and values."""
    head, heads, *_ = _sizes(seed)
    config = {
        "num_attention_heads": 2 * heads,
        "num_key_value_heads": heads,
        "head_dim": head,
        "pad_token_id": 0,
        **config,
    }
    return of_transformers(kind, seed, **config)


def llama(seed):
    biases = {"attention_bias": seed % 2 == 0, "mlp_bias": seed % 2 == 0}
    return _grouped("LlamaForCausalLM", seed, **biases, tie_word_embeddings=seed % 3 == 0)


def qwen(seed):
    return _grouped("Qwen2ForCausalLM", seed)


def vit(seed):
    return of_transformers("ViTForImageClassification", seed)


def t5(seed):
    head, *_ = _sizes(seed)
    gates = "gated-gelu" if seed % 2 else "relu"
    return of_transformers("T5ForConditionalGeneration", seed, d_model=24, d_kv=head, feed_forward_proj=gates)


def classifier(seed):
    head, heads, inner, layers = _sizes(seed)
    return Classifier(
        ClassifierConfig(vocabulary=50, width=head * heads, heads=heads, feed_forward=inner, layers=layers)
    )


def seq2seq(seed):
    head, heads, inner, layers = _sizes(seed)
    config = Seq2SeqConfig(
        architecture="transformer", vocabulary=31, hidden=head * heads, heads=heads, feedforward=inner, layers=layers
    )
    return network(config)(config)


def perceptron(seed):
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))


MODELS = {
    make.__name__: make for make in (bert, gpt2, llama, qwen, vit, t5, classifier, seq2seq, perceptron)
}  # fmt: skip


def made(name, seed, dtype=torch.float32):
    """Return a model in evaluation whose every parameter is random, biases and norms too."""
    torch.manual_seed(seed)
    model = MODELS[name](seed).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def batch(model, seed):
    """Return inputs of a model: keyword arguments, or a tensor of features."""
    random_ = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    ids = torch.randint(3, 30, (2, 7), generator=random_)
    kind = type(model).__name__
    if kind == "Sequential":
        return (torch.randn(4, 6, generator=random_, dtype=dtype),)
    if kind.startswith("ViT"):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=random_, dtype=dtype)}
    if kind == "TransformerSeq2Seq":
        return {"source_BS": ids, "target_BT": ids[:, :5]}
    if kind.startswith("T5"):
        return {"input_ids": ids, "decoder_input_ids": ids[:, :4]}
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def result(model, given):
    """Return what a model gives, one tensor."""
    out = model(*given) if isinstance(given, tuple) else model(**given)
    if isinstance(out, torch.Tensor):
        return out
    return out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state
