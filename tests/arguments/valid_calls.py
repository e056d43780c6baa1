"""A valid call of every public function and method: the function, and all of its arguments by name.

``CALLS``: by name; each is called with a folder of its own, in which ``full`` is a folder with a file and ``junk`` a file
that is nothing. ``RECORDS``: classes that Octavo alone makes, to hold results. ``SLOW``: calls of more than about 5
milliseconds, which get fewer values in a fast run.
"""

import json
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import octavo
import torch
from arguments import models as m
from octavo import graph, lora, prune, quant, report, search, train
from octavo.display.progress import Stages
from octavo.lab import architectures
from octavo.lab.architectures import Axis, Constraint, Objective, Sampler, Space, Stopping
from octavo.lab.classifiers import ClassifierConfig
from octavo.lab.language.gpt import GPT, GPTConfig, MaskedDiffusion
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.recipe import Selector, parse_selector
from octavo.search import Pair
from octavo.search.journal import Journal
from octavo.train import ParameterGroup, Stage, TrainConfig
from report.samples import compression
from torch import nn
from train.tiny import Model, Rule

CALLS, SLOW = {}, {"explain", "save", "architectures.Sampler.made"}


def valid(name, *, slow=False):
    """Enter a function that returns a public function and its arguments."""

    def enter(make):
        assert name not in CALLS, name
        CALLS[name] = make
        if slow:
            SLOW.add(name)
        return make

    return enter


def simple(name, call, /, slow=False, **arguments):
    """Enter a function whose arguments are values that no call changes."""
    valid(name, slow=slow)(lambda at: (call, dict(arguments)))


# --- octavo: tensors and files ---------------------------------------------------------------------------------------------

PACKED = octavo.encode(m.x(), "int8")
SPARSE = octavo.encode(m.x() * (m.x() > 0), "int4:g16").to_sparse()
PARTS = {"scales": PACKED.scales, "zeros": PACKED.zeros, "levels": PACKED.levels, "shape": (4, 16), "dtype": torch.float32, "axis": -1, "scale": "floor"}  # fmt: skip

simple("Format", octavo.Format, text="int8")
simple("Format.parse", octavo.Format.parse, text="int8")
simple("Format.bits_per_element", octavo.Format("mxint8").bits_per_element, k=32)
simple("Format.nbytes", octavo.Format("mxint8").nbytes, shape=(4, 32), axis=-1)
simple("PackedTensor", octavo.PackedTensor, format=PACKED.format, codes=PACKED.codes, **PARTS)
simple("PackedTensor.of_sparse", octavo.PackedTensor.of_sparse, format=SPARSE.format, sparse=SPARSE.sparse, scales=SPARSE.scales, zeros=SPARSE.zeros, levels=SPARSE.levels, shape=(4, 16), dtype=torch.float32, axis=-1, scale="floor")  # fmt: skip
simple("PackedTensor.size", PACKED.size, dim=0)
simple("PackedTensor.to_sparse", PACKED.to_sparse, if_smaller=True)
simple("PackedTensor.decode", PACKED.decode, dtype=torch.float32)
simple("PackedTensor.to", PACKED.to, dtype=torch.float16, device="cpu")
simple("decode", octavo.decode, packed=PACKED, dtype=torch.float32, out=None)
simple("encode", octavo.encode, x=m.x(), format="mxint8", axis=-1, scale="floor", nonfinite="error", scales=None, zeros=None, levels=None, out=None)  # fmt: skip
simple("quantize", octavo.quantize, x=m.x(), format="mxint8", axis=-1, scale="floor", scales=None, zeros=None, levels=None, ste="clipped", out=None)  # fmt: skip


@valid("inspect")
def _(at):
    octavo.save({"a": m.x()}, at / "t.safetensors")
    return octavo.inspect, {"path": at / "t.safetensors"}


@valid("load")
def _(at):
    octavo.save({"a": m.x()}, at / "t.safetensors")
    return octavo.load, {"path": at / "t.safetensors", "mmap": False, "names": ["a"]}


@valid("save")
def _(at):
    return octavo.save, {
        "tensors": {"a": m.x()}, "path": at / "t.safetensors", "metadata": {"a": "b"}, "overwrite": True,
        "progress": lambda name, nbytes: None,
    }  # fmt: skip


