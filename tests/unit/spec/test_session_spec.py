"""The session spec: what it takes, what it says of what it does not take."""

import json
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from hypothesis import given

from muster.cli.sessions.submit import submit
from muster.core.model.session import kernel_count, kernels_of, spare_kernels_of
from muster.core.spec.errors import validated
from muster.core.spec.mounts import HOME, MountSpec
from muster.core.spec.roles import RoleSpec
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.values import MAX_KERNELS
from muster.core.spec.written import written
from muster.core.values.errors import SpecError
from tests.properties import examples
from tests.strategies.specs import specs
from tests.strategies.values import new_id

GI = 1 << 30
BIG = "9" * 400


EVENING = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


def spec(**values: Any) -> SessionSpec:
    return validated(SessionSpec, values, EVENING)


def errors_of(**values: Any) -> dict[str, str]:
    """Return by field what is wrong and what to write instead."""
    with pytest.raises(SpecError) as raised:
        spec(**values)
    return {error.field: str(error) for error in raised.value.errors}


@examples(60)
@given(specs())
def test_a_spec_is_the_same_after_a_round_trip_through_json(original):
    text = json.dumps(original.model_dump(mode="json"))
    assert validated(SessionSpec, json.loads(text)) == original


@examples(60)
@given(specs())
def test_kernels_are_as_many_as_requested_and_in_rank_order(original):
    count = kernel_count(original)
    least, most = original.sizes
    assert least == max(
        int(str(original.cluster_size or 1).partition("-")[0]), 1 + sum(role.replicas for role in original.roles)
    )
    assert count == most >= least
    ids = tuple(new_id(1, number) for number in range(count))
    assert len(kernels_of(original, ids, "busybox")) == least
    kernels = kernels_of(original, ids, "busybox") + spare_kernels_of(original, ids, "busybox")
    assert [kernel.rank for kernel in kernels] == list(range(count))
    assert (kernels[0].name, kernels[0].id) == ("main1", new_id(1))
    assert len({kernel.name for kernel in kernels}) == count


@pytest.mark.parametrize(
    ("written_as", "meant", "sizes"),
    [("4-8", "4-8", (4, 8)), (" 4 - 8 ", "4-8", (4, 8)), ("4-4", 4, (4, 4)), ("4", 4, (4, 4)), (4.0, 4, (4, 4))],
)
def test_a_cluster_size_is_a_number_or_a_range(written_as, meant, sizes):
    found = spec(cluster_size=written_as)
    assert (found.cluster_size, found.sizes) == (meant, sizes)
    assert written(found)["cluster_size"] == meant
    assert found.is_elastic == (sizes[0] < sizes[1])


WRONG = {
    "name": ("-x", "letters"),
    "type": ("bach", "'interactive' or 'batch'"),
    "run_on": ("some", "'main' or 'all'"),
    "cluster_size": (0, "1 or more"),
    "cluster_mode": ("single", "'single-node' or 'multi-node'"),
    "cpu": ("two", "2, 0.5 or 500m"),
    "mem": ("4X", "512M, 4G"),
    "shm": ("-1", "512M, 4G"),
    "gpu": ("1.5", "whole number"),
    "fgpu": ("0.0001", "500m"),
    "fgpu_limit": ("half", "500m"),
    "best_effort": ("perhaps", "true or false"),
    "env": (["NOEQUALS"], "write a name and a value with = between them"),
    "priority": (101, "100 or less"),
    "time_limit": ("soon", "90s"),
    "begin": ("soon", "now+2h"),
    "hold": ("perhaps", "true or false"),
    "array": ("0-", "0-99%8"),
    "after": ("a,,b", "with a comma between two"),
    "after_ok": ([""], "with a comma between two"),
    "after_any": ({"a": 1}, "write a list"),
    "preemptible": ("maybe", "true or false"),
    "gpu_models": ("A100,", "with a comma between two"),
    "labels": (["disk"], "write a name and a value with = between them"),
    "agents": (5, "write a list"),
    "exclude_agents": (", ", "with a comma between two"),
    "topology": ("rack", "'one-rack'"),
    "project": ("", "is empty; write a name"),
    "nmae": ("x", "did you mean name?"),
}


