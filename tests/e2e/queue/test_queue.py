"""Sessions that wait, run a command, fail, or reach their limits."""

from pathlib import Path

import docker
import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, UNTIL_ENDED, ControlNode
from tests.running.forked_cli import ForkedMuster
from tests.waiting import eventually


def capacity(node: ControlNode) -> dict:
    return node.run("agents", "--json").json()[0]["capacity"]


def test_a_session_that_does_not_fit_waits_and_starts_when_there_is_room(node):
    half = f"{capacity(node)['mem'] * 6 // 10}"
    first = node.start("--mem", half)
    second = node.submit(*SMALL, "--mem", half)
    third = node.start()
    waiting = node.show(second)
    assert waiting["state"] == "PENDING"
    assert waiting["wait"]["code"] == "busy"
    assert list(waiting["wait"]["exhausted"]) == ["mem"]
    assert "agent localhost comes closest and lacks" in node.run("why", second).out
    node.run("terminate", first)
    node.reaches(second, "RUNNING")
    node.run("terminate", second, third, "--wait")


def test_a_session_that_can_never_fit_says_so_at_once_and_blocks_nobody(node):
    done = node.run("submit", *SMALL, "--name", "giant", "--cpu", "100000", "--json")
    assert "can never start" in done.err
    node.start()
    assert node.show("giant")["wait"]["code"] == "never-fits"
    assert "asks for more than any agent of group default has" in node.run("why", "giant").out
    node.run("cancel", "giant")
    assert node.show("giant")["state"] == "CANCELLED"


def test_a_running_session_is_not_cancelled(node):
    name = node.start()
    done = node.run("cancel", name, check=False)
    assert done.code == 1
    assert "muster terminate" in done.err


def test_a_batch_session_succeeds_with_its_command(node):
    done = node.run("submit", *SMALL, "--name", "good", "--wait", "--", "echo", "it is", "$HOME")
    assert done.code == 0
    session = node.show("good")
    assert (session["state"], session["result"], session["exit_code"]) == ("TERMINATED", "SUCCESS", 0)
    assert node.run("logs", "good").out == "it is $HOME\n"


def test_a_batch_session_fails_with_its_command(node):
    done = node.run("submit", *SMALL, "--name", "bad", "--wait", "--command", "echo $HOME; exit 3", check=False)
    assert done.code == 3
    session = node.show("bad")
    assert (session["state"], session["result"], session["exit_code"]) == ("TERMINATED", "FAILURE", 3)
    assert session["kernels"][0]["exit_code"] == 3
    assert "exit code 3 in main1" in session["reason"]
    assert node.run("logs", "bad").out == f"{HOME}\n"


def test_a_command_on_all_kernels_ends_when_all_have_ended(node):
    command = "sleep $RANK; echo I am $BACKENDAI_CLUSTER_HOST"
    done = node.run(
        "submit", *SMALL, "--name", "everywhere", "--cluster-size", "3", "--on", "all", "--wait", "-c", command
    )
    assert done.code == 0
    for kernel in ("main1", "sub1", "sub2"):
        assert node.run("logs", f"everywhere:{kernel}").out == f"I am {kernel}\n"


def test_the_command_starts_when_every_kernel_can_be_reached(node):
    command = "for host in sub1 sub2 sub3; do ssh $host hostname; done"
    node.run("submit", *SMALL, "--name", "gang", "--cluster-size", "4", "--wait", "-c", command)
    assert node.run("logs", "gang").out.split() == ["sub1", "sub2", "sub3"]


def test_a_job_script_carries_its_flags(node, tmp_path: Path):
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n"
        "#MUSTER --cpu 0.05 --mem 64M --shm 16M\n"
        "#MUSTER --cluster-size 2 --env 'WHO=the script'\n"
        'echo "$WHO $BACKENDAI_CLUSTER_SIZE $EXTRA"\n'
    )
    node.run("submit", "--wait", "--env", "EXTRA=x", "--env", "WHO=the flag", str(script))
    assert node.run("logs", "job").out == "the flag 2 x\n"


