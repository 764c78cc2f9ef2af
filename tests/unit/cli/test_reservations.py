"""`muster reservation`: agents set aside for a time."""

import time
from dataclasses import replace
from datetime import datetime

import pytest

from muster.core.model.session import SessionState
from muster.store.reservations import Reservations
from tests.command_line import muster
from tests.strategies.agents import make_agent
from tests.unit.running_sessions import running_session


@pytest.fixture(autouse=True)
def cluster(store):
    store.agents.save([make_agent("a1"), make_agent("a2"), make_agent("g1", resource_group="gpu")])
    return store


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def listed() -> list[str]:
    return [reservation["name"] for reservation in muster("reservation", "ls", "--json").json]


def test_a_reservation_is_made_listed_and_taken_back(cluster):
    answer = muster(
        *("reservation", "create", "night", "--begin", "2099-11-22T20:00+00:00", "--duration", "2h"),
        *("--agent", "a1", "--agent", "a2", "--user", "ada", "--project", "vision", "--json"),
    )
    assert answer.code == 0, answer.err
    assert answer.json == {
        "name": "night",
        "begins_at": "2099-11-22T20:00:00.000+00:00",
        "ends_at": "2099-11-22T22:00:00.000+00:00",
        "maintenance": False,
        "resource_group": None,
        "agents": ["a1", "a2"],
        "users": ["ada"],
        "projects": ["vision"],
        "reason": "made by ada",
        "running_into": [],
    }
    assert [r.name for r in cluster.snapshot(time.time()).reservations] == ["night"]
    (_, row) = muster("reservation", "ls").out.splitlines()
    assert row.split() == [
        *("night", "coming", "2099-11-22T20:00:00.000+00:00", "2099-11-22T22:00:00.000+00:00", "a1,a2"),
        *("user", "ada,project", "vision", "made", "by", "ada"),
    ]
    assert muster("reservation", "rm", "night").out == "night is taken back\n"
    assert listed() == []
    assert muster("reservation", "rm", "night").code == 2


def test_without_users_and_projects_it_is_maintenance_from_now_on():
    before = time.time()
    made = muster("reservation", "create", "disks", "--end", "+1h", "--group", "gpu", "--json").json
    assert made["maintenance"] is True
    assert before - 1 <= seconds(made["begins_at"]) <= time.time()
    assert seconds(made["ends_at"]) - seconds(made["begins_at"]) == pytest.approx(3600, abs=0.01)
    assert muster("reservation", "ls").out.splitlines()[1].split()[1] == "active"


def test_an_end_counts_from_the_begin():
    made = muster("reservation", "create", "n", "--begin", "2099-11-22T22:00", "--end", "06:00", "--json").json
    assert seconds(made["ends_at"]) - seconds(made["begins_at"]) == 8 * 3600


@pytest.mark.usefixtures("summer_time_in_summer")
@pytest.mark.parametrize(("month", "from_utc_h"), [("01", 1), ("07", 2)])
def test_a_time_is_the_one_that_clocks_show_on_that_day(month, from_utc_h):
    times = ("--begin", f"2099-{month}-20T20:00", "--end", f"2099-{month}-21T06:00")
    made = muster("reservation", "create", "disks", *times, "--json").json
    assert made["begins_at"] == f"2099-{month}-20T{20 - from_utc_h}:00:00.000+00:00"
    assert made["ends_at"] == f"2099-{month}-21T0{6 - from_utc_h}:00:00.000+00:00"


def test_a_new_reservation_names_a_session_that_is_placed_while_it_is_made(cluster, monkeypatch):
    add = Reservations.add

    def added(*arguments) -> None:
        cluster.add([replace(running_session(1, "a1", name="endless"), state=SessionState.SCHEDULED)])
        add(*arguments)

    monkeypatch.setattr(Reservations, "add", added)
    made = muster("reservation", "create", "disks", "--end", "+1h", "--json").json
    assert [session["name"] for session in made["running_into"]] == ["endless"]


def test_a_new_reservation_names_sessions_that_may_still_run(cluster):
    now = time.time()
    forever, short = running_session(1, "a1", name="train"), running_session(2, "a1", name="lab", time_limit="1h")
    elsewhere = running_session(3, "g1", name="other")
    cluster.add([forever, short, elsewhere])
    answer = muster(
        "reservation", "create", "w", "--begin", "+2h", "--duration", "1h", "--agent", "a1", "--agent", "a2"
    )
    assert answer.code == 0
    assert answer.err == "sessions that run now and may still run when it begins: train\n"
    assert cluster.snapshot(now).reservations[0].begins_at == pytest.approx(now + 7200, abs=30)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["w"], "--end: say when it is over; give either --end or --duration"),
        (["w", "--end", "+1h", "--duration", "1h"], "--end: say when it is over; give either --end or --duration"),
        (["w", "--end", "soon"], "--end: 'soon' is no point in time; write 2026-11-22T08:00, 08:00 or +2h"),
        (["w", "--duration", "0"], "--duration: a span of time must be longer than zero; write minutes, 30m, 2h"),
        (["w", "--begin", "2020-01-01", "--duration", "1h"], "is over already; write a later time"),
        (["w", "--begin", "+2h", "--end", "2020-01-01"], "is not after its begin; write a later time"),
        (["w", "--duration", "1h", "--agent", "nosuch"], "there is no agent nosuch; see `muster agents`"),
        (["w", "--duration", "1h", "--group", "nosuch"], "--group: there is no resource group nosuch; see `muster ag"),
        (
            ["w", "--duration", "1h", "--group", "gpu", "--agent", "a1"],
            "--group: agents are named already; give either",
        ),
        (["a b", "--duration", "1h"], "NAME: 'a b' is no name; write"),
    ],
)
def test_a_wrong_reservation_is_refused_in_one_line(arguments, problem):
    answer = muster("reservation", "create", *arguments)
    assert answer.code == 2
    (line,) = answer.errors
    assert problem in line
    assert listed() == []


def test_a_name_is_given_once():
    assert muster("reservation", "create", "w", "--duration", "1h").code == 0
    answer = muster("reservation", "create", "w", "--duration", "2h")
    assert answer.code == 2
    assert answer.errors == [
        "muster: there is a reservation 'w' already; choose another name, or `muster reservation rm w`"
    ]
