"""Compressions that are killed at random moments: the same bytes, no layer solved twice, no score measured twice."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

RUN = """
import sys
from octavo.search.journal import Journal
from octavo.search.kept_solutions import KeptSolutions

path = sys.argv[1]

def told(cls, what):
    add = getattr(cls, what)
    def adds(self, *args, **named):
        made = add(self, *args, **named)
        with open(path, "a") as log:  # what is on the disk by now
            folder = getattr(self, "_folder", None)
            log.write(f"{what} {folder and folder.name} {args[0] if folder else made['id']}\\n")
        return made
    setattr(cls, what, adds)

told(Journal, "add")
told(KeptSolutions, "add")
from octavo.cli import main
sys.argv = ["octavo", "compress", *sys.argv[2:]]
main()
"""


def decoder_folder(folder, *, width, layers, words):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from helpers.text_folders import MARKS, tokenizer

    names = [*MARKS, *(f"w{number}" for number in range(words))]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=width // 32,
        num_key_value_heads=width // 64, vocab_size=len(names), max_position_embeddings=128, attention_bias=True,
        tie_word_embeddings=True, initializer_range=0.05,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(transformers, names, False).save_pretrained(folder)
    return folder


def text_file(path, count, words):
    moments = random.Random(0)
    path.write_text(" ".join(f"w{min(int(moments.expovariate(0.05)), words - 1)}" for _ in range(count)))
    return path


def contents(folder):
    found = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    report = json.loads(found.pop("report.json"))
    found.pop("report.html")  # it holds the seconds of the run
    return found, {key: report[key] for key in ("chosen", "trials") if key in report}


def killed(tmp_path, name, options, kills, longest):
    """Run a compression that is killed so many times; return what it wrote, and what it did more than once."""
    log, moments = tmp_path / f"{name}.log", random.Random(1)
    log.touch()
    command = [sys.executable, "-c", RUN, str(log), *options, "-o", str(tmp_path / name)]
    met = 0
    for attempt in range(kills + 1):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if attempt < kills:
            time.sleep(moments.uniform(0, longest))
            child.send_signal(signal.SIGKILL)
        _, errors = child.communicate()
        if child.returncode == -signal.SIGKILL:
            met += 1
            continue
        assert child.returncode == 0, errors.decode()
        break
    lines = Counter(log.read_text().splitlines())
    return contents(tmp_path / name), {line for line, count in lines.items() if count > 1}, met, lines


def check(tmp_path, kills, sizes, options):
    model = decoder_folder(tmp_path / "model", **sizes)
    text = text_file(tmp_path / "text.txt", 6_000, sizes["words"])
    options = ["--model", str(model), "--data", str(text), "--budget", "4.5", *options]
    start = time.monotonic()
    wanted, twice, _, lines = killed(tmp_path, "whole", options, 0, 0)
    seconds = time.monotonic() - start
    assert not twice and any("add solved" in line for line in lines)
    found, twice, met, again = killed(tmp_path, "killed", options, kills, seconds / 2)
    assert not twice and met and found == wanted
    assert set(again) == set(lines)


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_a_decoder_of_30_million_parameters_survives_20_kills(tmp_path, fast):
    options = ["--samples", "16", "--tokens", "64", *(["--fast"] if fast else ["--formats", "int8:g64,int4:g32,nf3"])]
    check(tmp_path, 20, {"width": 512, "layers": 8, "words": 4000}, options)
