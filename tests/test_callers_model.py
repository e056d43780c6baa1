"""What measures a model, or returns another one, never writes the model that it was given: not afterwards, not meanwhile.

Every public function is in a table; a new one has to be added. Meanwhile: at every forward pass that a function makes,
of whatever copy, the caller's model is compared with how it was.
"""

import inspect
import random
import sys
import threading

import numpy as np
import octavo
import pytest
import torch
from octavo import graph, lora, prune, quant, search, train
from octavo.graph import Pipeline
from octavo.lab import architectures
from prune.prune_zoo import batch as zoo_batch
from prune.prune_zoo import made as zoo_model
from torch import nn
from torch.nn import functional

ROOMS = {"octavo": octavo, "search": search, "quant": quant, "graph": graph, "prune": prune, "lora": lora,
         "train": train, "lab.architectures": architectures}  # fmt: skip
WATCHED = []  # (the caller's model, how it was, passes that were seen): what passes compare with


class Moded(nn.Module):
    """Gives something else in training, and writes a buffer in every pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * 2 if self.training else x


class Toy(nn.Module):
    """Gives scores of the next of 24 tokens: a tied head, a convolution, statistics of batches, modes that differ."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(24, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.mix = nn.Conv1d(16, 16, 1)
        self.scale, self.norm, self.mode, self.drop = nn.BatchNorm1d(16), nn.LayerNorm(16), Moded(), nn.Dropout(0.1)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.down(functional.relu(self.up(self.norm(x))))
        return self.head(self.drop(self.mode(self.scale(self.mix(x.transpose(1, 2))).transpose(1, 2))))


def watch(module, args):
    """Compare the watched model with how it was: a hook of its own, which copies keep."""
    for model, before, seen in WATCHED:
        if not torch.compiler.is_compiling():
            seen.append(1)
            assert_untouched(model, before)


