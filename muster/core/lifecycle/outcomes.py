"""The sessions' next changes from the agents' outcomes of manifests, by agent id."""

from collections.abc import Mapping
from typing import Any

from muster.contract.outcome import Outcome
from muster.core.lifecycle.observation import seen_kernels
from muster.core.lifecycle.transitions import Event, all_run, all_started, changed_facts, ended, launch_failed
from muster.core.model.reported import Reports
from muster.core.model.session import LaunchStep, Session, SessionState

Outcomes = Mapping[str, Outcome]


def record(session: Session, outcomes: Outcomes, reports: Reports, now: float) -> Event | None:
    """Return the session's next change, once every agent has answered.

    `outcomes` are the answers to the session's present step; a LOST agent is not waited for when a session ends.
    """
    if session.state is SessionState.PREPARING and session.step is not LaunchStep.PULLING:
        return _launched(session, outcomes, reports, now)
    if session.state is SessionState.TERMINATING and all(o.outcome == "stopped" for o in outcomes.values()):
        return ended(session, _last_facts(outcomes), now)
    return None


def _launched(session: Session, outcomes: Outcomes, reports: Reports, now: float) -> Event | None:
    failures = [outcome for outcome in outcomes.values() if outcome.outcome == "failed"]
    if failures:
        permanent = any(outcome.permanent for outcome in failures)
        return launch_failed(session, failures[0].error or "it failed", now, permanent=permanent)
    if all(outcome.outcome == "released" for outcome in outcomes.values()):
        return all_run(session, changed_facts(session.kernels, seen_kernels(session, reports)), now)
    return all_started(session, now) if session.step is LaunchStep.STARTING else None


def _last_facts(outcomes: Outcomes) -> dict[str, dict[str, Any]]:
    kernels: dict[str, dict[str, Any]] = {}
    for outcome in outcomes.values():
        for word in outcome.last_words:
            facts = {name: getattr(word, name) for name in ("exit_code", "oom_killed", "started_at", "finished_at")}
            kernels[word.kernel_id] = {**facts, "container_state": "exited"}
    return kernels
