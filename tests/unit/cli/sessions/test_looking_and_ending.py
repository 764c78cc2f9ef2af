"""The commands that list, show and end sessions, and those that explain themselves."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.cli.main import _COMMANDS
from muster.core.lifecycle import transitions
from muster.core.model.session import Session, SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.schedule import schedule
from muster.store.store import Store
from tests.command_line import muster, submitted
from tests.control_node import SCRIPTS
from tests.strategies.agents import make_agent
from tests.strategies.sessions import placed_on
from tests.strategies.values import NOW


def test_ls_show_and_why_of_a_pending_session():
    session = submitted("--name", "train", "--cluster-size", "2", "--", "true")
    header, row = muster("ls").out.splitlines()
    assert header.split() == ["ID", "NAME", "OWNER", "TYPE", "STATE", "SIZE", "RESOURCES", "AGENTS", "AGE", "REASON"]
    assert row.split()[:6] == [session["id"][:8], "train", "ada", "batch", "PENDING", "2"]
    shown = muster("show", "train").out
    for part in (session["id"], "main1", "sub1", "submitted"):
        assert part in shown
    assert muster("show", session["id"][:8], "--json").json["story"][0]["to"] == "PENDING"
    assert "the scheduler looks at it next" in muster("why", "train").out
    assert muster("why", "train", "--json").json["wait"] is None


def test_the_size_of_an_elastic_session_is_what_it_was_given(store):
    session = submitted("--name", "train", "--cluster-size", "4-8", "--", "true")
    assert (session["cluster_size"], session["size"], session["spec"]["cluster_size"]) == (4, "4-8", "4-8")
    assert muster("ls").out.splitlines()[1].split()[5] == "4-8"
    assert muster("queue").out.splitlines()[1].split()[6] == "4-8"
    store.agents.save([make_agent("a1", cpus=6)])
    snapshot = store.snapshot(NOW)
    store.apply(transitions.place(schedule(snapshot), snapshot))
    assert "placed on a1, with 6 of 4-8 containers" in muster("why", "train").out
    (placed,) = store.search()
    store.apply(
        [
            transitions.launch(placed, 7, "ssh-ed25519 AAAA", NOW, {}),
            transitions.all_run(replace(placed, state=SessionState.PREPARING), {}, NOW),
        ]
    )
    assert "  runs with 6 of 4-8 containers" in muster("why", "train").out.splitlines()
    assert "Cluster:    6 of 4-8 kernels, single-node" in muster("show", "train").out.splitlines()
    shown = muster("show", "train", "--json").json
    assert (shown["cluster_size"], shown["size"], shown["slots"]["cpu"], len(shown["kernels"])) == (
        6,
        "6 of 4-8",
        6000,
        6,
    )


def test_why_says_what_the_last_pass_found(store):
    session = submitted("--name", "train", "--cpu", "3")
    wait = Wait(WaitCode.BUSY, "agent a1 lacks 1 CPU", agents_considered=2, filtered={"lost": 1}, exhausted={"cpu": 2})
    store.save_waits({session["id"]: wait})
    out = muster("why", "train").out
    for part in (
        "agent a1 lacks 1 CPU",
        "place in the queue of group default: 1",
        "too little is free now: CPU on 2 of 2 agents",
    ):
        assert part in out
    assert "1 lost" in out


def test_ls_filters():
    for name in ("a", "b", "c"):
        submitted("--name", name)
    muster("submit", "--name", "d", "--owner", "eve")
    assert muster("cancel", "b").out == "b is CANCELLED\n"

    def names(*arguments: str) -> list[str]:
        return [session["name"] for session in muster("ls", "--json", *arguments).json]

    assert names() == ["a", "c", "d"]
    assert names("--all") == ["a", "b", "c", "d"]
    assert names("--mine") == ["a", "c"]
    assert names("--state", "cancelled") == ["b"]
    assert names("--limit", "1") == ["d"]


def test_cancel_and_terminate_of_pending_sessions():
    for name in ("a", "b"):
        submitted("--name", name)
    assert muster("cancel", "a", "--json").json[0]["state"] == "CANCELLED"
    assert muster("terminate", "b").out == "b is CANCELLED\n"
    assert muster("terminate", "b").out == "b is CANCELLED\n"
    assert muster("show", "b", "--json").json["reason"] == "ended by ada"


def test_terminate_looks_every_name_up_before_it_ends_one():
    submitted("--name", "a")
    assert muster("terminate", "a", "nosuch").code == 2
    assert muster("show", "a", "--json").json["state"] == "PENDING"


def test_terminate_all_ends_mine_only():
    submitted("--name", "a")
    muster("submit", "--name", "d", "--owner", "eve")
    assert muster("terminate", "--all").code == 0
    assert [session["name"] for session in muster("ls", "--json").json] == ["d"]
    assert muster("terminate", "--all").code == 0


# Arrays


def queued(name: str, indexes: str) -> None:
    assert muster("submit", "--name", name, "--array", indexes).code == 0


def lines(*arguments: str) -> list[tuple[str, str]]:
    """Name and state of each line of `muster ls`."""
    return [(row.split()[1], row.split()[4]) for row in muster("ls", *arguments).out.splitlines()[1:]]


def test_sessions_of_an_array_that_are_alike_share_a_line(store):
    queued("train", "0-9")
    submitted("--name", "other")
    running(store, "train-3")
    muster("terminate", "train-5", "train-6")
    expected = [("train-[0-2,4,7-9]", "PENDING"), ("train-3", "SCHEDULED"), ("other", "PENDING")]
    assert lines() == expected
    assert lines("--all") == [*expected[:2], ("train-[5-6]", "CANCELLED"), *expected[2:]]
    assert len(muster("ls", "--json").json) == 9
    assert lines("--state", "cancelled") == [("train-[5-6]", "CANCELLED")]


def test_show_tells_of_which_array_a_session_is_and_what_it_starts_after():
    queued("train", "0-9%2")
    submitted("--name", "last", "--after-ok", "train", "--begin", "2026-11-22T08:00Z", "--project", "vision")
    assert "Array:      index 4 of train, 0-9%2" in muster("show", "train-4").out
    shown = muster("show", "last").out
    for part in ("project vision", "2026-11-22T08:00:00.000+00:00", "After ok:   train-"):
        assert part in shown


def test_terminate_ends_all_of_an_array_and_says_how_many(store):
    queued("train", "0-3")
    running(store, "train-2")
    muster("cancel", "train-0")
    out = muster("terminate", "train").out
    assert out.splitlines() == ["train-[0-1,3]: 3 are CANCELLED", "train-2 is TERMINATING"]
    assert muster("show", "train", "--json").code == 2


def test_cancel_of_an_array_cancels_what_is_pending_and_leaves_the_rest(store):
    queued("train", "0-3")
    running(store, "train-2")
    assert muster("cancel", "train").out == "train-[0-1,3]: 3 are CANCELLED\n"
    assert muster("show", "train-2", "--json").json["state"] == "SCHEDULED"
    answer = muster("cancel", "train")
    assert (answer.code, "session train-2 is SCHEDULED" in answer.err) == (1, True)


def test_commands_for_one_session_say_how_to_name_one_of_an_array():
    queued("train", "0-3")
    for command in (
        ["show", "train"],
        ["logs", "train"],
        ["exec", "train", "--", "true"],
        ["run", "train", "--", "true"],
    ):
        answer = muster(*command)
        said = "muster: 'train' is an array of 4 sessions; name one of them, such as train-0"
        assert (answer.code, answer.errors) == (2, [said])


def test_all_sessions_are_not_ended_where_some_are_named():
    submitted("--name", "a")
    submitted("--name", "b")
    answer = muster("terminate", "a", "--all")
    assert (answer.code, answer.errors) == (
        2,
        ["muster: --all: sessions are named as well; name them, or give --all alone"],
    )
    assert {session["state"] for session in muster("ls", "--json").json} == {"PENDING"}


# Held and released


def test_a_held_session_says_so_until_it_is_released():
    submitted("--name", "a")
    assert muster("hold", "a").out == "a is PENDING, held by ada\n"
    assert "held by ada" in muster("ls").out
    assert muster("hold", "a").out == "a is PENDING, held by ada\n"
    assert muster("release", "a").out == "a is PENDING\n"
    assert muster("release", "a").out == "a is PENDING\n"
    story = [line["reason"] for line in muster("show", "a", "--json").json["story"]]
    assert story == ["submitted", "held by ada", "released by ada"]


def test_a_session_can_be_submitted_held():
    assert submitted("--name", "a", "--hold")["held_by"] == "ada"
    assert "held by ada" in muster("ls").out
    assert muster("release", "a", "--json").json[0]["held_by"] is None


def test_neither_an_array_nor_one_of_it_is_renamed_and_both_get_the_same_advice():
    queued("train", "0-3")
    for name in ("train", "train-0"):
        refused = muster("rename", name, "other")
        assert (refused.code, refused.out) == (1, "")
        assert "train-0 is one of an array" in refused.err
        assert "submit it anew under another name" in refused.err


def test_an_array_is_held_and_released_as_far_as_it_is_pending(store):
    queued("train", "0-3")
    running(store, "train-0")
    assert muster("hold", "train").out == "train-[1-3]: 3 are PENDING, held by ada\n"
    assert muster("release", "train-2").out == "train-2 is PENDING\n"
    assert muster("release", "train").out == "train-[1-3]: 3 are PENDING\n"


@pytest.mark.parametrize("command", ["hold", "release"])
def test_only_pending_sessions_are_held_and_released(store, command):
    submitted("--name", "a")
    submitted("--name", "b")
    running(store, "b")
    answer = muster(command, "a", "b")
    assert answer.code == 1
    assert "session b is SCHEDULED; only a PENDING session can be" in answer.err
    assert muster("show", "a", "--json").json["held_by"] is None
    muster("terminate", "a")
    assert "session a is CANCELLED; only a PENDING session" in muster(command, "a").err


def running(store: Store, name: str) -> Session:
    session = store.find(name)
    store.apply(
        [
            transitions.Event(session.id, NOW, SessionState.PENDING, SessionState.SCHEDULED, "placed", {},
                            {k.id: {"allocation": k.allocation} for k in placed_on(session, "a1").kernels})
        ]
    )  # fmt: skip
    return store.find(name)


def test_cancel_of_a_session_that_is_placed_points_to_terminate(store):
    submitted("--name", "a")
    running(store, "a")
    answer = muster("cancel", "a")
    assert (answer.code, "use `muster terminate a`" in answer.err) == (1, True)
    assert muster("terminate", "a").out == "a is TERMINATING\n"


@pytest.mark.parametrize(
    "command", [["logs", "a"], ["exec", "a", "--", "true"], ["run", "a", "--", "true"], ["ssh", "a"]]
)
def test_commands_that_need_containers_say_that_there_are_none(command):
    submitted("--name", "a")
    answer = muster(*command)
    assert (answer.code, "PENDING" in answer.err) == (1, True)


def test_a_kernel_that_does_not_exist_is_named():
    submitted("--name", "a", "--cluster-size", "2")
    answer = muster("logs", "a:sub2")
    assert (answer.code, "has no container 'sub2'; it has main1, sub1" in answer.err) == (2, True)


def test_tables_without_rows_are_a_header():
    assert len(muster("ls").out.splitlines()) == 1
    answer = muster("agents")
    assert (answer.code, len(answer.out.splitlines())) == (0, 1)
    assert "muster pass" in answer.err
    assert muster("images").code == 0


def test_agents_show_what_is_free(store):
    store.agents.save([make_agent(cpus=4, mem_bytes=8 << 30, gpus=1, units_per_gpu=2)])
    row = muster("agents").out.splitlines()[1].split()
    assert row[:7] == ["a1", "default", "ALIVE", "4/4", "8G/8G", "1/1", "2/2"]
    assert muster("agents", "--json").json[0]["free"] == {"cpu": 4000, "mem": 8 << 30, "fgpu": 2000, "gpu": 1}


def test_version_names_muster_and_what_it_stands_on():
    assert muster("version").out.splitlines()[0].startswith("muster ")
    assert "ansible-core" in muster("version", "--json").json


@pytest.mark.parametrize("command", [[], *([name] for name in _COMMANDS)])
def test_every_command_explains_itself(command):
    answer = muster(*command, "--help")
    assert (answer.code, answer.out.startswith("Usage: muster")) == (0, True)


def test_the_completion_script_is_bash():
    text = muster("completion", "bash").out
    assert "_MUSTER_COMPLETE" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    for shell in ("zsh", "fish"):
        assert "_MUSTER_COMPLETE" in muster("completion", shell).out


# Without a buffer, Python takes no notice of what a pipe did not take.
@pytest.mark.parametrize(("unbuffered", "codes"), [("", {141}), ("1", {0, 141})])
def test_a_reader_that_closes_the_pipe_gets_no_traceback(monkeypatch, unbuffered, codes):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    muster("submit", "--count", "150", "-q")
    code = "from muster.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "ls", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in codes


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_has_no_room_is_told_as_that_and_a_submit_is_not_repeated(monkeypatch, unbuffered):
    """It was blamed on the directory of temporary files."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [SCRIPTS / "muster", "submit", "--name", "train", "--", "true"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "muster: standard output cannot be written: No space left on device; free space where it goes, and see"
    assert done.stderr == f"{told} `muster ls` before you repeat a command: it may have done what it does\n"
    assert done.returncode == 1
    assert [session["name"] for session in muster("ls", "--json").json] == ["train"]
