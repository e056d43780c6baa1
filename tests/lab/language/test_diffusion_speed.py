"""Speed of masked diffusion at equal quality: a toy where both are known, and refusals."""

import math
from dataclasses import replace

import pytest
import torch
from octavo.errors import ModelError, SettingError
from octavo.lab.language.diffusion_speed import decoded, judged, sampled_speeds
from octavo.lab.language.gpt import GPT, MaskedDiffusion, nocap_baseline

VOCABULARY = 16
PLAIN = nocap_baseline(vocabulary=VOCABULARY, width=16, layers=1, heads=2, end_of_text=0)
BLOCKS = replace(PLAIN, objective=MaskedDiffusion(block=4))


def even(config):
    """A model to which all ids are alike."""
    model = GPT(config).eval()
    with torch.no_grad():
        model.embedding.table.weight.zero_()
    return model


def test_samples_of_even_models_are_of_equal_quality_in_any_number_of_steps():
    found = sampled_speeds(even(BLOCKS), even(PLAIN), even(PLAIN), steps=(1, 4), tokens=64, samples=4)
    assert [one.steps for one in found] == [None, 1, 4] and all(one.tokens_per_s > 0 for one in found)
    for one in found:
        assert one.nats == pytest.approx(math.log(VOCABULARY), abs=1e-4) and one.equal
        assert math.log(VOCABULARY) - 0.1 < one.entropy <= math.log(VOCABULARY) + 1e-9


def test_a_sample_that_repeats_one_id_is_not_of_equal_quality_though_a_judge_likes_it(monkeypatch):
    from octavo.lab.language import diffusion_speed

    def repeated(model, prompt, tokens, **_):
        return torch.ones(1 + tokens, dtype=torch.long)

    monkeypatch.setattr(diffusion_speed, "continued", repeated)
    found = sampled_speeds(even(BLOCKS), even(PLAIN), even(PLAIN), steps=(1,), tokens=32, samples=2)
    assert found[1].entropy == 0 and not found[1].equal


def test_decoding_draws_from_the_model_and_a_judge_is_the_mean_loss():
    torch.manual_seed(0)
    model = GPT(PLAIN).eval()
    ids = decoded(model, torch.tensor([0]), 20, torch.Generator().manual_seed(1))
    assert len(ids) == 21 and torch.equal(ids, decoded(model, torch.tensor([0]), 20, torch.Generator().manual_seed(1)))
    wanted = -model(ids[None, :-1])[0].gather(1, ids[1:, None]).mean()
    assert judged(model, ids) == pytest.approx(wanted.item(), rel=1e-5)


def test_models_that_do_not_compare_are_refused_by_name():
    blocks, plain = even(BLOCKS), even(PLAIN)
    numbers = {"steps": (1,), "tokens": 8, "samples": 2}
    with pytest.raises(ModelError, match="no masked diffusion"):
        sampled_speeds(plain, plain, plain, **numbers)
    with pytest.raises(ModelError, match="judge model is of masked diffusion"):
        sampled_speeds(blocks, plain, blocks, **numbers)
    with pytest.raises(ModelError, match="17 ids"):
        sampled_speeds(blocks, even(replace(PLAIN, vocabulary=17)), plain, **numbers)
    with pytest.raises(SettingError, match="1 samples"):
        sampled_speeds(blocks, plain, plain, **numbers | {"samples": 1})
