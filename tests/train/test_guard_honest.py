"""The guard of an evaluation refuses no honest model, whatever it is made of."""

import pytest
import torch
from octavo.errors import ModelError
from octavo.lab.language.language_presets import PRESETS
from octavo.train import exact_nll
from train import honest_models as honest

STILL = 1e-4  # nats: of sums in another order

_RUNS = [name for name in PRESETS if honest.exact(name)]
_ALWAYS = ("nocap_baseline", "moe_8_top2", "knn_lm", "retro", "adaptive_softmax")
"""Of the fast suite; the others are like one of them, and slow."""


def _check(model, ids=None, **options):
    found = exact_nll(model, honest.stream() if ids is None else ids, context=honest.CONTEXT, **options)
    assert found.guard < STILL and found.checked.cuts >= 200 and found.checked.batches <= 40
    return found


@pytest.mark.parametrize(
    "name", [name if name in _ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in _RUNS]
)
def test_every_preset_is_taken(name):
    _check(honest.of_preset(name))


def test_two_presets_have_no_exact_loss():
    assert len(PRESETS) > 80 and len(_RUNS) == len(PRESETS) - 2


@pytest.mark.parametrize("recipe", honest.RECIPES)
@pytest.mark.parametrize("packed", [False, True], ids=["simulated", "packed"])
def test_quantized_models_are_taken(recipe, packed):
    _check(honest.quantized(recipe, packed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "family",
    [
        name if name in ("GPT2", "Llama", "Mixtral") else pytest.param(name, marks=pytest.mark.slow)
        for name in honest.TRANSFORMERS
    ],
)
def test_models_of_transformers_are_taken(family, dtype):
    pytest.importorskip("transformers")
    _check(honest.of_transformers(family, dtype))


def test_the_decoder_of_t5_is_taken():
    pytest.importorskip("transformers")
    _check(honest.T5Decoder())


def test_scales_over_whole_tensors_are_reported_where_asked_and_refused_else():
    model = honest.quantized("type:Linear weight=int8 input=int8", False)
    assert exact_nll(model, honest.stream(), context=honest.CONTEXT, leaks="report").guard > 0.01
    with pytest.raises(ModelError, match=r"leaks='report'"):
        exact_nll(model, honest.stream(), context=honest.CONTEXT)


@pytest.mark.parametrize("batch_size", [1, 3, 8, 64])
@pytest.mark.parametrize("stride", [honest.CONTEXT, 7, 1])
def test_windows_and_batches_of_any_size_are_taken(batch_size, stride):
    ids = honest.stream(4 * honest.CONTEXT + 3)
    found = exact_nll(
        honest.of_preset("nocap_baseline"), ids, context=honest.CONTEXT, stride=stride, batch_size=batch_size
    )
    assert found.guard < STILL and found.checked.batches <= 40
