"""A pipeline is a value: written, read and replayed to the same bytes; a wrong order is refused before work starts."""

import copy
import dataclasses

import octavo
import pytest
import torch
from graph.zoo import classifier, masked, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo import DTypeError, ModelError
from octavo.graph import Pass, Pipeline, TransformReport, find_pass, pass_names, register_pass
from octavo.graph.model_passes import _registered
from torch import nn

COMPRESS = [
    "sparsity",
    ("quantize", {"recipe": "int4:g32; type:Linear input=int8@mse"}),
    "pack",
    ("lora", {"rank": 2, "targets": ["first:Linear"], "seed": 3}),
    "sparsity",
]


def batches():
    return [masked(2, 7), masked(3, 5)]


def parts(model, path):
    """Every byte that a model folder holds of it."""
    octavo.save_model(model, path)
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_a_pipeline_replays_to_the_same_bytes(tmp_path, capfd):
    """Given as objects, TOML or JSON, and replayed from its result; what is given is not changed; nothing is said."""
    model, given = classifier(), copy.deepcopy(COMPRESS)
    pipeline = Pipeline(given)
    before = copy.deepcopy(model.state_dict())
    first = pipeline.run(model, calibration=batches())
    assert given == COMPRESS
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    (tmp_path / "p.toml").write_text(pipeline.to_toml())
    (tmp_path / "p.json").write_text(pipeline.to_json())
    written = [Pipeline.of(tmp_path / "p.toml"), Pipeline.of(tmp_path / "p.json"), first.pipeline, Pipeline(pipeline)]
    assert all(each == pipeline and hash(each) == hash(pipeline) for each in written)
    states = [first.model.state_dict()]
    for each in written:
        states.append(each.run(model, calibration=iter(batches())).model.state_dict())
    for state in states:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(states[0][name], tensor) for name, tensor in state.items())
    assert capfd.readouterr() == ("", "")
    assert [name for name, _ in first.reports] == ["sparsity", "quantize", "pack", "lora", "sparsity"]
    assert first.as_dict()["reports"][3]["report"][0]["rank"] == 2
    short = Pipeline(COMPRESS[1:3])
    assert parts(short.run(model, calibration=batches()).model, tmp_path / "a") == parts(
        short.run(model, calibration=batches()).model, tmp_path / "b"
    )


def test_an_empty_pipeline_changes_no_bit():
    model = classifier()
    made = Pipeline().run(model).model
    assert made is not model and Pipeline().run(model, inplace=True).model is model
    assert torch.equal(made(**masked(2, 7)), model(**masked(2, 7)))
    assert Pipeline.from_toml(Pipeline().to_toml()) == Pipeline.from_json(Pipeline().to_json()) == Pipeline()


def test_a_pass_alone_is_a_pipeline_of_one():
    model = classifier()
    packed, report = find_pass("quantize")(model, recipe="mxint8")
    assert not any(isinstance(m, octavo.nn.QuantLinear) for m in model.modules())
    assert torch.equal(packed(**tokens(2, 7)), octavo.quantize_model(model, "mxint8")(**tokens(2, 7)))
    assert "QuantLinear" in str(report) and report.to_rows()[0]["weight"] == "mxint8"
    assert find_pass("quantize")(model, recipe="mxint8", inplace=True)[0] is model
    assert find_pass("sparsity")(model).to_rows()[-1]["weight"] == "all"


def test_adapters_are_moved_into_packed_weights():
    made = Pipeline([("quantize", {"recipe": "int8:g32"}), "pack", ("lora", {"rank": 2})]).run(classifier())
    fused, report = find_pass("fuse_lora")(made.model)
    assert not [path for path, _ in fused.named_modules() if "lora" in path] and report.rows


