"""A model of more than a billion parameters: memory of the main job is bounded by a layer, not by the model."""

import sys

import pytest

GIGABYTE = 10**9


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A random Llama of 1.2 billion parameters in bfloat16, in three files of weights, and a text."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from helpers.text_folders import MARKS, tokenizer

    folder = tmp_path_factory.mktemp("large") / "llama"
    names = [*MARKS, *(f"w{number}" for number in range(1000))]
    config = transformers.LlamaConfig(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128_256, tie_word_embeddings=True, max_position_embeddings=2048,
        dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder, max_shard_size="1GB")
    tokenizer(transformers, names, False).save_pretrained(folder)
    text = folder.parent / "text.txt"
    text.write_text(" ".join(f"w{number * number % 997}" for number in range(5000)))
    return folder, text


@pytest.mark.slow
def test_compressing_takes_six_gigabytes(llama, tmp_path):
    from helpers.memory import after_imports, peak_of

    folder, text = llama
    status, peak = peak_of(
        [sys.executable, "-m", "octavo", "compress", "--model", str(folder), "--data", str(text), "--fast",
         "--budget", "4.5", "--samples", "4", "--tokens", "128", "-o", str(tmp_path / "small")],
        tmp_path / "log",
    )  # fmt: skip
    assert status == 0, (tmp_path / "log").read_text()[-2000:]
    assert peak - after_imports() <= 6 * GIGABYTE
