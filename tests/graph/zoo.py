"""Small models of many kinds, with inputs: what graphs are captured of."""

import pytest
import torch
from torch import nn

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}


def ids(batch, length, seed=0):
    return torch.randint(3, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def tokens(batch, length):
    return {"input_ids": ids(batch, length)}


def masked(batch, length):
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids(batch, length), "attention_mask": mask}


def typed(batch, length):
    return {**masked(batch, length), "token_type_ids": torch.zeros(batch, length, dtype=torch.int64)}


def labelled(batch, length):
    return {**tokens(batch, length), "labels": torch.arange(batch) % 2}


def both(batch, length):
    return {**tokens(batch, length), "decoder_input_ids": ids(batch, length + 2)}


def pixels(batch, length):
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def images(batch, length):
    return torch.randn(batch, 3, 16, 16)


def vectors(batch, length):
    return torch.randn(batch, length, 32)


def pairs(batch, length):
    return ids(batch, length) % 20, ids(batch, length + 1) % 20


def hugging(name, config, **options):
    def make():
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        return getattr(transformers, name)(getattr(transformers, config)(**options)).eval()

    return make


class Residual(nn.Module):
    """The basic block of a ResNet, with activations in place."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.act(self.norm1(self.first(x)))
        return self.act(self.norm2(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1), Residual(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def classifier():
    from octavo.lab.classifiers import Classifier, ClassifierConfig

    return Classifier(ClassifierConfig(vocabulary=61, width=32, feed_forward=48)).eval()


def seq2seq():
    from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build

    return build(Seq2SeqConfig(embedding=8, encoder=8, hidden=16, feedforward=16)).eval()


BERT = hugging("BertForSequenceClassification", "BertConfig", **SMALL)
GPT2 = hugging(
    "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=32, bos_token_id=1,
    eos_token_id=1,
)  # fmt: skip
LLAMA = hugging("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2, tie_word_embeddings=True)
T5 = hugging(
    "T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61
)
VIT = hugging(
    "ViTForImageClassification", "ViTConfig", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, image_size=32, patch_size=8,
)  # fmt: skip

MODELS = {
    "minilm": (hugging("BertModel", "BertConfig", **SMALL), masked),
    "bert": (BERT, tokens),
    "bert with a mask": (BERT, masked),
    "bert with types": (BERT, typed),
    "bert with labels": (BERT, labelled),
    "gpt2": (GPT2, tokens),
    "llama": (LLAMA, masked),
    "t5": (T5, both),
    "vit": (VIT, pixels),
    "resnet": (lambda: ResNet().eval(), images),
    "nn.TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2).eval(), vectors,
    ),
    "classifier": (classifier, tokens),
    "seq2seq": (seq2seq, pairs),
}  # fmt: skip
