"""The sessions' next changes from the agents' outcomes of manifests, by agent id."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from muster.contract.outcome import Outcome
from muster.core.lifecycle.observation import has_begun, has_failed, has_succeeded, rebooted_agents, seen_kernels
from muster.core.lifecycle.transitions import (
    Event,
    FitsElsewhere,
    all_run,
    all_started,
    back_to_the_queue,
    changed_facts,
    ended,
    fail_begun,
    image_gone,
    launch_failed,
    nowhere,
)
from muster.core.model.reported import Reports
from muster.core.model.session import LaunchStep, Session, SessionState

Outcomes = Mapping[str, Outcome]
NOTHING_GONE: Mapping[str, Collection[str]] = MappingProxyType({})


def record(
    session: Session,
    outcomes: Outcomes,
    reports: Reports,
    now: float,
    fits_elsewhere: FitsElsewhere = nowhere,
    gone: Mapping[str, Collection[str]] = NOTHING_GONE,
) -> Event | None:
    """Return the session's next change, once every agent has answered.

    `outcomes` are the answers to the session's present step; a LOST agent is not waited for when a session ends.
    `fits_elsewhere` says whether others than some agents could hold the session now. `gone` are those that lack an
    image, by image: none lacked one when the launch began.
    """
    if session.state is SessionState.PREPARING and session.step is not LaunchStep.PULLING:
        return _launched(session, outcomes, reports, now, fits_elsewhere, gone)
    if session.state is SessionState.TERMINATING and all(o.outcome == "stopped" for o in outcomes.values()):
        return ended(session, _last_facts(outcomes), now)
    return None


def _launched(
    session: Session,
    outcomes: Outcomes,
    reports: Reports,
    now: float,
    fits_elsewhere: FitsElsewhere,
    gone: Mapping[str, Collection[str]],
) -> Event | None:
    failures = {agent_id: outcome for agent_id, outcome in outcomes.items() if outcome.outcome == "failed"}
    if failures:
        return _failed(session, failures, reports, now, fits_elsewhere, gone)
    seen = seen_kernels(session, reports)
    if all(outcome.outcome == "released" for outcome in outcomes.values()):
        if rebooted := rebooted_agents(session, reports):
            if not has_succeeded(session, seen):
                return fail_begun(session, f"agent {min(rebooted)} was rebooted", now)
            # What a reboot has left of the others would count as their own end once it is recorded.
            seen = {kernel_id: facts for kernel_id, facts in seen.items() if not has_failed(facts)}
        return all_run(session, changed_facts(session.kernels, seen), now)
    is_starting = session.step is LaunchStep.STARTING
    return all_started(session, changed_facts(session.kernels, seen), now) if is_starting else None


def _failed(
    session: Session,
    failures: Outcomes,
    reports: Reports,
    now: float,
    fits_elsewhere: FitsElsewhere,
    gone: Mapping[str, Collection[str]],
) -> Event:
    """Return the end of a launch that failed on some agents.

    An agent that fails to start its kernels has begun none of their commands. One that fails to release them may have
    released them by an earlier visit whose answer was lost, and the others have released theirs. An agent that holds
    the whole gang releases it in the visit that starts it, and may fail in a later one, as where the gang's network was
    removed meanwhile: its report tells.
    """
    agent_id, first = next(iter(failures.items()))
    error = first.error or "it failed"
    if session.step is LaunchStep.RELEASING or has_begun(session, reports):
        rebooted = rebooted_agents(session, reports)
        return fail_begun(session, f"agent {min(rebooted)} was rebooted" if rebooted else error, now)
    if not any(outcome.reached for outcome in failures.values()):
        return back_to_the_queue(session, f"agent {agent_id} stopped answering before the launch", now)
    if failures.keys() <= {agent_id for agent_ids in gone.values() for agent_id in agent_ids}:
        return image_gone(session, gone, now)
    permanent = any(outcome.permanent for outcome in failures.values())
    return launch_failed(session, error, now, permanent=permanent, failed_on=failures, fits_elsewhere=fits_elsewhere)


def _last_facts(outcomes: Outcomes) -> dict[str, dict[str, Any]]:
    kernels: dict[str, dict[str, Any]] = {}
    for outcome in outcomes.values():
        for word in outcome.last_words:
            facts = {name: getattr(word, name) for name in ("exit_code", "oom_killed", "started_at", "finished_at")}
            kernels[word.kernel_id] = {**facts, "container_state": "exited"}
    return kernels
