"""QuantizedCache: attention sees the bits of ``octavo.quantize``, from packed memory, in every way of generating."""

import copy
import doctest

import octavo
import pytest
import torch
from helpers.architectures import FAMILIES
from helpers.models import packed, transformer

transformers = pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("octavo.transformers")
from octavo.transformers import QuantizedCache  # noqa: E402
from octavo.transformers.cache import PackedLayer  # noqa: E402
from octavo.transformers.packed_states import PackedStates  # noqa: E402
from transformers import DynamicCache, EncoderDecoderCache  # noqa: E402

WINDOW = 6
TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
MODELS = {
    "llama": ("LlamaForCausalLM", {"heads": 4, "num_key_value_heads": 2}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "sliding": ("MistralForCausalLM", {"heads": 4, "num_key_value_heads": 2, "sliding_window": WINDOW}),
    "mixed": (
        "Gemma3ForCausalLM",
        {"num_key_value_heads": 1, "head_dim": 20, "sliding_window": WINDOW,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
}  # fmt: skip
FITTING = [str(format) for format in octavo.formats() if format.granularity != "tensor" and not format.core.has_levels]
OTHERS = [str(format) for format in octavo.formats() if str(format) not in FITTING]


class Simulated(DynamicCache):
    """The same in float: states are rounded when they come, and stored as they are."""

    def __init__(self, format, config=None):
        super().__init__(config=config)
        self.format = format

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        rounded = [octavo.quantize(states, self.format) for states in (key_states, value_states)]
        return super().update(*rounded, layer_idx, *args, **kwargs)


def decoder(name, recipe=None):
    kind, options = MODELS[name]
    model = transformer(kind, **options)
    model.generation_config.eos_token_id = None
    return packed(model, recipe)


def prompt(rows=2, length=9):
    return torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(2))


def generated(model, cache, ids=None, tokens=8, **options):
    """Tokens and the logits of every step."""
    ids = prompt() if ids is None else ids
    torch.manual_seed(5)
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), cache=cache, max_new_tokens=tokens, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True, **{"do_sample": False, **options},
    )  # fmt: skip
    return out.sequences, out.logits


def same(one, other):
    return torch.equal(one[0], other[0]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def states(tokens=7, width=20, dtype=torch.float32, seed=0):
    return torch.randn(2, 3, tokens, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- one layer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FITTING)
def test_tokens_have_the_bits_of_quantize_however_they_come_and_go(format):
    """Blocks that the width of a head does not divide end with a short one, as everywhere."""
    x = states()
    held = PackedStates(x, octavo.Format(format), "floor", 0)
    for piece in x.split([3, 1, 1, 2], dim=2):
        seen = held.extended(piece)
    wanted = octavo.quantize(x, format)
    assert torch.equal(seen, wanted) and torch.equal(held.decoded(), wanted)
    assert held.nbytes == octavo.Format(format).nbytes(tuple(x.shape))
    held.keep(1, 5)
    held.select(torch.tensor([1, 1, 0]))
    held.repeat(2)
    wanted = wanted[:, :, 1:5][[1, 1, 0]].repeat_interleave(2, dim=0)
    assert torch.equal(held.decoded(), wanted)
    assert held.nbytes == octavo.Format(format).nbytes(tuple(wanted.shape))
    assert held.nbytes == sum(part.untyped_storage().nbytes() for part in held.parts)  # nothing more is kept alive


@pytest.mark.parametrize("format", OTHERS)
def test_a_scale_for_a_whole_tensor_is_refused(format):
    with pytest.raises(octavo.FormatError, match="a scale for a whole tensor"):
        QuantizedCache(format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_states_come_back_in_their_dtype(dtype):
    x = states(dtype=dtype)
    keys, values = (cache := QuantizedCache("mxint8", values="int4:g32")).update(x, x + 1, 0)
    assert keys.dtype == values.dtype == dtype
    assert torch.equal(keys, octavo.quantize(x, "mxint8")) and torch.equal(values, octavo.quantize(x + 1, "int4:g32"))
    assert cache.float_nbytes == 2 * x.nbytes


def test_the_newest_tokens_stay_float_as_asked():
    x = states(9)
    cache = QuantizedCache("mxint4", residual=4)
    keys, _ = cache.update(x[:, :, :3], x[:, :, :3], 0)
    assert torch.equal(keys, x[:, :, :3])
    keys, values = cache.update(x[:, :, 3:], x[:, :, 3:], 0)
    wanted = torch.cat([octavo.quantize(x[:, :, :5], "mxint4"), x[:, :, 5:]], dim=2)
    assert torch.equal(keys, wanted) and torch.equal(values, wanted)
    assert cache.nbytes == 2 * (octavo.Format("mxint4").nbytes((2, 3, 5, 20)) + x[:, :, 5:].nbytes)
    cache.crop(-6)
    assert torch.equal(cache.layers[0].keys, wanted[:, :, :3])
    assert not cache.is_croppable and QuantizedCache("mxint4").is_croppable


def test_gradients_pass_through_the_rounding():
    x = states(5).requires_grad_()
    cache = QuantizedCache("fixed8.4")
    cache.update(states(2, seed=1), states(2, seed=1), 0)
    keys, values = cache.update(x, x, 0)
    (keys + values).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))
    assert torch.equal(keys[:, :, 2:], octavo.quantize(x, "fixed8.4")) and not cache.layers[0].keys.requires_grad


