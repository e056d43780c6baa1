"""Pack a text encoder of transformers and run it natively, without torch: needs transformers.

python examples/encoder.py [FOLDER], the folder of a BERT; without one a small BERT with random weights is made
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import octavo
import tokenizers
import torch
import transformers

TEXTS = ["a cat on a sofa", "a kitten on a couch", "tax law"]


def make_bert(folder: Path) -> None:
    """Write a small BERT with random weights, whose tokens are letters."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Print how similar the texts are, and how close the packed model's vectors are to the float model's."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder, small = Path(scratch) / "bert", Path(scratch) / "small"
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        else:
            make_bert(folder)
        command = [sys.executable, "-m", "octavo", "pack", folder, "-o", small, "--recipe", "mxint8"]
        subprocess.run(command, check=True)
        print(octavo.load_model(small).encoder.layer[0].attention.self.query)  # runs in PyTorch, on its codes
        before, after = (octavo.TextEncoder.load(path).embed(TEXTS) for path in (folder, small))  # run without torch
    print(np.round(after @ after.T, 3))
    print(f"smallest cosine between vectors in float32 and packed: {(before * after).sum(1).min():.4f}")


if __name__ == "__main__":
    main()