@valid("strict")
def _(at):
    def call(enabled):
        with octavo.strict(enabled):
            pass

    return call, {"enabled": True}


# --- octavo: models --------------------------------------------------------------------------------------------------------


@valid("compress_model", slow=True)
def _(at):
    return octavo.compress_model, {
        "model": m.net(), "budget": 20.0, "data": m.batches(), "evaluate": lambda model: -float(model(m.x()).detach().square().mean()),
        "test": None, "nbytes": None, "max_loss": None, "latency": None, "latency_batch": 1, "formats": ("int8", "int4"), "recipe": None,
        "fast": True, "sensitivity": "auto", "share": (), "exclude": (), "tokenizer": None, "samples": 4, "train": False,
        "train_steps": None, "workers": 1,
        "peers": (), "journal": at / "journal", "untie": False, "progress": False,
    }  # fmt: skip


@valid("evaluate", slow=True)
def _(at):
    return octavo.evaluate, {
        "model": m.text(), "data": m.ids().tolist(), "tokenizer": None, "against": None, "context": 8, "stride": 8, "tokens": 30,
        "max_tokens": 16, "samples": None, "leaks": "refuse", "guard_calls": None, "progress": lambda done, total: None,
    }  # fmt: skip


@valid("evaluate of agreement", slow=True)
def _(at):
    return octavo.evaluate, {
        "model": m.text(), "data": [m.ids()[None]], "tokenizer": None, "against": m.text(), "context": None, "stride": None,
        "tokens": None, "max_tokens": 16, "samples": 2, "leaks": "refuse", "guard_calls": None, "progress": lambda done, total: None,
    }  # fmt: skip


@valid("evaluate of accuracy", slow=True)
def _(at):
    model = nn.Sequential(nn.Embedding(200, 8), nn.Flatten(0, 1), nn.AdaptiveAvgPool1d(3)).eval()
    tokens = lambda texts, **_: {"input": torch.tensor([[ord(one[0]) % 200] for one in texts])}  # noqa: E731
    return octavo.evaluate, {
        "model": model, "data": [("a", 0), ("b", 1)], "tokenizer": tokens, "against": None, "context": None, "stride": None,
        "tokens": None, "max_tokens": 16, "samples": None, "leaks": "refuse", "guard_calls": None, "progress": lambda done, total: None,
    }  # fmt: skip


@valid("explain")
def _(at):
    return octavo.explain, {"model": m.packed(), "batch": 1}


@valid("load_model", slow=True)
def _(at):
    octavo.save_model(m.packed(), at / "model")
    return octavo.load_model, {"path": at / "model", "model": m.net(), "mmap": False}


@valid("save_model", slow=True)
def _(at):
    return octavo.save_model, {"model": m.packed(), "path": at / "model", "overwrite": False}


@valid("pack_model")
def _(at):
    return octavo.pack_model, {"model": m.quantized(), "sparse": False, "inplace": False}


@valid("prune_model", slow=True)
def _(at):
    return octavo.prune_model, {
        "model": m.net(), "sparsity": 0.5, "criterion": "magnitude", "granularity": "element", "scope": None, "schedule": None,
        "targets": None, "floor": 0.01, "seed": 0, "calibration": None, "samples": 4, "loss": None, "inputs": None,
        "inplace": False, "progress": False,
    }  # fmt: skip


@valid("prune_model by data", slow=True)
def _(at):
    return octavo.prune_model, {
        "model": m.net(), "sparsity": {"first": 0.5}, "criterion": "wanda", "granularity": "element", "scope": "local", "schedule": None,
        "targets": "first", "floor": 0.01, "seed": 0, "calibration": m.batches(), "samples": 4, "loss": None, "inputs": None,
        "inplace": False, "progress": False,
    }  # fmt: skip


@valid("quantize_model", slow=True)
def _(at):
    return octavo.quantize_model, {
        "model": m.net(), "recipe": "int8:channel input=int8@minmax", "calibration": m.batches(), "samples": 4, "tokenizer": None,
        "inplace": False, "untie": False, "progress": False,
    }  # fmt: skip


