"""Pack a decoder of transformers and let it generate on its packed weights: needs transformers.

python examples/decoder.py [FOLDER], the folder of a causal language model; without one a small random Llama is made
"""

import sys
import tempfile
from pathlib import Path

import octavo
import torch
import transformers


def make_llama() -> transformers.PreTrainedModel:
    """Return a small Llama with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def main() -> None:
    """Print the bytes of the weights, and how many generated tokens are those of the float model."""
    torch.manual_seed(0)
    given = sys.argv[1] if len(sys.argv) > 1 else None
    model = transformers.AutoModelForCausalLM.from_pretrained(given) if given else make_llama()
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8; last:Linear keep")), folder)
        packed = octavo.load_model(folder)  # built from config.json; the dense weights are never made
        size = sum(file.stat().st_size for file in Path(folder).iterdir())

    prompt = torch.randint(model.config.vocab_size, (4, 8))
    options = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    before, after = (m.generate(prompt, **options)[:, prompt.shape[1] :] for m in (model, packed))
    dense = sum(parameter.nbytes for parameter in model.parameters())
    same = (before == after).float().mean()
    print(f"{dense:,} -> {size:,} bytes; {same:.0%} of {before.numel()} greedy tokens as in float32")


if __name__ == "__main__":
    main()
