"""Spaces: conditions, constraints, identities by what is built, and axes that change nothing."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.errors import DataError, SettingError
from octavo.lab.architectures.config_fields import config_spec, declared_fields
from octavo.lab.architectures.space import Axis, Constraint, Space
from octavo.lab.classifiers import ClassifierConfig


def space(**changes):
    axes = (
        Axis("layers", (1, 2)),
        Axis("kind", ("linear", "identity")),
        Axis("rank", (1, 2, 3), when=lambda point: point["kind"] == "linear"),
    )
    return Space(**{"axes": axes, "realise": dict, **changes})


def test_points_have_the_axes_that_exist_there():
    points = list(space().points())
    assert len(points) == 2 * (3 + 1)
    assert all(("rank" in point) == (point["kind"] == "linear") for point in points)
    assert len({space().identity(point) for point in points}) == len(points)


def test_constraints_leave_points_out_and_draws_keep_to_them():
    narrow = space(constraints=(Constraint("layers is 2", lambda point: point["layers"] == 2),))
    assert {point["layers"] for point in narrow.points()} == {2}
    assert {narrow.draw(random.Random(seed))["layers"] for seed in range(20)} == {2}
    with pytest.raises(SettingError, match="layers is 2"):
        narrow.checked({"layers": 1, "kind": "identity"})
    never = space(constraints=(Constraint("nothing is", lambda point: False),))
    with pytest.raises(SettingError, match="loosen"):
        never.draw(random.Random(0))


@given(st.integers(0, 2**32))
def test_every_drawn_point_is_one_of_the_space(seed):
    point = space().draw(random.Random(seed))
    assert space().checked(point) == point and point in list(space().points())


@given(st.sets(st.integers(0, 7)), st.integers(0, 99))
def test_an_unseen_point_is_found_while_there_is_one(known, seed):
    identities = [space().identity(point) for point in space().points()]
    seen = {identities[number] for number in known}
    found = space().unseen(random.Random(seed), seen, {})
    assert (found is None) == (len(seen) == 8)
    assert found is None or space().identity(found) not in seen


def test_identity_is_of_what_is_built_and_of_its_context():
    by_half = space(realise=lambda point: {"layers": point["layers"]})
    one, other = {"layers": 1, "kind": "identity"}, {"layers": 1, "kind": "linear", "rank": 3}
    assert by_half.identity(one) == by_half.identity(other) != by_half.identity({**one, "layers": 2})
    assert by_half.identity(one, {"seed": 0}) != by_half.identity(one, {"seed": 1})
    with pytest.raises(DataError, match="plain JSON"):
        space(realise=lambda point: {"layers": {1, 2}}).identity(one)


def test_an_axis_without_effect_is_refused_by_name():
    deaf = space(realise=lambda point: {"layers": point["layers"]})
    with pytest.raises(SettingError, match=r"'kind'.*'rank'.*allow_noop"):
        deaf.check_axes()
    with pytest.raises(SettingError, match="'rank'") as told:
        deaf.check_axes(allow_noop=["kind"])
    assert "'kind': all" not in str(told.value)
    deaf.check_axes(allow_noop=["kind", "rank"])
    with pytest.raises(SettingError, match="the axes are"):
        deaf.check_axes(allow_noop=["kinds"])


def test_an_axis_that_acts_somewhere_and_one_of_one_choice_are_none_without_effect():
    space(realise=lambda point: point if point["layers"] == 2 else {"layers": 1}).check_axes()
    Space((Axis("layers", (1,)), Axis("rank", (1, 2))), dict).check_axes()


def test_an_axis_that_never_exists_is_one_without_effect():
    never = Space((Axis("layers", (1, 2)), Axis("rank", (1, 2), when=lambda point: False)), dict)
    assert never.noop_axes() == {"rank": "no point that was tried has it"}


@pytest.mark.parametrize("choices", [(), (1, 1), ([1],), (1, float)])
def test_choices_are_different_plain_values(choices):
    with pytest.raises(SettingError, match="axis 'a'"):
        Axis("a", choices)


def test_points_of_another_space_are_refused():
    for point, told in (
        ({"layers": 3, "kind": "identity"}, "accepted are 1, 2"),
        ({"layers": 1}, "has no 'kind'"),
        ({"layers": 1, "kind": "identity", "rank": 1}, "an axis that is not there"),
        ({"layers": 1, "kind": "identity", "layer": 1}, "'layer'"),
    ):
        with pytest.raises(SettingError, match=told):
            space().checked(point)
    with pytest.raises(SettingError, match="two axes"):
        Space((Axis("a", (1,)), Axis("a", (2,))), dict)
    with pytest.raises(SettingError, match="no axes"):
        Space((), dict)


def test_a_field_that_a_configuration_does_not_declare_is_refused():
    assert config_spec(ClassifierConfig, vocabulary=9, layers=3)["layers"] == 3
    with pytest.raises(SettingError, match=r"'layer' is no field.*did you mean 'layers'"):
        config_spec(ClassifierConfig, vocabulary=9, layer=3)

    @dataclass
    class Mute:
        width: int = 1

    with pytest.raises(SettingError, match="neither to_dict nor as_dict"):
        config_spec(Mute, width=2)
    with pytest.raises(SettingError, match="no configuration class"):
        declared_fields("BertConfig")


def test_the_fields_that_a_bert_does_not_read_are_no_axes():
    """The labs set num_layers and num_heads, which BERT keeps and does not read: depth and heads stayed as they were."""
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertConfig
    for name, meant in (("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads")):
        with pytest.raises(SettingError, match=rf"'{name}' is no field of BertConfig.*did you mean"):
            config_spec(bert, **{name: 8})
        assert meant in declared_fields(bert)
    spec = config_spec(bert, num_hidden_layers=4, hidden_size=128, num_attention_heads=2, num_labels=3)
    assert (spec["class"], spec["num_hidden_layers"], spec["hidden_size"]) == ("BertConfig", 4, 128)
    assert config_spec(transformers.GPT2Config, hidden_size=64, n_layer=2)["n_embd"] == 64  # its other name
    assert config_spec(transformers.T5Config, num_layers=2)["num_layers"] == 2
    axes = (Axis("num_layers", (2, 4, 8)),)
    deaf = Space(axes, lambda point: {"layers": bert(num_layers=point["num_layers"]).num_hidden_layers})
    with pytest.raises(SettingError, match="'num_layers'"):
        deaf.check_axes()
