"""A compacted model gives what the model with zeros gives, is smaller, and is written and read as any other."""

import copy

import octavo
import pytest
import torch
from helpers.quick import spread
from octavo import ContainerError, DTypeError, ModelError
from octavo.prune import compact_model, groups
from octavo.prune.sizes import KEY, shrink, sizes_of
from prune.prune_zoo import MODELS, batch, made, result
from torch import nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # of the largest output: sums in another order
TRANSFORMERS = ["bert", "gpt2", "llama", "qwen", "vit", "t5"]


def zeroed(name, seed, dtype=torch.float32, layers=False, share=None):
    """Return a model with random units zeroed, and inputs; ``share``: of each group, else at random."""
    model = made(name, seed, dtype)
    given = batch(model, seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group in groups(model, given, query_heads=seed % 2 == 1):
        count = len(group.units)
        wanted = int(torch.randint(0, count + 1, (), generator=generator)) if share is None else int(share * count)
        if group.kind == "layer":
            wanted = min(1, wanted) if layers else 0
        for number in torch.randperm(count, generator=generator)[:wanted].tolist():
            for piece in group.units[number].consumers:
                parameters[piece.name].data.index_fill_(piece.dim, piece.indices, 0)
    return model, given


def assert_same(a, b, dtype):
    assert a.shape == b.shape and a.dtype == b.dtype == dtype
    assert (a - b).abs().max() <= TOLERANCE[dtype] * a.abs().max()


DTYPES = [torch.float64, torch.float32]
QUICK = [(name, number % 2) for number, name in enumerate(MODELS)]  # of each model one seed; all of them with -m slow
CASES = [
    pytest.param(name, seed, DTYPES[seed % 2], marks=() if (name, seed) in QUICK else pytest.mark.slow)
    for name in MODELS
    for seed in range(10)
]


@pytest.mark.parametrize(("name", "seed", "dtype"), CASES)
def test_the_output_stays(name, seed, dtype):
    model, given = zeroed(name, seed, dtype, layers=seed % 3 == 1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    compact, report = compact_model(model, given)
    assert type(compact) is type(model) and compact is not model
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert_same(result(model, given), result(compact, given), dtype)
    sizes = (sum(p.numel() for p in model.parameters()), sum(p.numel() for p in compact.parameters()))
    assert report.parameters == sizes and sizes[1] <= sizes[0]
    for row in report.to_rows():
        assert 1 <= row["after"] <= row["before"]
        assert row["zero, but there"] == 0 or row["kind"] == "layer" or "self_attn" in row["where"] or row["after"] == 1


@pytest.mark.parametrize("name", ["llama", "classifier"])
def test_a_model_without_zeros_stays_as_it_is(name):
    model = made(name, 1)
    compact, report = compact_model(model, batch(model, 1))
    assert report.parameters[0] == report.parameters[1] and sizes_of(compact) is None
    assert compact.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in compact.state_dict().items())


@pytest.mark.filterwarnings("ignore::octavo.UnusedLayerWarning")
@pytest.mark.parametrize("name", spread(MODELS))
def test_what_is_written_is_read(name, tmp_path):
    """Float and packed, by us and by transformers; what was read is written again."""
    model, given = zeroed(name, 5, layers=True)
    compact, _ = compact_model(model, given)
    packed = octavo.pack_model(octavo.quantize_model(compact, "int8:channel", progress=False))
    octavo.save_model(compact, tmp_path / "float")
    octavo.save_model(packed, tmp_path / "packed")
    written = {"float": compact, "packed": packed}
    if name in TRANSFORMERS:
        compact.save_pretrained(tmp_path / "transformers")
        written["transformers"] = compact
    make = (lambda: MODELS[name](5)) if name == "perceptron" else None
    for how, saved in written.items():
        loaded = octavo.load_model(tmp_path / how, make)
        assert torch.equal(result(saved, given), result(loaded, given)), how
        assert sizes_of(loaded) == sizes_of(compact)
        octavo.save_model(loaded, tmp_path / "again")
        assert torch.equal(result(saved, given), result(octavo.load_model(tmp_path / "again", make), given)), how


@pytest.mark.parametrize("name", ["llama", "qwen", "vit"])
def test_sizes_that_a_configuration_can_say_are_read_by_transformers_alone(name, tmp_path):
    model, given = zeroed(name, 2, share=0.5)
    compact, report = compact_model(model, given)
    assert report.parameters[1] < report.parameters[0]
    if sizes_of(compact) is not None:  # a class of transformers that reads no size of a head from its configuration
        assert name == "qwen"
        return
    compact.save_pretrained(tmp_path)
    plain = type(compact).from_pretrained(tmp_path).eval()
    assert torch.equal(result(compact, given), result(plain, given))


def distilbert(seed):
    transformers = pytest.importorskip("transformers")
    DistilBertConfig, DistilBertModel = transformers.DistilBertConfig, transformers.DistilBertModel

    return DistilBertModel(DistilBertConfig(vocab_size=50, dim=32, n_layers=1, n_heads=4, hidden_dim=12))


def test_a_number_that_would_change_what_scores_are_divided_by_is_no_field_of_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "distilbert", distilbert)
    model, given = zeroed("distilbert", 2, share=0.5)
    compact, _ = compact_model(model, given)
    assert compact.config.n_heads == 4 and compact.config.hidden_dim == 6
    octavo.save_model(compact, tmp_path)
    assert torch.equal(result(compact, given), result(octavo.load_model(tmp_path), given))