def test_all_errors_come_in_one_answer_each_with_field_and_remedy():
    found = errors_of(**{field: value for field, (value, _) in WRONG.items()})
    assert set(found) == set(WRONG)
    for field, (_, remedy) in WRONG.items():
        assert remedy in found[field]


@pytest.mark.parametrize("field", WRONG)
def test_each_error_names_its_field_and_its_remedy(field):
    value, remedy = WRONG[field]
    found = errors_of(**{field: value})
    assert list(found) == [field]
    assert remedy in found[field]
    assert "\n" not in found[field]


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        ({"name": "a" * 64}, "name", "63 at most"),
        ({"name": "a/b"}, "name", "letters"),
        ({"command": "true", "script": "#!/bin/sh\n"}, "command", "give one of them"),
        ({"type": "batch"}, "type", "give a command or a job script"),
        ({"type": "interactive", "command": "true"}, "type", "leave the command out"),
        ({"command": " "}, "command", "write the command"),
        ({"cluster_size": MAX_KERNELS + 1}, "cluster_size", "1000 or less"),
        ({"cluster_size": "three"}, "cluster_size", "whole number"),
        ({"cluster_size": "8-4"}, "cluster_size", "write 4-8"),
        ({"cluster_size": "0-3"}, "cluster_size", "1 or more"),
        ({"cluster_size": "4-2000"}, "cluster_size", "1000 or less"),
        ({"cluster_size": "4-8-9"}, "cluster_size", "range such as 4-8"),
        ({"cluster_size": "4-"}, "cluster_size", "range such as 4-8"),
        ({"cluster_size": "-4"}, "cluster_size", "1 or more"),
        ({"cluster_size": 2.5}, "cluster_size", "whole number"),
        ({"cluster_size": float("nan")}, "cluster_size", "whole number"),
        ({"cluster_size": True}, "cluster_size", "whole number"),
        ({"cluster_size": [4, 8]}, "cluster_size", "range such as 4-8"),
        ({"cluster_size": "2-8", "roles": ["ps:2"]}, "cluster_size", "begin it at 3 or more"),
        ({"cluster_size": "3-8", "roles": ["sub:2"]}, "cluster_size", "raise sub's replicas"),
        ({"cluster_size": "2-8", "tasks": 4}, "tasks", "write 8 or more"),
        ({"tasks": 4, "tasks_per_kernel": 4}, "tasks", "give one of them"),
        ({"tasks_per_kernel": 0}, "tasks_per_kernel", "1 or more"),
        ({"cluster_size": 2, "roles": ["ps:2"]}, "cluster_size", "make it 3 or more"),
        ({"cluster_size": 5, "roles": ["sub:2"]}, "cluster_size", "raise sub's replicas"),
        ({"roles": ["ps:600", "worker:600"]}, "roles", "1000 at the most"),
        ({"roles": ["ps", "ps"]}, "roles", "give it once"),
        ({"roles": ["PS:2"]}, "roles[0].name", "lower-case"),
        ({"roles": ["ps1:2"]}, "roles[0].name", "lower-case"),
        ({"roles": ["ps:two"]}, "roles[0].replicas", "whole number"),
        ({"roles": ["ps:2,cpu"]}, "roles[0]", "write settings such as cpu=2,mem=4G"),
        ({"roles": ["ps:2,cups=1"]}, "roles[0].cups", ""),
        ({"roles": ["main:2"]}, "roles", "main:1"),
        ({"roles": [{"name": "main", "command": "true"}]}, "roles", "the session's own"),
        ({"mem": "1G", "shm": "2G"}, "shm", "raise mem or lower shm"),
        ({"mem": 4, "shm": 0}, "mem", "4G is four gibibytes"),
        ({"cpu": "5m"}, "cpu", "0.01 or more"),
        ({"gpu": 1, "fgpu": 1}, "gpu", "one of them"),
        ({"fgpu_limit": 1}, "fgpu_limit", "such as 0.5"),
        ({"gpu": 1, "best_effort": True}, "best_effort", "such as 0.5"),
        ({"fgpu": 1, "fgpu_limit": 2, "best_effort": True}, "fgpu_limit", "one of them"),
        ({"fgpu": "0.5", "fgpu_limit": "0.4"}, "fgpu_limit", "0.5 or more"),
        ({"fgpu_limit": 1, "roles": ["ps:2,fgpu=2"]}, "fgpu_limit", "2 or more"),
        ({"roles": [{"name": "ps", "gpu": 1, "fgpu": 1}]}, "roles", "one of them"),
        ({"gpu": 65}, "gpu", "64 or less"),
        ({"mounts": ["/etc"]}, "mounts[0].folder", "without .."),
        ({"mounts": ["../secrets"]}, "mounts[0].folder", "without .."),
        ({"mounts": ["a/../../b"]}, "mounts[0].folder", "without .."),
        ({"mounts": ["data:relative"]}, "mounts[0]", "/data"),
        ({"mounts": ["data:/run/muster/x"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/etc"]}, "mounts[0]", "another path"),
        ({"mounts": ["data://etc/"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/etc/ssl"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/proc/x"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/sys/fs/cgroup"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/dev/shm/x"]}, "mounts[0]", "another path"),
        ({"mounts": ["data:/x/../etc"]}, "mounts[0]", "/data"),
        ({"mounts": ["a:b:c:d"]}, "mounts[0]", "such as data:/data:ro"),
        ({"mounts": ["a:/data", "b:/data"]}, "mounts", "another target"),
        ({"env": {"A B": "1"}}, "env", "BATCH_SIZE=64"),
        ({"env": {"A": "x\0y"}}, "env", "remove it"),
        ({"env": "A=1"}, "env", "as in cpu: 2"),
        ({"resource_group": ""}, "resource_group", ""),
        ({"ssh_keys": ["-----BEGIN PRIVATE KEY-----"]}, "ssh_keys", "ssh-ed25519"),
        ({"time_limit": 0}, "time_limit", "90s"),
        ({"priority": -1}, "priority", "0 or more"),
        ({"begin": "25:00"}, "begin", "2026-11-22T08:00"),
        ({"begin": 750}, "begin", "quotes"),
        ({"begin": True}, "begin", "08:00"),
        ({"array": "0-10000"}, "array", "more than 10000 indexes"),
        ({"array": "5-1"}, "array", "ends before it begins"),
        ({"array": "-1"}, "array", "0-99"),
        ({"array": "1%0"}, "array", "8 at a time"),
        ({"array": True}, "array", "quotes"),
        ({"labels": {"a b": "1"}}, "labels", "disk=ssd"),
        ({"labels": {"": "1"}}, "labels", "disk=ssd"),
        ({"labels": {"a": "x\0y"}}, "labels", "remove it"),
        ({"labels": {"a": {"b": "1"}}}, "labels", "disk=ssd"),
        ({"labels": "disk=ssd"}, "labels", "as in cpu: 2"),
        ({"agents": ["a1"], "exclude_agents": "a2,a1"}, "exclude_agents", "one of the two"),
        ({"cpu": BIG}, "cpu", "500m"),
        ({"cpu": "1e99999999"}, "cpu", "500m"),
        ({"mem": BIG}, "mem", "4G"),
        ({"mem": "99999999T"}, "mem", "4G"),
        ({"mem": "1e99999999"}, "mem", "4G"),
        ({"fgpu": BIG}, "fgpu", "500m"),
        ({"time_limit": BIG}, "time_limit", "90s"),
        ({"time_limit": "9" * 5000}, "time_limit", "90s"),
        ({"roles": [{"name": "ps", "gpu": 10**400}]}, "roles[0].gpu", "64 or less"),
    ],
)
def test_an_invalid_value_is_refused_with_its_field_and_a_remedy(values, field, remedy):
    found = errors_of(**values)
    assert list(found) == [field]
    assert remedy in found[field]


def test_disagreements_between_fields_come_in_one_answer_too():
    found = errors_of(type="batch", cluster_size=2, roles=["ps:4"], shm="2G", mem="1G", cpu="1m")
    assert set(found) == {"type", "cluster_size", "shm", "cpu"}


@pytest.mark.parametrize(
    ("short", "folder", "target", "read_only"),
    [
        ("datasets", "datasets", f"{HOME}/datasets", False),
        ("datasets/mnist", "datasets/mnist", f"{HOME}/mnist", False),
        ("datasets/mnist:ro", "datasets/mnist", f"{HOME}/mnist", True),
        ("datasets:/data", "datasets", "/data", False),
        ("datasets:/data:ro", "datasets", "/data", True),
        ("datasets:/data:rw", "datasets", "/data", False),
        ("datasets//mnist/:/data//x/", "datasets/mnist", "/data/x", False),
    ],
)
def test_a_mount_has_a_short_form(short, folder, target, read_only):
    (mount,) = spec(mounts=[short]).mounts
    assert mount == MountSpec(folder=folder, target=target, read_only=read_only)


def test_a_role_has_a_short_form():
    (role,) = spec(roles=["ps:2,cpu=0.5,mem=2G,image=debian:12,command=serve"]).roles
    assert role == RoleSpec(name="ps", replicas=2, cpu="0.5", mem="2G", image="debian:12", command="serve")
    assert spec(roles=["worker"]).roles == (RoleSpec(name="worker"),)


def test_a_role_takes_from_the_session_what_it_does_not_say():
    found = {role.name: role for role in spec(cpu=2, mem="2G", gpu=1, roles=["ps:2,cpu=1,fgpu=0.5"]).kernel_roles()}
    assert (found["ps"].slots.cpu, found["ps"].slots.mem) == (1000, 2 * GI)
    assert (found["ps"].slots.gpu, found["ps"].slots.fgpu) == (0, 500)
    assert (found["main"].slots.gpu, found["main"].slots.fgpu) == (1, 0)


def test_main_can_be_given_resources_of_its_own():
    main, sub = spec(cluster_size=2, roles=["main:1,cpu=4"]).kernel_roles()
    assert (main.slots.cpu, sub.slots.cpu) == (4000, 1000)


def test_a_command_makes_a_batch_session():
    assert spec(command="true").is_batch
    assert spec(script="#!/bin/sh\n").is_batch
    assert not spec().is_batch


@pytest.mark.parametrize(
    ("run_on", "commands"),
    [("main", ["train", None, "serve"]), ("all", ["train", "train", "serve"])],
)
def test_the_command_runs_on_the_requested_kernels(run_on, commands):
    found = spec(command="train", run_on=run_on, roles=[{"name": "worker"}, {"name": "ps", "command": "serve"}])
    kernels = kernels_of(found, tuple(new_id(1, number) for number in range(3)), "busybox")
    assert [kernel.command for kernel in kernels] == commands


@pytest.mark.parametrize(
    ("given_env", "taken"),
    [
        ({"A": 1, "B": 1.5, "C": True, "D": "x"}, {"A": "1", "B": "1.5", "C": "true", "D": "x"}),
        (["A=1", "B=x=y", "C="], {"A": "1", "B": "x=y", "C": ""}),
    ],
)
def test_environments_are_taken_as_mappings_and_as_assignments(given_env, taken):
    assert spec(env=given_env).env == taken


@pytest.mark.parametrize(
    ("given_labels", "taken"),
    [
        ({"disk": "ssd", "cores": 64}, {"disk": "ssd", "cores": "64"}),
        (["disk=ssd", "site/zone=a=b"], {"disk": "ssd", "site/zone": "a=b"}),
    ],
)
def test_labels_are_taken_as_mappings_and_as_assignments(given_labels, taken):
    assert spec(labels=given_labels).labels == taken


@pytest.mark.parametrize("field", ["after", "after_ok", "after_any", "gpu_models", "agents", "exclude_agents"])
@pytest.mark.parametrize(
    ("names", "taken"),
    [("a", ("a",)), ("a, b,a", ("a", "b")), (["a,b", "c"], ("a", "b", "c")), ([], ()), (("b", "a"), ("b", "a"))],
)
def test_names_are_taken_one_by_one_or_with_commas_and_each_once(field, names, taken):
    assert getattr(spec(**{field: names}), field) == taken


@pytest.mark.parametrize(
    ("begin", "seconds"),
    [
        ("19:00", 1800),
        ("now+1h", 3600),
        ("2026-11-21T20:30:00+01:00", 3600),
        (int(EVENING.timestamp()) + 5, 5),
        (EVENING, 0),
    ],
)
def test_a_begin_is_kept_in_seconds_since_the_epoch(begin, seconds):
    assert spec(begin=begin).begin == EVENING.timestamp() + seconds


def test_without_a_clock_a_begin_is_a_number_only():
    assert validated(SessionSpec, {"begin": EVENING.timestamp()}).begin == EVENING.timestamp()
    with pytest.raises(SpecError, match="begin: 'now' is not in seconds since the epoch; write a number"):
        validated(SessionSpec, {"begin": "now"})


@pytest.mark.parametrize(
    ("array", "indexes", "most"), [(None, (), None), ("0-4:2", (0, 2, 4), None), (7, (7,), None), ("0-1%3", (0, 1), 3)]
)
def test_an_array_tells_its_indexes_and_how_many_may_be_placed_at_once(array, indexes, most):
    found = spec(array=array)
    assert (found.array_indexes, found.array_most) == (indexes, most)


def test_the_schema_describes_every_field_and_closes_every_object():
    schema = SessionSpec.model_json_schema(mode="validation")
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == set(SessionSpec.model_fields)
    for definition in [schema, *schema["$defs"].values()]:
        assert definition["type"] == "object"
        assert definition["additionalProperties"] is False
        assert all(field.get("description") for field in definition["properties"].values())
    text = json.dumps(schema)
    references = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert references == set(schema["$defs"])


@examples(60)
@given(specs())
def test_the_schema_accepts_what_a_spec_is_written_as(original):
    """By hand, as far as types go: the full check would take a library that Muster does not need."""
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool, "object": dict, "array": list}
    properties = SessionSpec.model_json_schema(mode="validation")["properties"]
    for name, value in original.model_dump(mode="json").items():
        choices = properties[name].get("anyOf", [properties[name]])
        allowed = {choice.get("type") for part in choices for choice in part.get("anyOf", [part])}
        assert (value is None and "null" in allowed) or any(
            isinstance(value, kinds[kind]) for kind in allowed - {"null", None}
        )


def test_submit_has_a_flag_for_exactly_the_fields_that_carry_one():
    options = {param.name: param for param in submit.params if isinstance(param, click.Option)}
    flagged: dict[str, Any] = {
        name: field.json_schema_extra["flags"]
        for name, field in SessionSpec.model_fields.items()
        if isinstance(field.json_schema_extra, dict)
    }
    assert {name: sorted(options[name].opts) for name in options if name in SessionSpec.model_fields} == {
        name: sorted(flag.partition("/")[0] for flag in flags) for name, flags in flagged.items()
    }
    assert set(SessionSpec.model_fields) - set(flagged) == {"script", "distributed_env", "ssh_keys"}
    taken = [flag for option in options.values() for flag in option.opts]
    assert len(taken) == len(set(taken))


def test_a_stored_spec_is_read_whatever_later_versions_refuse():
    later_refused = {"cluster_size": 1, "roles": [{"name": "ps", "replicas": 3}], "mounts": ["data:/etc/ssl"]}
    with pytest.raises(SpecError):
        validated(SessionSpec, later_refused)
    assert SessionSpec.model_validate_json(json.dumps(later_refused)).cluster_size == 1