def test_a_kernel_that_dies_ends_its_session(node):
    name = node.start("--cluster-size", "2")
    node.exec(f"{name}:sub1", "sh", "-c", "kill -TERM -1", check=False)
    session = node.reaches(name, "TERMINATED")
    assert session["result"] == "FAILURE"
    assert session["reason"].startswith("sub1 ended unexpectedly")


def test_a_kernel_that_needs_more_memory_than_it_has_is_named(node):
    greedy = "import sys; blocks = [bytearray(1 << 20) for _ in range(200)]"
    done = node.run("submit", *SMALL, "--name", "greedy", "--wait", "--", "python3", "-c", greedy, check=False)
    assert done.code != 0
    session = node.show("greedy")
    assert session["result"] == "FAILURE"
    assert session["kernels"][0]["oom_killed"] or session["exit_code"] == 137


def test_a_lack_of_memory_in_an_interactive_session_is_told_while_it_goes_on(node):
    name = node.start()
    greedy = "blocks = [bytearray(1 << 20) for _ in range(200)]"
    assert node.exec(name, "python3", "-c", greedy, check=False).code != 0
    expected = "main1 ran out of memory: a process of it was killed, the container went on"
    session = eventually(lambda: node.show(name), lambda seen: seen["reason"] == expected)
    assert (session["state"], session["kernels"][0]["oom_killed"]) == ("RUNNING", True)
    assert expected in node.run("show", name).out
    assert expected in [line["reason"] for line in session["story"]]


def test_a_time_limit_ends_a_session(node):
    name = node.submit(*SMALL, "--time-limit", "1s")
    session = node.reaches(name, "TERMINATED")
    assert (session["result"], session["reason"]) == ("FAILURE", "its time limit of 1s is reached")


def test_many_sessions_are_queued_at_once_and_all_run(node):
    done = node.run(
        "submit", *SMALL, "--name", "sweep", "--count", "4", "-c", "echo $BACKENDAI_SESSION_NAME", "--json", "--wait"
    )
    names = [session["name"] for session in done.json()]
    assert names == ["sweep-1", "sweep-2", "sweep-3", "sweep-4"]
    assert [node.run("logs", name).out.strip() for name in names] == names


def test_an_image_that_nobody_has_is_an_error_that_says_so(node):
    name = node.submit(*SMALL, "--image", "muster-e2e.invalid/no/such:image")
    session = node.reaches(name, "ERROR")
    assert "muster-e2e.invalid/no/such:image" in session["reason"]
    assert session["result"] == "FAILURE"


def test_an_interactive_session_ends_when_its_container_is_removed_behind_our_back(node):
    name = node.start()
    container = node.show(name)["kernels"][0]["container_id"]
    docker.from_env().containers.get(container).remove(force=True)
    session = node.reaches(name, "TERMINATED")
    assert session["result"] == "FAILURE"
    assert "main1" in session["reason"]


@pytest.mark.parametrize("tail", [2])
def test_logs_are_read_while_the_session_runs_and_after(node, tail):
    name = node.submit(*SMALL, "-c", f"for i in 1 2 3; do echo line $i; done; {UNTIL_ENDED}; echo last")
    node.reaches(name, "RUNNING")
    log = node.directory / "followed.log"
    following = ForkedMuster(("logs", "--follow", name), node.environment, log)
    eventually(log.read_text, lambda text: text == "line 1\nline 2\nline 3\n")
    node.end_command(name)
    assert following.wait() == 0
    assert log.read_text().splitlines()[-1] == "last"
    node.reaches(name, "TERMINATED")
    assert node.run("logs", name, "-n", str(tail)).out == "line 3\nlast\n"


def test_exec_hands_through_input_output_and_exit_code(node):
    name = node.start()
    done = node.exec(name, "sh", "-c", "cat; echo oops >&2; exit 7", stdin="through\n", check=False)
    assert (done.code, done.out, done.err) == (7, "through\n", "oops\n")
