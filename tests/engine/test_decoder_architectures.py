"""Every architecture of the native decoder gives the scores and tokens of transformers, however texts are fed."""

import json

import numpy as np
import octavo
import pytest
import torch
from helpers.decoder_models import CASES, GEMMA, LLAMA3, LONG, SMALL, VOCABULARY, YARN, decoder_model
from octavo import ContainerError, Sampling, TextGenerator

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")

CLOSE = 4e-4
"""Of log-probabilities: float32 sums through random blocks, against float64."""
COUNT = 300
SWITCHES = ("phi4",)  # all positions of a text have other angles once it is longer than 128 tokens
PACKED = "int8:g32"
ARCHITECTURES = sorted({values[0] for values in CASES.values()})


def ids_of(count, seed=1):
    return torch.randint(1, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def log_probs(model, ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


def doubled(model):
    model.set_experts_implementation("eager")  # grouped products of PyTorch take no float64
    return model.double()


def decoded(decoder, prompts, tokens, **options):
    steps = list(decoder.generate_ids(prompts, Sampling(), tokens=tokens, stop=(), **options))
    return [list(row) for row in zip(*steps, strict=True)]


def saved(tmp_path, name, **changes):
    model = decoder_model(name, **changes)
    model.save_pretrained(tmp_path / "m")
    return model


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_transformers_at_every_position(tmp_path, name):
    model = doubled(saved(tmp_path, name))
    ids = ids_of(COUNT)
    scores = torch.from_numpy(TextGenerator.load(tmp_path / "m").scores(ids).copy()).double()
    assert (torch.log_softmax(scores, -1) - log_probs(model, ids)).abs().max() < CLOSE


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_those_of_transformers_in_blocks_one_by_one_and_beside_others(tmp_path, name):
    model = saved(tmp_path, name)
    decoder = TextGenerator.load(tmp_path / "m")
    prompts, count = [ids_of(70), ids_of(3, 2), ids_of(129, 3)], 60
    for prompt, row in zip(prompts, decoded(decoder, prompts, count), strict=True):
        if name not in SWITCHES:
            whole = log_probs(model, prompt + row)[len(prompt) - 1 : -1]
            best = whole.amax(-1) - whole.gather(1, torch.tensor(row)[:, None])[:, 0]
            assert best.max() < CLOSE  # equal, but for ties
        assert decoded(decoder, [prompt], count, cache=False) == [row]
        assert decoded(decoder, [prompt], count) == [row]


@pytest.mark.parametrize("name", [name for name in CASES if name not in SWITCHES])
def test_a_position_has_the_same_bits_whatever_is_computed_with_it(tmp_path, name):
    saved(tmp_path, name)
    decoder = TextGenerator.load(tmp_path / "m")
    ids = ids_of(150)
    whole = decoder.scores(ids).view(np.uint32)
    for count in (1, 2, 63, 65, 130):
        assert np.array_equal(decoder.scores(ids[:count]).view(np.uint32), whole[:count])


@pytest.mark.parametrize("name", [name for name in CASES if name not in SWITCHES])
@torch.no_grad()
def test_packed_folders_give_the_scores_of_the_packed_model(tmp_path, name):
    packed = octavo.pack_model(octavo.quantize_model(decoder_model(name), PACKED, progress=False))
    octavo.save_model(packed, tmp_path / "m")
    ids = ids_of(100)
    scores = torch.from_numpy(TextGenerator.load(tmp_path / "m").scores(ids).copy()).double()
    assert (torch.log_softmax(scores, -1) - log_probs(packed, ids)).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["mixtral", "qwen3 moe", "gpt oss"])
def test_chosen_experts_have_the_same_bits_on_any_number_of_threads(tmp_path, name):
    """Where each thread gets as many experts, they are shared out; else all threads work on each."""
    packed = octavo.pack_model(octavo.quantize_model(decoder_model(name), PACKED, progress=False))
    octavo.save_model(packed, tmp_path / "m")
    decoder, found = TextGenerator.load(tmp_path / "m"), {}
    before = octavo._core.num_threads()
    try:
        for threads in (1, 2, 3, 5):
            octavo._core.set_num_threads(threads)
            rows = decoded(decoder, [ids_of(9)], 30)
            found[threads] = rows, decoder.scores(ids_of(9)[:1]).tobytes(), decoder.scores(ids_of(9)).tobytes()
    finally:
        octavo._core.set_num_threads(before)
    assert all(one == found[1] for one in found.values())


def test_every_architecture_has_three_configurations():
    for stem in ARCHITECTURES:
        assert sum(values[0] == stem for values in CASES.values()) >= 3, stem


# --- positions --------------------------------------------------------------------------------------------------------


def test_texts_that_pass_the_first_angles_of_long_rope_are_computed_anew(tmp_path):
    """As transformers drops its cache there: each token is that of the whole text."""
    model = saved(tmp_path, "phi4")
    decoder = TextGenerator.load(tmp_path / "m")
    prompts = [ids_of(120), ids_of(5, 2), ids_of(128, 3)]
    for prompt, row in zip(prompts, decoded(decoder, prompts, 20), strict=True):
        ids = list(prompt)
        for token in row:
            scores = log_probs(model, ids)[-1]
            assert scores.max() - scores[token] < CLOSE
            ids.append(token)


def test_dynamic_positions_are_those_of_every_step_of_transformers(tmp_path):
    scaled = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    model = saved(tmp_path, "llama", rope_parameters=scaled, max_position_embeddings=64)
    decoder = TextGenerator.load(tmp_path / "m")
    assert decoder.positions == 3 * 64
    prompt = ids_of(40)
    (row,) = decoded(decoder, [prompt], 100)
    with torch.no_grad():
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=100, do_sample=False, eos_token_id=None)
    assert row == whole[0, 40:].tolist()