simple("Recipe", octavo.Recipe, rules=[octavo.Rule(weight="int8")])
simple("Recipe.of", octavo.Recipe.of, given="int8")
simple("Recipe.parse", octavo.Recipe.parse, text="int8")
simple("Recipe.from_dict", octavo.Recipe.from_dict, given={"rules": [{"weight": "int8"}]})
simple("Recipe.from_json", octavo.Recipe.from_json, text='{"rules": [{"weight": "int8"}]}')
simple("Recipe.from_toml", octavo.Recipe.from_toml, given='[[rules]]\nweight = "int8"')
simple("Recipe.plan", octavo.Recipe.parse("int8").plan, model=m.net())
simple("Recipe.explain", octavo.Recipe.parse("int8").explain, model=m.net())
simple("Recipe.assign", octavo.Recipe.parse("int8").assign, tensors={"a.weight": m.x()})
for selector, pattern in (("type", "Linear"), ("name", "first"), ("glob", "f*"), ("regex", "f.*")):
    given = dict.fromkeys(("type", "name", "glob", "regex")) | {selector: pattern, "pick": "first"}
    simple(f"Rule by {selector}", octavo.Rule, **given, weight="int8", input=None, output=None, bias=None, keep=False)
simple("Rule", octavo.Rule, type=None, name=None, glob=None, regex=None, pick=None, weight=None, input=None, output=None, bias=None, keep=True)  # fmt: skip
simple("recipe.Selector", Selector, kind="regex", pattern="a.*", pick="first")
simple("recipe.Selector.matches_type", Selector("type", "Linear").matches_type, classes=["Linear"])
simple("recipe.Selector.matches_path", Selector("glob", "a.*").matches_path, path="a.b")
simple("recipe.parse_selector", parse_selector, text="last:Linear")

# --- search ----------------------------------------------------------------------------------------------------------------

SPACE = Space((Axis("layers", (1, 2)), Axis("width", (1, 2))), dict)

simple("architectures.Axis", Axis, name="layers", choices=(1, 2), when=lambda point: True)
simple("architectures.Constraint", Constraint, says="there are layers", holds=lambda point: True)
simple("search.Front.at", m.front().at, nbytes=None, bits=32.0, loss=None, cost=None)
simple("search.Front.spread", m.front().spread, count=3, bits=(1.0, 32.0))
simple("search.Front.knee_points", m.front().knee_points, count=3)
simple("search.Front.to_table", m.front().to_table, count=3)
simple("search.Front.mix", m.front().mix, point=m.front()[0])
simple("search.Front.to_json", m.front().to_json, count=3)
simple("search.LatencyTable", search.LatencyTable, seconds=np.ones((2, 3)), rest=0.0, whole=1.0, samples=4)
simple("search.LatencyTable.predict", search.LatencyTable(np.ones((2, 3)), 0.0, 1.0, 4).predict, choice=m.front()[0].choice, sensitivity=m.sensitivity())  # fmt: skip
simple("architectures.Objective", Objective, metric="accuracy", goal="max")
simple("architectures.Objective.of", Objective.of, given="bytes min")
simple("architectures.Objective.better", Objective("a").better, value=1.0, other=0.0)
simple("search.Pair", Pair, groups=("first", "last"), formats=("int4", "int4"), loss=0.1)
simple("architectures.Sampler", Sampler, name="tpe", seed=0, options={"n_startup_trials": 3})
simple("architectures.Sampler.number", Sampler().number, ask=3)
simple("architectures.Sampler.made", Sampler().made, ask=3)
simple("architectures.Stopping", Stopping, rule="median", after=4, keep=2)
simple("search.Sensitivity", search.Sensitivity, **{name: getattr(m.sensitivity(), name) for name in m.sensitivity().__dataclass_fields__})  # fmt: skip
simple("search.Sensitivity.bits", m.sensitivity().bits, nbytes=100)
simple("search.Sensitivity.agreement", m.sensitivity().agreement, other=m.sensitivity())
simple("search.Sensitivity.from_json", search.Sensitivity.from_json, text=m.sensitivity().to_json())
simple("architectures.Space", Space, axes=SPACE.axes, realise=dict, constraints=(), name="space")
simple("architectures.Space.choose", SPACE.choose, pick=lambda axis: axis.choices[0])
simple("architectures.Space.allows", SPACE.allows, point={"layers": 1, "width": 1})
simple("architectures.Space.checked", SPACE.checked, point={"layers": 1, "width": 1})
simple("architectures.Space.draw", SPACE.draw, generator=random.Random(0))
simple("architectures.Space.unseen", SPACE.unseen, generator=random.Random(0), known=(), context={})
simple("architectures.Space.spec", SPACE.spec, point={"layers": 1, "width": 1})
simple("architectures.Space.identity", SPACE.identity, point={"layers": 1, "width": 1}, context={})
simple("architectures.Space.check_axes", SPACE.check_axes, allow_noop=("layers",))
simple("search.allocate", search.allocate, sensitivity=m.sensitivity(), cost="bytes", pins={"first": "int8"}, bounds=None)  # fmt: skip
simple("search.allocate within bounds", search.allocate, sensitivity=m.sensitivity(), cost=np.ones((2, 3)), pins=None, bounds={"bytes": 1e6})  # fmt: skip
simple("architectures.config_spec", architectures.config_spec, config_class=ClassifierConfig, vocabulary=50)
simple("search.interaction_terms", search.interaction_terms, sensitivity=m.sensitivity(), points=[m.front()[0]], together=lambda choice: 0.1)  # fmt: skip
simple("search.to_recipe", search.to_recipe, point=m.front()[0], sensitivity=m.sensitivity())
BUILD = architectures.Build({"layers": 1}, {"layers": 1}, "0" * 64, None, lambda step, value: False)
simple("architectures.Build.report", BUILD.report, step=1, value=0.5)
VERIFIED = search.verify([m.front()[0]], lambda point: point, lambda model: 0.5, progress=False)
simple("search.Verification.chosen", VERIFIED.chosen, max_loss=None, nbytes=None, bits=64.0)


