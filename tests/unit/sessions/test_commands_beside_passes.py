"""Commands on pending sessions while passes place them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.lifecycle import transitions
from muster.core.lifecycle.observation import observe
from muster.core.model.session import Session, SessionState
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import NotPossibleInStateError
from muster.service.sessions.commands import SessionCommands
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_array, make_session, placed_on
from tests.strategies.values import NOW


class _StoreBesidePasses(Store):
    """A store in which a pass comes between a command's look at its sessions and what it does to them."""

    is_passed = False

    def get(self, session_ids: Sequence[str]) -> dict[str, Session]:
        if not self.is_passed:
            self.is_passed = True
            snapshot = self.snapshot(NOW)
            self.apply([*transitions.place(schedule(snapshot), snapshot), *observe(snapshot, {})])
        return super().get(session_ids)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = _StoreBesidePasses(f"sqlite:///{tmp_path / 'muster.db'}")
    made.agents.save([make_agent("a1", cpus=2)])
    return made


@pytest.fixture
def commands(store: Store, tmp_path: Path) -> SessionCommands:
    settings = Settings(state_dir=tmp_path, catalog=tmp_path / "images.yml")
    return SessionCommands(SessionScope(store, settings), lambda: NOW)


def cancel(commands: SessionCommands, *references: str) -> list[Session]:
    return commands.terminate(references, "ada", only_pending=True)


def hold(commands: SessionCommands, *references: str) -> list[Session]:
    return commands.hold(references, "ada")


@pytest.mark.parametrize(("command", "what"), [(cancel, "cancelled"), (hold, "held")])
def test_a_session_that_a_pass_places_meanwhile_goes_on_and_the_command_says_so(store, commands, command, what):
    store.add([make_session(1)])
    with pytest.raises(NotPossibleInStateError, match=f"session s1 is SCHEDULED; only a PENDING session can be {what}"):
        command(commands, "s1")
    assert store.find("s1").state is SessionState.SCHEDULED


def test_of_an_array_those_are_cancelled_that_no_pass_has_placed_meanwhile(store, commands):
    store.add(make_array(1, range(4)))
    assert [session.name for session in cancel(commands, "s1")] == ["s1-2", "s1-3"]
    states = [session.state for session in store.find_all("s1")]
    assert states == [SessionState.SCHEDULED] * 2 + [SessionState.CANCELLED] * 2


def running(session: Session) -> Session:
    return replace(placed_on(session, "a1"), started_at=NOW - 60)


def test_a_session_that_ends_meanwhile_is_not_said_to_be_extended(store, commands):
    store.add([running(make_session(1, time_limit="1m"))])
    with pytest.raises(NotPossibleInStateError, match="session s1 is TERMINATING; only a RUNNING session can be"):
        commands.extend(["s1"], 60, "ada")


def test_of_an_array_those_are_extended_that_do_not_end_meanwhile(store, commands):
    ends, goes_on = map(running, make_array(1, range(2), time_limit="1m"))
    store.add([ends, replace(goes_on, started_at=NOW - 30)])
    assert [session.name for session in commands.extend(["s1"], 60, "ada")] == ["s1-1"]


def test_a_session_that_is_being_restarted_is_not_said_to_be_extended(store, commands):
    session = running(make_session(1, time_limit="2m"))
    store.add([session])
    store.apply([transitions.restart(session, "ada", NOW)])
    with pytest.raises(NotPossibleInStateError, match="session s1 is TERMINATING; only a RUNNING session can be"):
        commands.extend(["s1"], 60, "ada")


def test_of_an_array_those_are_held_that_no_pass_has_placed_meanwhile(store, commands):
    store.add(make_array(1, range(4)))
    assert [session.name for session in hold(commands, "s1")] == ["s1-2", "s1-3"]
    assert [session.held_by for session in store.find_all("s1")] == [None, None, "ada", "ada"]
