"""What a drain would do to what runs there and to what waits."""

from dataclasses import replace

from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.whatif.drain_plan import drain_plan
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

AGENTS = tuple(make_agent(f"a{number}", cpus=4, swarm="manager") for number in (1, 2, 3))
SMALL = {"cpu": 1, "mem": "64M", "shm": 0}
LARGE = {"cpu": 4, "mem": "64M", "shm": 0}


def plan_of(*sessions, drain=("a1",)):
    return drain_plan(Snapshot(AGENTS, sessions, NOW), drain)


def test_each_session_has_its_end_and_the_agent_the_time_when_it_is_empty():
    short = placed_on(make_session(1, name="short", time_limit="1h", **SMALL), "a1")
    long = placed_on(make_session(2, name="long", time_limit="2h", cluster_size=2, **SMALL), "a1", "a2")
    elsewhere = placed_on(make_session(3, name="elsewhere", **SMALL), "a3")
    plan = plan_of(long, elsewhere, short, drain=("a1", "a2", "a3"))
    assert [(hit.session.name, hit.ends_at) for hit in plan.hits] == [
        ("short", NOW + 3600),
        ("long", NOW + 7200),
        ("elsewhere", None),
    ]
    assert plan.empty_at == {"a1": NOW + 7200, "a2": NOW + 7200, "a3": None}
    assert plan_of(elsewhere).empty_at == {"a1": NOW}


def test_fitting_elsewhere_is_decided_for_all_sessions_together():
    first, second = (placed_on(make_session(number, **LARGE), "a1") for number in (1, 2))
    full = placed_on(make_session(3, **LARGE), "a2")
    assert [hit.fits_elsewhere for hit in plan_of(first, full).hits] == [True]
    assert [hit.fits_elsewhere for hit in plan_of(first, second, full).hits] == [True, False]
    fuller = placed_on(make_session(4, **LARGE), "a3")
    assert [hit.fits_elsewhere for hit in plan_of(first, full, fuller).hits] == [False]


def test_what_a_session_once_waited_for_does_not_keep_it_from_fitting_elsewhere():
    """What it was to start after has ended, and is in no snapshot any more."""
    ended = make_session(9).id
    after = placed_on(make_session(1, after_ok=(ended,), requeue=True, **LARGE), "a1")
    assert [hit.fits_elsewhere for hit in plan_of(after).hits] == [True]


def test_a_gangs_room_on_the_agents_that_stay_is_counted_for_it():
    gang = placed_on(make_session(1, cluster_size=2, cluster_mode="multi-node", **LARGE), "a1", "a2")
    assert [hit.fits_elsewhere for hit in plan_of(gang).hits] == [True]
    assert [hit.fits_elsewhere for hit in plan_of(gang, drain=("a1", "a2")).hits] == [False]


def test_a_waiting_session_that_would_have_started_there_is_delayed():
    waiting = make_session(1, name="waiting", **LARGE)
    full = [placed_on(make_session(number, **LARGE), agent) for number, agent in ((2, "a2"), (3, "a3"))]
    assert [session.name for session in plan_of(waiting, *full).delayed] == ["waiting"]
    assert plan_of(waiting, full[0]).delayed == ()
    held = replace(waiting, held_by="ada")
    assert plan_of(held, *full).delayed == ()


def test_a_session_that_is_being_ended_is_gone_soon():
    ending = placed_on(make_session(1, **SMALL), "a1", state=SessionState.TERMINATING)
    assert plan_of(ending).empty_at == {"a1": NOW}


def test_a_session_that_is_being_ended_takes_no_place_elsewhere_from_others():
    ending = placed_on(make_session(1, name="ending", **LARGE), "a1", state=SessionState.TERMINATING)
    again = replace(ending, requeue_after_end=True)
    runs, full = placed_on(make_session(2, name="runs", **LARGE), "a1"), placed_on(make_session(3, **LARGE), "a2")
    assert {h.session.name: h.fits_elsewhere for h in plan_of(ending, runs, full).hits} == {
        "ending": False,
        "runs": True,
    }
    assert {h.session.name: h.fits_elsewhere for h in plan_of(again, runs, full).hits} == {
        "ending": True,
        "runs": False,
    }
