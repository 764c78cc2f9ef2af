"""What users and admins say of when and where a session starts, on the real engine."""

from datetime import datetime
from itertools import pairwise

import pytest

from tests.control_node import SMALL, UNTIL_ENDED, ControlNode
from tests.e2e.conftest import NewNode
from tests.running.forked_cli import ForkedMuster
from tests.waiting import eventually


@pytest.fixture(scope="module")
def strict_node(new_node: NewNode) -> ControlNode:
    """Return a control node whose site allows preemption and has limits."""
    node = new_node(
        scheduling={"preemption": True},
        max_priority={"*": 90},
        limits={"users": {"bob": {"running": {"kernels": 2}, "pending": {"sessions": 3}}}},
    )
    node.start_daemon()
    return node


def test_a_held_session_waits_until_it_is_released(node):
    name = node.submit(*SMALL, "--hold", "-c", "true")
    other = node.submit(*SMALL, "-c", "true")
    node.reaches(other, "TERMINATED")
    assert node.show(name)["state"] == "PENDING"
    assert "held by" in node.run("why", name).out
    node.run("release", name)
    assert node.reaches(name, "TERMINATED")["result"] == "SUCCESS"


def test_sessions_start_after_those_that_they_depend_on(node):
    first = node.submit(*SMALL, "--name", "prepare", "-c", f"{UNTIL_ENDED}; exit 3")
    anyway = node.submit(*SMALL, "--name", "report", "--after-any", first, "-c", "true")
    log = node.directory / "train.log"
    after_success = ("submit", *SMALL, "--name", "train", "--after-ok", first, "--wait", "-c", "true")
    well = ForkedMuster(after_success, node.environment, log)
    eventually(lambda: node.run("show", "train", check=False).code, lambda code: code == 0)
    node.reaches(first, "RUNNING")
    node.end_command(first)
    assert well.wait() == 1
    assert "train: CANCELLED (it was to start after prepare succeeds, which failed)" in log.read_text()
    node.reaches(anyway, "TERMINATED")
    assert node.show(first)["exit_code"] == 3
    assert node.run("why", "train").out


def test_an_array_runs_so_many_at_a_time_and_each_knows_its_index(node):
    command = 'echo "index $MUSTER_ARRAY_INDEX of $MUSTER_ARRAY_SIZE"; sleep 2'
    node.run("submit", *SMALL, "--name", "sweep", "--array", "0-2%1", "-c", command)
    ended = [node.reaches(f"sweep-{index}", "TERMINATED") for index in range(3)]
    assert [node.run("logs", f"sweep-{index}").out for index in range(3)] == [
        f"index {index} of 3\n" for index in range(3)
    ]
    for before, after in pairwise(ended):
        assert after["started_at"] >= before["kernels"][0]["finished_at"][:19]


def test_a_session_does_not_start_before_its_time(node):
    soon = node.submit(*SMALL, "--begin", "now+3s", "-c", "true")
    later = node.submit(*SMALL, "--begin", "now+1h", "-c", "true")
    ended = node.reaches(soon, "TERMINATED")
    assert datetime.fromisoformat(ended["started_at"]).timestamp() >= ended["spec"]["begin"]
    assert (node.show(later)["state"], node.show(later)["wait"]["code"]) == ("PENDING", "begin")
    assert "does not start before" in node.run("why", later).out
    node.run("cancel", later)


def test_a_dry_run_says_what_would_happen_and_queues_nothing(node):
    before = node.run("ls", "--all", "--json").json()
    fits = node.run("submit", *SMALL, "--dry-run", "--name", "imagined")
    assert "localhost" in fits.out
    mem = node.memory()
    holder = node.start("--mem", str(mem * 6 // 10))
    waits = node.run("submit", *SMALL, "--mem", str(mem * 6 // 10), "--dry-run", check=False)
    assert waits.code == 1
    assert "--mem" in waits.out
    never = node.run("submit", *SMALL, "--mem", str(mem * 2), "--dry-run", check=False)
    assert never.code == 2
    after = [session for session in node.run("ls", "--all", "--json").json() if session["name"] != holder]
    assert len(after) == len(before)
    node.run("terminate", holder, "--wait")


def test_a_maintenance_window_keeps_sessions_out_that_would_reach_into_it(node):
    node.run("reservation", "create", "disks", "--begin", "now+10m", "--duration", "1h", "--agent", "localhost")
    try:
        long = node.submit(*SMALL, "--time-limit", "2h")
        short = node.start("--time-limit", "5m")
        assert node.show(long)["wait"]["code"] == "window"
    finally:
        node.run("reservation", "rm", "disks")
    node.reaches(long, "RUNNING")
    node.run("terminate", long, short, "--wait")


def test_limits_hold_for_a_users_running_and_queued_sessions(strict_node):
    node = strict_node
    node.run("submit", *SMALL, "--owner", "bob", "--name", "pair", "--cluster-size", "2", "--wait")
    waits = node.submit(*SMALL, "--owner", "bob")
    other = node.start()
    wait = node.show(waits)["wait"]
    assert (wait["code"], wait["limit"]["value"], wait["limit"]["used"]) == ("limit", 2, 2)
    assert "user bob may run 2 containers" in node.run("why", waits).out
    too_many = node.run("submit", *SMALL, "--owner", "bob", "--count", "3", check=False)
    assert too_many.code == 2
    assert "user bob may have 3 sessions waiting" in too_many.err
    node.run("terminate", "pair", other)
    node.reaches(waits, "RUNNING")
    node.run("terminate", waits, "--wait")


def test_a_session_of_higher_priority_takes_the_room_of_a_preemptible_one(strict_node):
    node = strict_node
    mem = str(node.memory() * 6 // 10)
    low = node.start("--mem", mem, "--priority", "10", "--preemptible", "--requeue")
    high = node.submit(*SMALL, "--mem", mem, "--priority", "90", "--name", "urgent")
    node.reaches(high, "RUNNING")
    waiting = node.reaches(low, "PENDING")
    assert any("preempted by urgent" in line["reason"] for line in waiting["story"])
    node.run("terminate", high)
    node.reaches(low, "RUNNING")
    node.run("terminate", low, "--wait")


def test_a_small_session_passes_a_large_one_that_it_cannot_delay(node):
    mem = node.memory()
    runs = node.start("--mem", str(mem * 6 // 10), "--time-limit", "30m")
    large = node.submit(*SMALL, "--mem", str(mem * 9 // 10))
    short = node.submit(*SMALL, "--time-limit", "10m")
    long = node.submit(*SMALL, "--mem", str(mem * 3 // 10))
    node.reaches(short, "RUNNING")
    wait = node.show(long)["wait"]
    assert (wait["code"], wait["waits_for"]) == ("behind", [node.show(large)["id"]])
    assert node.show(large)["wait"]["estimated_start"] is not None
    node.run("terminate", runs)
    node.reaches(large, "RUNNING")
    node.run("terminate", large, short, long, "--wait")
