"""What would let a session start: every suggestion is true, and the small ones are found."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.core.agents.agent import HAS_LEFT, Agent, AgentState
from muster.core.model.policy import Limit, Limits, SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.counterfactual import what_would_help, would_start
from muster.core.whatif.hypothesis import Moved, Suggestion
from muster.core.whatif.replay import WHOLE_QUEUE
from tests.properties import examples
from tests.strategies.agents import listed, make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import limited_queues, snapshots
from tests.strategies.values import NOW

GPU_AGENT = {"cpus": 16, "mem_bytes": 64 << 30, "gpus": 4, "units_per_gpu": 2}


def starts(snapshot: Snapshot, session: Session) -> bool:
    return any(placement.session_id == session.id for placement in schedule(snapshot).placements)


def texts(
    agents: Sequence[Agent], session: Session, others: Sequence[Session] = (), policy: SchedulingPolicy | None = None
) -> list[str]:
    """Return the texts of the suggestions, each of which is tried."""
    snapshot = Snapshot(tuple(agents), (*others, session), NOW, policy=policy or SchedulingPolicy())
    assert not starts(snapshot, session)
    found = what_would_help(snapshot, session)
    assert_true(found, snapshot, session)
    return [suggestion.text for suggestion in found]


def assert_true(found: Sequence[Suggestion], snapshot: Snapshot, session: Session) -> None:
    for suggestion in found:
        assert starts(suggestion.applied(snapshot, session.id), session), suggestion.text


@given(snapshots(), st.data())
def test_with_every_suggestion_it_starts(snapshot, data):
    waiting = sorted(schedule(snapshot).waits)
    assume(waiting)
    chosen = data.draw(st.sampled_from(waiting))
    session = next(session for session in snapshot.pending if session.id == chosen)
    found = what_would_help(snapshot, session)
    assert_true(found, snapshot, session)
    assert [s.effort for s in found] == sorted(s.effort for s in found)
    assert found == what_would_help(snapshot, session)


def test_nothing_is_suggested_for_what_starts_anyway():
    session = make_session(1)
    assert what_would_help(Snapshot((make_agent(),), (session,), NOW), session) == ()


def test_less_of_the_slot_that_lacks_as_much_as_there_is():
    assert texts([make_agent(**GPU_AGENT)], make_session(1, gpu=6))[0] == "4 GPU for each container instead of 6 GPU"
    assert "16 CPU for each container instead of 20 CPU" in texts([make_agent(**GPU_AGENT)], make_session(1, cpu=20))
    assert "64 GiB memory for each container instead of 100 GiB memory" in texts(
        [make_agent(**GPU_AGENT)], make_session(1, mem="100G")
    )


def test_a_share_of_a_gpu_where_no_whole_one_is_free():
    agent = make_agent(**{**GPU_AGENT, "gpus": 1})
    tenant = make_session(1, fgpu="0.5")
    snapshot = Snapshot((agent,), (tenant,), NOW)
    (placement,) = schedule(snapshot).placements
    kernels = tuple(replace(k, allocation=placement.allocations[k.id]) for k in tenant.kernels)
    running = replace(placed_on(tenant, "a1"), kernels=kernels)
    assert "1.5 fGPU for each container instead of 1 GPU" in texts([agent], make_session(2, gpu=1), [running])


def test_less_of_everything_where_less_of_one_thing_does_not_do():
    found = texts([make_agent(**GPU_AGENT)], make_session(1, cpu=32, mem="128G", gpu=8))
    assert found == ["16 CPU, 64 GiB memory, 4 GPU for each container: 50% of what it asks for"]


def test_fewer_kernels():
    agent = make_agent(cpus=8)
    assert "4 containers instead of 6" in texts([agent], make_session(1, cluster_size=6, cpu=2, mem="64M"))


def test_several_agents_where_one_does_not_hold_the_gang():
    agents = [make_agent(name, cpus=4, swarm="manager") for name in ("a1", "a2")]
    session = make_session(1, cluster_size=4, cpu=2, mem="64M")
    assert texts(agents, session)[0] == "containers over several agents instead of on one"


def test_another_resource_group():
    agents = [make_agent("a1", cpus=2), make_agent("a2", cpus=8, resource_group="big")]
    assert texts(agents, make_session(1, cpu=4))[0] == "resource group big instead of default"


def test_an_agent_that_is_drained_or_away():
    drained = replace(make_agent("a2", cpus=8), drain_reason="disks")
    found = texts([make_agent("a1", cpus=2), drained], make_session(1, cpu=4))
    assert "agent a2 is resumed" in found
    away = make_agent("a2", cpus=8).unanswered("ssh: connection timed out", NOW - 60)
    assert "agent a2 answers again" in texts([make_agent("a1", cpus=2), away], make_session(1, cpu=4))


def test_an_agent_that_answers_with_a_problem_is_not_resumed_out_of_it():
    """As one that runs what another database has launched."""
    agent = replace(make_agent("a2", cpus=8), drain_reason="disks", problem="it has older containers")
    assert "agent a2 is resumed" not in texts([make_agent("a1", cpus=2), agent], make_session(1, cpu=4))


def test_an_agent_that_cannot_help_when_it_answers_is_not_waited_for():
    """It is no longer in the inventory, the inventory is wrong about it, or its only GPU is sick."""
    session, agent = make_session(1, gpu=1), make_agent("a2", gpus=1)
    wrong = listed(agent, units_per_gpu="many")
    sick = replace(agent, gpus=(replace(agent.gpus[0], quarantine="it is sick"),))
    for away in (agent, wrong, sick):
        found = texts([make_agent("a1"), away.unanswered("silent", NOW)], session)
        assert ("agent a2 answers again" in found) is (away is agent)
    assert "agent a2 answers again" not in texts([make_agent("a1"), agent.unanswered(HAS_LEFT, NOW)], session)


def test_as_few_agents_as_do_together():
    agents = [make_agent("a0", cpus=2, swarm="manager")]
    agents += [replace(make_agent(f"a{n}", cpus=4, swarm="worker"), state=AgentState.UNREACHABLE) for n in range(1, 6)]
    session = make_session(1, cluster_size=3, cpu=4, mem="64M", cluster_mode="multi-node")
    assert "agents a1, a2, a3 take sessions again" in texts(agents, session)


def test_a_priority_above_those_ahead():
    others = [make_session(n, cpu=8, priority=60) for n in (1, 2)]
    found = texts([make_agent(cpus=8)], make_session(3, cpu=8), others)
    assert "priority 61 instead of 50" in found


def fragmented(**values):
    """Return two agents, each with a session on it, and one that waits for a whole agent."""
    agents = [make_agent("a1", cpus=8), make_agent("a2", cpus=8)]
    runs = [
        replace(placed_on(make_session(n, name=name, cpu=3, **values), f"a{n}"), started_at=NOW - seconds)
        for n, name, seconds in ((1, "short", 600), (2, "long", 7200))
    ]
    return agents, runs, make_session(3, cpu=8)


@pytest.mark.parametrize("once", [{}, {"after": ("gone",)}, {"after_ok": ("gone",)}, {"after_any": ("gone",)}])
def test_restartable_sessions_that_would_start_elsewhere_with_what_that_loses(once):
    agents, runs, waits = fragmented(requeue=True, **once)
    assert "short starts anew elsewhere, which loses 10m of work" in texts(agents, waits, runs)


@pytest.mark.parametrize("values", [{}, {"preemptible": True}])
def test_nobody_moves_who_is_not_queued_again(values):
    agents, runs, waits = fragmented(**values)
    assert not any("anew" in text for text in texts(agents, waits, runs))


def test_nobody_moves_who_would_not_start_elsewhere_at_once():
    agents, runs, waits = fragmented(requeue=True)
    assert not any("anew" in text for text in texts(agents[:1], waits, runs[:1]))
    runs[1] = placed_on(make_session(2, name="large", cpu=6), "a2")
    assert not any("anew" in text for text in texts(agents, waits, runs))


def test_several_move_together_where_none_does_alone_and_no_more_than_need_to():
    agents = [make_agent(f"a{n}", cpus=8) for n in (1, 2)]
    small = [
        replace(placed_on(make_session(n, name=f"r{n}", cpu=2, requeue=True), agent), started_at=NOW - 60 * n)
        for n, agent in ((1, "a1"), (2, "a1"), (3, "a2"))
    ]
    found = texts(agents, make_session(9, cpu=7), small)
    assert "r3 starts anew elsewhere, which loses 3m of work" in found
    found = texts(agents, make_session(9, cpu=7), [*small[:2], placed_on(make_session(4, cpu=2), "a2")])
    assert "r1, r2 start anew elsewhere, which loses 3m of work" in found


@given(snapshots(max_sessions=5))
def test_what_moves_is_restartable_and_both_start(snapshot):
    for session in snapshot.pending:
        for suggestion in what_would_help(snapshot, session):
            moved = [key for change in suggestion.changes if isinstance(change, Moved) for key in change.session_ids]
            running = {other.id: other for other in snapshot.placed if other.state is SessionState.RUNNING}
            assert all(running[key].spec.requeue for key in moved)
            if moved:
                placed = {p.session_id for p in schedule(suggestion.applied(snapshot, session.id)).placements}
                assert placed.issuperset({session.id, *moved})


def test_a_running_session_that_ends_by_its_time_limit_or_by_hand():
    agent = make_agent(cpus=8)
    limited = placed_on(make_session(1, name="sweep", cpu=8, time_limit="1h"), "a1")
    snapshot = Snapshot((agent,), (limited, make_session(2, cpu=8)), NOW)
    found = what_would_help(snapshot, snapshot.sessions[1])
    waiting = next(s for s in found if s.text == "wait until sweep ends by its time limit")
    assert waiting.starts_at == NOW + 3600
    unlimited = placed_on(make_session(1, name="lab", cpu=8), "a1")
    assert "session lab of ada ends" in texts([agent], make_session(2, cpu=8), [unlimited])


def test_conditions_that_nobody_meets():
    session = make_session(1, labels={"disk": "nvme"}, exclude_agents=("a1",))
    found = texts([make_agent("a1", labels={"disk": "nvme"}), make_agent("a2")], session)
    assert "agents of any labels" in found
    assert "no excluded agents" in found


def test_a_limit_is_raised_as_far_as_needed():
    policy = SchedulingPolicy(limits=Limits(users={"*": Limit(running={"cpu": 4000})}))
    running = placed_on(make_session(1, cpu=3), "a1")
    found = texts([make_agent(cpus=16)], make_session(2, cpu=2), [running], policy)
    assert "a limit of 5 CPU instead of 4 CPU for user ada" in found
    assert "1 CPU for each container instead of 2 CPU" in found


def test_a_hold_goes_before_what_else_is_in_the_way():
    held = make_session(1, name="train", cpu=20, hold=True, held_by="ada")
    found = texts([make_agent(cpus=16)], held)
    assert found == ["release it, and 16 CPU for each container instead of 20 CPU"]


def test_a_time_limit_that_ends_before_a_maintenance_window_or_the_windows_end():
    window = Reservation("upgrade", NOW + 3600, NOW + 7200)
    session = make_session(1, time_limit="2h")
    snapshot = Snapshot((make_agent(),), (session,), NOW, reservations=(window,))
    found = what_would_help(snapshot, session)
    assert_true(found, snapshot, session)
    assert [(s.text, s.starts_at) for s in found] == [
        ("a time limit of 1h instead of 2h", None),
        ("wait for the end of the reservation", NOW + 7200),
    ]


def test_no_time_limit_is_suggested_that_is_shorter_than_the_time_of_its_signal():
    """It would be refused."""
    window = Reservation("upgrade", NOW + 3600, NOW + 7200)
    for signal, limits in (("USR1@30m", ["a time limit of 1h instead of 2h"]), ("USR1@61m", [])):
        session = make_session(1, time_limit="2h", command="true", signal=signal)
        found = what_would_help(Snapshot((make_agent(),), (session,), NOW, reservations=(window,)), session)
        assert [one.text for one in found if "time limit" in one.text] == limits


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        ({"begin": NOW + 60}, "no begin time"),
        ({"after": ("unheard-of",)}, "no sessions that it waits for"),
        ({"array": "0-3%1", "array_id": "one", "array_index": 1}, "array 0-3 instead of 0-3%1"),
        ({"retry_at": NOW + 5}, "wait until its launch is tried again"),
    ],
)
def test_hypotheses_take_away_what_stands_before_the_placement(waits, text):
    of_array = {"array_id": "one", "array_index": 0, "array": "0-3%1"}
    running = placed_on(make_session(1, **of_array), "a1")
    assert texts([make_agent(cpus=8)], make_session(2, **waits), [running]) == [text]


def test_sessions_behind_it_do_not_change_the_answer():
    agent = make_agent(cpus=8)
    running = placed_on(make_session(1, cpu=6), "a1")
    session = make_session(2, cpu=8)
    short = texts([agent], session, [running])
    behind = [make_session(n, cpu=1) for n in range(3, WHOLE_QUEUE + 10)]
    assert "2 CPU for each container instead of 8 CPU" in short
    assert texts([agent], session, [running, *behind]) == short


def test_a_dry_run_says_where_it_would_start_or_why_not():
    agents = (make_agent("a1", cpus=8), make_agent("a2", cpus=4))
    new = [make_session(n, cpu=8) for n in (1, 2)]
    first, second = would_start(Snapshot(agents, (), NOW), new)
    assert first.placement is not None
    assert [a.agent_id for a in first.placement.allocations.values()] == ["a1"]
    assert (first.suggestions, second.placement) == ((), None)
    assert second.wait is not None
    assert second.wait.code is WaitCode.BUSY
    assert "4 CPU for each container instead of 8 CPU" in [s.text for s in second.suggestions]


@pytest.mark.parametrize(("cpu", "hopeless"), [(2, False), (3, True)])
def test_a_dry_run_tells_waiting_from_never(cpu, hopeless):
    running = placed_on(make_session(1, cpu=2), "a1")
    (answer,) = would_start(Snapshot((make_agent(cpus=2),), (running,), NOW), [make_session(2, cpu=cpu)])
    assert answer.hopeless is hopeless


@examples(60)
@given(limited_queues())
def test_the_end_to_wait_for_is_the_one_at_which_it_starts_when_all_end_by_their_time_limits(snapshot):
    plan = schedule(snapshot)
    for session in (waiting for waiting in snapshot.pending if waiting.id in plan.waits):
        found = [s for s in what_would_help(snapshot, session) if s.text.startswith("wait until ")]
        assert [wait.starts_at for wait in found] == [plan.waits[session.id].estimated_start]
        assert_true(found, snapshot, session)