def snapshot(model):
    """Return everything that code beside this test could see of a model."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        held = vars(module)
        found[path] = (
            id(module), type(module), module.training, sorted(held),
            {name: list(map(id, hooks.values())) for name, hooks in held.items() if name.endswith("hooks")},
            [
                (name, id(tensor), tensor.data_ptr(), tensor.requires_grad, id(tensor.grad), bits(tensor),
                 None if tensor.grad is None else bits(tensor.grad))
                for registry in (module._parameters, module._buffers)
                for name, tensor in registry.items()
                if tensor is not None
            ],
        )  # fmt: skip
    return found


def bits(tensor):
    return tensor.detach().clone().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def assert_untouched(model, before):
    now = snapshot(model)
    assert now.keys() == before.keys()
    for path, held in before.items():
        assert now[path] == held, path or "the model"


def randomness():
    return random.getstate()[1], np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def toy():
    torch.manual_seed(0)
    model = Toy()
    model(ids()).sum().backward()
    for parameter in model.mix.parameters():
        parameter.requires_grad_(False)
    model.up.weight.grad = None
    model.down.eval()
    model.register_forward_pre_hook(watch)
    model.norm.register_forward_pre_hook(watch)
    return model


def zoo():
    model = zoo_model("classifier", 0)
    model.train()
    next(module for module in model.modules() if isinstance(module, nn.LayerNorm)).register_forward_pre_hook(watch)
    return model


def quantized():
    return octavo.quantize_model(toy(), RECIPE, calibration=data(), progress=False)


def cut():
    return prune.prune_activations(toy(), 0.5, calibration=data(), progress=False)


def ids(seed=0):
    return torch.randint(0, 24, (3, 8), generator=torch.Generator().manual_seed(seed))


def data():
    return [ids(seed) for seed in range(4)]


RECIPE = "type:Linear int4:g16@gptq input=int8@mse; type:Conv1d int8:channel; head keep"
FORMATS = ["int4:g16", "int8:channel"]


def sensitivity(model):
    return search.measure_sensitivity(model, data(), FORMATS, progress=False)


def next_token(model, batch):
    return functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def tuned(model):
    held = sensitivity(model)
    return search.tune(model, search.allocate(held).at(bits=12), held, data(), progress=False)


def latency(model):
    return search.measure_latency(model, ids(), sensitivity(model), progress=False)


def compressed(model, **options):
    return octavo.compress_model(model, 26.0, data=data(), formats=FORMATS, progress=False, **options)


def every_way(model, **options):
    """Measure sensitivities by both methods, of weights and inputs, with everything that needs statistics."""
    for method in search.measured_divergences.METHODS:
        search.measure_sensitivity(
            model, data(), ["int4:g16@gptq", "int8@mse"], roles=("weight", "input"), method=method, progress=False
        )


def pruned_by_all(model):
    for criterion in ("magnitude", "random", "wanda", "taylor"):
        prune.prune_model(model, 0.5, criterion=criterion, calibration=data(), loss=next_token, progress=False)
    prune.prune_model(model, 0.5, criterion="movement", schedule=prune.Cubic(steps=4), progress=False)


def pipeline(model):
    steps = ["remove_dropout", ("prune", {"sparsity": 0.5}), ("quantize", {"recipe": RECIPE}), "fold_masks", "pack"]
    return Pipeline(steps).run(model, inputs=(ids(),), calibration=data())


# A case: the caller's model, and what is done with it.
CASES = {
    "octavo.compress_model": [
        (toy, compressed),
        (toy, lambda model: compressed(model, evaluate=lambda other: -float(next_token(other.eval(), ids()).detach()))),
        (toy, lambda model: compressed(model, fast=True, train=next_token, train_steps=2)),
    ],
    "octavo.evaluate": [
        (toy, lambda model: octavo.evaluate(model, torch.cat([ids(seed).flatten() for seed in range(4)]), context=8)),
        (toy, lambda model: octavo.evaluate(model, data(), against=model)),
    ],
    "octavo.explain": [(quantized, octavo.explain)],
    "octavo.pack_model": [(quantized, octavo.pack_model)],
    "octavo.prune_model": [
        (toy, pruned_by_all),
        (zoo, lambda model: octavo.prune_model(model, 0.5, granularity="head", progress=False)),
    ],
    "octavo.quantize_model": [
        (toy, lambda model: octavo.quantize_model(model, RECIPE, calibration=data(), progress=False))
    ],
    "search.measure_latency": [(toy, latency)],
    "search.measure_sensitivity": [(toy, every_way)],
    "search.tune": [(toy, tuned)],
    "quant.correct_bias_model": [
        (toy, lambda model: quant.correct_bias_model(quantized(), model, data(), progress=False))  # the reference stays
    ],
    "quant.coverage": [(quantized, quant.coverage)],
    "quant.prepare_model": [(toy, lambda model: quant.prepare_model(model, RECIPE))],
    "graph.capture": [(toy, lambda model: graph.capture(model, (ids(),)).costs("int8"))],
    "graph.extract": [(toy, lambda model: graph.extract(model, "norm", (ids(),)))],
    "graph.fold_batchnorm": [(lambda: toy().eval(), lambda model: graph.fold_batchnorm(model, (ids(),)))],
    "graph.fuse_qkv": [(zoo, lambda model: graph.fuse_qkv(model, zoo_batch(model, 0)))],
    "graph.fx_nodes": [(toy, lambda model: graph.fx_nodes(graph.capture(model, (ids(),)), model, data()))],
    "graph.module_inputs": [(toy, lambda model: graph.module_inputs(model, "norm", (ids(),)))],
    "graph.remove_dropout": [(toy, lambda model: graph.remove_dropout(model, (ids(),)))],
    "graph.sparsity": [(toy, graph.sparsity), (quantized, lambda model: graph.sparsity(octavo.pack_model(model)))],
    "graph.tensor_statistics": [(toy, lambda model: graph.tensor_statistics(model, data()))],
    "graph.Pipeline": [(toy, pipeline)],
    "prune.activation_report": [(cut, lambda model: prune.activation_report(model, data(), repeats=1))],
    "prune.compact_model": [(zoo, lambda model: prune.compact_model(model, zoo_batch(model, 0)))],
    "prune.fold_model": [(lambda: prune.prune_model(toy(), 0.5, progress=False), prune.fold_model)],
    "prune.groups": [(zoo, lambda model: prune.groups(model, zoo_batch(model, 0)))],
    "prune.prune_activations": [
        (toy, lambda model: prune.prune_activations(model, 0.5, calibration=data(), progress=False))
    ],
    "prune.report": [(lambda: prune.prune_model(toy(), 0.5, progress=False), prune.report)],
    "prune.structure": [(zoo, lambda model: prune.structure(model, zoo_batch(model, 0)))],
    "lora.adapters": [(toy, lora.adapters)],
    "lora.base_hash": [(toy, lora.base_hash)],
    "lora.insert": [(toy, lambda model: lora.insert(model, lora.LoraConfig(rank=2, targets=("up",))))],
    "train.exact_nll": [(toy, lambda model: train.exact_nll(model, ids().flatten(), context=8))],
}
#: Functions whose result is random, as new layers are: adapters begin so.
DRAW = {call for _, call in CASES["lora.insert"]}
#: Functions that change the model that they are given, as their documentation says.
IN_PLACE = {
    "quant.freeze_scales", "quant.smooth_model", "prune.callback", "prune.restore_activations", "lora.activate",
    "lora.commit", "lora.fuse", "lora.load_adapters", "lora.unfuse", "train.train",
}  # fmt: skip
#: Functions that take no model, or only write it to a file or read it from one; ``likelihood_bound`` stands on what
#: ``exact_nll`` stands on.
ELSEWHERE = {
    "octavo.decode", "octavo.encode", "octavo.formats", "octavo.inspect", "octavo.load", "octavo.load_model",
    "octavo.quantize", "octavo.save", "octavo.save_model", "octavo.strict", "search.allocate", "lab.architectures.config_spec",
    "search.interaction_terms", "search.to_recipe", "lab.architectures.run_search", "search.verify", "quant.gptq", "quant.hqq",
    "graph.block_counts", "graph.dead_branches", "graph.diff", "graph.find_pass", "graph.module_counts",
    "graph.operator_counts", "graph.pass_names", "graph.register_pass", "graph.to_dot", "graph.to_html",
    "lora.save_adapters", "train.adamw", "train.grouped", "train.language_groups", "train.likelihood_bound",
    "train.read_metrics", "train.seed_all", "train.strip_timings",
}  # fmt: skip


def test_every_public_function_has_a_place_in_the_table():
    named = CASES.keys() | IN_PLACE | ELSEWHERE
    public = {
        f"{room}.{name}"
        for room, module in ROOMS.items()
        for name in module.__all__
        if inspect.isfunction(getattr(module, name))
    }
    again = {name for name in public if f"octavo.{name.rpartition('.')[2]}" in named}
    assert public <= named | again
    assert named - public == {"graph.Pipeline"}


@pytest.mark.filterwarnings("ignore::octavo.OctavoWarning")
@pytest.mark.parametrize(("make", "call"), [
    pytest.param(*case, id=f"{name}-{number}") for name, cases in CASES.items() for number, case in enumerate(cases)
])  # fmt: skip
def test_the_callers_model_is_not_written(make, call):
    model = make()
    before, drawn, seen = snapshot(model), randomness(), []
    WATCHED.append((model, before, seen))
    try:
        call(model)
    finally:
        WATCHED.clear()
    assert_untouched(model, before)
    assert randomness() == drawn or call in DRAW


def test_passes_are_watched():
    """The table would hold for functions whose passes the hook does not see."""
    model, seen = toy(), []
    WATCHED.append((model, snapshot(model), seen))
    try:
        sensitivity(model)
        with pytest.raises(AssertionError):
            model.norm.weight.data = model.norm.weight + 1
            model(ids())
    finally:
        WATCHED.clear()
    assert len(seen) > 20


def still():
    """Return a model whose outputs its modes and earlier passes do not change."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24))


