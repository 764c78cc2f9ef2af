"""How a session changes: what the table allows, and what reports and outcomes mean."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given

from muster.core import lifecycle
from muster.core.agent import AgentState
from muster.core.errors import IllegalTransitionError
from muster.core.lifecycle import MAX_LAUNCHES, RETRY_DELAY_S, TRANSITIONS, Event, transition
from muster.core.placement import Policy
from muster.core.schedule import schedule
from muster.core.session import FINAL, Result, Session, SessionState
from muster.core.snapshot import Snapshot
from tests.simulated_agents import report_of
from tests.strategies import NOW, STATES, make_agent, make_session, placed_on, sessions_in_any_state, snapshots

S = SessionState
ALLOWED = sorted((a, b) for a in STATES for b in TRANSITIONS[a])
FORBIDDEN = sorted(set(product(STATES, STATES)) - set(ALLOWED))


def kernel_entry(session: Session, name: str, **facts: object) -> dict[str, Any]:
    kernel = next(kernel for kernel in session.kernels if kernel.name == name)
    return {
        "kernel_id": kernel.id,
        "session_id": session.id,
        "name": name,
        "generation": session.generation,
        "container_id": f"c-{name}",
        "state": "running",
        "released": True,
        "exit_code": None,
        "oom_killed": False,
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": None,
        "address": "10.1.2.3",
        "ssh_port": None,
        **facts,
    }


def reports_of(session: Session, **differing: dict[str, object] | None) -> dict[str, dict[str, Any]]:
    """Every agent's report: all kernels run, but for those named; None means that the container is gone."""
    reports = {agent_id: report_of(agent_id) for agent_id in session.agents}
    for kernel in session.kernels:
        facts = differing.get(kernel.name, {})
        if facts is not None and kernel.allocation is not None:
            reports[kernel.allocation.agent_id]["kernels"].append(kernel_entry(session, kernel.name, **facts))
    return reports


def exited(code: int, **facts: object) -> dict[str, object]:
    return {"state": "exited", "exit_code": code, **facts}


def observed(session: Session, now: float = NOW + 1, **differing: dict[str, object] | None) -> Event | None:
    snapshot = Snapshot((), (session,), now)
    events = lifecycle.observe(snapshot, reports_of(session, **differing))
    return events[0] if events else None


def launched(session: Session, now: float = NOW, **by_agent: dict[str, object]) -> list[Event]:
    """What `record` makes of outcomes by agent: `a1={"outcome": "started"}`."""
    outcomes = {
        agent_id: {"outcome": "started", "error": None, "permanent": False, "last_words": [], **outcome}
        for agent_id, outcome in by_agent.items()
    }
    return lifecycle.record(session, outcomes, reports_of(session), now)


def batch(**values: object) -> Session:
    return placed_on(make_session(command="python train.py", **values), "a1")


# The table


@pytest.mark.parametrize(("before", "after"), ALLOWED)
def test_a_transition_of_the_table_is_allowed(before, after):
    event = transition(make_session(state=before), after, "because", NOW)
    assert (event.from_state, event.to_state, event.reason) == (before, after, "because")
    assert event.session.get("ended_at") == (NOW if after in FINAL else None)


@pytest.mark.parametrize(("before", "after"), FORBIDDEN)
def test_any_other_transition_is_refused_by_name(before, after):
    session = make_session(state=before)
    with pytest.raises(IllegalTransitionError) as raised:
        transition(session, after, "because", NOW)
    for part in (session.name, session.id, before, after):
        assert part in str(raised.value)


def test_every_state_is_in_the_table_and_only_final_states_have_no_way_out():
    assert set(TRANSITIONS) == set(S)
    assert {state for state, targets in TRANSITIONS.items() if not targets} == FINAL


def test_every_state_can_be_reached_and_every_state_can_end():
    def reachable(start: SessionState) -> set[SessionState]:
        found, rest = {start}, [start]
        while rest:
            new = TRANSITIONS[rest.pop()] - found
            found |= new
            rest += new
        return found

    assert reachable(S.PENDING) == set(S)
    assert all(reachable(state) & FINAL for state in S)


# Ended by a user