def test_all_heads_of_a_layer():
    """One head stays, of zeros."""
    model = made("bert", 3)
    given = batch(model, 3)
    layer = model.bert.encoder.layer[0].attention
    layer.output.dense.weight.data.zero_()
    compact, report = compact_model(model, given)
    assert compact.bert.encoder.layer[0].attention.self.num_attention_heads == 1
    assert report.to_rows()[0] == {
        "kind": "head", "where": "bert.encoder.layer.0.attention", "before": model.config.num_attention_heads,
        "after": 1, "zero, but there": 1,
    }  # fmt: skip
    assert_same(result(model, given), result(compact, given), torch.float32)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "classifier", "perceptron"])
def test_what_zero_rows_make_goes_into_the_next_bias(name):
    model = made(name, 4, torch.float64)
    given = batch(model, 4)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group in groups(model, given, kinds=("neuron",) if name == "perceptron" else ("head", "neuron")):
        for piece in group.units[1].producers:
            if parameters[piece.name].ndim > 1:
                parameters[piece.name].data.index_fill_(piece.dim, piece.indices, 0)
    compact, report = compact_model(model, given)
    assert all(row["after"] == row["before"] - 1 for row in report.to_rows() if row["kind"] != "layer")
    assert_same(result(model, given), result(compact, given), torch.float64)
    other = batch(model, 11)
    assert_same(result(model, other), result(compact, other), torch.float64)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generation_stays(name):
    model, given = zeroed(name, 6, torch.float64)
    compact, _ = compact_model(model, given)
    source = {"input_ids": given["input_ids"][:1]}
    told = [one.generate(**source, max_new_tokens=6, do_sample=False) for one in (model, compact)]
    assert torch.equal(*told)


def test_generation_of_a_network_of_ours_stays():
    model, given = zeroed("seq2seq", 1, torch.float64)
    compact, _ = compact_model(model, given)
    memory = [one.encode(given["source_BS"]) for one in (model, compact)]
    states = [one.begin(held, 8) for one, held in zip((model, compact), memory, strict=True)]
    tokens = torch.tensor([1, 1])
    for _ in range(3):
        before, after = (one.step(tokens, state) for one, state in zip((model, compact), states, strict=True))
        assert_same(before, after, torch.float64)
        tokens = before.argmax(-1)