@valid("search.measure_latency", slow=True)
def _(at):
    return search.measure_latency, {"model": m.net(), "batch": m.x(), "sensitivity": m.sensitivity(), "table": at / "journal", "progress": False}  # fmt: skip


@valid("search.measure_sensitivity", slow=True)
def _(at):
    return search.measure_sensitivity, {
        "model": m.net(), "batches": m.batches(), "formats": ["int4", "int8"], "roles": ("weight",), "share": (), "exclude": (),
        "method": "divergence", "output": None, "divergence": "mse", "samples": 4, "workers": 1, "subject": "", "journal": at / "journal", "progress": False,
    }  # fmt: skip


@valid("architectures.run_search", slow=True)
def _(at):
    return architectures.run_search, {
        "space": SPACE, "evaluate": lambda build: {"accuracy": 0.5}, "storage": at / "search", "name": "study", "objectives": "accuracy",
        "sampler": "random", "trials": 2, "builds": 2, "context": {}, "stopping": None, "allow_noop": (), "folder": at, "lease_s": 120.0,
        "tell": lambda text, share=None: None,
    }  # fmt: skip


@valid("search.tune", slow=True)
def _(at):
    return search.tune, {
        "model": m.net(), "point": m.front()[0], "sensitivity": m.sensitivity(), "batches": m.batches(), "methods": ("hqq",),
        "output": None, "divergence": "mse", "samples": 4, "parts": 2, "progress": False,
    }  # fmt: skip


@valid("search.verify", slow=True)
def _(at):
    return search.verify, {
        "points": [m.front()[0], m.front()[1]], "build": lambda point: point, "evaluate": lambda model: 0.5, "pairs": lambda: [],
        "journal": at / "journal", "subject": "a net", "progress": False,
    }  # fmt: skip


@valid("search.journal.Journal", slow=True)
def _(at):
    def call(folder):
        with Journal(folder):
            pass

    return call, {"folder": at / "journal"}


# --- graph -----------------------------------------------------------------------------------------------------------------

COSTS = m.graph().costs("int8")
TENSOR = next(iter(m.graph().tensors.values()))
PASS = graph.find_pass("remove_dropout")

