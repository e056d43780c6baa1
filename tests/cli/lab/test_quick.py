"""--quick takes other defaults, and never overrides a number that was typed."""

import pytest
from octavo.errors import SettingError
from octavo.lab.studies import (
    architectures,
    combined,
    format_families,
    format_sensitivity,
    lora_ranks,
    mixed_precision,
    pruning,
    ptq_qat,
    subject_catalogue,
)

STUDIES = {
    "ptq-qat": (ptq_qat.PtqQat, {"seeds": (3, 2)}),
    "formats": (format_families.Formats, {"seeds": (3, 1)}),
    "prune": (pruning.Prune, {"seeds": (2, 1)}),
    "sensitivity": (format_sensitivity.FormatSensitivity, {"samples": (64, 16)}),
    "combined": (combined.Combined, {"seeds": (2, 1), "samples": (64, 16)}),
    "lora": (lora_ranks.LoraRanks, {"seeds": (2, 1)}),
    "mixed": (mixed_precision.MixedPrecision, {"trials": (24, 6)}),
    "nas": (architectures.Architectures, {"trials": (32, 6), "sampler-seeds": (5, 2), "seeds": (3, 2)}),
}
#: Fields of a study that are called otherwise than their option.
FIELDS = {"nas": {"seeds": "repeats", "sampler-seeds": "seeds"}}


@pytest.mark.parametrize("name", STUDIES)
def test_quick_has_other_defaults_and_leaves_what_was_typed(octavo, tmp_path, monkeypatch, name):
    if name in ("nas", "mixed"):
        pytest.importorskip("optuna")
    kind, numbers = STUDIES[name]
    studies = []

    def capture(study, *_):
        studies.append(study)
        raise SettingError("no further")

    monkeypatch.setattr(kind, "run", capture)
    for opener in ("open_subject", "open_base"):
        monkeypatch.setattr(subject_catalogue, opener, lambda *_, **__: None)
    command = ("study", name, "-o", tmp_path / "out")
    typed = [word for option in numbers for word in (f"--{option}", "33")]
    for options in ((), ("--quick",), ("--quick", *typed)):
        assert "no further" in octavo(*command, *options, code=2).output
    for option, (whole, fast) in numbers.items():
        field = FIELDS.get(name, {}).get(option, option)
        assert [getattr(study, field) for study in studies] == [whole, fast, 33], option