@pytest.mark.parametrize(
    ("state", "command", "after", "result"),
    [
        (S.PENDING, None, S.CANCELLED, None),
        (S.SCHEDULED, None, S.TERMINATING, Result.SUCCESS),
        (S.PREPARING, "true", S.TERMINATING, Result.FAILURE),
        (S.RUNNING, None, S.TERMINATING, Result.SUCCESS),
        (S.RUNNING, "true", S.TERMINATING, Result.FAILURE),
    ],
)
def test_a_user_ends_a_session(state, command, after, result):
    event = lifecycle.end_by_user(make_session(command=command, state=state), "ada", NOW)
    assert (event.to_state, event.session.get("result"), event.reason) == (after, result, "ended by ada")


@pytest.mark.parametrize("state", [S.TERMINATING, *sorted(FINAL)])
def test_what_has_ended_cannot_be_ended_again(state):
    with pytest.raises(IllegalTransitionError):
        lifecycle.end_by_user(make_session(state=state), "ada", NOW)


# What a report means


@pytest.mark.parametrize(
    ("values", "differing", "result", "exit_code", "said"),
    [
        ({}, {"main1": exited(0)}, Result.SUCCESS, 0, "exit code 0"),
        ({}, {"main1": exited(3)}, Result.FAILURE, 3, "exit code 3 in main1"),
        ({"cluster_size": 3}, {"main1": exited(0)}, Result.SUCCESS, 0, "exit code 0"),
        ({"cluster_size": 2}, {"sub1": exited(1)}, Result.FAILURE, 1, "sub1 ended unexpectedly"),
        ({"cluster_size": 2}, {"sub1": exited(0)}, Result.FAILURE, 0, "sub1 ended unexpectedly"),
        ({"cluster_size": 3, "run_on": "all"}, {"main1": exited(0), "sub1": exited(0), "sub2": exited(0)},
         Result.SUCCESS, 0, "exit code 0"),
        ({"cluster_size": 3, "run_on": "all"}, {"main1": exited(0), "sub2": exited(9)}, Result.FAILURE, 9, "in sub2"),
        ({"cluster_size": 3, "run_on": "all"}, {"sub1": exited(1), "sub2": exited(2)}, Result.FAILURE, 1, "in sub1"),
        ({}, {"main1": exited(137, oom_killed=True)}, Result.FAILURE, 137, "main1 ran out of memory"),
        ({"cluster_size": 2}, {"sub1": exited(137, oom_killed=True)}, Result.FAILURE, 137, "sub1 ran out of memory"),
        ({}, {"main1": None}, Result.FAILURE, None, "main1 has vanished"),
        ({"cluster_size": 2}, {"sub1": None}, Result.FAILURE, None, "sub1 has vanished"),
        ({"cluster_size": 2}, {"main1": exited(0), "sub1": exited(1)}, Result.FAILURE, 1, "sub1"),
        ({"roles": ["ps:1,command=serve"]}, {"main1": exited(0)}, Result.SUCCESS, 0, "exit code 0"),
        ({"roles": ["ps:1,command=serve"], "run_on": "all"}, {"main1": exited(0)}, Result.SUCCESS, 0, "exit code 0"),
        ({"roles": ["ps:1,command=serve"]}, {"ps1": exited(2)}, Result.FAILURE, 2, "ps1"),
    ],
)  # fmt: skip
def test_a_running_batch_session_ends(values, differing, result, exit_code, said):
    event = observed(batch(**values), **differing)
    assert event.to_state is S.TERMINATING
    assert (event.session["result"], event.session["exit_code"]) == (result, exit_code)
    assert said in event.reason


@pytest.mark.parametrize(
    ("values", "differing"),
    [
        ({"cluster_size": 3, "run_on": "all"}, {"main1": exited(0), "sub1": exited(0)}),
        ({"roles": ["ps:1,command=prepare"]}, {"ps1": exited(0)}),
        ({}, {"main1": {"state": "paused"}}),
    ],
)
def test_a_running_batch_session_goes_on(values, differing):
    assert observed(batch(**values), **differing).to_state is S.RUNNING


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_kernel_of_an_interactive_session_that_ends_has_failed_it(code):
    event = observed(placed_on(make_session(cluster_size=2), "a1"), sub1=exited(code))
    assert (event.to_state, event.session["result"]) == (S.TERMINATING, Result.FAILURE)
    assert "sub1" in event.reason