simple("graph.Costs.by_module", COSTS.by_module, graph=m.graph())
for method in ("at", "as_dict", "to_json", "to_table"):
    simple(f"graph.Costs.{method}", getattr(COSTS, method), batch=8)
simple("graph.Graph.software", m.graph().software, model=m.net(), batches=m.batches(), slow=True)
simple("graph.Graph.costs", m.graph().costs, recipe="int8", slow=True)
simple("graph.Node.named", m.graph().nodes[0].named, argument="input")
simple("graph.Ref", graph.Ref, name="a")
simple("graph.TensorRecord.shape_at", TENSOR.shape_at, batch=8)
simple("graph.Pass", graph.Pass, name="mine", stage="structure", config=PASS.config, run=PASS.run, also_after=(), also_on=())  # fmt: skip
simple("graph.Pass.configured", graph.find_pass("quantize").configured, given=None, recipe="int8")
simple("graph.Pipeline", graph.Pipeline, steps=["remove_dropout", ("quantize", {"recipe": "int8"})])
simple("graph.Pipeline.of", graph.Pipeline.of, given=["remove_dropout"])
simple("graph.Pipeline.from_dict", graph.Pipeline.from_dict, given={"passes": [{"pass": "remove_dropout"}]})
simple("graph.Pipeline.from_json", graph.Pipeline.from_json, given='{"passes": [{"pass": "remove_dropout"}]}')
simple("graph.Pipeline.from_toml", graph.Pipeline.from_toml, given='[[passes]]\npass = "remove_dropout"')
simple("graph.Step", graph.Step, run=PASS, config=PASS.config())
simple("graph.Step.of", graph.Step.of, given={"pass": "quantize", "recipe": "int8"})
simple("graph.PassInputs", graph.PassInputs, inputs=None, calibration=None)
simple("graph.PassInputs.graph", graph.PassInputs(m.x()).graph, model=m.net(), name="mine", slow=True)
simple("graph.diff", graph.diff, a=m.graph(), b=m.graph())
simple("graph.extract", graph.extract, model=m.net(), path="first", inputs=m.x(), inplace=False)
simple("graph.fx_nodes", graph.fx_nodes, graph=m.graph(), model=m.net(), batches=m.batches(), slow=True)
simple("graph.FxNode", graph.FxNode, name="x", op="placeholder", target="x", inputs=(), operators=(), common={}, software={}, hardware={})  # fmt: skip
simple("graph.FxNode.as_dict", graph.fx_nodes(m.graph())[0].as_dict, batch=8)
simple("graph.find_pass", graph.find_pass, name="quantize")
simple("graph.fold_batchnorm", graph.fold_batchnorm, model=m.Conv().eval(), inputs=torch.ones(2, 4, 8), inplace=False, slow=True)  # fmt: skip
simple("graph.fuse_qkv", graph.fuse_qkv, model=m.Projections().eval(), inputs=m.x(), groups=None, inplace=False, slow=True)  # fmt: skip
simple("graph.module_inputs", graph.module_inputs, model=m.net(), path="first", inputs=m.x())
for name in ("block_counts", "dead_branches", "module_counts", "operator_counts"):
    simple(f"graph.{name}", getattr(graph, name), graph=m.graph())
simple("graph.remove_dropout", graph.remove_dropout, model=m.net(), inputs=None, inplace=False)
simple("graph.sparsity", graph.sparsity, model=m.net())
simple(
    "graph.tensor_statistics", graph.tensor_statistics, model=m.net(), batches=m.batches(), quantiles=(0.5,), slow=True
)
simple("graph.to_dot", graph.to_dot, graph=m.graph(), level="module")
simple("graph.to_html", graph.to_html, graph=m.graph(), recipe="int8", slow=True, batch=8)


@valid("graph.capture", slow=True)
def _(at):
    return graph.capture, {"model": m.net(), "inputs": {"x": m.x()}, "dimensions": {"x": ("batch", None)}}


@valid("graph.register_pass")
def _(at):
    from octavo.graph import model_passes

    def call(this):
        before = dict(model_passes._registered)
        try:
            graph.register_pass(this)
        finally:
            model_passes._registered.clear()
            model_passes._registered.update(before)

    return call, {"this": graph.Pass("mine", None, PASS.config, PASS.run)}


