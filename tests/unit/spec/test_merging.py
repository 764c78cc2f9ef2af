"""Layers of a spec, and changes of one that there is."""

from typing import Any

from hypothesis import given

from muster.core.spec.differences import differences
from muster.core.spec.errors import validated
from muster.core.spec.merging import changed, merged
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.units import local_time
from tests.strategies.specs import specs
from tests.strategies.values import NOW


def spec(**values: Any) -> SessionSpec:
    return SessionSpec.model_validate(values)


def test_later_layers_win_field_by_field_and_name_by_name():
    layers = {"cpu": 1, "mem": "1G", "env": {"A": "1", "B": "2"}}, {"mem": "2G", "env": ["B=3", "C=4=5"]}
    assert merged(*layers) == {"cpu": 1, "mem": "2G", "env": {"A": "1", "B": "3", "C": "4=5"}}


def test_what_holds_no_assignments_is_left_to_the_spec_to_refuse():
    assert merged({"env": {"A": "1"}}, {"env": ["A"]}) == {"env": ["A"]}
    assert changed({"env": {"A": "1"}}, {"env": 7, "labels": [1]}) == {"env": 7, "labels": [1]}


def test_null_is_the_default_and_takes_a_name_out():
    values = {"cpu": 2, "begin": "now", "env": {"A": "1", "B": "2"}}
    assert changed(values, {"begin": None, "env": {"A": None, "C": "3"}}) == {"cpu": 2, "env": {"B": "2", "C": "3"}}
    assert changed(values, {"env": None, "labels": {"disk": None}}) == {"cpu": 2, "begin": "now", "labels": {}}


def test_of_two_ways_to_say_one_thing_the_new_one_counts():
    assert changed({"script": "#!/bin/sh", "tasks": 4}, {"command": "true", "tasks_per_kernel": 2}) == {
        "command": "true",
        "tasks_per_kernel": 2,
    }
    assert changed({"command": "true"}, {"script": "#!/bin/sh"}) == {"script": "#!/bin/sh"}
    assert changed({"command": "true"}, {"script": None}) == {"command": "true"}


@given(specs(), specs())
def test_the_changes_to_another_spec_make_it_that_one(before, after):
    defaults = dict.fromkeys(SessionSpec.model_fields)
    patch = {**defaults, **written(after)}
    for field in ("env", "labels"):
        patch[field] = {**dict.fromkeys(getattr(before, field)), **getattr(after, field)}
    # Points in time are written to the microsecond.
    assert written(validated(SessionSpec, changed(written(before), patch), local_time(NOW))) == written(after)
    assert changed(written(before), {}) == written(before)


@given(specs(), specs())
def test_two_specs_differ_in_the_fields_that_are_named(before, after):
    named = {phrase.split(" ")[0] for phrase in differences(before, after)}
    assert named == {name for name in SessionSpec.model_fields if getattr(before, name) != getattr(after, name)}


def test_a_difference_shows_what_is_short_and_no_secret():
    before = spec(command="echo old", env={"A": "1", "B": "2"}, mem="1G", agents="a1,a2")
    after = spec(command="echo new", env={"A": "1", "C": "hidden"}, mem="1536M", callback="https://a.org/token")
    assert differences(before, after) == (
        "callback",
        "agents a1, a2 → none",
        "command",
        "mem 1G → 1536M",
        "env B, C",
    )
    roles = [spec(roles=[f"worker:2,command=login {word}"]) for word in ("one", "other")]
    assert differences(*roles) == ("roles",)
    assert differences(spec(), spec(agents=[f"agent-{number}" for number in range(20)])) == ("agents",)
