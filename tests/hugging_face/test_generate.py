"""``generate`` of packed models: every way of it gives the tokens of the simulated model, and ``pipeline`` takes them."""

import octavo
import pytest
import torch
from helpers.models import transformer
from helpers.seven_models import SEVEN, in_formats
from helpers.text_folders import MARKS, WORDS, tokenizer

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")

DECODERS = ["gpt2", "llama", "mixtral", "t5", "whisper"]
WAYS = {
    "greedy": {},
    "static cache": {"cache_implementation": "static"},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3},
    "beams, static cache": {"num_beams": 2, "cache_implementation": "static"},
    "assisted by look-up": {"prompt_lookup_num_tokens": 2},
    "no cache": {"use_cache": False},
}


def generated(model, name, **options):
    inputs = {key: value[:1] for key, value in SEVEN[name][1].items() if key != "decoder_input_ids"}
    if "prompt_lookup_num_tokens" in options and "input_ids" in inputs:
        inputs["input_ids"] = inputs["input_ids"].repeat(1, 2)
    torch.manual_seed(5)
    model.generation_config.eos_token_id = None
    return model.generate(**inputs, max_new_tokens=8, pad_token_id=0, **{"do_sample": False, **options})


CASES = [
    pytest.param(name, way, marks=() if name == "llama" or way == "greedy" else pytest.mark.slow)
    for name in DECODERS
    for way in WAYS
    if (name, way) != ("whisper", "assisted by look-up")  # which looks up in a prompt, and speech is none
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_packed_model_gives_the_tokens_of_the_simulated_one(name, way):
    packed, simulated = in_formats(name, "packed"), in_formats(name, "simulated")
    ours = generated(packed, name, **WAYS[way])
    assert torch.equal(ours, generated(simulated, name, **WAYS[way]))
    if way in ("static cache", "no cache"):
        assert torch.equal(ours, generated(packed, name))


@pytest.mark.parametrize("name", ["gpt2", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_a_packed_model_is_assisted_by_a_packed_one(name):
    model, assistant = (
        in_formats(name, "packed"),
        octavo.pack_model(octavo.quantize_model(SEVEN[name][0](), "int2:g32", progress=False)),
    )
    assert torch.equal(generated(model, name, assistant_model=assistant), generated(model, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_a_compiled_forward_generates_from_a_static_cache(name):
    model = in_formats(name, "packed")
    plain = generated(model, name)
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    assert torch.equal(generated(model, name, cache_implementation="static"), plain)


def packed(kind, **config):
    model = transformer(kind, vocab_size=len(MARKS) + len(WORDS), **config)
    return octavo.pack_model(octavo.quantize_model(model, "int8:g32", progress=False))


@pytest.mark.parametrize(
    ("task", "kind", "text", "key"),
    [
        ("text-generation", "LlamaForCausalLM", "the film was", "generated_text"),
        ("fill-mask", "BertForMaskedLM", "the film was [UNK]", "token_str"),
        ("text-classification", "BertForSequenceClassification", "the film was bad", "label"),
        ("token-classification", "BertForTokenClassification", "the film was bad", "entity"),
        ("feature-extraction", "BertModel", "the film was bad", None),
    ],
)
def test_pipelines_take_packed_models(task, kind, text, key):
    words = tokenizer(transformers, [*MARKS, *WORDS], pads=True)
    words.mask_token = "[UNK]"
    model = packed(kind, **{"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0})
    run = transformers.pipeline(task, model=model, tokenizer=words)
    options = {"max_new_tokens": 4, "do_sample": False} if task == "text-generation" else {}
    answers = run(text, **options)
    if key is None:
        ids = words(text, return_tensors="pt")
        with torch.no_grad():
            assert torch.equal(torch.tensor(answers), model(**ids).last_hidden_state)
        return
    first = answers[0]
    assert isinstance(first[key], str) and first[key]
    if "score" in first:
        with torch.no_grad():
            scores = model(**words(text, return_tensors="pt")).logits[0].softmax(-1)
        assert any(abs(scores - first["score"]).flatten() < 1e-6)
    else:
        assert first[key].startswith(text) and len(first[key]) > len(text)