@valid("graph.Pipeline.run", slow=True)
def _(at):
    return graph.Pipeline(["remove_dropout", ("quantize", {"recipe": "int8 input=int8@minmax"})]).run, {
        "model": m.net(), "inputs": m.x(), "calibration": m.batches(), "inplace": False,
    }  # fmt: skip


# --- prune -----------------------------------------------------------------------------------------------------------------

simple("prune.Cubic", prune.Cubic, steps=10, every=2, start=1, initial=0.0)
simple("prune.Cubic.share", prune.Cubic(10).share, step=3, final=0.5)
simple("prune.Iterative", prune.Iterative, rounds=3, every=2, start=1)
simple("prune.Iterative.share", prune.Iterative(3, 2).share, step=3, final=0.5)
simple("prune.activation_report", prune.activation_report, model=m.cut(), batches=m.batches(), repeats=1, slow=True)
simple("prune.callback", prune.callback, model=prune.prune_model(m.net(), 0.5, schedule=prune.Cubic(10), progress=False))  # fmt: skip
simple("prune.compact_model", prune.compact_model, model=m.plain(), inputs=m.x(), inplace=False, slow=True)
simple("prune.groups", prune.groups, model=m.plain(), inputs=m.x(), kinds=("neuron",), query_heads=False, slow=True)
simple("prune.prune_activations", prune.prune_activations, model=m.net(), sparsity=0.5, method="calibrated", targets=None, calibration=m.batches(), samples=4, seed=1, inplace=False, progress=False, slow=True)  # fmt: skip
simple("prune.report", prune.report, model=m.masked())
simple("prune.structure", prune.structure, model=m.plain(), inputs=m.x(), query_heads=False, slow=True)


@valid("prune.Place.slice")
def _(at):
    return prune.Place("a", 0, torch.arange(6).view(3, 2)).slice, {"unit": 1}


@valid("prune.Slice.of")
def _(at):
    return prune.Slice("a", 0, torch.arange(2)).of, {"tensor": torch.ones(4)}


def pruning(method, **arguments):
    """Enter a method of the callback that prunes while a model trains."""

    def make(at):
        model = prune.prune_model(m.net(), 0.5, schedule=prune.Cubic(10), progress=False)
        held = prune.callback(model)
        units = {"units": held.units(model)} if method in ("begin", "prune") else {}
        return getattr(held, method), {"model": model, **units, **arguments}

    valid(f"prune.Pruning.{method}", slow=True)(make)


pruning("units")
pruning("begin")
pruning("gradients", step=0)
pruning("prune", show=Stages(False), step=0)


@valid("prune.fold_model")
def _(at):
    return prune.fold_model, {"model": m.masked(), "inplace": False}


@valid("prune.restore_activations")
def _(at):
    return prune.restore_activations, {"model": m.cut()}


# --- quant -----------------------------------------------------------------------------------------------------------------

WEIGHT, HESSIAN = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.eye(16)
SOLUTION = quant.hqq(WEIGHT, "int4:g16")

simple("quant.FormatSchedule", quant.FormatSchedule, formats={0: "int8", 5: "int4"}, roles=("weight",))
simple("quant.FormatSchedule.at", quant.FormatSchedule({0: "int8"}).at, step=3)
simple("quant.Solution.encode", SOLUTION.encode, format="int4:g16")
simple("quant.Solution.of", quant.Solution.of, packed=PACKED)
simple("quant.coverage", quant.coverage, model=m.quantized())
simple("quant.gptq", quant.gptq, weight=WEIGHT, hessian=HESSIAN, format="int4:g16", damp=0.01, block=8, order="natural", scale="floor")  # fmt: skip
simple("quant.hqq", quant.hqq, weight=WEIGHT, format="int4:g16", iterations=2, p=0.7)


@valid("quant.FormatSchedule.step")
def _(at):
    return quant.FormatSchedule({0: "int8"}).step, {"model": m.quantized()}


