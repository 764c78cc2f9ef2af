"""What agents' reports mean for the sessions on them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from muster.contract.report import VanishedReport
from muster.core.lifecycle import observation
from muster.core.lifecycle.transitions import TRANSITIONS, Event
from muster.core.model.session import LaunchStep, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from tests.properties import examples
from tests.reports import reports_of
from tests.strategies.sessions import make_session, placed_on, sessions_in_any_state
from tests.strategies.values import NOW

S = SessionState


def exited(code: int, **facts: Any) -> dict[str, Any]:
    return {"state": "exited", "exit_code": code, **facts}


def observed(session: Session, now: float = NOW + 1, **differing: dict[str, Any] | None) -> Event | None:
    snapshot = Snapshot((), (session,), now)
    events = observation.observe(snapshot, reports_of(session, **differing))
    return events[0] if events else None


def batch(**values: Any) -> Session:
    return placed_on(make_session(command="python train.py", **values), "a1")


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
    for agent_id in gang.agents:
        reports = reports_of(gang)
        del reports[agent_id]
        assert all(event.to_state is S.RUNNING for event in observation.observe(Snapshot((), (gang,), NOW), reports))


def test_facts_are_recorded_once_and_leave_no_line_in_the_story():
    session = placed_on(make_session(), "a1")
    event = observed(session, main1={"ssh_port": 49153})
    assert (event.to_state, event.in_story) == (S.RUNNING, False)
    changes = event.kernels[session.main.id]
    assert (changes["ssh_port"], changes["container_state"]) == (49153, "running")
    known = replace(session, kernels=(replace(session.main, **changes),))
    assert observed(known, main1={"ssh_port": 49153}) is None


def test_recorded_facts_count_for_kernels_on_agents_without_a_report():
    gang = placed_on(make_session(command="true", cluster_size=2, run_on="all"), "a1", "a2")
    recorded = {"container_state": "exited", "exit_code": 0}
    gang = replace(gang, kernels=(gang.main, replace(gang.kernels[1], **recorded)))
    reports = reports_of(gang, main1=exited(0))
    del reports["a2"]
    (event,) = observation.observe(Snapshot((), (gang,), NOW), reports)
    assert (event.to_state, event.session["result"]) == (S.TERMINATING, Result.SUCCESS)


def test_a_time_limit_needs_no_report():
    session = replace(batch(time_limit="60s"), started_at=NOW)
    (event,) = observation.observe(Snapshot((), (session,), NOW + 60), {})
    assert "time limit" in event.reason


@pytest.mark.parametrize("state", [S.SCHEDULED, S.PREPARING, S.TERMINATING])
def test_reports_change_nothing_of_a_session_that_does_not_run(state):
    assert observed(placed_on(make_session(), "a1", state=state), main1=None) is None


# A launch whose end nobody recorded


def adopted(*agent_ids: str, **differing: dict[str, Any] | None) -> Event | None:
    session = placed_on(make_session(cluster_size=2), *agent_ids, state=S.PREPARING)
    session = replace(session, step=LaunchStep.STARTING)
    return observation.adopt(session, reports_of(session, **differing), NOW + 1)


@pytest.mark.parametrize("agent_ids", [("a1",), ("a1", "a2")])
def test_a_launch_that_was_released_is_adopted_with_its_facts(agent_ids):
    event = adopted(*agent_ids, sub1=exited(0))
    assert (event.to_state, event.session["started_at"], event.session["step"]) == (S.RUNNING, NOW + 1, None)
    assert sorted(facts["container_id"] for facts in event.kernels.values()) == ["c-main1", "c-sub1"]


@pytest.mark.parametrize("sub1", [{}, {"released": False}])
def test_a_gang_of_which_a_kernel_is_not_released_is_released(sub1):
    event = adopted("a1", "a2", main1={"released": False}, sub1=sub1)
    assert (event.to_state, event.session["step"]) == (S.PREPARING, LaunchStep.RELEASING)


@pytest.mark.parametrize("facts", [None, {"state": "created"}, {"generation": 6}])
def test_a_launch_that_is_not_whole_is_not_adopted(facts):
    assert adopted("a1", "a2", sub1=facts) is None


def cut_short_on_one_agent(boot_id: str = "boot-1", **differing: dict[str, object] | None) -> Event | None:
    session = placed_on(make_session(cluster_size=2), "a1", state=S.PREPARING)
    kernels = tuple(replace(kernel, boot_id=boot_id) for kernel in session.kernels)
    session = replace(session, step=LaunchStep.STARTING, placed_mode="single-node", kernels=kernels)
    return observation.adopt(session, reports_of(session, **differing), NOW + 1)


def test_a_launch_that_released_a_kernel_and_is_not_whole_any_more_has_begun():
    event = cut_short_on_one_agent(sub1=None)
    assert event.to_state is S.TERMINATING
    assert event.reason == "the container of sub1 has vanished from its agent during the launch"


@pytest.mark.parametrize("generation", [7, 6])
def test_a_launch_whose_only_containers_are_gone_has_begun_if_they_were_released(generation):
    """Nothing but their keys tells: it was once launched a second time."""
    session = placed_on(make_session(), "a1", state=S.PREPARING)
    session = replace(session, step=LaunchStep.STARTING, placed_mode="single-node")
    vanished = VanishedReport(session_id=session.id, name="main1", generation=session.generation - 7 + generation)
    (report,) = reports_of(session, main1=None).values()
    event = observation.adopt(session, {"a1": report.model_copy(update={"vanished": (vanished,)})}, NOW)
    if generation == 6:
        assert event is None
    else:
        assert event.to_state is S.TERMINATING
        assert event.reason == "the container of main1 has vanished from its agent during the launch"


def test_a_launch_whose_host_was_rebooted_may_have_begun():
    gone = {"state": "exited", "exit_code": 255, "released": False}
    event = cut_short_on_one_agent("boot-0", main1=gone, sub1=gone)
    assert (event.to_state, event.reason) == (S.TERMINATING, "agent a1 was rebooted during the launch")


@pytest.mark.parametrize("main1", [None, {"released": False, "state": "exited", "exit_code": 1}])
def test_a_launch_that_released_nothing_is_made_anew(main1):
    assert cut_short_on_one_agent(main1=main1, sub1={"released": False}) is None


# A host that was rebooted


REBOOTED = {"state": "exited", "exit_code": 255, "released": False, "address": None}


def in_boot(boot_id: str, session: Session) -> Session:
    return replace(session, kernels=tuple(replace(kernel, boot_id=boot_id) for kernel in session.kernels))


@pytest.mark.parametrize("main1", [REBOOTED, {**REBOOTED, "exit_code": 143}, None])
def test_an_end_by_a_reboot_is_not_blamed_on_the_command(main1):
    event = observed(in_boot("boot-0", batch()), main1=main1)
    assert (event.to_state, event.reason) == (S.TERMINATING, "agent a1 was rebooted")
    assert (event.session["result"], event.session["exit_code"]) == (Result.FAILURE, None)


def test_a_session_that_a_reboot_ended_is_queued_again_where_it_may_be():
    event = observed(in_boot("boot-0", batch(requeue=True)), main1=REBOOTED)
    assert (event.to_state, event.session["requeue_after_end"]) == (S.TERMINATING, True)


def test_a_command_that_had_ended_well_before_the_reboot_has():
    event = observed(in_boot("boot-0", batch(cluster_size=2)), main1={**REBOOTED, "exit_code": 0}, sub1=REBOOTED)
    assert event.session["result"] is Result.SUCCESS


def test_a_command_that_failed_in_the_boot_in_which_it_began_has_failed():
    event = observed(in_boot("boot-1", batch()), main1={**REBOOTED, "released": True})
    assert event.session["exit_code"] == 255


def test_running_kernels_record_the_present_boot():
    event = observed(in_boot("boot-0", batch()))
    assert event.to_state is S.RUNNING
    assert {facts["boot_id"] for facts in event.kernels.values()} == {"boot-1"}


# Memory


def test_a_command_that_survived_a_lack_of_memory_is_judged_by_its_exit_code():
    event = observed(batch(), main1={**exited(0), "oom_killed": True})
    assert (event.session["result"], event.session["exit_code"]) == (Result.SUCCESS, 0)
    assert event.reason.startswith("the command ended with exit code 0; main1 ran out of memory")


def test_a_command_that_goes_on_after_a_lack_of_memory_tells_it_once():
    session = batch()
    event = observed(session, main1={"oom_killed": True})
    assert (event.to_state, event.in_story) == (S.RUNNING, True)
    assert event.reason.startswith("main1 ran out of memory")
    known = replace(session, kernels=(replace(session.main, **event.kernels[session.main.id]), *session.kernels[1:]))
    assert observed(known, main1={"oom_killed": True}) is None


def test_an_interactive_session_tells_that_it_ran_out_of_memory_and_goes_on():
    event = observed(placed_on(make_session(), "a1"), main1={"oom_killed": True})
    assert (event.to_state, event.in_story) == (S.RUNNING, True)
    assert event.reason == "main1 ran out of memory: a process of it was killed, the container went on"


@examples(60)
@given(sessions_in_any_state())
def test_whatever_agents_report_the_next_state_is_legal(session):
    for differing in ({}, {"main1": None}, {"main1": exited(0)}, {"main1": exited(1)}):
        event = observed(session, **differing) if session.agents else None
        if event is not None and event.to_state is not event.from_state:
            assert event.to_state in TRANSITIONS[session.state]