def old_form(name, folder):
    """Write the configuration as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if name == "gemma3 scaled":
        config["rope_theta"] = rope["full_attention"].pop("rope_theta")
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    elif name.startswith("gpt_neox"):
        config["rotary_emb_base"] = rope.pop("rope_theta")
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    rope.pop("original_max_position_embeddings", None) if name == "phi4" else None
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {**rope, "type": "su" if name == "phi4" else kind}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name", ["llama", "llama 3.1", "llama linear", "llama yarn", "gemma3 scaled", "gpt_neox half", "stablelm", "phi4"]
)
def test_configurations_of_transformers_4_give_the_same_scores(tmp_path, name):
    saved(tmp_path, name)
    new = TextGenerator.load(tmp_path / "m").scores(ids_of(60))
    old_form(name, tmp_path / "m")
    assert np.array_equal(TextGenerator.load(tmp_path / "m").scores(ids_of(60)), new)


@pytest.mark.parametrize("name", ["gemma2", "mistral", "qwen2", "smollm3", "stablelm", "mixtral", "falcon", "opt"])
def test_fields_that_a_file_lacks_have_the_defaults_of_transformers(tmp_path, name):
    """A configuration with the default of every field that is no size is the same without these fields."""
    import transformers

    stem, values, *_ = CASES[name]
    kind = getattr(transformers, f"{stem}ForCausalLM")
    sizes = {
        key: value
        for key, value in values.items()
        if key in {**SMALL, "ffn_dim": 0, "head_dim": 0, "num_local_experts": 0, "word_embed_proj_dim": 0}
    }
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes, initializer_range=0.2, pad_token_id=None)).eval()
    model.save_pretrained(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key in {*sizes, "model_type"}}))
    ids = ids_of(100)
    scores = torch.from_numpy(TextGenerator.load(tmp_path / "m").scores(ids).copy()).double()
    assert (torch.log_softmax(scores, -1) - log_probs(model, ids)).abs().max() < CLOSE


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["fp16", "mxint8", "int8:channel", "int4:g32"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "phi4", "qwen3 window"])
def test_a_packed_cache_gives_the_same_tokens_however_texts_are_fed(tmp_path, name, form):
    saved(tmp_path, name)
    decoder = TextGenerator.load(tmp_path / "m", cache=form)
    plain = TextGenerator.load(tmp_path / "m")
    prompts = [ids_of(70), ids_of(3, 2), ids_of(129, 3)]
    together = decoded(decoder, prompts, 20)
    for prompt, row in zip(prompts, together, strict=True):
        assert decoded(decoder, [prompt], 20) == [row] == decoded(decoder, [prompt], 20, cache=False)
    assert decoder.position_nbytes < plain.position_nbytes
    off = np.abs(decoder.scores(ids_of(90)) - plain.scores(ids_of(90))).max()
    assert 0 < off < (0.02 if form == "fp16" else 20)


def test_formats_that_no_cache_has_are_refused(tmp_path):
    saved(tmp_path, "llama")
    with pytest.raises(octavo.SettingError, match="cache is 'int8'; accepted are formats whose scales belong"):
        TextGenerator.load(tmp_path / "m", cache="int8:tensor")
    with pytest.raises(octavo.FormatError, match="did you mean"):
        TextGenerator.load(tmp_path / "m", cache="mxint9x")


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ("llama", {"model_type": "mamba"}, "'mamba'; the native decoder runs gpt of Octavo and, of transformers, falcon"),
    *(
        ("llama", {"model_type": other}, f"of '{other}'; the native .*; octavo.load_model runs others in PyTorch")
        for other in ("llama4", "llama4_text", "gemma3n", "deepseek_v3", "qwen3_next", "qwen2_5_vl", "bloom")
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "proportional"}},
        "rope_type is .*proportional.*; the native decoder runs",
    ),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor is missing; accepted is a number above 0"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": -1}}, "factor is -1; accepted"),
    ("llama", {"rope_parameters": {**LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor is 0.5; accepted"),
    ("llama", {"rope_parameters": {**YARN, "rope_theta": 0}}, "rope_theta is .*; accepted is a number above 0"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is .*; .* turns whole heads"),
    ("stablelm", {"rope_parameters": {"partial_rotary_factor": 0.35}}, "partial_rotary_factor is .*; accepted is"),
    ("phi3", {"rope_parameters": {**LONG, "long_factor": [1.0]}}, r"long_factor is \[1.0\]; accepted are 8 numbers"),
    ("llama", {"hidden_act": "tanh"}, "hidden_act is .*tanh"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide num_attention_heads"),
    ("qwen3 window", {"layer_types": ["linear_attention"] * 3}, "layer_types is .*; accepted are sliding_attention"),
    ("qwen3 window", {"layer_types": ["full_attention"]}, "layer_types is .*; accepted are 3 texts"),
    ("smollm3 window", {"no_rope_layers": [1, 2, 1]}, "no_rope_layers is .*; accepted are whole numbers from 0 to 1"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    ("gemma2", {"final_logit_softcapping": -3.0}, "final_logit_softcapping is -3.0; accepted"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ("gemma3 scaled", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .*; rope_parameters say"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false; .* norms with factors"),
    ("opt", {"word_embed_proj_dim": 0}, "word_embed_proj_dim is 0"),
    ("falcon", {"alibi": "yes"}, "alibi is .*yes.*; accepted are true and false"),
    ("gemma3 beside pictures", {"text_config": None}, "text_config is null; accepted is an object"),
    (
        "gemma3 beside pictures",
        {"text_config": {"model_type": "llama"}},
        "text_config: model_type is .*gemma3_text inside",
    ),
    ("gemma3 beside pictures", {"text_config": {**GEMMA, "head_dim": "x"}}, "text_config: head_dim is .*x.*; accepted"),
    ("granite", {"logits_scaling": 0}, "logits_scaling is 0"),
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types is"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_what_is_not_run_is_refused_by_its_field(tmp_path, name, change, message):
    saved(tmp_path, name)
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config.update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(ContainerError, match=message) as caught:
        TextGenerator.load(tmp_path / "m")
    assert "config.json" in str(caught.value)


def test_tensors_that_an_architecture_lacks_are_refused_by_name(tmp_path):
    saved(tmp_path, "qwen3")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(ContainerError, match=r"model.layers.0.self_attn.k_norm.weight.* is left over"):
        TextGenerator.load(tmp_path / "m")


def test_gemma_of_the_helpers_has_windows_shorter_than_texts():
    assert GEMMA["sliding_window"] < COUNT
