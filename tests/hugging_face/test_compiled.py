"""Models of transformers in formats are one graph for ``torch.compile`` and ``torch.export``, with the outputs of eager."""

import pytest
import torch
from helpers.architectures import FAMILIES, outputs
from helpers.models import packed
from helpers.seven_models import ENCODERS, SEVEN, STATES, in_formats

pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")

FUSED_TOLERANCE = 1e-6
"""Inductor fuses float arithmetic between the layers, whose last bits then differ; logits are below 1."""
QUICK = {("llama", "packed"), ("mixtral", "packed")}


def cases(quick):
    marked = pytest.mark.slow
    return [
        pytest.param(name, state, marks=() if (name, state) in quick else marked) for name in SEVEN for state in STATES
    ]


@pytest.mark.parametrize(("name", "state"), cases(QUICK))
def test_a_compiled_model_is_one_graph_with_the_bits_of_eager(name, state):
    model, inputs = in_formats(name, state), SEVEN[name][1]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
        assert torch.equal(compiled.logits, model(**inputs).logits)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["simulated", "packed"])
@pytest.mark.parametrize("name", SEVEN)
def test_the_compiler_of_torch_takes_the_graph(name, state):
    model, inputs = in_formats(name, state), SEVEN[name][1]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)(**inputs)
        assert torch.allclose(compiled.logits, model(**inputs).logits, atol=FUSED_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SEVEN if name != "vit"])
def test_a_compiled_training_step_has_the_gradients_of_eager(name):
    results = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = in_formats(name, "simulated").train()
        if name == "gpt2":  # transformers warns once that it guesses the loss, which the compiler does not take
            model.loss_type = "ForCausalLM"
        for module in model.modules():  # no two runs draw the same
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        inputs = {**SEVEN[name][1], "labels": SEVEN["bert"][1]["input_ids"]}
        inputs.pop("decoder_input_ids", None)
        call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
        loss = call(**inputs).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) > 5
    assert all(torch.allclose(a, b, atol=FUSED_TOLERANCE) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("name", "state"), cases({(name, "packed") for name in ("bert", "mixtral")}))
def test_an_exported_program_has_the_bits_of_eager(name, state, tmp_path):
    model, inputs = in_formats(name, state), dict(SEVEN[name][1])
    if name not in ENCODERS:
        inputs["use_cache"] = False  # torch.export returns no cache of transformers, of a float model neither
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, strict=False)
        torch.export.save(program, tmp_path / "program.pt2")
        read = torch.export.load(tmp_path / "program.pt2").module()
        assert torch.equal(read(**inputs).logits, model(**inputs).logits)


def test_every_choice_of_experts_runs_in_the_graph_of_the_first(monkeypatch):
    """Experts that the first texts do not reach are in the graph, too."""
    model, counted = in_formats("mixtral", "packed"), torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counted)
    with torch.no_grad():
        for seed in range(4):
            ids = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(seed))
            ids[1] = ids[0, 0]
            assert torch.equal(compiled(input_ids=ids).logits, model(input_ids=ids).logits)
    assert counted.frame_count == 1


ARCHITECTURES = {
    name: entry
    for family, entries in FAMILIES.items()
    if family != "modules of torch"
    for name, entry in entries.items()
}
BROKEN_IN_FLOAT = {"CTRL", "Encodec", "LED", "LongT5", "Longformer", "Mimi", "NllbMoe", "SwitchTransformers", "ViLT"}
"""Their code decides by values of tensors, or has what the compiler does not take, without our layers too."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in BROKEN_IN_FLOAT])
def test_every_packed_architecture_that_is_one_graph_in_float_is_one(name):
    make, inputs = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = packed(make().eval(), "mxint8")
    torch._dynamo.reset()
    with torch.no_grad():
        results = [outputs(call, inputs) for call in (model, torch.compile(model, fullgraph=True, backend="eager"))]
    assert results[0] and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*results, strict=True))
