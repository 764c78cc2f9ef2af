"""The checker can fail: a queue, a store or an agent with a fault of its own is found out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from muster.core.agents.agent import AgentState
from muster.core.gpus import access
from muster.core.lifecycle import idle, launch_usage, observation, transitions
from muster.core.lifecycle.outcomes import record as record_outcomes
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Allocation, GpuShare, LaunchStep, Result, Session, SessionState
from muster.core.scheduling import group_pass
from muster.core.scheduling.closures import Closures
from muster.core.scheduling.limits import RunningLimits
from muster.core.turn import conclusions, interpretation, late_signals, touch, turn
from muster.core.turn.ledger import Ledger
from muster.core.usage.kernel import KernelUsage, next_usage
from muster.store import store
from muster.store.store import Store
from tests.simulation import modules
from tests.simulation.host_reports import report
from tests.simulation.modules import Modules
from tests.simulation.schedules import SUBMIT, Deed, Schedule, Site
from tests.simulation.world import Verdict, carry_out

S = SessionState
HOSTS = tuple(
    (host_id, (("cpus", 2), ("gpus", 0), ("units_per_gpu", 0), ("swarm", "manager"))) for host_id in ("a1", "a2")
)
SHARING_HOST = (("a1", (("cpus", 2), ("gpus", 1), ("units_per_gpu", 1), ("swarm", "manager"))),)


def submission(number: int = 1, at: float = 1.5, **values: Any) -> Deed:
    spec = {"cluster_size": 1, "cluster_mode": "multi-node", "cpu": "1", "mem": "256M", "image": "busybox"}
    behaviour = {"run_s": 15.0, "exit_code": 0, "oom": ""}
    return Deed(at, SUBMIT, str(number), tuple({**spec, "command": "work", **behaviour, **values}.items()))


def fault(at: float, kind: str, target: str = "", **values: Any) -> Deed:
    return Deed(at, kind, target, tuple(values.items()))


def carried_out(*deeds: Deed, site: Site = Site(), hosts: Any = HOSTS) -> Verdict:  # noqa: B008 - a frozen value
    return carry_out(Schedule(1, hosts, tuple(sorted(deeds, key=lambda deed: deed.at)), site), traced=True)


def kinds(schedules: Iterable[tuple[Deed, ...]]) -> set[str]:
    """Return the kinds of promises that these schedules break."""
    verdicts = [carried_out(*deeds) for deeds in schedules]
    return {verdict.broken.kind for verdict in verdicts if verdict.broken is not None}


# Faults of the control node's own: what it does instead, and the function that does so


def failing_although_others_began(session, outcomes, reports, now, *rest, record=record_outcomes) -> Event | None:
    """Let one agent's failed release count more than another's that went well."""
    failures = [outcome for outcome in outcomes.values() if outcome.outcome == "failed"]
    if session.step is LaunchStep.RELEASING and failures:
        return transitions.back_to_the_queue(session, str(failures[0].error), now)
    return record(session, outcomes, reports, now, *rest)


def releasing_what_is_not_up(session, outcomes, reports, now, *rest, record=record_outcomes) -> Event | None:
    event = record(session, outcomes, reports, now, *rest)
    if session.step is LaunchStep.STARTING and event is not None and event.to_state is S.PENDING:
        return transitions.all_started(session, {}, now)
    return event


def calling_it_a_success(session, outcomes, reports, now, *rest, record=record_outcomes) -> Event | None:
    event = record(session, outcomes, reports, now, *rest)
    return replace(event, session={**event.session, "result": Result.SUCCESS}) if event is not None else None


def losing_agents_at_once(snapshot, *rest, lose=transitions.lose) -> list[Event]:
    silent = (replace(a, state=AgentState.LOST) if a.state is AgentState.UNREACHABLE else a for a in snapshot.agents)
    return lose(replace(snapshot, agents=tuple(silent)), *rest)


def placing_all_on_one_agent(plan, snapshot, place=transitions.place) -> list[Event]:
    crowded = {"allocation": Allocation("a1")}
    return [replace(event, kernels=dict.fromkeys(event.kernels, crowded)) for event in place(plan, snapshot)]


def never_queueing_again(session, *rest: Any, inner=transitions._ends_or_is_requeued) -> Event:
    return inner(replace(session, spec=session.spec.model_copy(update={"requeue": False})), *rest)


def ending_without_a_stop(session, _owner, now) -> Event:
    return Event(session.id, now, session.state, S.TERMINATED, "ended", {"result": Result.SUCCESS, "ended_at": now})


def forgetting_the_second(self, new, submission=None, add=Store.add) -> None:
    add(self, [session for session in new if session.name != "s2"], submission)


def seeing_nothing(*_arguments: Any) -> list[Event]:
    return []


def leaving_everything(*_arguments: Any) -> frozenset[str]:
    return frozenset()


def speaking_nonsense(host, leftovers, report=report) -> dict[str, Any]:
    return {**report(host, leftovers), "surprise": 1}


def naming_no_files(host, leftovers, report=report) -> dict[str, Any]:
    return {**report(host, leftovers), "files": []}


def counting_twice(before, sample, now, *, is_last=False, count=next_usage) -> KernelUsage:
    use = count(before, sample, now, is_last=is_last)
    return replace(use, cpu_seconds=2 * (sample.cpu_seconds or 0.0))


def closing_nothing(*_arguments: Any) -> frozenset[str]:
    return frozenset()


def limiting_nothing(*_arguments: Any) -> None:
    return None


def preempting_everything(_session, _gang, _closed, _state, placed, *_rest) -> list[Session]:
    return [session for session in placed if session.state is S.RUNNING]


def expecting_nothing(*arguments: Any, inner: Callable[..., Any]) -> Any:
    """Decide by what was so at the look, whatever people say before the commit."""
    decided = inner(*arguments)
    if isinstance(decided, list):
        return [replace(event, expects={}) for event in decided]
    return decided and replace(decided, expects={})


def overtaken(kind: str, target: str, *at: float, **values: Any) -> list[tuple[Deed, ...]]:
    """Return schedules of a session with a time limit, in which a person acts at these moments of its decisions."""
    limited = submission(run_s=150.0, time_limit="60s")
    return [(limited, fault(moment, kind, target, **values, overtakes=n)) for moment in at for n in range(1, 7)]


GANG = submission(cluster_size=4)
# A release takes a moment; when it comes is up to the seed.
ENGINE_STOPS = [
    (GANG, fault(at / 10, "engine stops", host, for_s=5.0)) for at in range(30, 90, 2) for host in ("a1", "a2")
]
# The session goes on elsewhere. When the host is back, what it left there is removed but for its files.
DIES_REMOVING = [
    (
        submission(command=None, requeue=True),
        fault(5.0, "cut", host, for_s=170.0),
        fault(6.0, "module dies removing", host),
    )
    for host in ("a1", "a2")
]
FILLS = submission(cpu="2", cluster_size=2, run_s=20.0)
WAITS = submission(2, at=10.0, cpu="2", run_s=100.0)
SIGNALLED = submission(run_s=150.0, time_limit="60s", signal="USR1@10")
KILLED = fault(30.0, "kill", commits=1, after=True, visits_go_on=True, for_s=20.0)
FAULTY: dict[str, tuple[Any, str, Callable[..., Any], Sequence[tuple[Deed, ...]], str]] = {
    "outcomes in the wrong order": (conclusions, "record", failing_although_others_began, ENGINE_STOPS, "twice"),
    "a release before all are up": (
        *(conclusions, "record", releasing_what_is_not_up),
        *([(GANG, fault(1.6, "next launch fails", "a2", how="transient"))], "not whole"),
    ),
    "a failure called a success": (
        *(conclusions, "record", calling_it_a_success),
        *([(submission(exit_code=3),)], "untrue result"),
    ),
    "agents lost at once": (
        *(transitions, "lose", losing_agents_at_once),
        *([(submission(command=None), fault(20.0, "control cut", for_s=60.0))], "untrue result"),
    ),
    "slots given twice": (
        *(transitions, "place", placing_all_on_one_agent),
        *([(submission(1), submission(2), submission(3), submission(4))], "slots"),
    ),
    "a session that is not queued again": (
        *(transitions, "_ends_or_is_requeued", never_queueing_again),
        *([(submission(requeue=True, run_s=60.0), fault(20.0, "reboot", host, for_s=10.0)) for host in ("a1", "a2")],),
        "not requeued",
    ),
    "a change that the table does not have": (
        *(transitions, "end_by_user", ending_without_a_stop),
        *([(submission(command=None), fault(20.0, "end", "1"))], "illegal event"),
    ),
    "a store that forgets": (
        *(Store, "add", forgetting_the_second),
        *([(submission(1), submission(2))], "forgotten"),
    ),
    "reports that mean nothing": (interpretation, "observe", seeing_nothing, [(submission(),)], "liveness"),
    "leftovers that stay": (
        *(touch, "leftovers", leaving_everything),
        *([(submission(command=None), fault(20.0, "cut", host, for_s=170.0)) for host in ("a1", "a2")], "liveness"),
    ),
    "keys that stay": (modules, "report", naming_no_files, DIES_REMOVING, "liveness"),
    "usage counted twice": (launch_usage, "next_usage", counting_twice, [(submission(run_s=60.0),)], "usage"),
    "everything is idle": (
        *(idle, "_is_idle", lambda *_arguments: True),
        *([(submission(command=None, idle_timeout="30s", busy_s=1000.0),)], "untrue result"),
    ),
    "nothing is idle": (
        *(idle, "_is_idle", lambda *_arguments: False),
        *([(submission(command=None, idle_timeout="30s", busy_s=0.0),)], "liveness"),
    ),
    "sessions preempted that may not be": (
        *(group_pass, "victims", preempting_everything),
        *([(submission(cluster_size=4, run_s=60.0), submission(2, at=20.0, cluster_size=4, priority=80))],),
        "preempted wrongly",
    ),
    "an end before the signal has come": (
        *(late_signals, "_is_on_its_way", lambda *_arguments: False),
        *([(SIGNALLED, fault(40.0, "Ansible fails", for_s=60.0))], "signal"),
    ),
    "what was launched since the backup is removed": (
        *(turn, "adoptions", lambda *_arguments: ()),
        *([(FILLS, WAITS, fault(15.0, "back up"), fault(70.0, "restore", hold=True))], "not adopted"),
    ),
    "an end before agents are asked": (
        *(Ledger, "asked", lambda *_arguments: frozenset()),
        *([(submission(run_s=53.0, time_limit="60s"), KILLED)], "untrue result"),
    ),
    "a session that is never given up": (
        *(conclusions, "_fits_elsewhere", lambda *_arguments: True),
        *([(submission(agents=("a1",)), fault(1.2, "launches fail", "a1", for_s=90.0))], "tried for ever"),
    ),
    "a hold that is not heeded": (
        *(transitions, "place", partial(expecting_nothing, inner=transitions.place)),
        *(overtaken("hold", "1", 1.51), "overtaken"),
    ),
    "an update that is not heeded": (
        *(transitions, "place", partial(expecting_nothing, inner=transitions.place)),
        *(overtaken("update", "1", 1.51, cluster_size=3), "slots"),
    ),
    "a drain that is not heeded": (
        *(store, "_is_overtaken", lambda *_arguments: False),
        *(overtaken("drain", "a1", 1.51), "overtaken"),
    ),
    "a reservation that is not heeded": (
        *(store, "_is_overtaken", lambda *_arguments: False),
        *(overtaken("reserve", "a1", 1.51, begins_in_s=0.0, for_s=50.0, users=()), "reserved"),
    ),
    "an extension that is not heeded": (
        *(observation, "_time_is_up", partial(expecting_nothing, inner=observation._time_is_up)),
        *(overtaken("extend", "1", *range(60, 70), by_s=40), "overtaken"),
    ),
    "a host that begins what others have taken over": (
        *(Modules, "_is_too_late", lambda *_arguments: False),
        [(fault(3.5, "hang", host, for_s=167.0), submission(at=21.0, cpu="2", requeue=True)) for host in ("a1", "a2")],
        "too late",
    ),
    "agents whose words are refused": (modules, "report", speaking_nonsense, [(submission(),)], "liveness"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_muster_itself_is_found(name):
    where, function, faulty, schedules, kind = FAULTY[name]
    assert kinds(schedules) == set(), "it is to be found by the fault alone"
    with mock.patch.object(where, function, faulty):
        assert kind in kinds(schedules)


@pytest.mark.parametrize(
    ("site", "faults"),
    [
        (Site(limits=(("users", "*", "sessions", 1),)), []),
        (Site(), [fault(10.0, "limit", "*", of="user", counted="sessions", most=1, for_s=100.0)]),
    ],
    ids=["of the settings", "set while the queue is worked"],
)
def test_a_limit_that_is_not_kept_is_found(site, faults):
    deeds = *faults, submission(1, run_s=60.0), submission(2, at=12.0)
    assert carried_out(*deeds, site=site).broken is None
    with mock.patch.object(RunningLimits, "refusal", limiting_nothing):
        broken = carried_out(*deeds, site=site).broken
    assert broken is not None
    assert broken.kind == "limits"


def test_a_reservation_that_is_not_kept_is_found():
    deeds = fault(1.0, "reserve", begins_in_s=0.0, for_s=100.0, users=()), submission(2, at=2.0)
    assert carried_out(*deeds).broken is None
    with mock.patch.object(Closures, "agents", closing_nothing):
        broken = carried_out(*deeds).broken
    assert broken is not None
    assert broken.kind == "reserved"


@pytest.mark.parametrize(
    ("where", "function", "faulty"),
    [
        (GpuShare, "amount_of", lambda share, _capacity: share.amount),
        (access, "quantise", lambda mem_bytes, *_share: (mem_bytes, 1)),
    ],
)
def test_memory_of_a_gpu_that_is_given_twice_is_found(where, function, faulty):
    shares = {"cpu": "100m", "fgpu": "0.5", "run_s": 100.0}
    later = [submission(number, at=20.0, **shares) for number in (2, 3, 4)]
    deeds = submission(**shares), fault(10.0, "recut", "a1", units=2, for_s=150.0), *later
    assert carried_out(*deeds, hosts=SHARING_HOST).broken is None
    with mock.patch.object(where, function, faulty):
        broken = carried_out(*deeds, hosts=SHARING_HOST).broken
    assert broken is not None
    assert broken.kind == "slots"


def test_a_site_says_whether_sessions_are_preempted():
    first = submission(cluster_size=4, run_s=100.0, preemptible=True, requeue=True)
    deeds = first, submission(2, at=20.0, cluster_size=4, priority=80)
    site = Site(preemption=False)
    verdict = carried_out(*deeds, site=site)
    assert verdict.broken is None
    assert "preempted" not in " ".join(verdict.trace)
    assert "preempted" in " ".join(carried_out(*deeds).trace)
    changed = carried_out(*deeds, fault(10.0, "settings change", site=site, for_s=1.0))
    assert changed.broken is None
    assert "preempted" not in " ".join(changed.trace)


def test_a_cluster_without_faults_keeps_every_promise_and_does_its_work():
    verdict = carried_out(submission(), submission(2, cluster_size=2), submission(3, command=None))
    assert verdict.broken is None
    ran = [line.split()[2] for line in verdict.trace if "PREPARING → RUNNING" in line]
    assert sorted(ran) == ["s1:", "s2:", "s3:"]
