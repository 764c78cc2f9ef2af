"""A session, or an array of them, as a resource that is present or absent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Result, SessionState
from muster.core.values.errors import BadInputError, NotFoundError
from muster.idle_settings import Idle
from muster.service.sessions.commands import SessionCommands
from muster.service.sessions.declared import DeclaredOutcome, DeclaredSession
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.store import Store
from tests.strategies.sessions import placed_on
from tests.strategies.values import NOW

Present = Callable[..., DeclaredOutcome]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", catalog=tmp_path / "images.yml")


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.database_url)


@pytest.fixture
def declared(store: Store, settings: Settings) -> DeclaredSession:
    """Return a DeclaredSession whose clock advances by a minute at each reading."""
    times = iter(range(1000))
    return DeclaredSession(store, settings, lambda: NOW + 60 * next(times))


@pytest.fixture
def commands(store: Store, settings: Settings) -> SessionCommands:
    """Return commands on the same sessions, as for another user."""
    return SessionCommands(SessionScope(store, settings))


@pytest.fixture
def present(declared: DeclaredSession) -> Present:
    def make(name: str, *, check: bool = False, **spec: Any) -> DeclaredOutcome:
        return declared.present(name, spec, "ada", check=check)

    return make


def test_a_second_time_nothing_changes_whatever_the_spec_is_written_with(present):
    first = present("prep")
    spec = {
        "begin": "now+1h",
        "after_ok": "prep",
        "labels": ["disk=ssd"],
        "gpu_models": "A100,H100",
        "agents": ["a1"],
        "exclude_agents": "a2",
        "topology": "one-rack",
        "project": "vision",
        "preemptible": True,
        "hold": True,
    }
    made = present("train", **spec)
    assert (first.changed, made.changed) == (True, True)
    again = present("train", **spec)
    assert (again.changed, again.sessions) == (False, made.sessions)
    assert again.diff["before"] == again.diff["after"]
    assert again.diff["after"]["after_ok"] == [first.sessions[0].id]


def test_a_session_that_waits_gets_the_spec_that_is_declared_and_no_more(present, store):
    (made,) = present("train", begin="now+1h", env={"LR": "1", "SEED": "7"}, cpu=2).sessions
    wanted = {"begin": "now+2h", "env": {"LR": "2"}, "mem": "3G"}
    foretold = present("train", check=True, **wanted)
    assert (foretold.changed, foretold.sessions, store.find("train")) == (True, (made,), made)
    done = present("train", **wanted)
    assert (done.changed, done.diff) == (True, foretold.diff)
    (now,) = done.sessions
    assert (now.id, now.submitted_at, now.updates) == (made.id, made.submitted_at, 1)
    spec = now.spec
    assert (spec.begin, dict(spec.env), spec.cpu, spec.mem) == (made.submitted_at + 7200, {"LR": "2"}, 1000, 3 << 30)
    assert done.diff["before"]["cpu"] == "2000m"
    assert done.diff["after"] == now.spec.model_dump(mode="json", exclude={"ssh_keys"})
    again = present("train", **wanted)
    assert (again.changed, again.sessions) == (False, done.sessions)
    assert again.diff["before"] == again.diff["after"]


def run(store: Store, name: str) -> None:
    session = store.find(name)
    running = replace(placed_on(session, "a1"), state=SessionState.RUNNING)
    store.apply([Event(session.id, NOW, session.state, running.state, "it runs", {"started_at": NOW})])


def test_a_session_that_runs_with_another_spec_is_refused_and_left_alone(present, store):
    present("train", cpu=1, image="debian:12")
    run(store, "train")
    before = store.find("train")
    for check in (True, False):
        with pytest.raises(
            BadInputError,
            match="session train is RUNNING and differs: cpu is 1000m, declared is 2000m; end it first, or",
        ):
            present("train", check=check, cpu=2)
    assert store.find("train") == before
    assert not present("train", cpu=1, image="debian:12").changed


def test_of_an_array_those_that_wait_get_what_is_declared(present, store):
    present("train", array="0-2%2", cpu=1)
    run(store, "train-0")
    for check in (True, False):
        assert present("train", check=check, array="0-2%1", cpu=2).changed
    assert [session.spec.cpu for session in store.find_all("train")] == [1000, 2000, 2000]
    again = present("train", array="0-2%1", cpu=2)
    assert not again.changed
    assert again.diff["before"]["cpu"] == again.diff["after"]["cpu"] == "2000m"
    # That does not depend on how far the queue has come.
    for name in ("train-1", "train-2"):
        run(store, name)
    assert not present("train", array="0-2%1", cpu=2).changed
    with pytest.raises(BadInputError, match=r"train-0 is RUNNING and differs: .*cpu is 1000m, declared is 4000m"):
        present("train", array="0-2%1", cpu=4)


def test_what_may_not_be_is_told_in_check_mode_too(store, settings):
    limits = {"users": {"ada": {"pending": {"cpu": 3}}}}
    limited = Settings.model_validate({**settings.model_dump(), "limits": limits})
    declared = DeclaredSession(store, limited)
    declared.present("train", {"cpu": 2}, "ada", check=False)
    for check in (True, False):
        with pytest.raises(BadInputError, match="user ada may have 3 CPU waiting"):
            declared.present("other", {"cpu": 2}, "ada", check=check)
        with pytest.raises(BadInputError, match="user ada may have 3 CPU waiting"):
            declared.present("train", {"cpu": 4}, "ada", check=check)
        with pytest.raises(BadInputError, match="priority: ada may ask for 50 at the most"):
            declared.present("train", {"cpu": 2, "priority": 60}, "ada", check=check)
        with pytest.raises(BadInputError, match="hold: it is not changed by an update; use `muster hold`"):
            declared.present("train", {"cpu": 2, "hold": True}, "ada", check=check)
        assert [session.spec.cpu for session in store.search()] == [2000]


def test_changed_defaults_of_the_site_make_no_difference(present, store, settings):
    made = present("train")
    changed = {"disk_limit": 10 << 30, "idle": Idle(max_lifetime=3600), "default_image": "debian:13"}
    declared = DeclaredSession(store, settings.model_copy(update=changed))
    for spec in ({}, {"image": ""}):
        assert declared.present("train", spec, "ada", check=False).sessions == made.sessions
    for spec in ({"image": "debian:13"}, {"image": "debian:13", "disk": "1M"}):
        assert declared.present("train", spec, "ada", check=False).changed
        assert not declared.present("train", spec, "ada", check=False).changed
    assert (store.find("train").spec.image, store.find("train").spec.disk) == ("debian:13", 1 << 20)


def test_an_array_is_one_resource(present, commands):
    assert present("train", array="0-2%2", check=True).sessions == ()
    made = present("train", array="0-2%2")
    assert [session.name for session in made.sessions] == ["train-0", "train-1", "train-2"]
    shown = made.as_dict()
    assert (shown["changed"], shown["session"]["name"], len(shown["sessions"])) == (True, "train-0", 3)
    assert shown["kernels"] == shown["session"]["kernels"]
    commands.terminate(["train-1"], "ada")
    assert present("train", array="0-2%2").changed is False
    for array in ("0-3", None):
        with pytest.raises(BadInputError, match="array: a session that waits keeps its indexes"):
            present("train", array=array)


def test_an_array_is_absent_when_all_of_it_is(present, declared):
    present("train", array="0-2")
    assert declared.absent("train", "ada", check=True).changed
    gone = declared.absent("train", "ada", check=False)
    assert [session.state for session in gone.sessions] == ["CANCELLED"] * 3
    assert declared.absent("train", "ada", check=False).as_dict() == {"changed": False, "sessions": [], "session": None}
    assert present("train", array="0-2").changed


def test_waiting_for_an_array_ends_when_the_last_is_there(present, declared, commands):
    made = present("train", array="0-2")
    late = declared.waited(made, 0.01)
    assert late.failure == "session train-0 is still PENDING after 0.01 s: see `muster why`"
    commands.terminate(["train"], "ada")
    assert declared.waited(made, 10).failure == "session train-0 is CANCELLED: ended by ada"
    assert declared.waited(replace(made, is_absent=True), 10).failure is None


@pytest.mark.parametrize("spec", [{}, {"command": "true"}])
def test_a_session_that_ends_otherwise_than_was_declared_is_a_failure(present, declared, store, spec):
    made = present("train", **spec)
    (session,) = made.sessions
    ends = replace(placed_on(session, "a1"), state=SessionState.TERMINATING, reason="ended by ada")
    store.apply([Event(session.id, NOW, session.state, ends.state, ends.reason, {"result": Result.FAILURE})])
    again = present("train", **spec)
    assert not again.changed
    store.apply([transitions.ended(ends, {}, NOW)])
    for outcome in (made, again):
        assert declared.waited(outcome, 10).failure == "session train is TERMINATED: ended by ada"


def test_the_playbook_that_launches_a_session_queues_one_that_ends_at_once_no_second_time(present, declared, store):
    (play,) = yaml.safe_load((Path(__file__).parents[3] / "playbooks" / "launch.yml").read_text(encoding="utf-8"))
    found = []
    for task in [task["cluster_session"] for task in play["tasks"] if "cluster_session" in task]:
        state = task.get("state", "present")
        outcome = present("train", command="true") if state == "present" else declared.awaited("train")
        found.append(outcome)
        for session in store.search():
            ended = {"result": Result.SUCCESS, "exit_code": 0, "ended_at": NOW}
            store.apply([Event(session.id, NOW, session.state, SessionState.TERMINATED, "it ended", ended)])
    assert [outcome.changed for outcome in found] == [True, False]
    assert declared.waited(found[-1], 10).failure is None
    assert len(store.search(ended=True)) == 1


def test_a_session_that_is_awaited_must_have_been_queued(declared):
    with pytest.raises(NotFoundError, match="there is no session 'train'"):
        declared.awaited("train")


def test_sessions_that_are_to_be_absent_may_end_as_they_like(present, declared):
    present("train", command="true")
    assert declared.waited(declared.absent("train", "ada", check=False), 10).failure is None
    assert declared.waited(declared.absent("train", "ada", check=False), 10).failure is None


def test_a_session_of_that_name_that_is_anothers_is_not_the_declared_one(declared, present):
    made = present("train", cpu=1)
    with pytest.raises(BadInputError, match="owner is ada, declared is bob; end it first"):
        declared.present("train", {"cpu": 1}, "bob", check=False)
    with pytest.raises(BadInputError, match="owner: session train is ada's, not bob's"):
        declared.absent("train", "bob", check=False)
    assert present("train", cpu=1).sessions == made.sessions, "it was left alone"
    assert declared.absent("train", "root", check=False).changed, "an operator may end anybody's"
