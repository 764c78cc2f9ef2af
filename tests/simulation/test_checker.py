"""The checker can fail: a queue, a store or an agent with a fault of its own is found out."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from muster.core.lifecycle import conclusions, transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.agent import AgentState
from muster.core.model.session import LaunchStep, Result, SessionState
from muster.store.store import Store
from tests.simulation.hosts import Host
from tests.simulation.schedules import SUBMIT, Deed, Schedule
from tests.simulation.world import Verdict, carry_out

S = SessionState
HOSTS = tuple(
    (host_id, (("cpus", 2), ("gpus", 0), ("units_per_gpu", 0), ("swarm", "manager"))) for host_id in ("a1", "a2")
)


def submission(number: int = 1, at: float = 1.5, **values: Any) -> Deed:
    spec = {"cluster_size": 1, "cluster_mode": "multi-node", "cpu": "1", "mem": "256M", "image": "busybox"}
    behaviour = {"run_s": 5.0, "exit_code": 0, "oom": ""}
    return Deed(at, SUBMIT, str(number), tuple({**spec, "command": "work", **behaviour, **values}.items()))


def carried_out(*deeds: Deed, seed: int = 1) -> Verdict:
    return carry_out(Schedule(seed, HOSTS, tuple(sorted(deeds, key=lambda deed: deed.at))), traced=True)


def kind_of(verdict: Verdict) -> str:
    return verdict.broken.kind if verdict.broken is not None else ""


def test_a_cluster_without_faults_keeps_every_promise():
    verdict = carried_out(submission(), submission(2, cluster_size=4), submission(3, command=None))
    assert kind_of(verdict) == "", verdict.trace[-1]


# Faults of the control node's own decisions


def failing_before_others_are_released(session, outcomes, reports, now, record=conclusions.record) -> Event | None:
    """Outcomes in the wrong order: one agent's failure counts, although another has begun the commands."""
    failures = [outcome for outcome in outcomes.values() if outcome.outcome == "failed"]
    if session.step is LaunchStep.RELEASING and failures:
        return transitions.back_to_the_queue(session, str(failures[0].error), now)
    return record(session, outcomes, reports, now)


def released_before_all_are_up(session, outcomes, reports, now, record=conclusions.record) -> Event | None:
    event = record(session, outcomes, reports, now)
    if session.step is LaunchStep.STARTING and event is not None and event.to_state is S.PENDING:
        return transitions.all_started(session, {}, now)
    return event


def with_the_other_result(session, outcomes, reports, now, record=conclusions.record) -> Event | None:
    event = record(session, outcomes, reports, now)
    return replace(event, session={**event.session, "result": Result.SUCCESS}) if event is not None else None


def lost_at_once(snapshot, *rest, lose=transitions.lose) -> Any:
    silent = (replace(a, state=AgentState.LOST) if a.state is AgentState.UNREACHABLE else a for a in snapshot.agents)
    return lose(replace(snapshot, agents=tuple(silent)), *rest)
