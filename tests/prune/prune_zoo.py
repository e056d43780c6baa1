"""Small models of many shapes, with random sizes, for tests of pruning."""

import random

import pytest
import torch
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, network
from torch import nn


def _sizes(seed):
    chosen = random.Random(seed)
    return chosen.choice([8, 16]), chosen.choice([2, 4]), chosen.choice([12, 20]), chosen.choice([2, 3])


def bert(seed):
    transformers = pytest.importorskip("transformers")
    BertConfig, BertForSequenceClassification = transformers.BertConfig, transformers.BertForSequenceClassification

    head, heads, inner, layers = _sizes(seed)
    return BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=head * heads, num_attention_heads=heads, intermediate_size=inner,
        num_hidden_layers=layers, max_position_embeddings=32,
    ))  # fmt: skip


def gpt2(seed):
    transformers = pytest.importorskip("transformers")
    GPT2Config, GPT2LMHeadModel = transformers.GPT2Config, transformers.GPT2LMHeadModel

    head, heads, inner, layers = _sizes(seed)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=50, n_embd=head * heads, n_head=heads, n_inner=inner, n_layer=layers, n_positions=32,
        bos_token_id=1, eos_token_id=2,
    ))  # fmt: skip


def _llama(family, seed, **more):
    transformers = pytest.importorskip("transformers")

    head, heads, inner, layers = _sizes(seed)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=50, hidden_size=head * heads, num_attention_heads=2 * heads, num_key_value_heads=heads, head_dim=head,
        intermediate_size=inner, num_hidden_layers=layers, pad_token_id=0, **more,
    )  # fmt: skip
    return getattr(transformers, f"{family}ForCausalLM")(config)


def llama(seed):
    return _llama(
        "Llama", seed, attention_bias=seed % 2 == 0, mlp_bias=seed % 2 == 0, tie_word_embeddings=seed % 3 == 0
    )


def qwen(seed):
    return _llama("Qwen2", seed)


def vit(seed):
    transformers = pytest.importorskip("transformers")
    ViTConfig, ViTForImageClassification = transformers.ViTConfig, transformers.ViTForImageClassification

    head, heads, inner, layers = _sizes(seed)
    return ViTForImageClassification(ViTConfig(
        image_size=16, patch_size=8, hidden_size=head * heads, num_attention_heads=heads, intermediate_size=inner,
        num_hidden_layers=layers,
    ))  # fmt: skip


def t5(seed):
    transformers = pytest.importorskip("transformers")
    T5Config, T5ForConditionalGeneration = transformers.T5Config, transformers.T5ForConditionalGeneration

    head, heads, inner, layers = _sizes(seed)
    return T5ForConditionalGeneration(T5Config(
        vocab_size=50, d_model=24, d_kv=head, d_ff=inner, num_layers=layers, num_heads=heads, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if seed % 2 else "relu",
    ))  # fmt: skip


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
