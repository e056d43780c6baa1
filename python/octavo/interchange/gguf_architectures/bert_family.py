"""BERT: the encoder of texts, without its pooler."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.usual_decoder import LAYER_NORM
from octavo.interchange.gguf_config import USUAL_SIZES, Config, Fields, Keys
from octavo.interchange.gguf_metadata import flag


def _bert_config(fields: Fields) -> dict[str, Any]:
    fields.without("attention.causal", False)
    return {
        "model_type": "bert",
        "vocab_size": fields.rows("token_embd.weight"),
        "max_position_embeddings": fields.rows("position_embd.weight"),
        "type_vocab_size": fields.rows("token_types.weight"),
        "hidden_act": "gelu",
    }


def _bert_keys(config: Config) -> Keys:
    config.only("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    return Keys({}, {"attention.causal": flag(False)})


BERT = Architecture(
    name="bert",
    model="BertModel",
    whole={
        "token_embd": "embeddings.word_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "token_types": "embeddings.token_type_embeddings",
        "position_embd": "embeddings.position_embeddings",
    },
    layers="encoder.layer",
    block={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    numbers=USUAL_SIZES,
    reals={LAYER_NORM: "layer_norm_eps"},
    config=_bert_config,
    keys=_bert_keys,
    pooler="pooler.",
)
