"""`muster update`: what sessions that wait ask for, changed at their place in the queue."""

import json
from dataclasses import replace

import pytest

from muster.core.lifecycle import transitions
from muster.core.scheduling.schedule import schedule
from tests.command_line import muster, submitted, write_settings
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW


def spec_of(name: str) -> dict[str, object]:
    return muster("show", name, "--json").json["spec"]


def test_an_update_changes_the_fields_that_are_given_and_keeps_the_place_in_the_queue():
    before = submitted("--name", "train", "--cpu", "2", "--mem", "1G", "--env", "A=1", "--", "true")
    answer = muster("update", "train", "--mem", "4G", "--env", "B=2", "--time-limit", "2h", "--priority", "30")
    assert (answer.code, answer.out) == (0, "train: priority 50 → 30; time_limit none → 2h; mem 1G → 4G; env B\n")
    after = muster("show", "train", "--json").json
    kept = ("id", "name", "owner", "submitted_at", "array_id")
    assert [after[field] for field in kept] == [before[field] for field in kept]
    changed = {"mem": 4 << 30, "env": {"A": "1", "B": "2"}, "time_limit": "7200s", "priority": 30}
    assert after["spec"] == {**before["spec"], **changed}
    assert after["kernels"][0]["slots"] == {"cpu": 2000, "mem": 4 << 30, "fgpu": 0, "gpu": 0}
    assert [line["reason"] for line in after["story"]] == [
        "submitted",
        "updated by ada: priority 50 → 30; time_limit none → 2h; mem 1G → 4G; env B",
    ]


def test_an_update_that_changes_nothing_says_so_and_leaves_no_line_in_the_story():
    submitted("--name", "train", "--mem", "4G")
    answer = muster("update", "train", "--mem", "4096M")
    assert (answer.code, answer.out) == (0, "train: it asked for that already\n")
    assert len(muster("show", "train", "--json").json["story"]) == 1


def test_a_command_replaces_what_it_ran_and_the_story_does_not_show_it(script):
    submitted("--name", "train", script("#!/bin/sh\necho one\n"))
    answer = muster("update", "train", "--", "python", "train.py", "--password", "x")
    assert (answer.code, answer.out) == (0, "train: command; script\n")
    after = spec_of("train")
    assert (after["command"], after["script"]) == ("python train.py --password x", None)
    assert "password" not in str(muster("show", "train", "--json").json["story"])


def test_fields_are_unset_by_their_names_or_their_flags():
    submitted("--name", "first")
    arguments = ("--begin", "now+1h", "--after-ok", "first", "--env", "A=1", "--env", "B=2", "--requeue")
    submitted("--name", "train", *arguments, "--mount", "data")
    unset = ("--unset", "begin", "--unset", "after-ok", "--unset", "env.A", "--no-requeue", "--unset", "mount")
    assert muster("update", "train", *unset).code == 0
    after = spec_of("train")
    fields = ("begin", "after_ok", "env", "requeue", "mounts")
    assert [after[field] for field in fields] == [None, [], {"B": "2"}, False, []]


def test_variables_are_set_and_unset_at_once_and_a_field_is_not_both():
    submitted("--name", "train", "--env", "A=1", "--env", "B=2", "--tasks", "2")
    unset = ("--unset", "env.A", "--unset", "tasks")
    assert muster("update", "train", "--env", "C=3", "--tasks-per-kernel", "4", *unset).code == 0
    after = spec_of("train")
    assert (after["env"], after["tasks"], after["tasks_per_kernel"]) == ({"B": "2", "C": "3"}, None, 4)
    both = muster("update", "train", "--env", "A=1", "--unset", "env")
    assert (both.code, both.err) == (2, "muster: --unset: env is given a value as well; leave one of them out\n")


@pytest.mark.parametrize("field", ["nope", "name", "mem.x", "hold", ""])
def test_what_cannot_be_unset_is_named(field):
    submitted("--name", "train")
    answer = muster("update", "train", "--unset", field)
    assert answer.code == 2
    assert answer.err.startswith(f"muster: --unset: {field!r} is no field; name one such as begin")


