"""Tokenizers by their definitions: splitting rules of families of models, byte pairs, pieces of words, and texts."""

import functools
import itertools
import random
import unicodedata

import pytest

SPECIAL = ["<|end|>", "<|user|>"]
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _END
)  # fmt: skip
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END
)
_KIMI = (
    r"[\p{Han}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
# The letters that have two cases, but for some of Unicode's later ones.
_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_LLM = (
    "[\r\n]",
    "\\s?[" + "".join("-".join(chr(int(one, 16)) for one in part.split("-")) for part in _LETTERS.split()) + "]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    "\\s+$",
    _CODER[3],
)
GPT2, EACH_DIGIT, FALCON = "gpt2", "digits", "falcon"
RULES = {
    "gpt-2": (GPT2, ""), "phi-2": (GPT2, ""), "jais": (GPT2, ""), "olmo": (GPT2, "composes"), "mpt": (GPT2, "composes"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), (EACH_DIGIT, "")),
    "command-r": (EACH_DIGIT, "composes"), "falcon": (FALCON, ""),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "glm4", "chatglm-bpe"), ((_LLAMA3,), "whole")),
    "dbrx": ((_LLAMA3,), ""), "smaug-bpe": ((_LLAMA3,), ""), "stablelm2": ((_QWEN2,), ""),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), ((_QWEN2,), "composes")),
    "qwen35": ((_QWEN35,), "composes"), "gpt-4o": ((_O200K,), "whole"), "llama4": ((_O200K,), "whole"),
    "tekken": ((_TEKKEN,), "whole"), "kimi-k2": ((_KIMI,), "whole"), "bloom": ((_BLOOM,), ""),
    "deepseek-v3": (_DEEPSEEK_V3, ""), "deepseek-coder": (_CODER, "digits"), "deepseek-llm": (_LLM, "digits"),
}  # fmt: skip
"""By ``tokenizer.ggml.pre``: how the tokenizer that a file was made of splits texts, and what else it does."""


def split_steps(pre):
    """A rule as the package ``tokenizers`` runs it."""
    tokenizers = pytest.importorskip("tokenizers")
    steps, rule, more = tokenizers.pre_tokenizers, *RULES[pre]
    plain, encoded = steps.ByteLevel(add_prefix_space=False), steps.ByteLevel(add_prefix_space=False, use_regex=False)
    if rule == GPT2:
        return plain
    if rule == EACH_DIGIT:
        return steps.Sequence([steps.Digits(True), plain])
    if rule == FALCON:
        triples = steps.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")
        return steps.Sequence([steps.Punctuation("contiguous"), plain, steps.Digits(False), triples])
    digits = [steps.Digits(True)] if more == "digits" else []
    return steps.Sequence([*(steps.Split(tokenizers.Regex(one), "isolated") for one in rule), *digits, encoded])


@functools.cache
def _compiled(expression):
    """An expression as the package ``regex`` runs it; its own ``\\s`` has four control characters more."""
    regex = pytest.importorskip("regex")
    white = r"\t-\r\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    return regex.compile(
        expression.replace(r"\s", f"[{white}]").replace(r"\S", f"[^{white}]"), regex.V1 | regex.MULTILINE
    )


def _cut(pieces, expression):
    """Pieces with the matches of an expression, and what lies between them, as pieces of their own."""
    found = []
    for piece in pieces:
        end = 0
        for match in _compiled(expression).finditer(piece):
            if match.end() > match.start():
                found += [piece[end : match.start()], match.group()]
                end = match.end()
        found.append(piece[end:])
    return [piece for piece in found if piece]