def test_a_container_of_an_earlier_launch_is_not_this_session():
    assert "vanished" in observed(batch(), main1={"generation": 6}).reason


@pytest.mark.parametrize(("later", "ends"), [(59, False), (60, True), (3600, True)])
def test_a_session_ends_when_its_time_limit_is_reached(later, ends):
    session = replace(batch(time_limit="60s"), started_at=NOW)
    event = observed(session, now=NOW + later)
    assert (event.to_state is S.TERMINATING) == ends
    if ends:
        assert event.session["result"] is Result.FAILURE
        assert "time limit of 1m" in event.reason


def test_a_command_that_ended_in_time_has_not_failed_for_the_time():
    session = replace(batch(time_limit="60s"), started_at=NOW)
    assert observed(session, now=NOW + 61, main1=exited(0)).session["result"] is Result.SUCCESS


def test_an_agent_without_a_report_says_nothing():
    gang = placed_on(make_session(cluster_size=2), "a1", "a2")
    reports = reports_of(gang, main1=None, sub1=None)
    del reports["a2"]
    assert lifecycle.observe(Snapshot((), (gang,), NOW), reports) == []


def test_facts_are_recorded_once_and_leave_no_line_in_the_story():
    session = placed_on(make_session(), "a1")
    event = observed(session, main1={"ssh_port": 49153})
    assert (event.to_state, event.in_story) == (S.RUNNING, False)
    changes = event.kernels[session.main.id]
    assert (changes["ssh_port"], changes["container_state"]) == (49153, "running")
    known = replace(session, kernels=(replace(session.main, **changes),))
    assert observed(known, main1={"ssh_port": 49153}) is None


def test_a_launch_whose_end_nobody_recorded_is_adopted():
    session = placed_on(make_session(cluster_size=2), "a1", state=S.PREPARING)
    event = observed(session)
    assert (event.to_state, event.session["started_at"]) == (S.RUNNING, NOW + 1)
    assert event.kernels[session.main.id]["container_id"] == "c-main1"


@pytest.mark.parametrize("facts", [None, {"state": "created"}, {"generation": 6}, {"released": False}])
def test_a_launch_that_was_cut_short_is_not_adopted(facts):
    session = placed_on(make_session(cluster_size=2), "a1", state=S.PREPARING)
    assert observed(session, sub1=facts) is None


@pytest.mark.parametrize("state", [S.SCHEDULED, S.TERMINATING])
def test_reports_change_nothing_of_a_session_that_does_not_run(state):
    assert observed(placed_on(make_session(), "a1", state=state), main1=None) is None


# What an outcome means


def preparing(attempts: int = 1, *agent_ids: str) -> Session:
    session = placed_on(make_session(cluster_size=2), *(agent_ids or ("a1",)), state=S.PREPARING)
    return replace(session, attempts=attempts)


def test_a_gang_that_started_runs():
    (event,) = launched(preparing(), a1={})
    assert (event.to_state, event.session["started_at"]) == (S.RUNNING, NOW)


@pytest.mark.parametrize("attempts", range(1, MAX_LAUNCHES))
def test_a_launch_that_failed_is_tried_again_later_each_time(attempts):
    session = preparing(attempts)
    (event,) = launched(session, a1={"outcome": "failed", "error": "no room on the disk"})
    assert (event.to_state, event.reason) == (S.PENDING, "no room on the disk")
    assert event.session["retry_at"] == NOW + RETRY_DELAY_S * 2 ** (attempts - 1)
    assert all(event.kernels[kernel.id]["allocation"] is None for kernel in session.kernels)


@pytest.mark.parametrize(("attempts", "permanent"), [(1, True), (MAX_LAUNCHES, False)])
def test_a_launch_that_cannot_succeed_is_an_error(attempts, permanent):
    (event,) = launched(preparing(attempts), a1={"outcome": "failed", "error": "no such image", "permanent": permanent})
    assert (event.to_state, event.reason, event.session["result"]) == (S.ERROR, "no such image", Result.FAILURE)
    assert {"allocation": None} in event.kernels.values()