def test_all_errors_come_at_once_and_nothing_is_changed():
    before = submitted("--name", "train")
    answer = muster("update", "train", "--mem", "lots", "--gpu", "-1", "--priority", "20")
    assert answer.code == 2
    assert [line.split(": ")[1] for line in answer.errors] == ["mem", "gpu"]
    assert spec_of("train") == before["spec"]


def test_nothing_to_change_is_refused():
    submitted("--name", "train")
    answer = muster("update", "train")
    assert answer.code == 2
    assert "there is nothing to change" in answer.err


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"name": "other"}, "name: it is not changed by an update; use `muster rename`"),
        ({"hold": True}, "hold: it is not changed by an update; use `muster hold` or `muster release`"),
        ({"array": "0-3"}, "array: a session that waits keeps its indexes; submit it anew"),
        ({"memm": "1G"}, "memm: there is no such field; did you mean mem?"),
    ],
)
def test_a_file_may_say_what_it_is_and_no_more_than_an_update_changes(tmp_path, fields, refusal):
    submitted("--name", "train")
    (tmp_path / "session.json").write_text(json.dumps({"name": "train", "cpu": 2, **fields}))
    answer = muster("update", "train", "-f", str(tmp_path / "session.json"))
    assert (answer.code, answer.err) == (2, f"muster: {refusal}\n")
    (tmp_path / "session.json").write_text(json.dumps({"name": "train", "cpu": 2}))
    assert muster("update", "train", "-f", str(tmp_path / "session.json")).out == "train: cpu 1 → 2\n"


def test_only_what_waits_is_updated(store):
    submitted("--name", "train")
    store.agents.save([make_agent("a1")])
    snapshot = store.snapshot(NOW)
    store.apply(transitions.place(schedule(snapshot), snapshot))
    answer = muster("update", "train", "--mem", "2G")
    assert (answer.code, answer.err.splitlines()[0]) == (
        1,
        "muster: session train is SCHEDULED; only a PENDING session can be updated",
    )
    assert muster("update", "nobody", "--mem", "2G").code == 2


def test_an_update_that_can_never_start_is_told(store):
    store.agents.save([make_agent("a1", cpus=4)])
    submitted("--name", "train", "--cpu", "2")
    answer = muster("update", "train", "--cpu", "64", "--exclude-agent", "a9")
    assert answer.code == 0
    assert "muster: train can never start: " in answer.err
    assert "there is no agent 'a9', which is to be excluded" in answer.err
    assert muster("update", "train", "--cpu", "1", "--unset", "exclude-agent").err == ""


def test_the_size_of_a_cluster_grows_and_shrinks():
    before = submitted("--name", "train", "--cluster-size", "2", "--role", "ps:1,cpu=3")
    grown = muster("update", "train", "--cluster-size", "4-6", "--json").json["items"][0]
    assert [kernel["name"] for kernel in grown["kernels"]] == ["main1", "ps1", "sub1", "sub2"]
    assert [kernel["id"] for kernel in grown["kernels"][:2]] == [kernel["id"] for kernel in before["kernels"]]
    assert (grown["size"], grown["slots"]["cpu"]) == ("4-6", 6000)
    shrunk = muster("update", "train", "--unset", "cluster-size", "--unset", "role", "--json").json["items"][0]
    assert ([kernel["id"] for kernel in shrunk["kernels"]], shrunk["size"]) == ([before["id"]], "1")


