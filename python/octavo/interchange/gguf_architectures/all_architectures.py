"""The architectures whose GGUF files become models of transformers, and the other way."""

from __future__ import annotations

from octavo.interchange.gguf_architectures.bert_family import BERT
from octavo.interchange.gguf_architectures.falcon_family import FALCON, FALCON_TWO_NORMS
from octavo.interchange.gguf_architectures.gemma_family import GEMMA, GEMMA2, GEMMA3
from octavo.interchange.gguf_architectures.gpt2_family import GPT2
from octavo.interchange.gguf_architectures.llama_family import GRANITE, LLAMA, MIXTRAL, SMOLLM3
from octavo.interchange.gguf_architectures.neox_family import GPTNEOX, STABLELM
from octavo.interchange.gguf_architectures.norms_behind_family import OLMO2
from octavo.interchange.gguf_architectures.phi3_family import PHI3
from octavo.interchange.gguf_architectures.qwen_family import QWEN2, QWEN3, QWEN3MOE
from octavo.interchange.gguf_architectures.starcoder2_family import STARCODER2

ARCHITECTURES = (
    LLAMA,
    MIXTRAL,
    SMOLLM3,
    GRANITE,
    QWEN2,
    QWEN3,
    QWEN3MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    PHI3,
    GPTNEOX,
    FALCON,
    FALCON_TWO_NORMS,
    STABLELM,
    OLMO2,
    STARCODER2,
    GPT2,
    BERT,
)
"""All of them; where several have one name in files, or one class, the first that takes a file or model is its own."""