def test_values_that_are_not_finite_are_refused():
    x = states()
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(octavo.NonFiniteError):
        QuantizedCache("mxint8").update(x, x, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"format": "mxint9x"}, octavo.FormatError, "mxint9x"),
        ({"values": "int8"}, octavo.FormatError, "'int8' has a scale for a whole tensor.*'int8:channel'"),
        ({"residual": -1}, octavo.errors.SettingError, "residual is -1"),
        ({"residual": 1.5}, octavo.DTypeError, "residual"),
        ({"scale": "best"}, octavo.FormatError, "'best'.*'mse'"),
        ({"config": "llama"}, octavo.DTypeError, "config"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        QuantizedCache(**arguments)


def test_states_are_not_assigned():
    cache = QuantizedCache()
    cache.update(states(), states(), 0)
    with pytest.raises(octavo.ShapeError, match="update"):
        cache.layers[0].keys = states()
    with pytest.raises(octavo.ShapeError, match="negative"):
        cache.crop(3)
    cache.reset()
    assert cache.get_seq_length() == cache.nbytes == 0 and cache.layers[0].keys is None


def test_the_example_of_the_docstring_runs():
    (example,) = doctest.DocTestFinder(recurse=False).find(
        QuantizedCache, "QuantizedCache", globs={"octavo": octavo, "torch": torch}
    )
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_states_on_a_gpu_have_the_bits_of_the_processor():
    held = [QuantizedCache("mxint8", values="int4:g32") for _ in range(2)]
    for seed in range(3):
        x = states(seed=seed)
        here, there = held[0].update(x, x, 0), held[1].update(x.cuda(), x.cuda(), 0)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True))
    assert held[0].nbytes == held[1].nbytes and held[1].layers[0].keys.is_cuda


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("laid_out", [True, False], ids=["config", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_generation_has_the_bits_of_the_simulation(name, laid_out):
    model = decoder(name)
    config = model.config if laid_out else None
    cache = QuantizedCache("mxint4", config=config)
    assert same(generated(model, cache), generated(model, Simulated("mxint4", config)))
    assert not same(generated(model, DynamicCache(config=config)), generated(model, Simulated("mxint4", config)))
    assert 0 < cache.nbytes < 0.2 * cache.float_nbytes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}, {"prompt_lookup_num_tokens": 2}],
    ids=["beams", "sampling", "assisted"],
)
def test_every_way_of_generating_has_the_bits_of_the_simulation(name, options):
    model = decoder(name)
    ids = prompt(1).repeat(1, 2) if "prompt_lookup_num_tokens" in options else None
    ours = generated(model, QuantizedCache("mxint8", config=model.config), ids, **options)
    assert same(ours, generated(model, Simulated("mxint8", model.config), ids, **options))


def test_an_assistant_of_its_own_drafts():
    model, assistant = decoder("llama"), transformer("LlamaForCausalLM", layers=1, seed=0)
    options = {"assistant_model": assistant, "ids": prompt(1)}
    ours = generated(model, QuantizedCache("mxint8"), **options)
    assert same(ours, generated(model, Simulated("mxint8"), **options))


def test_a_packed_model_generates_with_a_packed_cache():
    model = decoder("llama", "int4:g32")
    assert same(generated(model, QuantizedCache("mxint8")), generated(model, Simulated("mxint8")))


@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_texts_share_a_prefix(name):
    model, ids = decoder(name), prompt(1, 12)
    caches = []
    for kind in (QuantizedCache, Simulated):
        cache = kind("mxint6", config=model.config)
        with torch.no_grad():
            model(ids[:, :8], cache=cache)
        caches.append(cache)
    before = caches[0].nbytes
    for ending in (ids, ids.flip(1)):
        text = torch.cat([ids[:, :8], ending[:, 8:]], dim=1)
        ours, theirs = (generated(model, copy.deepcopy(cache), text) for cache in caches)
        assert same(ours, theirs)
    assert caches[0].nbytes == before


