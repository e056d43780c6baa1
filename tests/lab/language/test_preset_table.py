"""Every preset is the same run as ever: results recorded under its name stay comparable."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.lab.language.language_presets import PRESETS
from octavo.lab.language.language_scales import SCALES

DIGESTS = Path(__file__).with_name("preset_digests.json")
"""SHA-256, cut to 16 digits, of the JSON of a preset's configurations at every scale, with documents that end."""


def digest_of(name):
    runs = [PRESETS[name].make(replace(scale, end_of_text=0)).as_dict() for scale in SCALES.values()]
    return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def recorded():
    return json.loads(DIGESTS.read_text())


def test_the_table_has_the_recorded_names_in_their_order(recorded):
    assert list(PRESETS) == list(recorded)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_recorded_run(recorded, name):
    assert digest_of(name) == recorded[name]


def test_rows_name_a_base_that_is_a_row_and_change_something():
    for row in PRESETS.values():
        assert row.base is None or row.base in PRESETS
        assert bool(row.changes) is (row.base is not None) and row.summary
