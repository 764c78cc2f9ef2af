"""What outcomes of the agents mean for a session that is launched or stopped."""

from dataclasses import replace
from typing import Any

import pytest

from muster.contract.outcome import LastWords, Outcome
from muster.core.lifecycle.outcomes import record
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import LaunchStep, Result, Session, SessionState
from tests.reports import reports_of
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState
FAILED = Outcome("failed", "no room on the disk")


def recorded(session: Session, **by_agent: Outcome) -> Event | None:
    """Return what follows from the agents' outcomes, where no command has begun unless all of them say so."""
    released = all(outcome.outcome == "released" for outcome in by_agent.values())
    kernels = {kernel.name: {"released": released} for kernel in session.kernels}
    return record(session, by_agent, reports_of(session, **kernels), NOW)


def preparing(step: LaunchStep, *agent_ids: str) -> Session:
    session = placed_on(make_session(cluster_size=2), *agent_ids, state=S.PREPARING)
    return replace(session, step=step, attempts=0)


def test_a_gang_on_one_agent_runs_with_its_first_answer():
    event = recorded(preparing(LaunchStep.STARTING, "a1"), a1=Outcome("released"))
    assert (event.to_state, event.session["started_at"], event.session["step"]) == (S.RUNNING, NOW, None)
    assert sorted(facts["container_id"] for facts in event.kernels.values()) == ["c-main1", "c-sub1"]


def test_a_gang_over_agents_is_released_when_all_have_started_and_runs_when_all_are_released():
    started, released = (Outcome(outcome) for outcome in ("started", "released"))
    event = recorded(preparing(LaunchStep.STARTING, "a1", "a2"), a1=started, a2=started)
    assert (event.to_state, event.session) == (S.PREPARING, {"step": LaunchStep.RELEASING})
    event = recorded(preparing(LaunchStep.RELEASING, "a1", "a2"), a1=released, a2=released)
    assert event.to_state is S.RUNNING


def test_a_gang_of_which_one_agent_failed_to_start_is_tried_again_elsewhere():
    event = recorded(preparing(LaunchStep.STARTING, "a1", "a2"), a1=Outcome("started"), a2=FAILED)
    assert (event.to_state, event.reason, event.session["attempts"]) == (S.PENDING, "no room on the disk", 1)
    assert event.session["failed_on"] == ("a2",)


def test_a_gang_on_one_agent_that_was_released_and_cannot_be_kept_does_not_begin_again():
    """Another worker visits it to learn what became of the launch. It was once launched a second time."""
    session = preparing(LaunchStep.STARTING, "a1")
    event = record(session, {"a1": FAILED}, reports_of(session, sub1={"released": False}), NOW)
    assert (event.to_state, event.reason) == (S.TERMINATING, "no room on the disk")


@pytest.mark.parametrize("first", [Outcome("released"), FAILED])
def test_a_gang_of_which_one_agent_failed_to_release_has_begun_and_does_not_begin_again(first):
    event = recorded(preparing(LaunchStep.RELEASING, "a1", "a2"), a1=first, a2=FAILED)
    assert (event.to_state, event.reason) == (S.TERMINATING, "no room on the disk")
    assert (event.session["result"], event.session["requeue_after_end"]) == (Result.FAILURE, False)


def test_a_gang_that_failed_to_be_released_is_queued_again_after_a_while_where_it_may_be():
    session = preparing(LaunchStep.RELEASING, "a1", "a2")
    session = replace(session, spec=make_session(cluster_size=2, requeue=True).spec)
    event = recorded(session, a1=Outcome("released"), a2=FAILED)
    assert (event.to_state, event.session["requeue_after_end"]) == (S.TERMINATING, True)
    assert event.session["retry_at"] > NOW