class TestArrays:
    def test_all_that_wait_are_updated_by_the_arrays_name(self, store):
        muster("submit", "--name", "sweep", "--array", "0-3%2", "--", "true")
        store.agents.save([make_agent("a1")])
        snapshot = store.snapshot(NOW)
        placed = store.apply(transitions.place(schedule(snapshot), snapshot))
        assert len(placed) == 2
        answer = muster("update", "sweep", "--mem", "2G", "--array", "0-3%4")
        assert answer.out == "sweep-[2-3], 2 sessions: array 0-3%2 → 0-3%4; mem 1G → 2G\n"
        mem = [session["spec"]["mem"] >> 30 for session in muster("ls", "--json").json]
        assert mem == [1, 1, 2, 2]
        snapshot = store.snapshot(NOW)
        assert len(schedule(snapshot).placements) == 2

    def test_one_of_them_is_updated_alone_but_for_what_is_the_whole_arrays(self):
        muster("submit", "--name", "sweep", "--array", "0-3%2", "--", "true")
        assert muster("update", "sweep-2", "--mem", "2G").out == "sweep-2: mem 1G → 2G\n"
        answer = muster("update", "sweep-2", "--array", "0-3%4")
        assert (answer.code, answer.err) == (
            2,
            "muster: array: the number behind % is that of the whole array; update sweep\n",
        )
        answer = muster("update", "sweep", "--array", "0-9")
        assert answer.err.startswith("muster: array: a session that waits keeps its indexes; change no more than")
        assert muster("update", "sweep", "--array", "0-3").code == 0
        assert {session["spec"]["mem"] >> 30 for session in muster("ls", "--json").json} == {1, 2}


class TestDependencies:
    @pytest.fixture(autouse=True)
    def chain(self):
        submitted("--name", "first")
        submitted("--name", "second", "--after-ok", "first")
        submitted("--name", "third", "--after-any", "second")

    @pytest.mark.parametrize(("session", "other"), [("first", "third"), ("first", "first"), ("second", "third")])
    def test_no_session_comes_to_wait_for_itself(self, session, other):
        answer = muster("update", session, "--after", other)
        assert answer.code == 2
        assert answer.err.startswith(f"muster: after: session {session} would wait for itself")
        assert spec_of(session)["after"] == []

    def test_a_session_waits_for_another_one_that_came_later(self):
        later = submitted("--name", "later")
        assert muster("update", "second", "--after-ok", "later").code == 0
        assert spec_of("second")["after_ok"] == [later["id"]]

    def test_an_array_does_not_wait_for_itself(self):
        muster("submit", "--name", "sweep", "--array", "0-3")
        assert "would wait for itself" in muster("update", "sweep", "--after-any", "sweep").err


def test_an_update_may_not_ask_for_more_than_a_limit_lets_wait(tmp_path):
    submitted("--name", "other", "--cpu", "8")
    submitted("--name", "train", "--cpu", "8")
    write_settings(tmp_path, {"limits": {"users": {"ada": {"pending": {"cpu": 12}}}}})
    answer = muster("update", "train", "--cpu", "9")
    assert answer.code == 2
    assert "user ada may have 12 CPU waiting, has 8 CPU, and this asks for 9 CPU more" in answer.err
    assert muster("update", "train", "--cpu", "6").code == 0
    assert muster("update", "train", "--mem", "2G").code == 0


def test_a_priority_that_only_administrators_give_is_kept(tmp_path, store):
    submitted("--name", "train", "--priority", "90")
    write_settings(tmp_path, {"max_priority": {"*": 50}})
    # The control node's own users are administrators.
    assert muster("update", "train", "--priority", "95").code == 0
    assert store.find("train").spec.priority == 95


def test_launches_that_failed_no_longer_count(store):
    submitted("--name", "train", "--image", "python:3")
    (session,) = store.search()
    failed = replace(session, attempts=2, retry_at=NOW + 60, failed_on=("a1",))
    columns = {"attempts": 2, "retry_at": failed.retry_at, "failed_on": failed.failed_on}
    store.apply([transitions.transition(session, session.state, "the image is gone", NOW, **columns)])
    assert muster("update", "train", "--image", "python:3.12").code == 0
    after = store.find("train")
    assert (after.attempts, after.retry_at, after.failed_on, after.kernels[0].image) == (0, None, (), "python:3.12")


def test_what_has_run_before_keeps_what_its_use_was_counted_with(store):
    submitted("--name", "train", "--requeue")
    (session,) = store.search()
    store.apply([transitions.transition(session, session.state, "it ran", NOW, requeues=1)])
    answer = muster("update", "train", "--mem", "2G")
    assert (
        answer.err == "muster: mem: the session has run before, and its use was counted with this; leave it as it is\n"
    )
    assert muster("update", "train", "--time-limit", "2h").code == 0
