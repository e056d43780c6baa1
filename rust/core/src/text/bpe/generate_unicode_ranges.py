"""Writes unicode_ranges.rs: letters and numbers of Unicode 16.0, the version of tiktoken 0.14 and tokenizers 0.23.

Run with the package that carries this version's tables: ``pip install unicodedata2==16.0.0``, then
``python generate_unicode_ranges.py > unicode_ranges.rs && rustfmt unicode_ranges.rs``.
"""

import unicodedata2

HEAD = (
    "//! Letters and numbers of Unicode 16.0, written by generate_unicode_ranges.py: gaps and lengths of their ranges, "
    "by turns,\n//! from U+0000 on.\n"
)


def gaps_and_lengths(category: str) -> list[int]:
    """Return the characters outside and inside a general category, by turns."""
    turns, inside, count = [], False, 0
    for code in range(0x110000):
        if unicodedata2.category(chr(code)).startswith(category) != inside:
            turns.append(count)
            inside, count = not inside, 0
        count += 1
    return [*turns, count] if inside else turns


assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
print(HEAD)
for name, category, pattern in (("LETTERS", "L", r"\\p{L}"), ("NUMBERS", "N", r"\\p{N}")):
    numbers = gaps_and_lengths(category)
    assert max(numbers) < 1 << 16
    print(f"/// `{pattern}`.".replace("\\\\", "\\"))
    print(f"pub(super) const {name}: &[u16] = &{numbers};")
