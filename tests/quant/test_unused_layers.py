"""Layers that a model does not use as layers: named once, by a typed warning, with the rule that keeps them."""

import copy
import pickle
import threading
import warnings

import octavo
import pytest
import torch
from octavo import OctavoWarning, UnusedLayerWarning
from torch import nn

X = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """``used`` is called, ``read`` is read past, ``spare`` is neither."""

    def __init__(self):
        super().__init__()
        self.used, self.read, self.spare = (nn.Linear(32, 32) for _ in range(3))
        self.fails = False

    def forward(self, x):
        if self.fails:
            raise ValueError("on purpose")
        return nn.functional.linear(self.used(x), self.read.weight, self.read.bias)


def quantized(recipe="mxint8", **options):
    torch.manual_seed(0)
    return octavo.quantize_model(Model().eval(), recipe, progress=False, **options)


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [entry.message for entry in caught if isinstance(entry.message, UnusedLayerWarning)]


def test_a_layer_that_is_never_used_is_named_with_its_rule():
    model = quantized()
    (warning,) = warned(lambda: model(X))
    assert isinstance(warning, OctavoWarning) and warning.layers == ("spare",) and warning.rule == "name:spare keep"
    assert "1 of 3 quantized layers" in str(warning) and "'name:spare keep'" in str(warning)
    assert not warned(lambda: quantized(f"mxint8; {warning.rule}")(X))
    assert octavo.quant.coverage(model).bypassed == ("spare.weight",)


def test_activations_that_are_not_rounded_are_named():
    (warning,) = warned(lambda: quantized("mxint8 input=mxint8; name:spare keep")(X))
    assert warning.layers == ("read",) and "activations are not rounded" in str(warning)
    (warning,) = warned(lambda: quantized("mxint8; name:read keep; name:read output=int8; name:spare keep")(X))
    assert warning.layers == ("read",)


def test_the_first_pass_alone_is_watched_and_a_failed_one_is_none():
    model = quantized()
    hooks = [dict(module._forward_pre_hooks) for module in model.modules()]
    model.fails = True
    with pytest.raises(ValueError, match="on purpose"):
        model(X)
    assert [len(module._forward_pre_hooks) for module in model.modules()] == [len(before) for before in hooks]
    model.fails = False
    assert len(warned(lambda: model(X))) == 1
    assert not warned(lambda: model(X))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_model_that_calls_itself_is_judged_at_the_end_of_the_outer_pass():
    class Calls(Model):
        def forward(self, x, depth=3):
            return super().forward(self(x, depth - 1)) if depth else x

    model = octavo.quantize_model(Calls(), "mxint8", progress=False)
    (warning,) = warned(lambda: model(X))
    assert warning.layers == ("spare",)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_a_pass_that_returns_nothing_is_one():
    class Fills(Model):
        def forward(self, x, out):
            out.append(super().forward(x))

    model = octavo.quantize_model(Fills(), "mxint8", progress=False)
    (warning,) = warned(lambda: model(X, []))
    assert warning.layers == ("spare",) and not model._forward_pre_hooks
    try:
        raise ValueError("handled")
    except ValueError:  # a pass inside a handler has not failed
        again = octavo.quantize_model(Fills(), "mxint8", progress=False)
        assert len(warned(lambda: again(X, []))) == 1


def test_threads_that_begin_together_do_not_judge_each_other():
    model = octavo.quantize_model(nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))), "mxint8", progress=False)
    start = threading.Barrier(6)

    def call():
        start.wait()
        model(X)

    threads = [threading.Thread(target=call) for _ in range(6)]

    def run():
        for step in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                step(thread)

    assert not warned(run) and not model._forward_hooks and not model._forward_pre_hooks


def test_calibration_is_a_first_pass():
    (warning,) = warned(lambda: quantized("mxint8; name:used mxint8 input=int8@minmax", calibration=[X]))
    assert warning.layers == ("spare",)
    recipe = "mxint8 input=mxint8; name:used mxint8 input=int8@minmax"
    (warning,) = warned(lambda: quantized(recipe, calibration=[X]))
    assert warning.layers == ("spare", "read") and "activations are not rounded" in str(warning)


def test_copies_pickles_and_packed_models_are_watched():
    model = quantized()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), octavo.pack_model(model)):
        (warning,) = warned(lambda twin=twin: twin(X))
        assert warning.layers == ("spare",)
    assert len(warned(lambda: model(X))) == 1
    assert octavo.quant.coverage(octavo.pack_model(model)).bypassed == ("spare.weight",)


def test_a_model_that_could_not_be_quantized_is_not_watched():
    model = Model()
    with pytest.raises(octavo.CalibrationError):
        octavo.quantize_model(model, "name:spare int8 input=int8@minmax", calibration=[X], inplace=True, progress=False)
    assert not model._forward_pre_hooks and type(model.spare) is nn.Linear


def test_watched_models_compile_without_a_break():
    torch._dynamo.reset()
    model = quantized("mxint8; name:spare keep")
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(X)
        assert torch.allclose(compiled, model(X), atol=1e-6)


def test_a_warning_turned_into_an_error_leaves_nothing_behind():
    model = quantized()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnusedLayerWarning)
        with pytest.raises(UnusedLayerWarning, match="spare"):
            model(X)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    model(X)


def test_a_weight_that_is_a_parameter_of_no_layer_too_is_named():
    class SharingRouter(nn.Module):  # which no rewriting takes
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
            self.table = self.inner[1].weight

        def forward(self, x):
            return self.inner(x) @ self.table

    (warning,) = warned(lambda: octavo.quantize_model(SharingRouter(), "mxint8", progress=False))
    assert warning.layers == ("inner.1",) and "inner.1.weight is table, too" in str(warning)
    assert not warned(lambda: octavo.quantize_model(SharingRouter(), f"mxint8; {warning.rule}", progress=False)(X))


def test_paths_that_need_quotes_are_quoted_in_the_rule():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(32, 32)
            self.add_module("a b;c", nn.Linear(32, 32))

        def forward(self, x):
            return self.used(x)

    def quantize(recipe):
        return octavo.quantize_model(Odd(), recipe, progress=False)

    (warning,) = warned(lambda: quantize("mxint8")(X))
    assert not warned(lambda: quantize(f"mxint8; {warning.rule}")(X))