@pytest.mark.parametrize("call", [every_way, latency, compressed], ids=["sensitivity", "latency", "compress"])
def test_another_thread_calls_the_model_meanwhile(call):
    model = still()
    wanted = model(ids())
    wrong, calls, done = [], [], threading.Event()

    def beside():
        while not done.is_set():
            calls.append(1)
            wrong.extend([] if torch.equal(model(ids()), wanted) else [1])

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        call(model)
    finally:
        done.set()
        thread.join()
    assert calls and not wrong


def captured(model, place):
    return str(graph.capture(model, (torch.zeros(2, 4 + place, dtype=torch.long),)))


def quantized_so(model, place):
    recipe = f"type:Linear int{4 - place}:g16@gptq"
    return [bits(value) for value in octavo.quantize_model(model, recipe, calibration=data(), progress=False)
            .state_dict().values()]  # fmt: skip


@pytest.mark.filterwarnings("ignore::octavo.OctavoWarning")
@pytest.mark.parametrize("call", [captured, quantized_so])
def test_calls_in_several_threads_give_what_each_gives_alone(call):
    """What is printed goes where it went before, too: a capture keeps the output of torch to itself."""
    alone = [call(still(), place) for place in range(3)]
    model, out = still(), sys.stdout
    before, together = snapshot(model), [None] * 3

    def into(place):
        together[place] = call(model, place)

    threads = [threading.Thread(target=into, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone and sys.stdout is out
    assert_untouched(model, before)


def test_two_calls_on_one_model_give_what_each_gives_alone():
    model = still()
    before = snapshot(model)
    calls = [["int4:g16@gptq", "int8@mse"], ["int3:g16", "mxfp4"], ["int2:g16"], ["nf4"]]

    def measured(formats):
        return search.measure_sensitivity(model, data(), formats, roles=("weight", "input"), progress=False)

    alone = [measured(formats).to_json() for formats in calls]
    together = [None] * len(calls)

    def into(place):
        together[place] = measured(calls[place]).to_json()

    threads = [threading.Thread(target=into, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert_untouched(model, before)