@valid("quant.correct_bias_model", slow=True)
def _(at):
    return quant.correct_bias_model, {"model": m.quantized(), "reference": m.net(), "calibration": m.batches(), "create": False, "samples": 4, "progress": False}  # fmt: skip


@valid("quant.freeze_scales", slow=True)
def _(at):
    return quant.freeze_scales, {"model": m.quantized()}


@valid("quant.prepare_model")
def _(at):
    return quant.prepare_model, {"model": m.net(), "recipe": "int8", "inplace": False}


@valid("quant.smooth_model", slow=True)
def _(at):
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)).eval()
    return quant.smooth_model, {"model": model, "calibration": m.batches(), "strength": 0.5, "samples": 4, "progress": False}  # fmt: skip


# --- lora ------------------------------------------------------------------------------------------------------------------

simple("lora.LoraConfig", lora.LoraConfig, rank=2, alpha=4.0, targets=("type:Linear",), dropout=0.0, train=(), rslora=False)  # fmt: skip
simple("lora.LoraConfig.of", lora.LoraConfig.of, config={"rank": 2}, alpha=2.0)
simple("lora.adapters", lora.adapters, model=m.adapted())
simple("lora.base_hash", lora.base_hash, model=m.net(), config=lora.LoraConfig(2))


@valid("lora.activate")
def _(at):
    return lora.activate, {"model": m.adapted(), "name": "default"}


@valid("lora.commit")
def _(at):
    model = m.adapted()
    lora.fuse(model)
    return lora.commit, {"model": model}


@valid("lora.fuse", slow=True)
def _(at):
    return lora.fuse, {"model": m.adapted(), "samples": m.x()}


@valid("lora.unfuse")
def _(at):
    model = m.adapted()
    lora.fuse(model)
    return lora.unfuse, {"model": model}


@valid("lora.insert", slow=True)
def _(at):
    return lora.insert, {"model": m.net(), "config": {"rank": 2}, "name": "default", "inplace": False, "generator": torch.Generator(), "alpha": 2.0}  # fmt: skip


@valid("lora.load_adapters", slow=True)
def _(at):
    lora.save_adapters(m.adapted(), at / "a.safetensors")
    return lora.load_adapters, {"model": m.net(), "path": at / "a.safetensors", "name": "mine", "inplace": False}


@valid("lora.save_adapters", slow=True)
def _(at):
    return lora.save_adapters, {"model": m.adapted(), "path": at / "a.safetensors", "name": "default", "overwrite": True}  # fmt: skip


# --- peft ------------------------------------------------------------------------------------------------------------------

if find_spec("peft"):
    import peft

    simple("peft.prepare", octavo.peft.prepare, config=peft.LoraConfig(r=2))
    simple("peft.target_modules", octavo.peft.target_modules, model=m.packed(), head=False, embeddings=False)

    @valid("peft.merge", slow=True)
    def _(at):
        model = m.packed()
        settings = octavo.peft.prepare(peft.LoraConfig(r=2, target_modules=octavo.peft.target_modules(model)))
        model = peft.get_peft_model(model, settings)
        return octavo.peft.merge, {"model": model, "recipe": "int8", "adapters": ["default"], "samples": m.x(), "calibration": [m.x()]}  # fmt: skip


# --- train, report ---------------------------------------------------------------------------------------------------------

CONFIG = TrainConfig(steps=1, batch_size=2, learning_rate=1e-3, device="cpu")
STAGED = TrainConfig(steps=2, batch_size=2, learning_rate=1e-3, stages=(Stage(steps=2, batch_size=2, context=8),))
GROUP = {name: getattr(ParameterGroup(names=("a",)), name) for name in ParameterGroup.__dataclass_fields__}

