"""Decoders with heads and neurons taken out run natively: every layer has sizes of its own."""

import json

import octavo
import pytest
import torch
from helpers.models import transformer
from helpers.quick import spread
from octavo import ContainerError, Decoder
from octavo.cli import app
from octavo.lab.language.gpt import GPT, Attention, GatedMLP, GPTConfig
from typer.testing import CliRunner

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")

CLOSE = 2e-4
"""Of log-probabilities: float32 sums in another order."""


def own():
    return GPT(GPTConfig(vocabulary=50, width=32, pattern="aaa", ffn=GatedMLP(),
                         mixers={"a": Attention(heads=4, kv_heads=2)}))  # fmt: skip


LLAMA = {"inner": 48, "heads": 8, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64}
MODELS = {
    "gpt2": lambda: transformer("GPT2LMHeadModel", layers=3, heads=4, inner=48),
    "llama": lambda: transformer("LlamaForCausalLM", layers=3, **LLAMA),
    "llama with biases": lambda: transformer("LlamaForCausalLM", layers=3, attention_bias=True, mlp_bias=True, **LLAMA),
    "own": own,
}
GONE = {("head", 0): 1, ("head", 1): 3, ("neuron", 0): 5, ("neuron", 2): 40}
RECIPES = [None, "int8:g32", "int4:channel"]


def compacted(name):
    """Heads and neurons of some layers are gone; one layer stays as it was."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    weights = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
        for group in octavo.prune.groups(model, kinds=("head", "neuron")):
            layer = next(int(part) for part in group.name.split(".") if part.isdigit())
            for unit in group.units[: GONE.get((group.kind, layer), 0)]:
                for piece in unit.consumers:
                    weights[piece.name].index_fill_(piece.dim, piece.indices, 0)
    small, _ = octavo.prune.compact_model(model)
    assert octavo.prune.sizes.sizes_of(small)
    return small.eval()


@torch.no_grad()
def log_probs(model, ids):
    found = model(torch.tensor([ids]))
    return torch.log_softmax(getattr(found, "logits", found)[0], -1)


def greedy(model, prompt, tokens):
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(log_probs(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_scores_and_tokens_are_those_of_pytorch(name, recipe, tmp_path):
    model = compacted(name)
    if recipe is not None:
        rules = f"type:Conv1D {recipe}" if name == "gpt2" else f"type:Linear {recipe}; last:Linear keep"
        model = octavo.pack_model(octavo.quantize_model(model, rules, progress=False))
    octavo.save_model(model, tmp_path / "m")
    decoder = Decoder.load(tmp_path / "m")
    ids = torch.randint(3, 50, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    told = torch.log_softmax(torch.from_numpy(decoder.scores(ids).copy()), -1)
    assert (told - log_probs(model, ids)).abs().max() < CLOSE
    for cache in (True, False):
        following = [token for (token,) in decoder.generate_ids([ids[:5]], tokens=8, stop=(), cache=cache)]
        assert following == greedy(model, ids[:5], 8)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["octavo_sizes"]["weights"]
    whole = MODELS[name]()
    octavo.save_model(whole, tmp_path / "whole")
    assert decoder.position_nbytes < Decoder.load(tmp_path / "whole").position_nbytes


def test_a_folder_that_the_command_compacted_generates(tmp_path):
    octavo.save_model(MODELS["llama"](), tmp_path / "m")
    result = CliRunner().invoke(
        app, ["prune", str(tmp_path / "m"), "-o", str(tmp_path / "less"), "--sparsity", "0.5", "--granularity", "head",
              "--scope", "global", "--compact"]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    model = octavo.load_model(tmp_path / "less")
    following = Decoder.load(tmp_path / "less").generate_ids([[3, 4, 5]], tokens=4, stop=())
    assert [token for (token,) in following] == greedy(model, [3, 4, 5], 4)


WEIGHTS = "model.layers.0.self_attn.q_proj.weight"
WRONG = [
    (lambda s: s["weights"].update({WEIGHTS: [4, 32]}), "heads is 0"),
    (lambda s: s["weights"].update({WEIGHTS: [800, 32]}), "heads is 100"),
    (lambda s: s["weights"].update({WEIGHTS: []}), "heads is 0"),
    (lambda s: s["weights"].update({WEIGHTS: [40, 32]}), "block 0 has 5 heads of queries"),
    (lambda s: s["weights"].pop(WEIGHTS), "block 0 has 8 heads of queries and 3"),
    (lambda s: s["weights"].update({"model.layers.2.mlp.up_proj.weight": [0, 32]}), "neurons is 0"),
    (lambda s: s["weights"].update({"model.layers.2.mlp.up_proj.weight": [7, 32]}), "shape|numbers|intermediate_size"),
    (lambda s: s["weights"].update({"model.layers.9.mlp.up_proj.weight": [7, 32]}), "layers.9.* is no size"),
    (lambda s: s["weights"].update({"model.embed_tokens.weight": [7, 32]}), "is no size of this decoder"),
    (lambda s: s["weights"].update({"model.layers.0.input_layernorm.weight": [7]}), "is no size of this decoder"),
    (
        lambda s: s.update(numbers={"model.layers.0.self_attn": {"num_key_value_groups": 5}}),
        "is 5, and the weights are of",
    ),
    (lambda s: s.update(numbers={"model.layers.0.self_attn": {"hidden_size": 5}}), "is no size of this decoder"),
    (lambda s: s.update(heads={"model.layers.0.self_attn": [0]}), "heads"),
    (lambda s: s.update(weights=5), "invalid type"),
]


@pytest.mark.parametrize(("change", "said"), spread(WRONG))
def test_sizes_that_are_not_those_of_the_weights_are_refused(change, said, tmp_path):
    octavo.save_model(compacted("llama"), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text())
    change(config["octavo_sizes"])
    file.write_text(json.dumps(config))
    with pytest.raises(ContainerError, match=said):
        Decoder.load(tmp_path / "m")