def test_a_prefix_is_repeated_for_a_batch_and_rows_are_left_out():
    model, ids = decoder("llama"), prompt(1, 8)
    found = []
    for kind in (QuantizedCache, Simulated):
        cache = kind("mxint6")
        with torch.no_grad():
            model(ids, cache=cache)
            cache.batch_repeat_interleave(3)
            model(prompt(3, 2), cache=cache)
            cache.batch_select_indices(torch.tensor([2, 0]))
            found.append(model(prompt(2, 1), cache=cache).logits)
    assert torch.equal(*found)


@pytest.mark.parametrize("left_padded", [False, True])
def test_a_window_holds_no_more_than_it_needs(left_padded):
    model = decoder("sliding")
    cache = QuantizedCache("mxint8", config=model.config)
    generated(model, cache, tokens=20)
    assert cache.get_seq_length() == 28 and cache.layers[0].keys.shape[2] == WINDOW - 1
    with pytest.raises(octavo.ModelError, match="activate_past_recording"):
        cache.crop(-1)


@pytest.mark.slow
def test_a_compiled_model_breaks_its_graph_at_the_cache_and_keeps_the_bits():
    model, ids = decoder("llama"), prompt(1)
    caches = QuantizedCache("mxint8"), QuantizedCache("mxint8")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for part in ids.split([6, 1, 1, 1], dim=1):
            assert torch.equal(compiled(part, cache=caches[0]).logits, model(part, cache=caches[1]).logits)


DECODERS = {
    name: made
    for family in ("text, decoders", "text, mixtures of experts", "text, state spaces and recurrence")
    for name, made in FAMILIES[family].items()
}
ROTATED = {  # whose keys are seen
    "Llama", "Mistral", "Qwen2", "Qwen3", "StableLm", "Olmo2", "Cohere", "Persimmon", "SmolLM3", "Phi", "Gemma2", "Gemma3",
    "Glm4", "Mixtral", "Olmoe", "Qwen3Moe", "GptOss", "Glm4Moe",
}  # fmt: skip


# --- keys before the rotary embedding ---------------------------------------------------------------------------------

