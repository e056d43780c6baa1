"""Added tokens: found as the package tokenizers finds them, however many there are."""

import json

import numpy as np
import pytest
from data.byte_pair_texts import END, corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo import DataError
from octavo.data import BytePairTokenizer

PATTERNS = ["gpt2", "llama3"]


@pytest.fixture(scope="module")
def learned():
    return {name: BytePairTokenizer.train(corpus(20_000), 700, pattern=name, special=[END]) for name in PATTERNS}


# No token of the vocabularies is one of these, whose id tokenizers would give it.
added_tokens = st.dictionaries(
    st.text("QX<|é ", min_size=2, max_size=4), st.tuples(st.booleans(), st.booleans()), max_size=12
)


@given(added_tokens, st.lists(st.text("QX<|éx \n", max_size=30), min_size=1, max_size=5), st.sampled_from(PATTERNS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_added_tokens_are_found_as_tokenizers_finds_them(learned, tmp_path, added, texts, name):
    """Leftmost, of several the longest, those that are normalized only between the others."""
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    content = json.loads(learned[name].to_json())
    content["added_tokens"] += [
        {"id": learned[name].size + at, "content": text, "special": special, "normalized": normalized, "single_word": False,
         "lstrip": False, "rstrip": False}
        for at, (text, (special, normalized)) in enumerate(added.items())
    ]  # fmt: skip
    file.write_text(json.dumps(content))
    tokenizer, peer = BytePairTokenizer.load(file), tokenizers.Tokenizer.from_file(str(file))
    tokenizer.save(file)
    for text in texts:
        wanted = peer.encode(text).ids
        assert tokenizer.encode(text, special="allow").tolist() == wanted
        stream = BytePairTokenizer.load(file).stream(special="allow")
        ids = [*(stream.feed(text[at : at + 3]) for at in range(0, len(text), 3)), stream.finish()]
        assert np.concatenate(ids).tolist() == wanted


def test_thousands_of_added_tokens_are_found_in_one_pass(learned, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = json.loads(learned["gpt2"].to_json())
    added = {"special": False, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    first = learned["gpt2"].size
    content["added_tokens"] += [{**added, "id": first + at, "content": f"<|{at}|>"} for at in range(20_000)]
    file.write_text(json.dumps(content))
    tokenizer = BytePairTokenizer.load(file)
    text = "<|<|19999|><|x" * 100_000  # a look at every token at every place would take an hour
    ids = tokenizer.encode(text)
    assert (ids == first + 19_999).sum() == 100_000 and tokenizer.decode(ids) == text
    assert tokenizer.id("<|19998|>") == first + 19_998 and tokenizer.id("<|20000|>") is None


def test_more_bytes_of_added_tokens_than_an_automaton_may_hold_are_refused(learned, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = json.loads(learned["gpt2"].to_json())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 900, "content": "x" * (5 << 20)})
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"added tokens of .* bytes; accepted are at most 4194304 together"):
        BytePairTokenizer.load(file)
    with pytest.raises(DataError, match="accepted are at most 4194304 together"):
        BytePairTokenizer.train("text", 300, special=["x" * (5 << 20)])
