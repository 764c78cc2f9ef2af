"""How a session changes: what the table allows, and what each change brings with it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given

from muster.core.agents.agent import Agent, AgentState
from muster.core.lifecycle import transitions
from muster.core.lifecycle.taking_back import take_back
from muster.core.lifecycle.transitions import MAX_LAUNCHES, RETRY_DELAY_S, TRANSITIONS, transition
from muster.core.model.plan import Plan, Preemption, Waits
from muster.core.model.session import FINAL, Allocation, GpuShare, LaunchStep, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import IllegalTransitionError
from tests.properties import examples
from tests.strategies.agents import make_agent
from tests.strategies.sessions import STATES, make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

S = SessionState
ALLOWED = sorted((a, b) for a in STATES for b in TRANSITIONS[a])
FORBIDDEN = sorted(set(product(STATES, STATES)) - set(ALLOWED))


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
    event = transitions.end_by_user(make_session(command=command, state=state), "ada", NOW)
    assert (event.to_state, event.session.get("result"), event.reason) == (after, result, "ended by ada")


@pytest.mark.parametrize("state", [S.TERMINATING, *sorted(FINAL)])
def test_an_ended_session_cannot_be_ended_again(state):
    with pytest.raises(IllegalTransitionError):
        transitions.end_by_user(make_session(state=state), "ada", NOW)


def test_a_session_that_is_to_be_queued_again_can_still_be_ended():
    session = replace(placed_on(make_session(), "a1", state=S.TERMINATING), requeue_after_end=True)
    event = transitions.end_by_user(session, "ada", NOW)
    assert (event.to_state, event.session["requeue_after_end"]) == (S.TERMINATING, False)


# Held and released


def test_a_pending_session_is_held_and_released_by_name_with_a_message():
    session = make_session(wait=Wait(WaitCode.BUSY, "busy"))
    held = transitions.hold(session, "eve", NOW)
    assert (held.from_state, held.to_state, held.reason) == (S.PENDING, S.PENDING, "held by eve")
    assert held.in_story
    assert (held.session, held.expects) == ({"held_by": "eve", "wait": None}, {"held_by": None})
    released = transitions.release(replace(session, held_by="eve"), "ada", NOW)
    assert (released.to_state, released.reason) == (S.PENDING, "released by ada")
    changes = {"held_by": None, "retry_at": None, "wait": None}
    assert (released.session, released.expects) == (changes, {"held_by": "eve"})


@pytest.mark.parametrize("state", sorted(set(S) - {S.PENDING}))
def test_only_a_pending_session_is_held_or_released(state):
    for change in (transitions.hold, transitions.release):
        with pytest.raises(IllegalTransitionError, match=f"s1 is {state}; only a PENDING one"):
            change(make_session(state=state), "ada", NOW)


# Preempted


def preempted(*sessions: Session) -> list[transitions.Event]:
    waiting = make_session(9)
    plan = Plan((), Waits(()), tuple(Preemption(s.id, waiting.id, "preempted for s9") for s in sessions))
    return transitions.preempt(plan, Snapshot((make_agent("a1"),), (*sessions, waiting), NOW))


def test_a_preempted_session_ends_or_is_queued_again_where_it_may_be():
    ends, again = placed_on(make_session(1), "a1"), placed_on(make_session(2, requeue=True), "a1")
    first, second = preempted(ends, again)
    assert (first.session_id, first.to_state, first.reason) == (ends.id, S.TERMINATING, "preempted for s9")
    assert (first.session["result"], first.session["requeue_after_end"]) == (Result.FAILURE, False)
    assert (second.session_id, second.to_state) == (again.id, S.TERMINATING)
    assert second.reason == "preempted for s9; the session is queued again"
    assert second.session == {"step": None, "requeue_after_end": True}


@pytest.mark.parametrize("state", sorted(set(S) - {S.RUNNING}))
def test_only_running_sessions_are_preempted(state):
    assert preempted(placed_on(make_session(1), "a1", state=state)) == []


# Launches


def preparing(step: LaunchStep, *agent_ids: str, attempts: int = 0) -> Session:
    session = placed_on(make_session(cluster_size=2), *(agent_ids or ("a1",)), state=S.PREPARING)
    return replace(session, step=step, attempts=attempts)


@examples(60)
@given(snapshots())
def test_each_placement_of_a_plan_becomes_one_event(snapshot):
    plan = schedule(snapshot)
    events = transitions.place(plan, snapshot)
    assert [event.session_id for event in events] == [placement.session_id for placement in plan.placements]
    for event, placement in zip(events, plan.placements, strict=True):
        assert (event.from_state, event.to_state) == (S.PENDING, S.SCHEDULED)
        assert {key: change["allocation"] for key, change in event.kernels.items()} == dict(placement.allocations)
        assert event.session["stranded_on"] == ()


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (placed_on(make_session(), "a1", state=S.SCHEDULED), "launching"),
        (preparing(LaunchStep.PULLING), "launching"),
        (preparing(LaunchStep.STARTING), "the launch was cut short and is repeated"),
    ],
)
def test_a_launch_has_its_own_generation_and_is_no_attempt_yet(session, said):
    event = transitions.launch(session, 8, "key", NOW, {})
    assert (event.to_state, event.reason) == (S.PREPARING, said)
    assert event.session == {"generation": 8, "public_key": "key", "step": LaunchStep.STARTING, "progress": ()}


def test_a_pull_names_the_images_and_the_agents_that_lack_them():
    session = placed_on(make_session(), "a1", state=S.SCHEDULED)
    event = transitions.pull(session, {"debian:13": {"a2", "a1"}, "b": {"a1"}}, NOW)
    assert (event.to_state, event.session["step"]) == (S.PREPARING, LaunchStep.PULLING)
    assert event.reason == "pulling b on a1; debian:13 on a1, a2"


@pytest.mark.parametrize("attempts", range(MAX_LAUNCHES - 1))
def test_a_launch_that_failed_is_tried_again_later_each_time(attempts):
    session = preparing(LaunchStep.STARTING, attempts=attempts)
    event = transitions.launch_failed(session, "no room on the disk", NOW, permanent=False)
    assert (event.to_state, event.reason) == (S.PENDING, "no room on the disk")
    assert (event.session["attempts"], event.session["retry_at"]) == (attempts + 1, NOW + RETRY_DELAY_S * 2**attempts)
    assert (event.session["step"], event.session["placed_mode"]) == (None, None)
    assert event.kernels == {kernel.id: {"allocation": None} for kernel in session.kernels}


@pytest.mark.parametrize(("attempts", "permanent"), [(0, True), (MAX_LAUNCHES - 1, False)])
def test_a_launch_that_cannot_succeed_is_an_error(attempts, permanent):
    session = preparing(LaunchStep.STARTING, attempts=attempts)
    event = transitions.launch_failed(session, "no such image", NOW, permanent=permanent)
    assert (event.to_state, event.reason, event.session["result"]) == (S.ERROR, "no such image", Result.FAILURE)
    assert {"allocation": None} in event.kernels.values()


@pytest.mark.parametrize(
    ("failed_on", "could_hold", "state"),
    [
        (("a1",), {"a1", "a2"}, S.PENDING),
        (("a1",), {"a1"}, S.ERROR),
        (("a1", "a2"), {"a3"}, S.ERROR),
    ],
)
def test_a_launch_is_not_given_up_for_one_agents_failures_while_others_could_hold_the_session(
    failed_on, could_hold, state
):
    session = replace(preparing(LaunchStep.STARTING, attempts=MAX_LAUNCHES - 1), failed_on=failed_on)
    event = transitions.launch_failed(
        session,
        "no room",
        NOW,
        permanent=False,
        failed_on=["a1"],
        fits_elsewhere=lambda agent_ids: not could_hold <= set(agent_ids),
    )
    assert event.to_state == state


# Agents that will not take what was placed on them


def answers(**changes: Any) -> Agent:
    return replace(make_agent("a2"), **changes)


@pytest.mark.parametrize("session", [
    placed_on(make_session(cluster_size=2), "a1", "a2", state=S.SCHEDULED), preparing(LaunchStep.PULLING, "a1", "a2"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("agents", "slow", "reason"),
    [
        ((answers(state=AgentState.UNREACHABLE),), (), "agent a2 does not answer any more"),
        ((answers(state=AgentState.LOST),), (), "agent a2 does not answer any more"),
        ((), (), "agent a2 does not answer any more"),
        ((answers(drain_reason="disks"),), (), "agent a2 is being drained"),
        ((answers(),), ("a2",), "agent a2 is slow to answer"),
    ],
)
def test_a_place_that_an_agent_will_not_give_is_given_back(session, agents, slow, reason):
    snapshot = Snapshot((make_agent("a1"), *agents), (session, placed_on(make_session(2), "a2")), NOW, frozenset(slow))
    (event,) = take_back(snapshot)
    assert (event.session_id, event.to_state, event.reason) == (session.id, S.PENDING, reason)
    assert (event.session["placed_mode"], event.session["step"]) == (None, None)
    assert "attempts" not in event.session
    assert event.kernels == {kernel.id: {"allocation": None} for kernel in session.kernels}


@pytest.mark.parametrize(
    ("hardware", "share", "kept"),
    [
        ({"gpus": 1, "units_per_gpu": 2}, GpuShare("GPU-a1-0", 500, whole=False), True),
        ({"gpus": 1, "units_per_gpu": 2}, GpuShare("GPU-a1-0", 500, whole=False, capacity=2000), True),
        ({"gpus": 1, "units_per_gpu": 2}, GpuShare("GPU-a1-0", 500, whole=False, capacity=1000), False),
        ({"gpus": 1, "units_per_gpu": 2}, GpuShare("GPU-a1-0", 1000, whole=True, capacity=1000), True),
        ({"gpus": 1, "units_per_gpu": 0}, GpuShare("GPU-a1-0", 500, whole=False), False),
        ({"gpus": 1, "units_per_gpu": 2, "fgpu_provider": "whole"}, GpuShare("GPU-a1-0", 500, whole=False), False),
        ({"gpus": 1, "units_per_gpu": 0}, GpuShare("GPU-a1-0", 1000, whole=True), True),
        ({"gpus": 1, "units_per_gpu": 0}, GpuShare("GPU-a1-7", 1000, whole=True), False),
    ],
)
def test_a_place_on_a_gpu_that_is_gone_or_cut_otherwise_is_given_back(hardware, share, kept):
    session = placed_on(make_session(), "a1", state=S.SCHEDULED)
    session = replace(session, kernels=(replace(session.main, allocation=Allocation("a1", (share,))),))
    events = take_back(Snapshot((make_agent("a1", **hardware),), (session,), NOW))
    assert [event.to_state for event in events] == ([] if kept else [S.PENDING])


@pytest.mark.parametrize("session", [placed_on(make_session(), "a1", state=S.SCHEDULED), *(
    preparing(step, "a2") for step in (LaunchStep.STARTING, LaunchStep.RELEASING)
)])  # fmt: skip
def test_a_place_on_agents_that_answer_and_what_has_begun_is_kept(session):
    snapshot = Snapshot((make_agent("a1"), answers(drain_reason="disks")), (session,), NOW)
    assert take_back(snapshot) == []


# LOST agents


def lost(session: Session, *, also: str = "") -> list[transitions.Event]:
    """Return the events of a snapshot in which a2 is LOST, and so is the other agent named."""
    agents = [replace(make_agent(a), state=AgentState.LOST if a in {"a2", also} else AgentState.ALIVE) for a in AGENTS]
    return transitions.lose(Snapshot(tuple(agents), (session,), NOW))


AGENTS = ("a1", "a2")


@pytest.mark.parametrize("step", [LaunchStep.PULLING, LaunchStep.STARTING])
def test_a_launch_over_agents_that_loses_one_before_the_release_goes_back_to_the_queue(step):
    (event,) = lost(replace(preparing(step, *AGENTS), placed_mode="multi-node"))
    assert (event.to_state, event.reason) == (S.PENDING, "agent a2 was lost during the launch")


@pytest.mark.parametrize(
    "session",
    [
        placed_on(make_session(cluster_size=2), *AGENTS),
        replace(placed_on(make_session(cluster_size=2), *AGENTS, state=S.PREPARING), step=LaunchStep.RELEASING),
        replace(placed_on(make_session(), "a2", state=S.PREPARING), step=LaunchStep.STARTING),
    ],
)
def test_a_session_on_a_lost_agent_whose_commands_may_have_begun_ends(session):
    (event,) = lost(session)
    assert event.to_state is S.TERMINATING
    assert event.reason.startswith("agent a2 was lost")
    assert (event.session["result"], event.session["requeue_after_end"]) == (Result.FAILURE, False)


def test_a_session_that_may_is_queued_again_once_it_has_ended():
    session = placed_on(make_session(cluster_size=2, requeue=True), *AGENTS)
    (event,) = lost(session)
    assert (event.to_state, event.reason) == (S.TERMINATING, "agent a2 was lost; the session is queued again")
    assert event.session == {"step": None, "requeue_after_end": True, "stranded_on": AGENTS}
    ending = replace(session, state=S.TERMINATING, requeue_after_end=True, attempts=2)
    assert lost(ending) == []
    (event,) = lost(ending, also="a1")
    assert (event.to_state, event.session["requeues"], event.session["attempts"]) == (S.PENDING, 1, 0)
    assert (event.session["requeue_after_end"], event.session["started_at"]) == (False, None)
    assert "stranded_on" not in event.session
    assert all(facts["allocation"] is facts["container_id"] is None for facts in event.kernels.values())


def test_a_terminating_session_has_ended_when_all_its_agents_are_lost():
    session = replace(placed_on(make_session(cluster_size=2), *AGENTS, state=S.TERMINATING), reason="ended by ada")
    assert lost(session) == []
    (event,) = lost(session, also="a1")
    assert (event.to_state, event.reason, event.session["ended_at"]) == (S.TERMINATED, "ended by ada", NOW)


def test_sessions_on_agents_that_are_only_unreachable_stay():
    away = replace(make_agent("a1"), state=AgentState.UNREACHABLE)
    assert transitions.lose(Snapshot((away,), (placed_on(make_session(), "a1"),), NOW)) == []
