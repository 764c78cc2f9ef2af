"""What a pass takes over from the one before changes nothing of what it decides."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.policy import GroupPolicy, PlacementPolicy, SchedulingPolicy
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.explain import HOPELESS
from tests.properties import dear
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots, uneven_gangs
from tests.strategies.values import NOW


@st.composite
def changed(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    """Draw the snapshot a little later: sessions ended or were held, agents were observed again."""
    plan = schedule(snapshot)
    started = {placement.session_id: placement.allocations for placement in plan.placements}
    sessions = []
    for session in snapshot.sessions:
        fate = draw(st.sampled_from(("stays", "stays", "changes", "goes")))
        if session.id in started and fate != "goes":
            kernels = tuple(replace(k, allocation=started[session.id][k.id]) for k in session.kernels)
            sessions.append(replace(session, kernels=kernels, state=SessionState.RUNNING, started_at=snapshot.now))
        elif fate == "changes" and session.state is SessionState.PENDING:
            sessions.append(replace(session, held_by=draw(st.sampled_from((None, "ada")))))
        elif fate != "goes":
            sessions.append(session)
    agents = tuple(replace(agent) if draw(st.integers(0, 4)) == 0 else agent for agent in snapshot.agents)
    later = snapshot.now + draw(st.sampled_from((0, 1, 60, 4000)))
    return replace(snapshot, sessions=tuple(sessions), agents=agents, now=later)


def requests() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from((1, 2, 4)),
            "fgpu": st.sampled_from((0, 0.3, 0.5)),
            "mem": st.sampled_from(("1G", "8G")),
        }
    )


@given(st.data(), snapshots(max_sessions=8))
def test_with_and_without_a_memory_the_plan_is_the_same(data, snapshot):
    memory = PassMemory()
    for _ in range(3):
        assert schedule(snapshot, memory) == schedule(snapshot)
        assert schedule(snapshot, memory) == schedule(snapshot)
        snapshot = data.draw(changed(snapshot))


@given(st.data(), snapshots(max_sessions=8))
def test_without_explanations_the_same_sessions_start_and_the_same_never_will(data, snapshot):
    memory = PassMemory()
    for _ in range(2):
        explained, bare = schedule(snapshot), schedule(snapshot, memory, explains=False)
        assert (bare.placements, bare.preemptions) == (explained.placements, explained.preemptions)
        assert list(bare.waits) == list(explained.waits)
        assert {s: w for s, w in bare.waits.items() if w.code in HOPELESS} == {
            s: w for s, w in explained.waits.items() if w.code in HOPELESS
        }
        assert {s: w.passes for s, w in bare.waits.items()} == {s: w.passes for s, w in explained.waits.items()}
        snapshot = data.draw(changed(snapshot))


@given(snapshots(max_sessions=8), st.sampled_from((1, 5, 30, 600, 3600)))
def test_time_alone_is_seen_when_it_makes_a_difference(snapshot, seconds):
    memory = PassMemory()
    schedule(snapshot, memory)
    later = replace(snapshot, now=snapshot.now + seconds)
    with_memory, without = schedule(later, memory), schedule(later)
    assert with_memory.placements == without.placements
    assert with_memory.preemptions == without.preemptions
    assert {s: w.code for s, w in with_memory.waits.items()} == {s: w.code for s, w in without.waits.items()}


def test_an_idle_queue_is_not_worked_again():
    runs = placed_on(make_session(1, cpu=4), "a1")
    snapshot = Snapshot((make_agent(cpus=4),), (runs, make_session(2)), NOW)
    memory = PassMemory()
    plan = schedule(snapshot, memory)
    assert schedule(replace(snapshot, now=NOW + 60), memory) is plan
    assert schedule(replace(snapshot, now=NOW + 60, slow=frozenset({"a1"})), memory) is not plan


@dear
@given(uneven_gangs(), st.lists(requests(), max_size=3), st.lists(requests(), max_size=3))
def test_an_impossible_session_does_not_depend_on_the_previous_passs_queue(case, earlier, later):
    agents, session = case
    memory = PassMemory()
    policy = SchedulingPolicy(GroupPolicy(placement=PlacementPolicy("fragmentation", fragmentation=1.0)))
    for beside in (earlier, later):
        others = [make_session(number, **request) for number, request in enumerate(beside, 10)]
        snapshot = Snapshot(agents, (session, *others), NOW, policy=policy)
        assert schedule(snapshot, memory) == schedule(snapshot)
