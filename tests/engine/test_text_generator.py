"""The native decoder gives the tokens of PyTorch, the same with and without its cache, alone and beside other texts."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from helpers.models import packed
from helpers.processes import octavo_command
from octavo import ContainerError, DataError, RangeError, Sampling, SettingError, TextGenerator
from octavo.cli import app
from octavo.data import BytePairTokenizer
from octavo.lab.language.gpt import GPT, Attention, GatedMLP, GPTConfig, LagKernel, NegativeSampling, Softmax, preset
from octavo.lab.language.gpt.gpt_config import Stream
from octavo.lab.language.model_folder import save_language_model
from typer.testing import CliRunner

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")

CLOSE = 2e-4
"""Of log-probabilities: float32 sums in another order, through two blocks of random weights."""
ROUNDED = 0.1
"""The same where inputs are rounded: another order of sums may round one of them to the neighbouring code."""
VOCABULARY = 211
GROUPED = GPTConfig(
    vocabulary=VOCABULARY, width=96, pattern="aw", end_of_text=0, keep_documents=True, ffn=GatedMLP(),
    mixers={"a": Attention(heads=6, kv_heads=2), "w": Attention(heads=3, kv_heads=1, window=70, rotary="none")},
    head=Softmax(cap=9.0, cap_kind="tanh"), stream=Stream(gains=True),
)  # fmt: skip
SIZES = {"vocabulary": VOCABULARY, "width": 64, "layers": 2, "heads": 2, "end_of_text": 0}
PLAIN = preset("nocap_baseline", **SIZES)
SAMPLED = dataclasses.replace(PLAIN, head=NegativeSampling(samples=8))
CONFIGS = {"baseline": PLAIN, "modern": preset("modern", **SIZES), "grouped": GROUPED, "negative sampling": SAMPLED}
RECIPES = [
    None,
    "int8:g32",
    "mxint8; type:Linear mxint8 input=mxint8",
    "int4:g32; type:Linear int8:channel input=int8:channel",
]


def made(config, seed=0):
    torch.manual_seed(seed)
    model = GPT(config).eval()
    model.count(torch.randint(0, 14, (500,)).square())  # of heads with a distribution of noise
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)  # some begin as zeros, which would hide a defect
    return model


def ids_of(count, seed=1, vocabulary=VOCABULARY):
    return torch.randint(1, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def greedy(log_probs, prompt, tokens):
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(log_probs(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def decoded(decoder, prompt, tokens, sampling=Sampling(), **options):  # noqa: B008 frozen
    following = decoder.generate_ids([prompt], sampling, tokens=tokens, stop=(), **options)
    return [token for (token,) in following]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_tokens_and_probabilities_are_those_of_pytorch(tmp_path, name, recipe):
    model = packed(made(CONFIGS[name]), recipe)
    octavo.save_model(model, tmp_path / "m")
    decoder = TextGenerator.load(tmp_path / "m")
    prompt = ids_of(150)
    prompt[40] = 0  # a new document
    told = torch.log_softmax(torch.from_numpy(decoder.scores(prompt).copy()), -1)
    rounds = recipe is not None and "input" in recipe
    assert (told - model(torch.tensor([prompt]))[0]).abs().max() < (ROUNDED if rounds else CLOSE)
    tokens = decoded(decoder, prompt[:20], 60)
    if rounds:
        scores = model(torch.tensor([prompt[:20] + tokens]))[0, 19:-1]
        assert (scores.amax(-1) - scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]).max() < 2 * ROUNDED
    else:
        assert tokens == greedy(model, prompt[:20], 60)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_position_does_not_depend_on_what_is_computed_with_it(tmp_path, recipe):
    octavo.save_model(packed(made(GROUPED), recipe), tmp_path / "m")
    decoder = TextGenerator.load(tmp_path / "m")
    prompt = ids_of(300)
    prompt[90] = 0
    whole = decoder.scores(prompt)
    for length in (1, 2, 15, 17, 63, 64, 65, 130, 257):
        assert np.array_equal(decoder.scores(prompt[:length]).view(np.uint32), whole[:length].view(np.uint32))
    hot = Sampling(temperature=1.5, seed=3)
    cached = decoded(decoder, prompt[:60], 20, hot)  # into a second page
    assert decoded(decoder, prompt[:60], 20, hot, cache=False) == cached
    others = [prompt[:60], ids_of(1), ids_of(129, 2), prompt[:64]]
    together = list(decoder.generate_ids(others, hot, tokens=20, stop=()))
    assert [row[0] for row in together] == cached
    before = octavo._core.num_threads()
    try:
        octavo._core.set_num_threads(1)
        assert decoded(decoder, prompt[:60], 20, hot) == cached
    finally:
        octavo._core.set_num_threads(before)


def test_pages_of_a_text_that_ends_serve_the_others(tmp_path):
    octavo.save_model(made(GROUPED), tmp_path / "m")
    core = octavo._core._Decoder.load(tmp_path / "m")
    texts = octavo._core._Generation(core, [ids_of(100), ids_of(64, 2), ids_of(30, 3)], (0.0, 0, 1.0, 0), True, 5)
    assert texts.pages_left == 5
    texts.advance()
    assert texts.pages_left == 1  # 2 + 1 + 1
    texts.advance()
    assert texts.pages_left == 0
    texts.end(0)
    assert texts.pages_left == 2
    alone = octavo._core._Generation(core, [ids_of(30, 3)], (0.0, 0, 1.0, 0), True, 3)
    row = [alone.advance()[0] for _ in range(80)]
    assert [texts.advance()[2] for _ in range(78)] == row[2:]  # two more pages, used before
    with pytest.raises(ContainerError, match="cache of 5 pages"):
        [texts.advance() for _ in range(99)]


def test_draws_follow_the_probabilities_and_the_seed(tmp_path):
    octavo.save_model(made(dataclasses.replace(CONFIGS["baseline"], vocabulary=23)), tmp_path / "m")
    decoder = TextGenerator.load(tmp_path / "m")
    prompt, count = [1, 2, 3], 4000

    def drawn(**how):
        return list(next(decoder.generate_ids([prompt] * count, Sampling(**how), tokens=1, stop=())))

    scores = torch.from_numpy(decoder.scores(prompt)[-1].copy()).double()
    for how in (
        {"temperature": 1.0},
        {"temperature": 3.0},
        {"temperature": 3.0, "top_k": 5},
        {"temperature": 3.0, "top_p": 0.6},
    ):
        wanted = torch.softmax(scores / how["temperature"], 0)
        order = wanted.argsort(descending=True)
        if "top_k" in how:
            wanted[order[5:]] = 0
        if "top_p" in how:
            kept = int((wanted[order].cumsum(0) < 0.6).sum()) + 1
            wanted[order[kept:]] = 0
        wanted /= wanted.sum()
        found = torch.bincount(torch.tensor(drawn(seed=1, **how)), minlength=23) / count
        assert not found[wanted == 0].any()
        assert (found - wanted).abs().max() < 4 * (0.25 / count) ** 0.5  # four standard deviations
    assert drawn(temperature=2.0, seed=5) == drawn(temperature=2.0, seed=5) != drawn(temperature=2.0, seed=6)
    assert set(drawn(temperature=2.0, top_k=1)) == set(drawn()) == {int(scores.argmax())}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("GPT2LMHeadModel", {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 80}),
        (
            "LlamaForCausalLM",
            {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 80},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("recipe", [None, "mxint8"])
@torch.no_grad()
def test_models_of_transformers_give_the_tokens_of_transformers(tmp_path, model, sizes, recipe):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, model)
    torch.manual_seed(0)
    built = kind(kind.config_class(**sizes, initializer_range=0.3, bos_token_id=0, eos_token_id=0)).eval()
    built.save_pretrained(tmp_path / "m")
    if recipe is not None:
        built = packed(built, recipe)
        octavo.save_model(built, tmp_path / "p")
    decoder = TextGenerator.load(tmp_path / ("m" if recipe is None else "p"))
    prompt = ids_of(20, vocabulary=97)
    assert decoded(decoder, prompt, 60) == greedy(lambda ids: built(ids).logits, prompt, 60)
    assert decoder.positions == 80
    with pytest.raises(RangeError, match="80 positions; generate up to 61"):
        decoder.generate_ids([prompt], tokens=62)
    with pytest.raises(RangeError, match="shorten the prompt"):
        decoder.generate_ids([ids_of(81, vocabulary=97)], tokens=1)


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = "the cat sat on the mat. the dog ran in the fog. \N{GREEK SMALL LETTER ALPHA}\N{CAT FACE} " * 40
    tokenizer = BytePairTokenizer.train([text], 280)
    path = tmp_path_factory.mktemp("gpt") / "m"
    sizes = SIZES | {"vocabulary": tokenizer.size, "end_of_text": tokenizer.special["<|endoftext|>"]}
    save_language_model(path, packed(made(preset("modern", **sizes)), "mxint8"), tokenizer)
    return path


def llama(path, *, template=True, bos="<|begin|>", eos="<|end|>", hole=False):
    """Write a Llama of transformers with a tokenizer, whose template begins every text with <|begin|>; return the model.

    ``hole``: ids that the tokenizer has no token for come before its special tokens.
    """
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    text = "the cat sat on the mat. the dog ran in the fog. " * 40
    path.mkdir()
    content = json.loads(
        BytePairTokenizer.train(text, 280, pattern="llama3", special=["<|begin|>", "<|end|>"]).to_json()
    )
    for token in content["added_tokens"]:
        token["id"] += 40 * hole
    (path / "tokenizer.json").write_text(json.dumps(content))
    special = BytePairTokenizer.load(path).special
    if template:
        peer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        peer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", special["<|begin|>"])]
        )
        peer.save(str(path / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=max(special.values()) + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=80, initializer_range=0.3,
        bos_token_id=special.get(bos), eos_token_id=special.get(eos),
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def test_pieces_are_the_text_and_end_before_a_stop(folder):
    decoder = TextGenerator.load(folder)
    hot = Sampling(temperature=1.0, seed=4)
    whole = decoder.generate("the cat", hot, tokens=90)
    assert (
        whole == "".join(decoder.stream("the cat", hot, tokens=90)) == decoder.generate(["the cat"], hot, tokens=90)[0]
    )
    ids = decoder.tokenizer.encode("the cat")
    tokens = decoded(decoder, ids, 90, hot)
    end = decoder.tokenizer.special["<|endoftext|>"]
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    assert whole == decoder.tokenizer.decode(tokens)
    stop = whole[len(whole) // 2 :][:3]
    assert decoder.generate("the cat", hot, tokens=90, stop=[stop, "never there"]) == whole[: whole.index(stop)]
    assert isinstance(decoder.generate("", hot, tokens=3), str)


@pytest.mark.parametrize("template", [True, False])
def test_prompts_have_the_ids_that_transformers_gives_them(tmp_path, template):
    """Those around a text that the template of tokenizer.json names; an empty prompt begins as generate does."""
    model = llama(tmp_path / "m", template=template)
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    decoder = TextGenerator.load(tmp_path / "m")
    prompts = ["the cat", "the", "a dog in the fog", ""]
    for prompt in prompts:
        given = tokenizer(prompt, return_tensors="pt").input_ids.long() if prompt or template else None
        whole = model.generate(given, do_sample=False, max_new_tokens=30)[0].tolist()
        wanted = whole[1 if given is None else given.shape[1] :]
        assert template or given is None or given[0, 0] != model.config.bos_token_id
        wanted = wanted[: wanted.index(model.config.eos_token_id)] if model.config.eos_token_id in wanted else wanted
        assert decoder.generate(prompt, tokens=30) == decoder.tokenizer.decode(wanted)
    together = decoder.generate(prompts, tokens=30)
    assert together == [decoder.generate(prompt, tokens=30) for prompt in prompts]
    written = decoder.generate("<|begin|>the cat", tokens=30, special="allow")
    assert not template or written == together[0]  # once is enough


def test_an_empty_prompt_begins_with_bos_and_without_one_with_eos(tmp_path):
    for name, options, first in (
        ("both", {}, "<|begin|>"),
        ("end", {"bos": None}, "<|end|>"),
        ("neither", {"bos": None, "eos": None}, None),
    ):
        llama(tmp_path / name, template=False, **options)
        decoder = TextGenerator.load(tmp_path / name)
        if first is None:
            with pytest.raises(DataError, match="give a prompt"):
                decoder.generate("")
        else:
            stop = options.get("eos", "<|end|>")
            ids = decoder.generate_ids([[decoder.tokenizer.special[first]]], tokens=20)
            assert stop and decoder.generate("", tokens=20) == decoder.tokenizer.decode([t for (t,) in ids])


def test_ids_without_a_token_are_shown_and_end_nothing(tmp_path):
    llama(tmp_path / "m", hole=True, template=False)
    decoder = TextGenerator.load(tmp_path / "m")
    prompt, shown = decoder.tokenizer.encode("the"), 0
    for seed in range(12):
        hot = Sampling(temperature=5.0, seed=seed)
        ids = [token for (token,) in decoder.generate_ids([prompt], hot, tokens=40)]
        tokens = split_at_none(decoder.tokenizer._core.token(number) for number in ids)
        wanted = "\ufffd".join(b"".join(part).decode("utf-8", "replace") for part in tokens)
        shown += len(tokens) - 1
        assert "".join(decoder.stream("the", hot, tokens=40)) == wanted
        assert decoder.generate(["the"], hot, tokens=40) == [wanted]
    assert shown > 10


def split_at_none(items):
    parts = [[]]
    for item in items:
        if item is None:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def test_scores_that_are_not_finite_are_refused(tmp_path):
    llama(tmp_path / "m", template=False)
    file = tmp_path / "m" / "model.safetensors"
    tensors = octavo.load(file)
    tensors["model.layers.0.mlp.up_proj.weight"].fill_(3e38)
    octavo.save(tensors, file, metadata={"format": "pt"})
    decoder = TextGenerator.load(tmp_path / "m")
    for run in (lambda: decoder.scores([1, 2]), lambda: decoder.generate("the", tokens=2)):
        with pytest.raises(ContainerError, match="scores of the next token are not finite: the weights are too large"):
            run()


@pytest.mark.parametrize("share", [1e-3, 1e-45, 1e-300, 5e-324])
def test_the_smallest_shares_leave_the_most_likely_token(folder, share):
    decoder = TextGenerator.load(folder)
    likely = decoder.generate("the cat", tokens=20)
    for temperature in (5e-324, 1e-30, 1.0):
        assert decoder.generate("the cat", Sampling(temperature=temperature, top_p=share), tokens=20) == likely


def test_what_is_no_folder_of_safetensors_is_refused_with_a_fix(tmp_path, folder):
    with pytest.raises(
        ContainerError, match=r"config.json: a file that is no GGUF file; .* the folder of a model: try"
    ):
        TextGenerator.load(Path(folder) / "config.json")
    (tmp_path / "config.json").write_text((Path(folder) / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ContainerError, match=r"weights are in 'pytorch_model.bin', a pickle, .*save_pretrained"):
        TextGenerator.load(tmp_path)


def test_a_stop_is_a_text_or_several(folder):
    decoder = TextGenerator.load(folder)
    hot = Sampling(temperature=1.0, seed=4)
    whole = decoder.generate("the cat", hot, tokens=90)
    stop = whole[len(whole) // 2 :][:3]
    until = whole[: whole.index(stop)]
    for given in (stop, [stop], (stop, "never there")):
        assert decoder.generate("the cat", hot, tokens=90, stop=given) == until
        assert decoder.generate(["the cat"], hot, tokens=90, stop=given) == [until]
        assert "".join(decoder.stream("the cat", hot, tokens=90, stop=given)) == until
    for nothing in (None, (), []):
        assert decoder.generate("the cat", hot, tokens=90, stop=nothing) == whole
        assert decoder.generate(["the cat"], hot, tokens=90, stop=nothing) == [whole]
    for wrong in ([5], 5, "", [""], [None], b"x", {"a": 1}):
        for prompt in ("the cat", ["the cat"]):
            with pytest.raises(SettingError, match="stop is"):
                decoder.generate(prompt, stop=wrong)


def test_prompts_are_read_from_standard_input_a_line_each(folder):
    alone = octavo_command("generate", folder, "the cat", "--tokens", "9")
    assert octavo_command("generate", folder, "--tokens", "9", text="the cat\n") == alone
    assert (
        octavo_command("generate", folder, "the cat", "--tokens", "9", text="the dog\n") == alone
    )  # an argument goes first
    found = json.loads(octavo_command("generate", folder, "--tokens", "9", "--json", text="\ufeffthe cat\r\n\nthe dog"))
    assert [one["prompt"] for one in found["texts"]] == ["the cat", "", "the dog"]
    assert f"the cat{found['texts'][0]['text']}\n" == alone
    assert octavo_command("generate", folder, "--tokens", "9", text="") == octavo_command(
        "generate", folder, "", "--tokens", "9"
    )
    assert "standard input" in CliRunner().invoke(app, ["generate", "--help"]).output
    refused = CliRunner().invoke(app, ["generate", str(folder)], input=b"\xff\n")
    assert refused.exit_code != 0 and "no UTF-8" in f"{refused.output}{refused.exception}"
    import pty

    ours, theirs = pty.openpty()  # a terminal is not waited for
    told = subprocess.run(
        [sys.executable, "-m", "octavo", "generate", folder, "--tokens", "9"],
        stdin=theirs,
        capture_output=True,
        timeout=120,
    )
    assert told.returncode == 0 and told.stdout.decode() == octavo_command("generate", folder, "", "--tokens", "9"), (
        told.stderr
    )
    os.close(ours)
    os.close(theirs)


def test_special_tokens_are_refused_unless_allowed(folder):
    decoder = TextGenerator.load(folder)
    with pytest.raises(DataError, match="endoftext"):
        decoder.generate("a<|endoftext|>the", tokens=2)
    allowed = decoder.generate("a<|endoftext|>the", tokens=4, special="allow")
    ids = decoder.tokenizer.encode("a<|endoftext|>the", special="allow")
    assert allowed == decoder.tokenizer.decode([t for (t,) in decoder.generate_ids([ids], tokens=4)])


def test_the_command_streams_text_or_gives_json(folder):
    text = octavo_command("generate", folder, "the cat", "--tokens", "12", "--temperature", "0.9", "--seed", "3")
    found = json.loads(
        octavo_command(
            "generate", folder, "the cat", "the dog", "--tokens", "12", "--temperature", "0.9", "--seed", "3", "--json"
        )
    )
    assert [one["prompt"] for one in found["texts"]] == ["the cat", "the dog"]
    assert text == f"the cat{found['texts'][0]['text']}\n"
    for wrong in (["--temperature", "-1"], ["--top-p", "0"], ["--special", "maybe"], ["--seed", "-1"]):
        octavo_command("generate", folder, "the", *wrong, code=2)


def test_nothing_of_torch_is_loaded(folder):
    code = (
        "import sys, octavo; d = octavo.TextGenerator.load(sys.argv[1]); print(len(d.generate('the', tokens=5))); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            dataclasses.replace(
                GROUPED, pattern="ak", mixers={"a": Attention(heads=6), "k": LagKernel()}, keep_documents=False
            ),
            "lag_kernel",
        ),
        (preset("modern_skips", **SIZES), "smear"),
        (dataclasses.replace(GROUPED, stream=Stream(backout=True)), "backout"),
    ],
)
def test_techniques_that_only_pytorch_runs_are_refused_by_name(tmp_path, config, named):
    octavo.save_model(GPT(config), tmp_path / "m")
    with pytest.raises(ContainerError, match=named):
        TextGenerator.load(tmp_path / "m")


def test_what_would_be_run_otherwise_than_in_pytorch_is_refused(tmp_path):
    model = made(CONFIGS["baseline"])
    simulated = octavo.quantize_model(model, "mxint8", progress=False)
    octavo.save_model(simulated, tmp_path / "simulated")
    with pytest.raises(ContainerError, match="pack_model"):
        TextGenerator.load(tmp_path / "simulated")
    octavo.save_model(packed(model, "type:Linear int8:channel input=int8"), tmp_path / "spanning")
    with pytest.raises(ContainerError, match="share one scale among all positions"):
        TextGenerator.load(tmp_path / "spanning")
    octavo.save_model(model, tmp_path / "more")
    tensors = octavo.load(tmp_path / "more" / "model.octavo.safetensors")
    octavo.save({**tensors, "blocks.2.ffn.up.weight": torch.zeros(3)}, tmp_path / "more" / "model.octavo.safetensors")
    with pytest.raises(ContainerError, match=r"blocks\.2\.ffn\.up\.weight"):
        TextGenerator.load(tmp_path / "more")


def test_prompts_and_options_are_checked_before_work(tmp_path):
    octavo.save_model(made(CONFIGS["baseline"]), tmp_path / "m")
    decoder = TextGenerator.load(tmp_path / "m")
    assert decoder.positions is None
    for prompts, error in (
        ([[]], DataError),
        ([[VOCABULARY]], DataError),
        ([[-1]], DataError),
        (["ab"], octavo.DTypeError),
        ([[1.5]], octavo.DTypeError),
        ([[True]], octavo.DTypeError),
        ([1], octavo.DTypeError),
        (5, octavo.DTypeError),
        (None, octavo.DTypeError),
        (np.ones(3), octavo.DTypeError),
    ):
        with pytest.raises(error):
            next(decoder.generate_ids(prompts))
    for wrong, error in (
        ([VOCABULARY], DataError),
        ([-1], DataError),
        ("text", octavo.DTypeError),
        (5, octavo.DTypeError),
    ):
        with pytest.raises(error, match="stop"):
            decoder.generate_ids([[1]], stop=wrong)
    for wrong in (None, 5, "greedy"):
        with pytest.raises(octavo.DTypeError, match="sampling"):
            decoder.generate_ids([[1]], wrong)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        decoder.generate("a text")
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 1.5}, {"seed": -1}, {"temperature": float("nan")}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Sampling(**wrong)
    with pytest.raises(SettingError, match="tokens"):
        decoder.generate_ids([[1]], tokens=0)
