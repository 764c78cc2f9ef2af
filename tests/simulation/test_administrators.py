"""What administrators do to hosts and to the database costs sessions no more than the docs say."""

from tests.simulation.schedules import BACK_UP, LEAVE, PRUNE, RESTORE, STATE_LOST
from tests.simulation.test_checker import FILLS, WAITS, carried_out, fault, submission
from tests.simulation.test_found import story

SERVICE = {"command": None, "cluster_size": 2, "cpu": "2"}
UNTIL_ITS_USER_ENDED_IT = ["main1 ends by stopped (143)", "sub1 ends by stopped (143)"]


def ended(verdict, name: str = "s1") -> list[str]:
    """Return how the session's kernels ended on their hosts."""
    return [line.partition(f"{name}/")[2] for line in verdict.trace if f"{name}/" in line and " ends by " in line]


def test_a_session_goes_on_where_what_does_not_run_is_pruned():
    verdict = carried_out(submission(**SERVICE), *(fault(20.0, PRUNE, host, all_images=True) for host in ("a1", "a2")))
    assert verdict.broken is None
    assert sorted(ended(verdict)) == UNTIL_ITS_USER_ENDED_IT


def test_an_image_that_was_pruned_is_pulled_again():
    pruned = [fault(20.0, PRUNE, host, all_images=True) for host in ("a1", "a2")]
    verdict = carried_out(submission(run_s=1.0), *pruned, submission(2, at=40.0, run_s=1.0))
    assert verdict.broken is None
    assert "PREPARING → PENDING: removed before the launch: busybox on a1" in story(verdict, "s2")
    assert "SCHEDULED → PREPARING: pulling busybox on a1" in story(verdict, "s2")
    assert "RUNNING → TERMINATING: the command ended with exit code 0" in story(verdict, "s2")


def test_an_image_that_was_pruned_as_soon_as_it_was_pulled_is_pulled_again():
    """It counted as there until a report showed it, which none ever did."""
    pruned = [fault(4.0 + tenths / 10, PRUNE, "a1", all_images=True) for tenths in range(20)]
    verdicts = [carried_out(submission(image="debian:13", cpu="2", agents=("a1",)), one) for one in pruned]
    assert {str(verdict.broken) for verdict in verdicts} == {"None"}
    stories = [story(verdict) for verdict in verdicts]
    assert any("PREPARING → PENDING: image debian:13 is not on this agent" in one for one in stories)
    assert all("RUNNING → TERMINATING: the command ended with exit code 0" in one for one in stories)


def test_a_session_goes_on_while_its_agents_lose_their_state():
    verdict = carried_out(submission(**SERVICE), *(fault(20.0, STATE_LOST, host) for host in ("a1", "a2")))
    assert verdict.broken is None
    assert sorted(ended(verdict)) == UNTIL_ITS_USER_ENDED_IT


def test_a_session_goes_on_while_its_host_is_out_of_the_inventory_for_a_moment():
    verdict = carried_out(submission(**SERVICE), fault(20.0, LEAVE, "a2", for_s=60.0))
    assert verdict.broken is None
    assert sorted(ended(verdict)) == UNTIL_ITS_USER_ENDED_IT


def test_a_host_that_stays_out_of_the_inventory_is_lost_with_its_sessions():
    verdict = carried_out(submission(**SERVICE), fault(20.0, LEAVE, "a2", for_s=190.0))
    assert verdict.broken is None
    assert any("→ TERMINAT" in line and "a2" in line for line in story(verdict)), story(verdict)


def test_a_restored_database_adopts_what_runs_and_removes_what_it_does_not_know():
    verdict = carried_out(
        submission(run_s=100.0),
        fault(20.0, BACK_UP),
        submission(2, at=25.0, command=None),
        fault(50.0, RESTORE, hold=True),
    )
    assert verdict.broken is None
    assert "RUNNING → TERMINATING: the command ended with exit code 0" in story(verdict)
    assert ["main1 ends by removed" in end for end in ended(verdict, "s2")] == [True]


def test_a_session_that_was_launched_after_the_backup_goes_on_when_that_is_restored():
    verdict = carried_out(FILLS, WAITS, fault(15.0, BACK_UP), fault(70.0, RESTORE, hold=True))
    assert verdict.broken is None
    assert ended(verdict, "s2") == ["main1 ends by command (0)"]
    assert any("PENDING → RUNNING" in line for line in story(verdict, "s2"))


def test_a_session_that_was_waiting_when_the_backup_was_taken_is_held():
    fills = submission(command=None, cpu="2", cluster_size=2)
    verdict = carried_out(fills, submission(2, at=10.0, cpu="2"), fault(20.0, BACK_UP), fault(50.0, RESTORE, hold=True))
    assert verdict.broken is None
    assert any("PENDING → PENDING" in line and "held" in line for line in story(verdict, "s2"))


def test_a_restored_database_outranks_what_agents_know_although_the_clock_is_behind():
    """Agents refused all manifests until the clock had caught up."""
    verdict = carried_out(
        fault(1.0, BACK_UP),
        submission(at=4.0, command=None),
        fault(15.0, "clock jumps", by_s=-3600),
        fault(40.0, RESTORE, hold=True),
        submission(2, at=60.0, cpu="2", cluster_size=2, run_s=1.0),
    )
    assert verdict.broken is None
    assert "RUNNING → TERMINATING: the command ended with exit code 0" in story(verdict, "s2")
