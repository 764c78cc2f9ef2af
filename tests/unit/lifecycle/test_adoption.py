"""After a restore, a launch that nobody recorded is adopted where it is whole, on agents that were heard."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.report import KernelGpuReport
from muster.core.agents.agent import Agent
from muster.core.lifecycle.adoption import HELD_BY, Adoption, adoptions, observations
from muster.core.lifecycle.applied import applied
from muster.core.lifecycle.transitions import TRANSITIONS, end_by_user
from muster.core.model.session import FINAL, Allocation, GpuShare, LaunchStep, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.ledger import Ledger
from muster.core.turn.turn import turn
from tests.properties import dear
from tests.reports import kernel_entry
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on, sessions_in_any_state
from tests.strategies.values import NOW
from tests.turn_strategies import RULES

S = SessionState
AGENTS = ("a1", "a2", "a3")
WHOLE = "whole"
DEFECTS = ("a part is gone", "a part has not begun", "of an earlier version", "reported twice")


@dataclass(frozen=True)
class Launch:
    """A launch as it is on the agents: who has each kernel, by rank, and what is wrong with it."""

    session: Session
    agents: tuple[str, ...]
    state: str

    @property
    def is_whole(self) -> bool:
        return self.state == WHOLE


@st.composite
def launches(draw: st.DrawFn, session: Session, generation: int) -> Launch:
    """Draw a launch of the session that its database does not know."""
    size = draw(st.integers(*session.spec.sizes))
    launched = replace(session.of_size(size if session.spec.is_elastic else None), generation=generation)
    agents = tuple(draw(st.sampled_from(AGENTS)) for _ in launched.kernels)
    return Launch(launched, agents, draw(st.sampled_from((WHOLE, WHOLE, *DEFECTS))))


def reports(found: list[Launch]) -> dict[str, list[dict[str, Any]]]:
    entries: dict[str, list[dict[str, Any]]] = {agent_id: [] for agent_id in AGENTS}
    for launch in found:
        last = launch.session.kernels[-1]
        for kernel, agent_id in zip(launch.session.kernels, launch.agents, strict=True):
            facts = {"generation": launch.session.generation}
            if kernel is last and launch.state == "a part is gone":
                continue
            if kernel is last and launch.state == "a part has not begun":
                facts["released"] = False
            if launch.state == "of an earlier version":
                facts["public_key"] = None
            entries[agent_id].append(kernel_entry(launch.session, kernel.name, **facts))
            if kernel is last and launch.state == "reported twice":
                other = AGENTS[(AGENTS.index(agent_id) + 1) % len(AGENTS)]
                entries[other].append(kernel_entry(launch.session, kernel.name, **facts))
    return entries


@st.composite
def restored(draw: st.DrawFn) -> tuple[Snapshot, Adoption, dict[str, Launch]]:
    """Draw an old database, whom was heard, and by session id the newest launch there is, whole ones and others."""
    sessions = [draw(sessions_in_any_state(number * 100)) for number in range(1, draw(st.integers(2, 4)))]
    found = {s.id: draw(launches(s, s.generation + draw(st.integers(1, 5)))) for s in sessions if draw(st.booleans())}
    entries = reports(list(found.values()))
    agents = tuple(reporting(make_agent(agent_id), kernels=entries[agent_id]) for agent_id in AGENTS)
    heard = frozenset(draw(st.sets(st.sampled_from(AGENTS), min_size=1)))
    active = tuple(session for session in sessions if session.state not in FINAL)
    snapshot = Snapshot(draw(st.permutations(agents)), active, NOW + 1000)
    return snapshot, Adoption(holds=draw(st.booleans()), heard=heard), found


def is_to_be_adopted(session: Session, launch: Launch | None, heard: frozenset[str]) -> bool:
    """Return whether the documentation says so (docs/operations.md, "Backup and restore")."""
    return launch is not None and launch.is_whole and {*launch.agents} <= heard and not session.ends_for_good


@dear
@given(restored())
def test_what_is_whole_on_agents_that_were_heard_is_adopted_and_nothing_else(case):
    snapshot, adoption, found = case
    events = adoptions(snapshot, adoption)
    assert len({event.session_id for event in events}) == len(events)
    after = {session.id: session for session in applied(snapshot, events).sessions}
    for before in snapshot.sessions:
        session, launch = after[before.id], found.get(before.id)
        assert session.state is before.state or session.state in TRANSITIONS[before.state]
        if launch is not None and is_to_be_adopted(before, launch, adoption.heard):
            assert (session.state, session.generation, session.held_by) == (S.RUNNING, launch.session.generation, None)
            assert tuple(kernel.allocation for kernel in session.kernels) == tuple(map(Allocation, launch.agents))
            assert not any(kernel.allocation for kernel in session.spare)
            assert before.submitted_at <= session.started_at <= snapshot.now
        else:
            assert session.generation == before.generation
            assert session.state is not S.RUNNING or before.state is S.RUNNING


@dear
@given(restored())
def test_what_was_adopted_runs_on_and_the_others_wait(case):
    snapshot, adoption, found = case
    after = applied(snapshot, adoptions(snapshot, adoption))
    ended = {event.session_id for event in observations(after, adoption) if event.to_state is not S.RUNNING}
    for session, before in zip(after.sessions, snapshot.sessions, strict=True):
        if is_to_be_adopted(before, found.get(before.id), adoption.heard):
            assert session.id not in ended
        elif before.state is S.SCHEDULED:
            assert (session.state, any(kernel.allocation for kernel in session.kernels)) == (S.PENDING, False)
            assert session.held_by == (HELD_BY if adoption.holds else before.held_by)


def test_what_was_already_adopted_is_not_adopted_again():
    session = make_session(1)
    launch = Launch(replace(session, generation=9), ("a1",), WHOLE)
    agents = tuple(reporting(make_agent(id_), kernels=found) for id_, found in reports([launch]).items())
    adoption = Adoption(holds=True, heard=frozenset(AGENTS))
    snapshot = Snapshot(agents, (session,), NOW)
    once = applied(snapshot, adoptions(snapshot, adoption))
    assert once.sessions[0].state is S.RUNNING
    assert adoptions(once, adoption) == ()


def reporting_agent(*entries: dict[str, Any]) -> Agent:
    return reporting(make_agent("a1", gpus=1), kernels=[*entries])


HEARD = Adoption(holds=False, heard=frozenset({"a1"}))


def test_of_several_launches_that_are_whole_the_newest_is_adopted():
    session = make_session(1)
    agent = reporting_agent(*(kernel_entry(session, "main1", generation=generation) for generation in (5, 9, 7)))
    (event,) = adoptions(Snapshot((agent,), (session,), NOW), HEARD)
    assert event.session["generation"] == 9


def test_a_launch_with_a_gpu_that_its_agent_lacks_now_is_not_adopted():
    session = make_session(1, gpu=1)
    shares = {uuid: {**dict.fromkeys(KernelGpuReport.model_fields), "uuid": uuid} for uuid in ("GPU-a1-0", "GPU-gone")}
    for uuid, share in shares.items():
        agent = reporting_agent(kernel_entry(session, "main1", generation=9, gpus=[share]))
        events = adoptions(Snapshot((agent,), (session,), NOW), HEARD)
        assert len(events) == (uuid == "GPU-a1-0")


def test_what_an_agent_claims_beyond_reason_is_not_adopted():
    """More of a GPU than was requested, or than it is, or a launch in the far future."""
    session = make_session(1, fgpu="0.5")
    share = {**dict.fromkeys(KernelGpuReport.model_fields), "uuid": "GPU-a1-0", "mem_bytes": 1, "compute": 1}

    def adopted(amount: int, generation: int, capacity: int | None = None) -> bool:
        given = {**share, "amount": amount, "capacity": capacity}
        entry = kernel_entry(session, "main1", generation=generation, gpus=[given])
        return bool(adoptions(Snapshot((reporting_agent(entry),), (session,), NOW), HEARD))

    assert adopted(500, int(NOW * 1000))
    assert not adopted(501, int(NOW * 1000))
    assert not adopted(1 << 60, int(NOW * 1000))
    assert not adopted(500, 1 << 60)
    assert adopted(500, int(NOW * 1000), capacity=1000)
    assert not adopted(500, int(NOW * 1000), capacity=0)
    assert not adopted(500, int(NOW * 1000), capacity=499)


def test_an_adopted_share_stays_the_part_of_its_gpu_that_it_was():
    session = make_session(1, fgpu="0.5")
    empty = dict.fromkeys(KernelGpuReport.model_fields)
    share = {**empty, "uuid": "GPU-a1-0", "amount": 500, "capacity": 2000, "mem_bytes": 1, "compute": 250}
    agent = reporting_agent(kernel_entry(session, "main1", generation=9, gpus=[share]))
    (event,) = adoptions(Snapshot((agent,), (session,), NOW), HEARD)
    (kernel,) = event.kernels.values()
    assert kernel["allocation"].gpus == (GpuShare("GPU-a1-0", 500, whole=False, capacity=2000),)


def test_a_launch_on_an_agent_that_was_not_heard_stays_as_it_is():
    """Its commands may have begun: it is to be asked first."""
    starting = placed_on(make_session(1), "a2", state=S.PREPARING)
    assert adoptions(Snapshot((make_agent("a1"), make_agent("a2")), (starting,), NOW), HEARD) == ()


def test_a_gang_that_may_have_begun_since_on_an_agent_that_is_away_does_not_begin_again():
    """In the backup its containers were being made: its commands are released by a later visit."""
    starting = placed_on(make_session(1, cluster_size=2, cluster_mode="multi-node"), "a1", "a2", state=S.PREPARING)
    for entries in ([], [kernel_entry(starting, "main1")]):
        agents = (reporting_agent(*entries), make_agent("a2"))
        (event,) = adoptions(Snapshot(agents, (starting,), NOW), HEARD)
        assert (event.to_state, event.session["result"]) == (S.TERMINATING, Result.FAILURE)


def test_what_is_to_be_queued_again_anyway_is_left_to_itself_unless_it_is_held():
    ending = replace(placed_on(make_session(1), "a1", state=S.TERMINATING), requeue_after_end=True)
    snapshot = Snapshot((make_agent("a1"),), (ending,), NOW)
    assert adoptions(snapshot, HEARD) == ()
    (event,) = adoptions(snapshot, replace(HEARD, holds=True))
    assert event.session["held_by"] == HELD_BY


def test_a_restart_that_was_under_way_is_queued_again_for_another_may_have_its_place():
    restarting = replace(placed_on(make_session(1), "a1", state=S.TERMINATING), step=LaunchStep.RESTARTING)
    snapshot = Snapshot((make_agent("a1"),), (restarting,), NOW)
    for holds in (True, False):
        (event,) = adoptions(snapshot, Adoption(holds=holds, heard=frozenset({"a1"})))
        assert (event.to_state, event.session["requeue_after_end"]) == (S.TERMINATING, True)
        assert event.session["held_by"] == (HELD_BY if holds else None)


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("again", [{"requeue_after_end": True}, {"step": LaunchStep.RESTARTING}])
def test_what_its_user_ends_for_good_meanwhile_neither_runs_nor_waits_again(again, runs):
    session = replace(placed_on(make_session(1), "a1", state=S.TERMINATING), **again)
    agent = reporting_agent(*([kernel_entry(session, "main1", generation=9)] if runs else []))
    snapshot = Snapshot((agent,), (session,), NOW)
    events = adoptions(snapshot, replace(HEARD, holds=True))
    assert len(events) == 1
    ended = applied(snapshot, [end_by_user(session, "ada", NOW)])
    assert applied(ended, events).sessions[0].ends_for_good


def test_a_time_limit_that_passed_before_all_were_heard_ends_nothing_that_may_have_ended_well():
    """What an agent said when it was heard may be as old as the silence of the last one."""
    session = replace(placed_on(make_session(1, command="train", time_limit="10m"), "a1"), started_at=NOW)
    agent = replace(reporting_agent(kernel_entry(session, "main1")), observed_at=NOW + 500)
    heard = Ledger(adoption=Adoption(holds=False, visit=1, heard=frozenset({"a1"})))
    taken = turn(Snapshot((agent,), (session,), NOW + 700), heard, lambda _snapshot: None, RULES)
    assert [known.state for known in taken.snapshot.sessions] == [S.RUNNING]
    assert (taken.ledger.adoption, taken.ledger.to_observe) == (None, {"a1"})