def test_a_gang_whose_host_was_rebooted_before_the_release_says_so():
    session = preparing(LaunchStep.RELEASING, "a1", "a2")
    session = replace(session, kernels=tuple(replace(kernel, boot_id="boot-0") for kernel in session.kernels))
    reports = reports_of(session, sub1={"state": "exited", "exit_code": 255, "released": False})
    event = record(session, {"a1": Outcome("released"), "a2": FAILED}, reports, NOW)
    assert (event.to_state, event.reason) == (S.TERMINATING, "agent a2 was rebooted")


GONE = {"state": "exited", "exit_code": 255, "released": False}


def released_after_a_reboot(**values: Any) -> Event:
    """Return what follows when the last of two agents releases its kernel, and sub1's was rebooted meanwhile."""
    session = preparing(LaunchStep.RELEASING, "a1", "a2")
    spec = make_session(cluster_size=2, requeue=True, **values).spec
    kernels = tuple(
        replace(kernel, boot_id="boot-0" if kernel.name == "sub1" else "boot-1", command=values.get("command"))
        for kernel in session.kernels
    )
    session = replace(session, spec=spec, kernels=kernels)
    main1 = {"state": "exited", "exit_code": 0} if "command" in values else {}
    released = Outcome("released")
    return record(session, {"a1": released, "a2": released}, reports_of(session, main1=main1, sub1=GONE), NOW)


def test_a_gang_of_which_a_host_was_rebooted_before_all_were_released_is_queued_again():
    """Its kernel's exit code was once recorded, and the session failed by that."""
    event = released_after_a_reboot()
    assert (event.to_state, event.session["requeue_after_end"]) == (S.TERMINATING, True)
    assert event.reason == "agent a2 was rebooted; the session is queued again"


def test_a_gang_whose_command_ended_well_before_such_a_reboot_has_succeeded():
    event = released_after_a_reboot(command="true", run_on="main")
    assert event.to_state is S.RUNNING
    assert [facts["exit_code"] for facts in event.kernels.values()] == [0]


def test_a_launch_that_never_came_to_its_agent_goes_back_to_the_queue_and_counts_as_no_attempt():
    event = recorded(preparing(LaunchStep.STARTING, "a1"), a1=replace(FAILED, reached=False))
    assert (event.to_state, event.session.get("attempts")) == (S.PENDING, None)
    assert event.reason == "agent a1 stopped answering before the launch"


def test_a_failure_that_is_for_good_anywhere_is_an_error():
    event = recorded(preparing(LaunchStep.STARTING, "a1", "a2"), a1=FAILED, a2=replace(FAILED, permanent=True))
    assert (event.to_state, event.session["result"]) == (S.ERROR, Result.FAILURE)


def test_a_session_has_ended_when_its_agents_say_stopped():
    session = placed_on(make_session(cluster_size=2), "a1", "a2", state=S.TERMINATING)
    session = replace(session, reason="ended by ada")
    words = LastWords(
        session_id=session.id,
        kernel_id=session.main.id,
        name="main1",
        exit_code=143,
        oom_killed=False,
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:01:00Z",
        log_gz_b64="",
        log_truncated=False,
    )
    stopped = Outcome("stopped")
    assert recorded(session, a1=stopped, a2=FAILED) is None
    event = recorded(session, a1=replace(stopped, last_words=(words,)), a2=stopped)
    assert (event.to_state, event.reason, event.session["ended_at"]) == (S.TERMINATED, "ended by ada", NOW)
    assert event.kernels[session.main.id]["exit_code"] == 143


@pytest.mark.parametrize("outcome", ["started", "released"])
def test_a_session_that_was_ended_during_its_launch_is_not_over_yet(outcome):
    assert recorded(placed_on(make_session(), "a1", state=S.TERMINATING), a1=Outcome(outcome)) is None


def test_a_session_that_is_queued_again_has_none_of_its_containers_facts():
    session = placed_on(make_session(requeue=True), "a1", state=S.TERMINATING)
    event = recorded(replace(session, requeue_after_end=True), a1=Outcome("stopped"))
    assert (event.to_state, event.session["requeues"]) == (S.PENDING, 1)
    assert event.kernels[session.main.id]["exit_code"] is None
