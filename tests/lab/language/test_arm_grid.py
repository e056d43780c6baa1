"""The grid of arms: techniques combined field by field, and searched on the lines of a bench."""

from dataclasses import replace

import pytest
from lab.language.language_worker import TINY, text_file
from octavo.errors import SettingError
from octavo.lab.language import language_bench
from octavo.lab.language.bench_arms import arm
from octavo.lab.language.language_bench import BenchPlan, read_lines
from octavo.lab.language.language_presets import BASE, preset

pytestmark = pytest.mark.usefixtures("micro_scale")


def test_a_combined_arm_has_every_difference_of_its_presets():
    both = arm("muon+gqa+mtp_repeated@clip=1", TINY)
    muon = preset("muon", TINY)
    wanted = replace(
        muon, clip=1.0,
        model=replace(preset("gqa", TINY).model, objective=preset("mtp_repeated", TINY).model.objective),
    )  # fmt: skip
    assert both == wanted
    assert arm(BASE, TINY) == preset(BASE, TINY) == arm(f"{BASE}+{BASE}", TINY)
    with pytest.raises(SettingError, match="'muon' and 'long_cooldown' both change cooldown"):
        arm("muon+long_cooldown", TINY)
    with pytest.raises(SettingError, match="mixers"):
        arm("gqa+mla", TINY)


@pytest.mark.slow
def test_a_grid_is_searched_on_the_lines_of_a_bench_and_goes_on(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from octavo.lab.language.arm_grid import search_arms

    made, wanted = [], language_bench.train_language
    monkeypatch.setattr(language_bench, "train_language", lambda *a, **k: made.append(1) or wanted(*a, **k))
    plan = BenchPlan(scale="micro", arms=(), seeds=1, tokens=192, device="cpu")
    text, techniques = text_file(tmp_path), ("muon", "gqa", "long_cooldown")
    first = search_arms(plan, techniques, text, tmp_path / "b", trials=2)
    assert len(first.trials) == 2 and len(made) == 2
    found = search_arms(plan, techniques, text, tmp_path / "b")
    arms = {trial.spec["arm"]: trial.facts["nats"] for trial in found.trials}
    assert arms.keys() == {
        BASE,
        "muon",
        "gqa",
        "long_cooldown",
        "muon+gqa",
        "gqa+long_cooldown",
    }  # no muon+long_cooldown
    lines = {line["arm"]: line["validation"]["nats"] for line in read_lines(tmp_path / "b")}
    assert lines == arms and len(made) == 6
    assert found.best().facts["nats"] == min(arms.values())
    assert len(search_arms(plan, techniques, text, tmp_path / "b").trials) == 6 and len(made) == 6


@pytest.mark.parametrize(
    ("techniques", "budgets", "told"),
    [(("muon", "muon"), ("tokens",), "each once"), ((BASE,), ("tokens",), "each once"), (("moun",), ("tokens",), "moun"),
     (("masked_diffusion",), ("tokens",), "bound"), (("muon",), ("time",), "of tokens")],
)  # fmt: skip
def test_what_is_no_grid_is_refused_before_anything_is_trained(tmp_path, techniques, budgets, told):
    pytest.importorskip("optuna")
    from octavo.lab.language.arm_grid import search_arms

    plan = BenchPlan(scale="micro", arms=(), seeds=1, budgets=budgets, tokens=192, device="cpu")
    with pytest.raises(SettingError, match=told):
        search_arms(plan, techniques, tmp_path / "none", tmp_path / "b")
    assert not (tmp_path / "b").exists()
