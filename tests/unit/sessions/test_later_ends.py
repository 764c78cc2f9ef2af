"""Running sessions whose users put off their ends: no further into what is reserved for others."""

from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.model.reservation import Reservation
from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.service.sessions.commands import SessionCommands
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.store import Store
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

HOUR = 3600
# The session has run for half an hour then.
BEGAN_AT = NOW - HOUR / 2


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(f"sqlite:///{tmp_path / 'muster.db'}")
    session = placed_on(make_session(1, name="train", time_limit="1h"), "a1")
    made.add([replace(session, state=SessionState.RUNNING, started_at=BEGAN_AT)])
    return made


@pytest.fixture
def commands(store: Store, tmp_path: Path) -> SessionCommands:
    settings = Settings(state_dir=tmp_path, catalog=tmp_path / "images.yml")
    return SessionCommands(SessionScope(store, settings), lambda: NOW)


def reserved(store: Store, begins_in_s: float, **values: object) -> None:
    at = NOW + begins_in_s
    store.reservations.add(Reservation("disks", at, at + HOUR, **{"agents": frozenset({"a1"}), **values}))


def extend(commands: SessionCommands, seconds: int, *, is_bound: bool = True) -> None:
    commands.extend(["train"], seconds, "ada", is_bound=is_bound)


def restart(commands: SessionCommands, _seconds: int, *, is_bound: bool = True) -> None:
    commands.restart(["train"], "ada", is_bound=is_bound)


LATER = [(extend, r"TIME: with 30m more"), (restart, "restarted now")]


@pytest.mark.parametrize(("put_off", "how"), LATER)
def test_a_user_does_not_put_off_an_end_into_what_is_reserved(store, commands, put_off, how):
    reserved(store, 0.75 * HOUR)
    with pytest.raises(NotPossibleInStateError, match=rf"^{how}, session train may run until .* \(disks\); ask"):
        put_off(commands, HOUR // 2)
    put_off(commands, HOUR // 2, is_bound=False)


@pytest.mark.parametrize(("put_off", "_how"), LATER)
@pytest.mark.parametrize(
    ("begins_in_s", "values"),
    [
        (HOUR, {}),
        (-2 * HOUR, {}),
        (0.75 * HOUR, {"agents": frozenset({"a2"})}),
        (0.75 * HOUR, {"users": frozenset({"ada"})}),
        (0.75 * HOUR, {"agents": frozenset(), "resource_group": "others"}),
    ],
    ids=["after its end", "over", "other agents", "their own", "another group"],
)
def test_what_is_not_in_the_way_keeps_nobody(store, commands, put_off, _how, begins_in_s, values):
    reserved(store, begins_in_s, **values)
    put_off(commands, HOUR // 2)


@pytest.mark.parametrize(("put_off", "_how"), LATER)
def test_one_that_runs_into_a_reservation_reaches_no_further_into_it(store, commands, put_off, _how):
    reserved(store, HOUR / 4)
    with pytest.raises(NotPossibleInStateError, match="are reserved"):
        put_off(commands, 60)


def test_a_session_that_runs_for_ever_may_be_restarted(store, commands):
    store.add([replace(placed_on(make_session(2, name="ever"), "a1"), state=SessionState.RUNNING, started_at=BEGAN_AT)])
    reserved(store, HOUR / 4)
    commands.restart(["ever"], "ada", is_bound=True)


@pytest.mark.parametrize("none", [0, "0", "0m"])
def test_a_site_lets_users_extend_none(store, tmp_path, none):
    settings = Settings.model_validate({"state_dir": tmp_path, "extend_most": none, "idle": {"grace": none}})
    assert (settings.extend_most, settings.idle.grace) == (0, 0)
    commands = SessionCommands(SessionScope(store, settings), lambda: NOW)
    with pytest.raises(BadInputError, match="users may extend none; ask an administrator"):
        extend(commands, 60)
    extend(commands, 60, is_bound=False)
    assert store.find("train").extended_s == 60