WRONG = [
    (["pack", ("quantize", {"recipe": "int8"})], "pass 2, quantize .* follows pack .*; move quantize before pack"),
    ([("lora", {"rank": 1}), ("quantize", {"recipe": "int8"})], "follows lora"),
    (["quantise"], "no pass is called 'quantise'; did you mean 'quantize'?"),
    (["quantize"], "quantize: recipe is not given"),
    ([("quantize", {"recipe": "int8", "sample": 3})], "unknown key 'sample'; did you mean 'samples'?"),
    ([("quantize", {"recipe": "int9x"})], "quantize: .*int9x"),
    ([("quantize", {"recipe": "int8", "samples": 0})], "quantize: samples is 0"),
    ([("lora", {"rank": 0})], "lora: rank is 0"),
    ([("lora", {"rank": 1, "seed": -1})], "lora: seed is -1"),
    ([("tensor_statistics", {"quantiles": [2]})], "quantiles: 2 is no share"),
    ([3], "a step of a pipeline is 3"),
    ("quantize", "a pipeline is a list of passes"),
]


@pytest.mark.parametrize(("steps", "told"), WRONG)
def test_a_wrong_pipeline_is_refused_before_there_is_a_model(steps, told):
    with pytest.raises(octavo.OctavoError, match=told):
        Pipeline(steps)


def test_a_wrong_file_is_refused():
    with pytest.raises(ModelError, match="pipeline: not TOML"):
        Pipeline.from_toml("passes = [")
    with pytest.raises(ModelError, match="'passes'"):
        Pipeline.from_toml("[[rules]]\nweight = 'int8'")
    with pytest.raises(ModelError, match="pipeline"):
        Pipeline.from_json("[]")


def test_a_model_that_is_too_far_is_refused_before_work_starts():
    model = octavo.pack_model(octavo.quantize_model(classifier(), "int8"))
    before = dict(model.named_modules())
    with pytest.raises(ModelError, match="has packed layers, and a pass of the stage quantization comes before pack"):
        Pipeline(["sparsity", ("quantize", {"recipe": "int8"})]).run(model, inplace=True)
    assert dict(model.named_modules()) == before
    with pytest.raises(DTypeError, match=r"accepted is a torch\.nn\.Module"):
        Pipeline(["sparsity"]).run(3)
    with pytest.raises(ModelError, match=r"costs: it follows the model's operators.*give inputs"):
        Pipeline(["costs"]).run(classifier())


@dataclasses.dataclass(frozen=True)
class Scale:
    """A configuration with every kind of plain value."""

    by: float = 1.0
    names: tuple[str, ...] = ()
    nested: dict = dataclasses.field(default_factory=dict)
    note: str | None = None


@pytest.fixture
def scale():
    def run(model, config, pass_inputs):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(config.by)
        return model, TransformReport(("by",), ((config.by,),), settled=dataclasses.replace(config, note="done"))

    yield register_pass(Pass("scale", "structure", Scale, run))
    del _registered["scale"]


def test_a_pass_of_ones_own(scale):
    assert "scale" in pass_names() and find_pass("scale") is scale
    made = Pipeline([("scale", {"by": 2.0})]).run(nn.Linear(2, 2))
    assert made.pipeline.steps[0].config == Scale(2.0, note="done")
    with pytest.raises(ModelError, match="there is a pass 'quantize' already"):
        register_pass(dataclasses.replace(scale, name="quantize"))
    with pytest.raises(ModelError, match="unknown stage 'pruning'"):
        dataclasses.replace(scale, stage="pruning")


PLAIN = st.recursive(
    st.text(max_size=8) | st.integers(-(10**12), 10**12) | st.booleans() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def test_any_configuration_is_written_and_read(scale):
    @settings(max_examples=60, deadline=None)
    @given(st.floats(allow_nan=False), st.lists(st.text(max_size=5)), st.dictionaries(st.text(max_size=5), PLAIN))
    def law(by, names, nested):
        pipeline = Pipeline([("scale", {"by": by, "names": names, "nested": nested})])
        assert Pipeline.from_toml(pipeline.to_toml()) == pipeline
        assert pipeline.steps[0].config.names == tuple(names)

    law()


def test_analyses_are_passes():
    names = ["operator_counts", "module_counts", "block_counts", "dead_branches", "costs", "sparsity",
             "tensor_statistics"]  # fmt: skip
    made = Pipeline(names).run(model := classifier(), inputs=tokens(2, 7), calibration=[tokens(2, 7)])
    assert [name for name, _ in made.reports] == names and made.to_json()
    assert all(report.to_table().columns for _, report in made.reports)
    assert all(torch.equal(a, b) for a, b in zip(made.model.parameters(), model.parameters(), strict=True))
