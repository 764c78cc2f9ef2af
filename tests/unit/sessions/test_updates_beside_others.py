"""Updates of sessions that wait, while passes place them and others change them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.lifecycle import transitions
from muster.core.lifecycle.dependencies import cancel_impossible
from muster.core.model.session import SessionState
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import BadInputError, NotPossibleInStateError, SpecError
from muster.service.sessions.commands import SessionCommands
from muster.service.sessions.updates import SessionUpdates, Updated
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_array, make_session
from tests.strategies.values import NOW


class _StoreBesideOthers(Store):
    """A store in which something happens between an update's look at the queue and what it changes."""

    before_update: Callable[[], object] | None = None

    def update(self, updates: Sequence[Update], now: float, check: PendingCheck) -> list[Update]:
        if self.before_update is not None:
            happens, self.before_update = self.before_update, None
            happens()
        return super().update(updates, now, check)


@pytest.fixture
def store(tmp_path: Path) -> _StoreBesideOthers:
    return _StoreBesideOthers(f"sqlite:///{tmp_path / 'muster.db'}")


def scope_of(store: Store, tmp_path: Path, **settings: Any) -> SessionScope:
    values = {"state_dir": tmp_path, "catalog": tmp_path / "images.yml", **settings}
    return SessionScope(store, Settings.model_validate(values))


Updating = Callable[[str, Mapping[str, Any]], Updated]


@pytest.fixture
def update(store: Store, tmp_path: Path) -> Updating:
    updates = SessionUpdates(scope_of(store, tmp_path), lambda: NOW)
    return lambda reference, changes: updates.update(reference, changes, "ada")


def place_all(store: Store) -> list[transitions.Event]:
    snapshot = store.snapshot(NOW)
    return store.apply(transitions.place(schedule(snapshot), snapshot))


def test_a_session_that_a_pass_places_meanwhile_goes_on_as_it_was(store, update):
    store.agents.save([make_agent("a1")])
    store.add([make_session(1)])
    store.before_update = lambda: place_all(store)
    with pytest.raises(NotPossibleInStateError, match="session s1 is SCHEDULED; only a PENDING session can be updated"):
        update("s1", {"cpu": 2})
    assert store.find("s1").spec.cpu == 1000


def test_a_placement_that_was_decided_before_an_update_is_dropped(store, update):
    store.agents.save([make_agent("a1", cpus=4)])
    store.add([make_session(1)])
    snapshot = store.snapshot(NOW)
    placed = transitions.place(schedule(snapshot), snapshot)
    update("s1", {"cpu": 8, "cluster_size": 2})
    assert store.apply(placed) == []
    assert not schedule(store.snapshot(NOW)).placements
    update("s1", {"cpu": 2})
    assert [event.to_state for event in place_all(store)] == [SessionState.SCHEDULED]
    assert all(kernel.allocation for kernel in store.find("s1").kernels)


def test_of_an_array_those_are_updated_that_no_pass_has_placed_meanwhile(store, update):
    store.agents.save([make_agent("a1", cpus=2)])
    store.add(make_array(1, range(4)))
    store.before_update = lambda: place_all(store)
    done = update("s1", {"cpu": 2})
    assert [session.name for session in done.sessions] == ["s1-2", "s1-3"]
    assert [session.spec.cpu for session in store.find_all("s1")] == [1000, 1000, 2000, 2000]


def test_two_updates_at_once_both_come_about(store, update):
    store.add([make_session(1)])
    store.before_update = lambda: update("s1", {"mem": "3G"})
    update("s1", {"cpu": 2})
    spec = store.find("s1").spec
    assert (spec.cpu, spec.mem, store.find("s1").updates) == (2000, 3 << 30, 2)
    reasons = [line.reason for line in store.story(store.find("s1").id)]
    # The queue gives a session the control node's key, which these were added without.
    assert reasons == ["submitted", "updated by ada: mem 1G → 3G; ssh_keys", "updated by ada: cpu 1 → 2"]


def test_a_begin_is_the_same_at_each_try(store, update):
    store.add([make_session(1)])
    store.before_update = lambda: update("s1", {"mem": "3G"})
    update("s1", {"begin": "now+1h"})
    assert store.find("s1").spec.begin == NOW + 3600