simple("train.Measurement", train.Measurement, **{name: getattr(m.measured(), name) for name in train.Measurement.__dataclass_fields__})  # fmt: skip
simple("train.Measurement.difference", m.measured().difference, before=m.measured())
simple("train.Measurement.restored", train.Measurement.restored, content=m.measured().stored())
simple("train.ParameterGroup", ParameterGroup, **GROUP)
simple("train.Stage", Stage, steps=2, batch_size=2, context=8, accumulation=1, window=4, rate=1.0, noise=1.0)
simple("train.TrainConfig", TrainConfig, **{name: getattr(CONFIG, name) for name in TrainConfig.__dataclass_fields__})
simple("train.TrainConfig.stage", STAGED.stage, step=1)
simple("train.TrainConfig.position", STAGED.position, step=1)
simple("train.TrainConfig.from_dict", TrainConfig.from_dict, given=STAGED.as_dict())
simple("train.ValLoss.minus", train.exact_nll(m.text(), m.ids(), context=8).minus, other=train.exact_nll(m.text(), m.ids(), context=8))  # fmt: skip
simple("train.adamw", train.adamw, model=m.net(), config=CONFIG)
simple("train.exact_nll", train.exact_nll, model=m.text(), stream=m.ids(), context=8, stride=8, tokens=30, nbytes=40, batch_size=8, leaks="refuse", guard_calls=None, progress=lambda done, total: None, slow=True)  # fmt: skip
simple("train.grouped", train.grouped, groups=[ParameterGroup(names=("a",))])
RESULT = train.TrainResult("interrupted", 1, 1, None, None, None, None, {}, Path("run"), 2)
simple("train.TrainResult.interruption", RESULT.interruption, told=True)
simple("train.seed_all", train.seed_all, seed=0, rank=0)
simple("train.strip_timings", train.strip_timings, lines=[{"step": 1, "seconds": 0.5}])
simple("report.check_report", report.check_report, report=compression(blocks=1), what="report", slow=True)


@valid("train.language_groups", slow=True)
def _(at):
    arguments = {"muon": 0.025, "embedding": 0.7, "head": 0.004, "scalars": 0.015, "weight_decay": 0.05, "betas": (0.8, 0.95), "row_rescale": 0.0, "cautious": False, "momentum_warmup": 300}  # fmt: skip
    return train.language_groups, {"model": language(), **arguments}


@valid("train.likelihood_bound", slow=True)
def _(at):
    return train.likelihood_bound, {
        "model": language(MaskedDiffusion()), "stream": m.ids(), "context": 8, "tokens": 30, "draws": 2, "seed": 0, "batch_size": 8,
        "progress": lambda done, total: None,
    }  # fmt: skip


@valid("train.train", slow=True)
def _(at):
    return train.train, {
        "model": Model(), "task": Rule(2, held_out=2), "config": CONFIG, "folder": at / "run", "resume": True, "progress": False,
        "tensorboard": False, "optimizer": train.adamw, "callbacks": (),
    }  # fmt: skip


@valid("train.read_metrics")
def _(at):
    (at / "run").mkdir()
    (at / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    return train.read_metrics, {"folder": at / "run"}


@valid("report.read_report", slow=True)
def _(at):
    (at / "report.json").write_text(json.dumps(compression(blocks=1)))
    return report.read_report, {"path": at / "report.json"}


@valid("report.write_report", slow=True)
def _(at):
    (at / "out").mkdir()
    return report.write_report, {"folder": at / "out", "report": compression(blocks=1)}


def language(objective=None):
    more = {} if objective is None else {"objective": objective}
    return GPT(GPTConfig(vocabulary=7, width=16, pattern="a", mixers={"a": Attention(heads=2)}, **more)).eval()


RECORDS = {
    "architectures.Build", "search.Front", "search.Group", "search.Point", "architectures.Search", "search.Tuned", "search.Verification",
    "search.Verified", "graph.Block", "graph.Change", "graph.Costs", "graph.Difference", "graph.Graph", "graph.ModuleNode",
    "graph.ModuleRecord", "graph.Node", "graph.NodeCost", "graph.PipelineResult", "graph.Report", "graph.TensorRecord", "graph.Totals",
    "graph.TransformReport", "prune.CompactReport", "prune.Group", "prune.Place", "prune.PruneReport", "prune.PrunedTensor", "prune.Pruning",
    "prune.Slice", "prune.Structure", "prune.Unit", "quant.BiasCorrections", "quant.Coverage", "quant.Smoothing", "quant.Solution",
    "lora.FuseReport", "lora.FusedLayer", "train.Bound", "train.TrainResult", "train.ValLoss",
}  # fmt: skip
