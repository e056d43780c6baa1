"""``octavo lab bench experts``: a mixture that was trained, and which experts read which source."""

import json

from data.byte_pair_texts import END, corpus


def test_a_trained_mixture_is_reported_by_source(octavo, tmp_path):
    for at, name in enumerate(("news", "plays")):
        (tmp_path / f"{name}.txt").write_text(END.join(corpus(2500, 10 * at + seed) for seed in range(3)))
    octavo("train", "gpt", "--data", tmp_path / "news.txt", "-o", tmp_path / "run", "--preset", "moe_2", "--tokens", 2048,
           "--vocabulary", 300, "--validation-tokens", 128)  # fmt: skip
    sources = ("--data", tmp_path / "news.txt", "--data", tmp_path / "plays.txt")
    shown = octavo("bench", "experts", tmp_path / "run" / "model", *sources, "--tokens", 500).output
    assert "blocks.3.ffn" in shown and "plays" in shown and "bits of the source" in shown
    told = json.loads(
        octavo("bench", "experts", tmp_path / "run" / "model", *sources, "--tokens", 500, "--json").stdout
    )
    assert len(told["use"]) == 8 and all(use["tokens"] == 499 for use in told["use"])
    refused = octavo("bench", "experts", tmp_path / "run" / "model", *sources, *sources, code=2).output
    assert "different names" in " ".join(refused.split())
