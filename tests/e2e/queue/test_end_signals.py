"""The signal before a session's end, from the flag to the handler in the container and the story."""

import os

import pytest

from tests.control_node import SMALL, ControlNode
from tests.waiting import eventually

SAVES = "trap 'echo saved; exit 0' USR1; while :; do sleep 0.1; done"
GOES_ON = "trap 'echo saved' USR1; while :; do sleep 0.1; done"
SLEEPS = "trap 'echo saved; exit 0' USR1; sleep 3600 & wait"
COUNTS = f"echo restarts $MUSTER_RESTARTS; {GOES_ON}"
SENT = "USR1 was sent to main1's command"
IDLE = {"grace": "1s", "warn_before": "1h", "cpu_percent": 20, "network_bytes_per_s": 10000}


@pytest.fixture(scope="module")
def signalling(new_node) -> ControlNode:
    """Return a control node whose users may ask for a signal long before the end, which then comes soon."""
    made = new_node(
        observe_interval_s=1,
        signal_most="2h",
        idle=IDLE,
        scheduling={"preemption": True},
        max_priority={"*": 90},
    )
    (made.folders / "logs").mkdir()
    os.chown(made.folders / "logs", 1000, 1000)
    made.start_daemon()
    return made


def reasons(session: dict) -> list[str]:
    return [line["reason"] for line in session["story"]]


@pytest.mark.parametrize("flags", [(), ("-v", "logs", "-o", "logs/%x.log")])
def test_a_command_hears_of_its_time_limit_saves_and_ends_well(signalling, flags):
    name = signalling.submit(*SMALL, "--time-limit", "7206s", "--signal", "USR1@7200", *flags, "-c", SAVES)
    ended = signalling.reaches(name, "TERMINATED")
    assert (ended["result"], ended["exit_code"]) == ("SUCCESS", 0)
    assert "USR1 goes to its command before its time limit is reached" in reasons(ended)
    assert "saved" in signalling.run("logs", name).out
    if flags:
        assert "saved" in (signalling.folders / "logs" / f"{name}.log").read_text()


def test_a_drain_that_ends_sessions_lets_them_save_first(signalling):
    name = signalling.start("--signal", "USR1@5", "-c", GOES_ON)
    signalling.run("agent", "drain", "localhost", "--end-sessions", "--wait")
    ended = signalling.show(name)
    assert ended["state"] == "TERMINATED"
    story = reasons(ended)
    assert any(reason.startswith("USR1 goes to its command before it is ended by") for reason in story)
    assert SENT in story
    assert "saved" in signalling.run("logs", name).out
    assert "USR1, 5s before its end, the last one at" in signalling.run("show", name).out
    signalling.run("agent", "resume", "localhost")


def test_an_idle_session_saves_before_it_is_ended(signalling):
    name = signalling.start("--idle-timeout", "10s", "--signal", "USR1@5", "-c", SLEEPS)
    ended = signalling.reaches(name, "TERMINATED")
    assert (ended["result"], ended["exit_code"]) == ("SUCCESS", 0)
    assert "USR1 goes to its command before it is ended for being idle" in reasons(ended)
    assert "saved" in signalling.run("logs", name).out


def test_every_kernel_of_a_preempted_session_saves_and_finds_that_it_was_queued_again(signalling):
    mem = str(signalling.memory() * 6 // 20)
    low = signalling.submit(
        *(*SMALL, "--mem", mem, "--cluster-size", "2", "--on", "all", "--priority", "10", "--preemptible", "--requeue"),
        *("--signal", "USR1@5", "-v", "logs", "-o", "logs/%x.%N", "-c", COUNTS),
    )

    def said() -> list[str]:
        files = (signalling.folders / "logs" / f"{low}.{kernel}" for kernel in ("main1", "sub1"))
        return [file.read_text() if file.exists() else "" for file in files]

    signalling.reaches(low, "RUNNING")
    eventually(said, (["restarts 0\n"] * 2).__eq__)
    high = signalling.submit(*SMALL, "--mem", mem, "--cluster-size", "2", "--priority", "90", "--name", "urgent")
    signalling.reaches(high, "RUNNING")
    story = reasons(signalling.reaches(low, "PENDING"))
    first, *sent = [line for line in story if "USR1" in line]
    assert first.startswith("USR1 goes to its command before its place is taken: preempted by urgent")
    assert "; ".join(sent).count("USR1 was sent to") == 2
    assert said() == ["restarts 0\nsaved\n"] * 2
    signalling.run("terminate", high)
    signalling.reaches(low, "RUNNING")
    eventually(said, (["restarts 0\nsaved\nrestarts 1\n"] * 2).__eq__)
    signalling.run("terminate", low, "--wait")


def test_more_than_the_site_allows_is_refused(signalling):
    refused = signalling.run("submit", "--signal", "USR1@3h", "-c", "true", check=False)
    assert refused.code == 2
    assert "signal: 3h before the end is longer than this site allows, 2h; ask for 2h or less" in refused.err