def test_what_is_masked_goes():
    model = made("bert", 5)
    given = batch(model, 5)
    masked = octavo.prune_model(model, 0.5, granularity="column", progress=False)
    compact, report = compact_model(masked, given)
    assert_same(result(masked, given), result(compact, given), torch.float32)
    neurons = [row for row in report.to_rows() if row["kind"] == "neuron"]
    assert all(row["after"] == row["before"] // 2 for row in neurons)
    assert any("masks" in key for key in masked.state_dict())
    assert not any("masks" in key for key in compact.state_dict())


def test_tied_weights_stay_tied():
    model, given = zeroed("gpt2", 2)
    compact, _ = compact_model(model, given)
    assert compact.lm_head.weight is compact.transformer.wte.weight


def test_twice_and_in_place():
    model, given = zeroed("t5", 2, torch.float64)
    compact, _ = compact_model(model, given)
    for group in groups(compact, given, kinds=("neuron",)):
        for piece in group.units[0].consumers:
            dict(compact.named_parameters())[piece.name].data.index_fill_(piece.dim, piece.indices, 0)
    before = result(compact, given)
    again, report = compact_model(compact, given, inplace=True)
    assert again is compact and report.parameters[1] < report.parameters[0]
    assert_same(before, result(again, given), torch.float64)


def test_training_goes_on():
    model, given = zeroed("bert", 7, share=0.5)
    compact, _ = compact_model(model.train(), given)
    assert compact.training and all(parameter.requires_grad for parameter in compact.parameters())
    compact(**given).logits.sum().backward()
    assert all(p.grad is None or p.grad.shape == p.shape for p in compact.parameters())


def test_a_pipeline_compacts_and_packs(tmp_path):
    model, given = zeroed("bert", 5)
    pipeline = octavo.graph.Pipeline(["compact", ("quantize", {"recipe": "int8:channel"}), "pack"])
    (tmp_path / "p.toml").write_text(pipeline.to_toml())
    done = octavo.graph.Pipeline.from_toml(tmp_path / "p.toml").run(model, inputs=given)
    assert sizes_of(done.model) is not None and dict(done.reports)["compact"].to_rows()
    octavo.save_model(done.model, tmp_path / "out")
    assert torch.equal(result(done.model, given), result(octavo.load_model(tmp_path / "out"), given))
    with pytest.raises(ModelError, match="order is structure"):
        octavo.graph.Pipeline([("quantize", {"recipe": "int8:channel"}), "compact"])


# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_class_that_cannot_run_with_other_sizes_is_refused():
    transformers = pytest.importorskip("transformers")
    Phi3Config, Phi3ForCausalLM = transformers.Phi3Config, transformers.Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=12, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = Phi3ForCausalLM(config).eval()
    model.model.layers[0].self_attn.o_proj.weight.data[:, :8] = 0
    with pytest.raises(ModelError, match=r"Phi3ForCausalLM .* fold its masks instead"):
        compact_model(model)


def test_layers_with_formats_and_what_is_no_model_are_refused():
    model = octavo.quantize_model(made("bert", 1), "int8", progress=False)
    with pytest.raises(ModelError, match=r"bert\.embeddings.*: a QuantEmbedding; a model is compacted before"):
        compact_model(model)
    with pytest.raises(DTypeError, match=r"accepted is a torch\.nn.Module"):
        compact_model("bert")


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ("big", "accepted are objects under"),
        ({"other": {}}, "accepted are objects under"),
        ({"weights": {"nothing": [1]}}, "no such weight"),
        ({"weights": {"pooler.weight": [64, 8]}}, "the shape .* at the most"),
        ({"weights": {"pooler.weight": [0, 8]}}, "the shape .* at the most"),
        ({"weights": {"pooler.weight": [True, 8]}}, "the shape .* at the most"),
        ({"numbers": {"encoder.0.attention": {"heads": 99}}}, "heads' is 99, which no model has"),
        ({"numbers": {"encoder.0.attention": {"training": 1}}}, "which no model has"),
        ({"numbers": {"encoder.0.attention": 3}}, "which no model has"),
        ({"heads": {"encoder.0.attention": [0]}}, "the heads of .* which no model has"),
    ],
)
def test_sizes_of_a_file_that_no_model_has_are_refused(sizes, told):
    with pytest.raises(ContainerError, match=f"config.json: {KEY}: .*{told}|config.json: {KEY} is .*{told}"):
        shrink(made("classifier", 1), copy.deepcopy(sizes), "config.json")


class Sized(nn.Module):
    """A model whose output depends on the number of its neurons."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) * (1.0 if self.first.out_features == 32 else 2.0)


def test_a_model_that_cannot_be_compacted_in_place_stays_as_it_was():
    torch.manual_seed(0)
    x = torch.randn(3, 16)
    model = octavo.prune_model(Sized(), 0.5, granularity="neuron", inputs=x, progress=False)
    before, wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model(x)
    with pytest.raises(ModelError, match="fold its masks instead"):
        octavo.prune.compact_model(model, x, inplace=True)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], was) for name, was in before.items())
    assert torch.equal(octavo.prune.fold_model(model)(x), wanted)