def test_a_rename_and_a_hold_meanwhile_stay(store, update, tmp_path):
    store.add([make_session(1)])
    commands = SessionCommands(scope_of(store, tmp_path), lambda: NOW)

    def others() -> None:
        commands.rename("s1", "other", "ada")
        commands.hold(["other"], "ada")

    store.before_update = others
    (after,) = update("s1", {"cpu": 2}).sessions
    assert (after.name, after.spec.name, after.held_by, after.spec.cpu) == ("other", "other", "ada", 2000)


def test_two_updates_at_once_do_not_exceed_a_limit_that_each_would_keep_to(store, tmp_path):
    limits = {"users": {"ada": {"pending": {"cpu": 6}}}}
    updates = SessionUpdates(scope_of(store, tmp_path, limits=limits), lambda: NOW)
    store.add([make_session(1, owner="ada"), make_session(2, owner="ada")])
    store.before_update = lambda: updates.update("s2", {"cpu": 4}, "ada")
    with pytest.raises(BadInputError, match="user ada may have 6 CPU waiting, has 4 CPU, and this asks for 4 CPU more"):
        updates.update("s1", {"cpu": 4}, "ada")
    assert [session.spec.cpu for session in store.search()] == [1000, 4000]


def test_two_updates_at_once_do_not_make_a_circle(store, update):
    store.add([make_session(1), make_session(2)])
    store.before_update = lambda: update("s2", {"after": ["s1"]})
    with pytest.raises(SpecError, match="after_ok: session s1 would wait for itself"):
        update("s1", {"after_ok": "s2"})
    assert store.find("s1").spec.dependencies == ()


def test_a_session_is_not_cancelled_for_a_dependency_that_it_no_longer_has(store, update):
    first = make_session(1)
    store.add([first, make_session(2, after_ok=(first.id,))])
    (first,) = [session for session in store.search() if session.name == "s1"]
    store.apply([transitions.transition(first, SessionState.CANCELLED, "ended", NOW)])
    cancelled = cancel_impossible(store.snapshot(NOW))
    assert len(cancelled) == 1
    update("s2", {"after_ok": None})
    assert store.apply(cancelled) == []
    assert store.find("s2").state is SessionState.PENDING


def test_a_bound_user_keeps_a_priority_that_an_administrator_gave_and_gets_no_higher_one(store, tmp_path):
    updates = SessionUpdates(scope_of(store, tmp_path, max_priority={"*": 50}), lambda: NOW)
    store.add([make_session(1, owner="ada")])
    updates.update("s1", {"priority": 90}, "root")
    updates.update("s1", {"mem": "2G", "priority": 80}, "ada", is_bound=True)
    with pytest.raises(SpecError, match="priority: ada may ask for 50 at the most; write 50 or less"):
        updates.update("s1", {"priority": 81}, "ada", is_bound=True)
    assert store.find("s1").spec.priority == 80


def test_sessions_that_keep_changing_are_left_alone_after_a_while(store, update):
    store.add([make_session(1)])

    def again() -> None:
        (session,) = store.search()
        unlike = replace(session, updates=session.updates + 1)
        Store.update(store, [Update(session, unlike, "another")], NOW, PendingCheck(store.pending(), lambda _: None))
        store.before_update = again

    store.before_update = again
    with pytest.raises(NotPossibleInStateError, match="the sessions keep changing; try again"):
        update("s1", {"cpu": 2})


def test_nothing_is_updated_that_may_run_since_a_backup(store, update):
    store.add([make_session(1)])
    store.queue.note_restore(holds=False)
    with pytest.raises(NotPossibleInStateError, match="the database was put back, and agents were not asked yet"):
        update("s1", {"cpu": 2})
    assert store.find("s1").updates == 0


def test_a_new_time_limit_is_all_that_a_session_has(store, update):
    store.add([make_session(1, time_limit="1h", extended_s=600, requeues=1)])
    update("s1", {"priority": 20})
    assert store.find("s1").time_limit == 4200
    update("s1", {"time_limit": "2h"})
    assert (store.find("s1").time_limit, store.find("s1").extended_s) == (7200, 0)
