"""A small run of a language model, and what kills it at random moments.

``kill FOLDER KILLS SEED``: train in a child, kill it after a random time, again and again; then let it finish.
"""

import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from data.byte_pair_texts import END, corpus
from octavo.lab.language.language_config import Phase
from octavo.lab.language.language_presets import PRESETS
from octavo.lab.language.language_run import train_language
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.token_data import prepare

TINY = Scale(
    vocabulary=300, width=16, layers=3, heads=2, modern_heads=1, context=16, batch=4, tokens=12 * 64, micro_tokens=32,
    validation_tokens=128, learning_rate=0.004,
)  # fmt: skip
PHASES = (
    Phase(share=0.25, context=8, batch=8),
    Phase(share=0.25, context=16, batch=4, window=5, rate=1.5),
    Phase(share=0.5, context=16, batch=8),
)


def text_file(folder):
    """Write a small text of several documents."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "text.txt"
    if not path.exists():
        path.write_text(END.join(corpus(1500, seed) for seed in range(8)))
    return path


def tokens(folder, scale=TINY):
    """Return the tokens of the small text and the scale that fits them."""
    made = prepare(
        text_file(folder), folder / "data", vocabulary=scale.vocabulary, validation_tokens=scale.validation_tokens
    )
    return made, replace(scale, vocabulary=made.vocabulary, end_of_text=made.end)


def run(folder, name="nocap_baseline", *, text=None, phases=None, length=None, **changes):
    """Train a preset in ``folder``."""
    data, scale = tokens(text or folder.parent / "text")
    config = PRESETS[name].make(scale)
    if phases is not None:
        config = replace(config, phases=phases)
    if length is not None:
        config = config.with_tokens(length)
    return train_language(config, data, folder, device="cpu", progress=False, **changes)


def staged(folder):
    """Train in stages, with a sampled loss, so that random numbers count."""
    return run(folder, "sampled_softmax", phases=PHASES, length=60 * 96, checkpoint_every=2, log_every=1)


def kill(folder, kills, seed):
    """Train in a child that is killed; print how many updates each of them reached."""
    from octavo.train import checkpoint

    tokens(folder.parent / "text")
    moments = random.Random(seed)
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                staged(folder)
                status = 0
            os._exit(status)
        begin = time.monotonic()
        while attempt < kills and time.monotonic() - begin < 60:
            held = checkpoint.available(folder)
            if held and int(held[0].stem.partition("-")[2]) >= 4 * attempt:
                time.sleep(moments.uniform(0, 0.05))
                os.kill(child, signal.SIGKILL)
                break
            time.sleep(0.002)
        _, status = os.waitpid(child, 0)
        held = checkpoint.available(folder)
        print(held[0].name if held else "none", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, folder, kills, seed = sys.argv[1:]
    assert what == "kill"
    kill(Path(folder), int(kills), int(seed))