@functools.cache
def _characters():
    """The characters of bytes: their own where they are seen, others from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + place) for place, byte in enumerate(hidden)}}


def _encoded(piece):
    return "".join(_characters()[byte] for byte in piece.encode())


def split(pre, text):
    """The pieces of a text whose pairs are merged, their bytes as characters."""
    rule, more = RULES[pre]
    pieces = [unicodedata.normalize("NFC", text) if more == "composes" else text]
    if rule == FALCON:
        pieces = [_encoded(piece) for piece in _cut(_cut(pieces, r"[\p{P}$+<=>^`|~]+"), _GPT2)]
        return _cut(_cut(pieces, r"\p{N}+"), "[0-9][0-9][0-9]")
    for expression in (r"\p{N}", _GPT2) if rule == EACH_DIGIT else (_GPT2,) if rule == GPT2 else rule:
        pieces = _cut(pieces, expression)
    return [_encoded(piece) for piece in (_cut(pieces, r"\p{N}") if more == "digits" else pieces)]


class BytePairs:
    """Byte pairs: of all adjacent pairs the one that was learned first is merged, the first of equals."""

    def __init__(self, pre, tokens, merges):
        self.pre, self.whole = pre, RULES[pre][1] == "whole"
        self.numbers = {token: number for number, token in enumerate(tokens)}
        self.ranks = {tuple(pair): rank for rank, pair in reversed(list(enumerate(merges)))}
        self._merged = functools.lru_cache(100_000)(self._merge)

    def _merge(self, piece):
        if self.whole and piece in self.numbers:
            return (self.numbers[piece],)
        parts = list(piece)
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, 1 << 60), at) for at, pair in enumerate(itertools.pairwise(parts)))
            if rank == 1 << 60:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self.numbers[part] for part in parts)

    def encode(self, text):
        """Ids of a text; special tokens in it have theirs."""
        ids = []
        for place, part in enumerate(_compiled(r"(<\|end\|>|<\|user\|>)").split(text)):
            pieces = split(self.pre, part) if part and not place % 2 else []
            ids += [self.numbers[part]] if place % 2 else [number for one in pieces for number in self._merged(one)]
        return ids


_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_MARK = r"[!-/:-@\[-`{-~]|\p{P}"


def word_pieces(text, vocabulary, *, lowercase=True):
    """Ids of a text by BERT's rule: the longest piece first, ``[UNK]`` for a word that has none."""
    control, white = _compiled(r"[\p{Cc}\p{Cf}\p{Co}--[\t\n\r]]"), _compiled(r"\s")
    text = "".join(one for one in text if one not in "\0\ufffd" and not control.fullmatch(one))
    text = white.sub(" ", text)
    text = "".join(f" {one} " if any(low <= ord(one) <= high for low, high in _CHINESE) else one for one in text)
    if lowercase:
        text = "".join(one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Mn")
        text = "".join(one.lower() for one in text)
    words = [part for word in text.split(" ") for part in _cut([word], _MARK)]
    return [number for word in words for number in _pieces_of(word, vocabulary)]


def _pieces_of(word, vocabulary):
    ids, begin = [], 0
    while begin < len(word) <= 100:
        ends = range(len(word), begin, -1)
        end = next((end for end in ends if ("##" if begin else "") + word[begin:end] in vocabulary), None)
        if end is None:
            return [vocabulary["[UNK]"]]
        ids.append(vocabulary[("##" if begin else "") + word[begin:end]])
        begin = end
    return ids if len(word) <= 100 else [vocabulary["[UNK]"]]


ODD = [
    *"aeinrstAEINST", *"0123456789", *"'.,!?-_%$#@/|<>[](){}\"\\^~`", "'s", "'LL", "'Re", " ", "  ", "   ", "\t", "\n",
    "\r\n", "\x00", "\x07", "\x1c", "\x85", "\xa0", "\u2028", "\u200b", "\u200d", "\u3000", "\ufeff", "é", "e\u0301",
    "\u0301", "ﬁ", "ﬁ\u0301", "ß", "ẞ", "ſ", "K", "İ", "½", "²", "①", "Ⅳ", "２", "٣", "Ａ", "日本", "かな", "が", "か\u3099",
    "カ", "한국", "\u1112\u1161\u11ab", "ก็", "नमस्ते", "مرحبا", "привет", "ΑΣς", "ა", "Ꭰ", "ǅ", "ʰ", "𐐀", "𐐨", "𝟙", "🙂",
    "👩\u200d🚀", "▁", "▁▁", "。", "，", "«", "“", "…", "€", "+", "=", "<unk>", "<s>", "</s>", "<0x41>", "[UNK]",
    "[MASK]", "\ue000", "\ud7ff",
]  # fmt: skip
"""Parts of texts: scripts, marks, digits, white space, controls, special tokens."""


def words(rng, count=400):
    """Words of syllables, some of them of other scripts."""
    parts = [
        "an",
        "er",
        "in",
        "st",
        "the",
        "lo",
        "ka",
        "mi",
        "tion",
        "re",
        "é",
        "日本",
        "かな",
        "при",
        "한국",
        "ß",
        "12",
    ]
    return ["".join(rng.choices(parts, weights=[20] * 10 + [1] * 7, k=rng.randint(1, 4))) for _ in range(count)]


def odd_texts(count, *, more=(), without=(), keep=None):
    """Texts of odd parts, and of words with odd parts between them; the first ones are short.

    ``more``: parts. ``without``: what no text has. ``keep``: whether a text is one of them.
    """
    rng = random.Random(0)
    known, parts = words(rng), [*ODD, *more, *more]
    texts, next_ones = [], ["", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "▁", "é"]
    while len(texts) < count:
        for text in next_ones[: count - len(texts)]:
            if not any(one in text for one in without) and (keep is None or keep(text)):
                texts.append(text)
        next_ones = ["".join(rng.choices(parts, k=rng.randint(1, 24)))]
        some = rng.choices(known, k=rng.randint(1, 6))
        some.insert(rng.randrange(len(some) + 1), "".join(rng.choices(parts, k=3)))
        next_ones.append(rng.choice((" ", " ", "  ", "\n", "")).join(some))
    return texts