def test_a_gang_of_which_one_agent_failed_has_failed():
    (event,) = launched(preparing(1, "a1", "a2"), a1={}, a2={"outcome": "failed", "error": "it broke"})
    assert event.to_state is S.PENDING


def test_a_gang_of_which_one_agent_did_not_answer_is_left_as_it_is():
    assert launched(preparing(1, "a1", "a2"), a1={}) == []


def test_a_session_has_ended_when_every_agent_says_stopped():
    session = placed_on(make_session(cluster_size=2), "a1", "a2", state=S.TERMINATING)
    session = replace(session, reason="ended by ada")
    words = {"kernel_id": session.main.id, "exit_code": 143, "oom_killed": False, "started_at": "1", "finished_at": "2"}
    stopped: dict[str, object] = {"outcome": "stopped"}
    assert launched(session, a1=stopped) == []
    assert launched(session, a1=stopped, a2={"outcome": "failed", "error": "busy"}) == []
    (event,) = launched(session, a1={**stopped, "last_words": [words]}, a2=stopped)
    assert (event.to_state, event.reason, event.session["ended_at"]) == (S.TERMINATED, "ended by ada", NOW)
    assert event.kernels[session.main.id]["exit_code"] == 143


@pytest.mark.parametrize("outcome", ["started", "kept"])
def test_a_session_that_was_ended_during_its_launch_is_not_over_yet(outcome):
    assert launched(placed_on(make_session(), "a1", state=S.TERMINATING), a1={"outcome": outcome}) == []


def test_a_repeated_launch_is_no_new_attempt():
    first = lifecycle.launch(placed_on(make_session(), "a1", state=S.SCHEDULED), 8, "key", NOW)
    assert (first.session["attempts"], first.session["generation"]) == (1, 8)
    again = lifecycle.launch(placed_on(make_session(), "a1", state=S.PREPARING), 9, "key", NOW)
    assert (again.session["attempts"], again.session["generation"]) == (1, 9)
    assert "cut short" in again.reason


@given(snapshots())
def test_each_placement_of_a_plan_becomes_one_event(snapshot):
    plan = schedule(snapshot, Policy())
    events = lifecycle.place(plan, snapshot)
    assert [event.session_id for event in events] == [placement.session_id for placement in plan.placements]
    for event, placement in zip(events, plan.placements, strict=True):
        assert (event.from_state, event.to_state) == (S.PENDING, S.SCHEDULED)
        assert {key: change["allocation"] for key, change in event.kernels.items()} == dict(placement.allocations)


@given(sessions_in_any_state())
def test_whatever_agents_report_the_next_state_is_legal(session):
    for differing in ({}, {"main1": None}, {"main1": exited(0)}, {"main1": exited(1)}):
        event = observed(session, **differing) if session.agents else None
        if event is not None and event.to_state is not event.from_state:
            assert event.to_state in TRANSITIONS[session.state]


def test_an_agent_made_of_a_report_keeps_back_what_is_reserved():
    agent = make_agent(cpus=8, mem_bytes=16 << 30, gpus=2, units_per_gpu=2, reserved_cpu=1.5, reserved_mem="2G")
    assert (agent.capacity.cpu, agent.capacity.mem) == (6500, 14 << 30)
    assert (agent.capacity.gpu, agent.capacity.fgpu) == (2, 4000)


def test_a_place_on_an_agent_that_was_lost_before_the_launch_is_given_back():
    scheduled = placed_on(make_session(cluster_size=2), "a1", "a2", state=S.SCHEDULED)
    running = placed_on(make_session(2), "a2")
    lost = replace(make_agent("a2"), state=AgentState.LOST)
    (event,) = lifecycle.take_back(Snapshot((make_agent("a1"), lost), (scheduled, running), NOW))
    assert (event.session_id, event.to_state) == (scheduled.id, S.PENDING)
    assert event.reason == "agent a2 was lost before the launch"
    assert event.kernels == {kernel.id: {"allocation": None} for kernel in scheduled.kernels}


def test_a_place_on_agents_that_answer_is_kept():
    scheduled = placed_on(make_session(), "a1", state=S.SCHEDULED)
    assert lifecycle.take_back(Snapshot((make_agent("a1"),), (scheduled,), NOW)) == []
