"""Costs are what one counts by hand, and the same for a model that is built by a recipe and one that it only prices."""

import octavo
import octavo.lab.language.gpt  # it registers an op of its own
import pytest
import torch
from graph.zoo import BERT, classifier, hugging, ids, masked, tokens, vectors
from helpers.models import transformer
from helpers.quick import spread
from octavo import Format, FormatError, ModelError, Recipe
from octavo.graph import capture, operator_work
from octavo.graph.costs import NEED_OPERATORS
from torch import nn
from torch.nn import functional as F

FP32 = 32 * 32  # bit operations of a multiply-add of two float32


def total(model, inputs, recipe=None, **sizes):
    return capture(model.eval(), inputs).costs(recipe).at(**sizes)


class Wrapped(nn.Module):
    """A function with the modules that it uses."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.function(self, x)


def test_a_linear_layer():
    found = total(nn.Linear(16, 8), torch.randn(3, 16), batch=10)
    weights = 4 * (16 * 8 + 8)
    moved = 4 * 10 * (16 + 8)
    assert (found.macs, found.elementwise, found.flops) == (10 * 128, 0, 2 * 10 * 128)
    assert found.bitops == 10 * 128 * FP32
    assert (found.weight_bytes, found.traffic_bytes, found.peak_bytes) == (weights, weights + moved, weights + moved)


def test_a_recipe_prices_bits_and_bytes():
    found = total(nn.Linear(48, 8), torch.randn(3, 48), "int4:channel input=int8", batch=10)
    weights = Format("int4:channel").nbytes((8, 48)) + 4 * 8
    assert (found.macs, found.bitops) == (10 * 384, 10 * 384 * 4 * 8)
    assert (found.weight_bytes, found.traffic_bytes) == (weights, weights + 4 * 10 * (48 + 8))


@pytest.mark.parametrize("fused", [True, False])
def test_attention(fused):
    """Scores and values: batch x heads x queries x keys x width, twice."""

    def attend(m, x):
        q, k, v = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in (m.q, m.k, m.v))
        if fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
        return m.o(y.transpose(1, 2).flatten(2))

    model = Wrapped(attend, **{name: nn.Linear(32, 32) for name in "qkvo"})
    found = total(model, vectors(2, 7), batch=3, sequence=11)
    rows = 3 * 11
    assert found.macs == 4 * rows * 32 * 32 + 2 * 3 * 4 * 11 * 11 * 8
    assert found.elementwise == 3 * 4 * 11 * 11 * 6  # a scale and the five of a softmax
    assert found.bitops == found.macs * FP32


@pytest.mark.parametrize(
    ("layer", "macs"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), 6 * 16 * 16 * 4 * 9),
        (nn.Conv2d(4, 6, 3, stride=2), 6 * 7 * 7 * 4 * 9),
        (nn.Conv2d(4, 8, (1, 3), groups=4), 8 * 16 * 14 * 1 * 3),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), 4 * 16 * 16 * 6 * 4),
    ],
)
def test_convolutions(layer, macs):
    assert total(layer, torch.randn(2, 4, 16, 16), batch=5).macs == 5 * macs


def test_a_convolution_under_a_recipe():
    found = total(nn.Conv2d(4, 6, 3), torch.randn(2, 4, 16, 16), "mxint8 input=int8", batch=2)
    assert found.bitops == found.macs * 64
    assert found.weight_bytes == Format("mxint8").nbytes((6, 36)) + 24


def test_a_tied_weight_counts_once_and_multiplies_where_it_is_used():
    model = Wrapped(lambda m, x: m.head(m.embed(x)), embed=nn.Embedding(61, 32), head=nn.Linear(32, 61, bias=False))
    model.head.weight = model.embed.weight
    graph = capture(model, ids(2, 7))
    found = graph.costs().at(batch=3, sequence=5)
    assert (found.macs, found.weight_bytes) == (3 * 5 * 61 * 32, 61 * 32 * 4)
    lookup, product = 8 * 15 + 4 * 15 * 32, 4 * 15 * 32 + 4 * 15 * 61
    assert found.traffic_bytes == 61 * 32 * 4 + lookup + product
    packed = graph.costs("embed mxint8").at()
    assert packed.weight_bytes == Format("mxint8").nbytes((61, 32))
    assert packed.bitops == packed.macs * 8 * 32


def test_branches_live_until_they_meet():
    """x, both branches and their sum are alive at once; the sum writes its own storage."""
    model = Wrapped(lambda m, x: m.a(x) + m.b(x), a=nn.Linear(8, 64), b=nn.Linear(8, 64))
    found = total(model, torch.randn(2, 8), batch=5)
    weights = 2 * 4 * (8 * 64 + 64)
    assert found.peak_bytes == weights + 4 * 5 * (8 + 3 * 64)
    assert found.traffic_bytes == weights + 4 * 5 * (2 * (8 + 64) + 3 * 64)
    assert found.elementwise == 5 * 64


def test_a_chain_frees_what_it_has_read():
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    weights = 4 * (8 * 64 + 64 + 64 * 4 + 4)
    assert total(model, torch.randn(2, 8), batch=5).peak_bytes == weights + 4 * 5 * (8 + 64 + 64)
    model[1] = nn.ReLU(inplace=True)
    assert total(model, torch.randn(2, 8), batch=5).peak_bytes == weights + 4 * 5 * (8 + 64 + 4)


def test_what_a_module_is_called_with_lives_until_it_returns():
    inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model = Wrapped(lambda m, x: m.inner(m.a(x)), a=nn.Linear(8, 64), inner=inner)
    weights = sum(p.nbytes for p in model.parameters())
    assert total(model, torch.randn(2, 8), batch=5).peak_bytes == weights + 4 * 5 * (8 + 64 + 64 + 64)


def test_views_move_and_hold_nothing():
    plain = Wrapped(lambda m, x: m.a(x), a=nn.Linear(8, 64))
    viewed = Wrapped(lambda m, x: m.a(x.unsqueeze(1).transpose(1, 2).squeeze(2)), a=plain.a)
    x = torch.randn(2, 8)
    assert total(plain, x, batch=5) == total(viewed, x, batch=5)


def test_a_transformer_by_its_formula():
    found = total(BERT(), masked(2, 7), batch=3, sequence=11)
    rows, width, inner, layers = 3 * 11, 32, 48, 2
    assert found.macs == (
        layers * (rows * (4 * width**2 + 2 * width * inner) + 2 * 3 * 11 * 11 * width)
        + 3 * width**2 + 3 * width * 2
    )  # fmt: skip


@pytest.mark.parametrize(
    "recipe",
    spread(["mxint8", "int4:g32 input=mxint8", "type:Linear weight=int8:channel input=int8:channel; last:Linear keep"]),
)
def test_a_recipe_prices_what_it_builds(recipe):
    """Multiply-adds, bit operations and bytes: priced, simulated and packed are one."""
    model, given = classifier(), masked(2, 7)
    priced = capture(model, given).costs(recipe)
    simulated = octavo.quantize_model(model, recipe)
    packed = octavo.pack_model(simulated)
    built = [capture(each, given).costs() for each in (simulated, packed)]
    sizes = {"batch": 3, "sequence": 11}
    for costs in built:
        for name in ("macs", "bitops", "weight_bytes"):
            assert getattr(costs.at(**sizes), name) == getattr(priced.at(**sizes), name), name
        assert costs.bits_of_quantized == pytest.approx(priced.bits_of_quantized)
    told = Recipe.parse(recipe).explain(model).totals
    assert (priced.weight_bytes, priced.bits_of_all) == (told.bytes_after, told.bits_of_all)
    assert priced.bits_of_quantized == told.bits_of_quantized
    assert priced.recipe == str(Recipe.parse(recipe)) and capture(model, given).costs().bits_of_quantized is None


def test_symbolic_costs_are_those_of_other_inputs():
    model = classifier()
    small, large = capture(model, masked(2, 7)).costs(), capture(model, masked(5, 11)).costs()
    assert small.at(batch=5, sequence=11) == large.at() == large.at(batch=5)
    assert str(small.macs).count("batch") and small.at() != large.at()


def test_an_unknown_operator_is_told_by_name():
    model = Wrapped(lambda m, x: torch.fft.rfft(m.a(x).sort(-1).values).abs(), a=nn.Linear(8, 8))
    graph = capture(model, torch.randn(2, 8))
    costs = graph.costs()
    assert set(costs.unknown) == {"aten.sort", "aten.fft_rfft"} and costs.at(batch=2).macs == 128
    assert [row.op for row in costs.rows if not row.known] == ["aten.sort", "aten.fft_rfft"]
    assert {view["macs"] for view in graph.hardware.values()} >= {None}


@pytest.mark.parametrize("rounding", ["input=int8:g32", "input=mxfp4", "input=int8", "input=fixed8", ""])
@pytest.mark.parametrize("weight", ["int8:channel", "int4:g32", "fp16"])
def test_every_kernel_of_a_packed_layer_has_its_products(weight, rounding):
    """Whichever op multiplies inputs of a format, it is as many multiply-adds of as many bits as the recipe says."""
    layers, given = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)).eval(), torch.randn(2, 64)
    recipe = f"weight={weight} {rounding}"
    priced = capture(layers, given).costs(recipe).at(batch=3)
    costs = capture(octavo.pack_model(octavo.quantize_model(layers, recipe)), given).costs()
    assert not costs.unknown
    packed = costs.at(batch=3)
    assert packed.macs == 3 * (64 * 32 + 32 * 8)
    assert (packed.macs, packed.bitops, packed.weight_bytes) == (priced.macs, priced.bitops, priced.weight_bytes)


def test_tables_of_rotary_angles_cost_what_their_operators_do():
    """Code that is compiled for a GPU has them in one op; elsewhere they are three operators."""
    frequencies, positions = torch.rand(8), torch.arange(16)

    def by_operators(model, x):
        angles = x.float()[:, None] * frequencies
        return angles.cos(), angles.sin()

    one = total(Wrapped(lambda model, x: torch.ops.octavo_lab.rotary_table(x, frequencies)), positions)
    assert one.elementwise == total(Wrapped(by_operators), positions).elementwise == 3 * 16 * 8


def test_every_op_of_a_forward_pass_is_known():
    """Ops that write into memory of their caller, and those of backward passes, are not in the graphs of models."""
    registered = {
        name.split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(("octavo::", "octavo_lab::"))
    }
    forward = {name for name in registered if not name.endswith(("_out", "_backward"))}
    assert {"octavo::rounded_linear", "octavo::quantize"} <= forward
    assert {name.replace("::", ".") for name in forward} <= operator_work._RULES.keys()


def test_costs_that_need_operators_are_missing_where_export_refuses():
    model = Wrapped(lambda m, x: m.a(x) if x.sum() > 0 else x, a=nn.Linear(8, 8))
    costs = capture(model, torch.randn(2, 8)).costs("mxint8")
    assert costs.missing == NEED_OPERATORS
    totals = costs.at()
    assert all(getattr(totals, name) is None for name in NEED_OPERATORS) and totals.flops is None
    assert totals.weight_bytes == Format("mxint8").nbytes((8, 8)) + 32


def test_modules_add_up_to_the_model():
    graph = capture(classifier(), masked(2, 7))
    costs = graph.costs("mxint8")
    rows = costs.by_module(graph).values()
    for name in ("macs", "bitops", "traffic_bytes"):
        assert sum(getattr(row, name) for row in rows) == getattr(costs, name)


def test_wrong_sizes_and_rules_are_refused():
    graph = capture(classifier(), tokens(2, 7))
    with pytest.raises(ModelError, match="'tokens' is no size of this graph; its sizes are batch, sequence"):
        graph.costs().at(tokens=3)
    with pytest.raises(FormatError, match="matches no layer"):
        graph.costs("nothing.** mxint8")


@pytest.mark.parametrize("size", [-1, 1.5, "3", None, True])
def test_a_size_is_a_whole_number(size):
    with pytest.raises(ModelError, match="give a whole number from 0 up"):
        capture(nn.Linear(4, 4), torch.randn(2, 4)).costs().at(batch=size)
    assert capture(nn.Linear(4, 4), torch.randn(2, 4)).costs().at(batch=0).macs == 0


def test_a_size_that_depends_on_values_can_be_given():
    """As many rows as are selected: no input has that size."""
    model = Wrapped(lambda m, x: m.b(m.a(x)[x[:, 0] > 0]), a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    costs = capture(model, torch.randn(5, 4)).costs()
    (name,) = set(costs.symbols) - set(costs.sizes)
    with pytest.raises(ModelError, match=f"the size '{name}' is not given"):
        costs.at(batch=5)
    assert costs.at(batch=5, **{name: 3}).macs == 5 * 16 + 3 * 8


def test_higher_order_operators_are_unknown():
    def branch(m, x):
        return torch.cond(x.sum() > 0, lambda x: x @ x.T, lambda x: x.T @ x, (x,))

    assert capture(Wrapped(branch), {"x": torch.randn(4, 4)}).costs().unknown == {"higher_order.cond": 1}


@pytest.mark.parametrize(("layers", "both", "proj"), spread([(2, True, 3), (2, True, 0), (1, False, 3), (1, False, 0)]))
def test_recurrent_layers(layers, both, proj):
    """Each direction of a layer: gates x hidden x (what it is given + what it keeps), and the projection."""
    model = nn.LSTM(6, 8, layers, bidirectional=both, proj_size=proj, batch_first=True)
    found = total(model, torch.randn(2, 5, 6))
    directions, kept = 1 + both, proj or 8
    given = [6] + [kept * directions] * (layers - 1)
    macs = sum(directions * (4 * 8 * (size + kept) + proj * 8) for size in given)
    assert (found.macs, found.elementwise) == (2 * 5 * macs, 2 * 5 * layers * directions * 8 * 21)
    gru = total(nn.GRU(6, 8, layers, bidirectional=both, batch_first=True), torch.randn(2, 5, 6))
    assert gru.elementwise == 2 * 5 * layers * directions * 8 * 17


def measured_peak(model, inputs):
    """The most bytes that torch's CPU allocator had given out at once during a call, and the weights."""
    with torch.no_grad():
        model(**inputs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
            output = model(**inputs)
    del output
    live = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    held = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    return held + peak + sum(x.nbytes for x in inputs.values())


WIDE = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}


