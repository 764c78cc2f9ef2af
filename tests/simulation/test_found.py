"""What the search has found, as schedules of its own: each failed before its cause was mended."""

from tests.simulation.test_checker import DIES_REMOVING, GANG, carried_out, fault, submission


def story(verdict, name: str = "s1") -> list[str]:
    return [line.partition(f"{name}: ")[2] for line in verdict.trace if f"{name}: " in line]


def test_a_launch_that_a_rebooting_host_never_got_is_tried_again():
    """Nothing of it has begun: the generation on the host's disk tells."""
    hosts = [fault(3.2, "reboot", host, for_s=60.0) for host in ("a1", "a2")]
    verdict = carried_out(*hosts, submission(at=5.0))
    assert verdict.broken is None
    assert "PREPARING → PENDING: agent a1 was rebooted before the launch" in story(verdict)
    assert "RUNNING → TERMINATING: the command ended with exit code 0" in story(verdict)


def test_a_clock_that_is_set_back_stops_nothing():
    """A pause after a failed run of Ansible was once as long as the clock was set back."""
    breaks_off = [fault(10.0, "visit breaks off", host) for host in ("a1", "a2")]
    verdict = carried_out(*breaks_off, fault(52.0, "clock jumps", by_s=-3600), submission(at=60.0, run_s=0.0))
    assert verdict.broken is None
    ended = [line for line in verdict.trace if "→ TERMINATED" in line]
    assert ended, "it ran"
    assert float(ended[0].split()[0]) < 120


def test_a_launch_that_failed_is_tried_again_soon_although_the_clock_is_set_back():
    """The time of the next try was once an hour ahead then."""
    fails = [fault(1.0, "next launch fails", host, how="transient") for host in ("a1", "a2")]
    verdict = carried_out(*fails, fault(4.0, "clock jumps", by_s=-3600), submission())
    assert verdict.broken is None
    assert any("cannot be started" in line for line in story(verdict))
    assert "RUNNING → TERMINATING: the command ended with exit code 0" in story(verdict)


def test_a_session_does_not_preempt_what_it_depends_on():
    """It ended the other one again and again, and began never."""
    first = submission(cluster_size=2, command=None, requeue=True, preemptible=True, priority=50)
    second = submission(2, at=20.0, cluster_size=4, command=None, priority=90, after=1)
    verdict = carried_out(first, second)
    assert verdict.broken is None
    assert not any("preempted" in line for line in verdict.trace)


def test_a_kernel_that_ends_before_its_command_begins_fails_its_session_whatever_its_exit_code():
    """The checker once held this to be an untrue result."""
    gang = submission(cluster_size=3, run_on="main")
    verdicts = [
        carried_out(gang, fault(2.5 + tenths / 10, "container dies", "a1", exit_code=0, oom=False))
        for tenths in range(40)
    ]
    assert [verdict.broken for verdict in verdicts] == [None] * 40
    stories = [" ".join(story(verdict)) for verdict in verdicts]
    assert any("PREPARING → TERMINATING: main1 ended before it was released" in one for one in stories)


def test_a_launch_fails_for_good_where_all_other_agents_are_drained():
    """The checker once held that one agent's trouble had become the session's: it knew of no drain."""
    verdict = carried_out(
        fault(1.0, "drain", "a2"), fault(1.0, "launches fail", "a1", for_s=150.0), submission(cpu="2")
    )
    assert verdict.broken is None
    assert any("PREPARING → ERROR" in line for line in story(verdict))


def test_files_of_a_launch_that_could_not_be_removed_are_removed_later():
    """No report named them, and nobody came back for them: the session went on elsewhere."""
    resists = [fault(1.0, "removals fail", host, for_s=60.0, of="files") for host in ("a1", "a2")]
    verdicts = [
        carried_out(*resists, fault(2.5 + tenths / 5, "container dies", "a1", exit_code=1, oom=False), submission())
        for tenths in range(20)
    ]
    assert [verdict.broken for verdict in verdicts] == [None] * 20
    assert any("PREPARING → PENDING" in line for verdict in verdicts for line in story(verdict))


def test_files_that_a_killed_module_had_not_removed_yet_are_removed_later():
    """No report named them: with the container gone and the session elsewhere, nobody came back for them."""
    verdicts = [carried_out(*deeds) for deeds in DIES_REMOVING]
    assert [verdict.broken for verdict in verdicts] == [None, None]
    assert any("MODULE FAILURE" in line for verdict in verdicts for line in verdict.trace), "it has struck"


def test_a_container_whose_command_never_began_has_used_what_its_agent_reports():
    """The checker once held that it had used nothing."""
    moments = [6 + hundredths / 100 for hundredths in range(50)]
    verdicts = [carried_out(GANG, fault(at, "engine stops", "a2", for_s=5.0)) for at in moments]
    assert {str(verdict.broken) for verdict in verdicts} == {"None"}


def test_a_control_node_that_slept_while_another_worked_removes_nothing():
    """Its manifests of before got the newest number."""
    waits = {"cluster_size": 4, "command": None}
    verdicts = [
        carried_out(
            submission(cluster_size=2, command=None),
            submission(2, at=1.9, **waits),
            fault(11.8, "pause", for_s=30.0, commits=commits, after=False),
            fault(35.2, "end", "1"),
        )
        for commits in range(1, 10)
    ]
    assert {str(verdict.broken) for verdict in verdicts} == {"None"}
    assert any("the queue is worked anew" in line for verdict in verdicts for line in verdict.trace)


def test_a_session_ends_where_an_earlier_launch_of_it_left_a_container():
    """Its agent told of that one's last words, which the control node refused again and again."""
    elastic = submission(cluster_size="1-2", cpu="2", run_s=40.0)
    verdicts = [
        carried_out(
            elastic,
            fault(1.9, "removals fail", resisting, for_s=55.0, of="all"),
            fault(2.5 + tenths / 5, "module dies", other),
        )
        for tenths in range(15)
        for resisting, other in (("a1", "a2"), ("a2", "a1"))
    ]
    assert {str(verdict.broken) for verdict in verdicts} == {"None"}


def test_an_end_waits_for_a_signal_that_ansible_could_not_send():
    """Its time counted from the decision: the command was killed without it."""
    limited = submission(run_s=150.0, time_limit="60s", signal="USR1@10")
    verdict = carried_out(limited, fault(40.0, "Ansible fails", for_s=60.0))
    assert verdict.broken is None
    came = [line for line in verdict.trace if "gets signal" in line or "RUNNING → TERMINATING" in line]
    assert ["gets signal 1" in line for line in came] == [True, False], came


def test_a_launch_that_goes_on_when_its_lost_host_wakes_up_begins_nothing():
    """Both gangs ran until the lost host's was cleared away."""
    session = submission(at=21.0, cpu="2", requeue=True, command=None)
    verdicts = [carried_out(fault(3.5, "hang", host, for_s=167.0), session) for host in ("a1", "a2")]
    assert [verdict.broken for verdict in verdicts] == [None, None]
    begins = [[line for line in verdict.trace if "/main1 begins" in line] for verdict in verdicts]
    assert [len(begun) for begun in begins] == [1, 1]
