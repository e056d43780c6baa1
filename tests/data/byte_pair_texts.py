"""Texts for the tests of byte pairs."""

import random

END = "<|endoftext|>"


def corpus(size=60_000, seed=1):
    """A text with words of many lengths, code, numbers, other scripts; the same for a seed."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"] + ["th", "ing", "中", "国", "の", "é", "ß", "א"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(900)]
    parts, length = [], 0
    while length < size:
        word = words[int(draw.paretovariate(0.7)) % len(words)]
        tail = draw.choice(
            [" "] * 8
            + [", ", ".\n", "\n\n", "  ", "'s ", "'LL ", "\n    ", f" {draw.randint(0, 9999)} ", "('x');\n", "\t"]
        )
        parts.append(word + tail)
        length += len(word) + len(tail)
    return "".join(parts)