@pytest.mark.parametrize("name", ["bert", "vit", "nn.TransformerEncoder", "mlp"])
def test_peak_memory_is_that_of_the_allocator(name):
    """Within a tenth, where operators need no memory of their own: oneDNN's convolutions, for one, do."""
    torch.manual_seed(0)
    model, given = {
        "bert": lambda: (hugging("BertModel", "BertConfig", **WIDE)(), masked(8, 64)),
        "vit": lambda: (
            hugging("ViTModel", "ViTConfig", **{**WIDE, "image_size": 32, "patch_size": 4})(),
            {"pixel_values": torch.randn(8, 3, 32, 32)},
        ),
        "nn.TransformerEncoder": lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 2).eval(),
            {"src": torch.randn(8, 64, 64)},
        ),
        "mlp": lambda: (
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).eval(),
            {"input": torch.randn(512, 64)},
        ),
    }[name]()
    shown = capture(model, given).costs().at().peak_bytes
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a layer, which torch.export does not see
    try:
        measured = measured_peak(model, given)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    assert shown == pytest.approx(measured, rel=0.1), shown / measured


class Recurrent(nn.Module):
    """Modules whose weights are no layers until a rule gives one a format."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(50, 32), nn.LSTM(32, 32, batch_first=True)
        self.attention, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 50)

    def forward(self, ids):
        y, _ = self.cell(self.table(ids))
        return self.head(self.attention(y, y, y)[0])


@pytest.mark.parametrize("kind", ["recurrent", "experts", "experts of two formats"])
def test_parameters_that_become_layers_are_priced_as_they_are_packed(kind):
    torch.manual_seed(0)
    token_ids = torch.randint(2, 50, (1, 5))
    model = Recurrent().eval() if kind == "recurrent" else transformer(
        "GptOssForCausalLM", width=64, inner=96, heads=4, layers=1, num_local_experts=4, num_experts_per_tok=2,
        num_key_value_heads=2, head_dim=16, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    recipe = "int4:g32; **.experts.2.down_proj int8:g32; **.experts.3.* keep" if "two" in kind else "int4:g32"
    small = octavo.pack_model(octavo.quantize_model(model, recipe, progress=False))
    stored = octavo.explain(small).stored - sum(  # buffers are no weights
        other.stored for other in octavo.explain(small).others if other.name in dict(small.named_buffers())
    )
    assert capture(model, token_ids).costs(recipe).weight_bytes == stored