ROTARY = {
    "llama": MODELS["llama"],
    "sliding": MODELS["sliding"],
    "mixed": MODELS["mixed"],  # two ropes, keys behind a norm
    "partial": ("StableLmForCausalLM", {"heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}),
    "normalized": ("Qwen3ForCausalLM", {"heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "half": (  # an angle for two elements
        "GptOssForCausalLM",
        {"heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "without": (
        "SmolLM3ForCausalLM", {"heads": 4, "num_key_value_heads": 2, "no_rope_layers": [1, 0], "pad_token_id": 0}
    ),
}  # fmt: skip


def rotary(name):
    kind, options = ROTARY[name]
    model = transformer(kind, **options)
    model.generation_config.eos_token_id = None
    return model


class SimulatedValues(Simulated):
    """Values are rounded by the cache; keys where the model computes them."""

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        rounded = octavo.quantize(value_states, self.format)
        return DynamicCache.update(self, key_states, rounded, layer_idx, *args, **kwargs)


def rounds_keys(model, format):
    """Let the last module before the rotation give rounded keys; return the handles."""

    def rounded(attention):
        def hook(module, args, output):
            heads = (
                output.shape if output.shape[-1] == attention.head_dim else (*output.shape[:-1], -1, attention.head_dim)
            )
            return octavo.quantize(output.view(heads), format).view(output.shape)

        return hook

    layers = [layer.self_attn for layer in model.model.layers]
    return [getattr(layer, "k_norm", layer.k_proj).register_forward_hook(rounded(layer)) for layer in layers]


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 2}], ids=["greedy", "beams", "assisted"]
)
@pytest.mark.parametrize("name", ROTARY)
def test_keys_before_rope_have_the_bits_of_a_model_that_rounds_them_there(name, options):
    model = rotary(name)
    ids = prompt(1).repeat(1, 2) if "prompt_lookup_num_tokens" in options else None
    cache = QuantizedCache("mxint4", config=model.config, before_rope=model)
    ours = generated(model, cache, ids, **options)
    handles = rounds_keys(model, "mxint4")
    simulated = generated(model, SimulatedValues("mxint4", model.config), ids, **options)
    for handle in handles:
        handle.remove()
    assert same(ours, simulated)
    assert not same(ours, generated(model, QuantizedCache("mxint4", config=model.config), ids, **options))
    assert len(cache._angles.cos) <= 3 * cache.get_seq_length()  # a row for each position of a rope, not for each layer


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_every_architecture_shows_its_keys_before_rope_or_is_refused(name):
    make, inputs = DECODERS[name]
    torch.manual_seed(0)
    model = make().eval()
    if model.config.is_encoder_decoder or not model._supports_default_dynamic_cache() or name == "MiniMax":
        pytest.skip("no cache of this kind")
    try:
        cache = QuantizedCache("fp32", config=model.config, before_rope=model)
        with torch.no_grad():
            kept = model(inputs["input_ids"], cache=cache).logits
    except octavo.ModelError as error:
        assert name not in ROTATED, error
        return
    with torch.no_grad():
        assert torch.equal(kept, model(inputs["input_ids"], use_cache=False).logits)


def test_left_padded_texts_have_angles_of_their_own():
    model, ids = rotary("llama"), prompt()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    found = []
    for cache in (QuantizedCache("mxint4", before_rope=model), SimulatedValues("mxint4")):
        handles = rounds_keys(model, "mxint4") if len(found) else []
        out = model.generate(
            input_ids=ids, attention_mask=mask, cache=cache, max_new_tokens=4, do_sample=False, num_beams=2,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        found.append((out.sequences, out.logits))
    assert len(handles) == 2 and same(*found)


def test_a_prefix_before_rope_is_copied_with_its_angles():
    model, ids = rotary("llama"), prompt(1, 12)
    cache = QuantizedCache("mxint6", before_rope=model)
    with torch.no_grad():
        model(ids[:, :8], cache=cache)
        whole = model(ids, cache=QuantizedCache("mxint6", before_rope=model)).logits[:, 8:]
        parts = [model(ids[:, 8:], cache=copy.deepcopy(cache)).logits for _ in range(2)]
    assert torch.equal(*parts) and torch.allclose(parts[0], whole, atol=1e-5)
    assert cache.get_seq_length() == 8


def test_hooks_go_with_the_cache():
    model = rotary("llama")
    attention = model.model.layers[0].self_attn
    cache = QuantizedCache("mxint8", before_rope=model)
    assert attention._forward_pre_hooks and attention.k_proj._forward_hooks
    other = copy.deepcopy(cache)
    del cache
    assert attention._forward_pre_hooks
    del other
    assert not attention._forward_pre_hooks and not attention.k_proj._forward_hooks


def test_a_model_whose_keys_are_not_seen_is_refused():
    with pytest.raises(octavo.ModelError, match="has no attention layer with k_proj"):
        QuantizedCache("mxint8", before_rope=transformer("GPT2LMHeadModel"))
    model, other = rotary("llama"), rotary("llama")
    with pytest.raises(octavo.ModelError, match="no rotary embedding was seen"):
        model(prompt(), cache=QuantizedCache("mxint8", before_rope=other))
    changed = model.model.layers[1].self_attn
    changed.k_proj.forward = lambda states: torch.nn.functional.linear(states, changed.k_proj.weight)
    model(prompt(), cache=QuantizedCache("mxint8", before_rope=model))
    changed.k_proj.register_forward_hook(lambda module, args, output: output * 2)
    cache = QuantizedCache("mxint8", before_rope=model)
    changed.k_proj.register_forward_hook(lambda module, args, output: output * 2)  # after the cache has looked
    with pytest.raises(octavo.ModelError, match=r"the keys of layer 1 \(LlamaAttention\) are not the rotated output"):
        model(prompt(), cache=cache)


# --- encoders and decoders --------------------------------------------------------------------------------------------

TRANSLATORS = {
    "t5": lambda: (transformer("T5ForConditionalGeneration"), {"input_ids": prompt()}),
    "bart": lambda: (
        transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
                forced_eos_token_id=None, eos_token_id=None, bos_token_id=1, pad_token_id=0, decoder_start_token_id=1,
            )
        ).eval(),
        {"input_ids": prompt()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_both_caches_of_an_encoder_decoder_are_packed(name, options):
    torch.manual_seed(0)
    model, inputs = TRANSLATORS[name]()
    found = []
    for kind in (QuantizedCache, Simulated):
        cache = EncoderDecoderCache(kind("mxint8"), kind("int4:g32"))
        torch.manual_seed(1)
        out = model.generate(
            **inputs, cache=cache, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True,
            eos_token_id=None, **options,
        )  # fmt: skip
        found.append((out.sequences, out.logits))
    assert same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_every_architecture_has_the_bits_of_the_simulation_or_says_why_not(name):
    make, inputs = DECODERS[name]
    torch.manual_seed(0)
    model = make().eval()
    if model.config.is_encoder_decoder or not model._supports_default_dynamic_cache():
        pytest.skip("no cache of this kind")
    model.generation_config.eos_token_id = None
    try:
        cache = QuantizedCache("mxint8", config=model.config)
    except octavo.ModelError as error:
        assert "the config has a layer whose cache is a" in str(error)
        return
    ids = inputs["input_ids"]
    assert same(generated(model, cache, ids, 4), generated(model, Simulated("mxint8", model.config), ids, 4))
    if any(isinstance(layer, PackedLayer) for layer in cache.layers):  # else all states are those of recurrences
        assert 0 < cache.nbytes < 0.35 * cache.float_nbytes
