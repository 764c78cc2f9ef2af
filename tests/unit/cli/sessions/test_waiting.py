"""`muster wait`: for scripts that go on once sessions have ended, or run."""

import subprocess
from dataclasses import replace

import pytest

from muster.core.model.session import Result, SessionState
from tests.command_line import muster, submitted
from tests.control_node import SCRIPTS
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState


@pytest.fixture
def put(store):
    """Puts a session of this name into the store, in that state."""
    store.agents.save([make_agent("a1")])
    numbers = iter(range(1, 100))

    def add(name, state, **values):
        session = placed_on(make_session(next(numbers), name=name, command="true"), "a1", state=state)
        store.add([replace(session, owner="ada", **values)])

    return add


def test_it_waits_until_a_session_has_ended_and_says_what_becomes_of_it():
    submitted("--name", "train", "--", "true")
    with subprocess.Popen([SCRIPTS / "muster", "wait", "train"], stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        for line in waiting.stderr:
            if line.startswith("train: PENDING"):
                break
        assert waiting.poll() is None
        muster("cancel", "train")
        assert "train: CANCELLED (ended by ada)\n" in waiting.stderr.read()
    assert waiting.returncode == 1


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({"result": Result.SUCCESS, "exit_code": 0}, 0),
        ({"result": Result.FAILURE, "exit_code": 3}, 3),
        ({"result": Result.FAILURE, "exit_code": 0}, 1),
        ({"result": Result.FAILURE, "exit_code": None}, 1),
    ],
)
def test_its_exit_code_is_the_commands(put, outcome, code):
    put("train", S.TERMINATED, ended_at=NOW, **outcome)
    assert muster("wait", "train").code == code


def test_of_several_its_exit_code_is_the_highest(put):
    put("well", S.TERMINATED, result=Result.SUCCESS, exit_code=0)
    put("ill", S.TERMINATED, result=Result.FAILURE, exit_code=7)
    answer = muster("wait", "well", "ill", "well", "--json")
    assert answer.code == 7
    assert [session["name"] for session in answer.json] == ["well", "ill"]


def test_it_waits_for_all_of_an_array():
    muster("submit", "--name", "many", "--array", "0-2", "--", "true")
    muster("cancel", "many-0")
    answer = muster("wait", "many", "--timeout", "0.01")
    assert answer.code == 1
    assert "still waiting for many-1 (PENDING), many-2 (PENDING); `muster why SESSION` says why" in answer.err


def test_one_may_wait_until_sessions_run(put):
    put("train", S.RUNNING, started_at=NOW)
    put("over", S.TERMINATED, result=Result.FAILURE, exit_code=4)
    assert muster("wait", "train", "--for", "running").code == 0
    assert muster("wait", "train", "over", "--for", "running").code == 4
    assert muster("wait", "train", "--timeout", "0.01", "-q").errors == [
        "muster: still waiting for train (RUNNING); `muster why SESSION` says why"
    ]


@pytest.mark.parametrize("time", ["0", "0.01", "1e-2", "1s"])
def test_a_time_to_wait_is_seconds_or_a_span(time):
    submitted("--name", "train", "--", "true")
    assert "still waiting for train (PENDING)" in muster("wait", "train", "--timeout", time).err


@pytest.mark.parametrize("time", ["nan", "inf", "-1", "soon", "1x", ""])
@pytest.mark.parametrize(
    "command",
    [
        ("wait", "train", "--timeout"),
        ("submit", "--wait", "--wait-timeout"),
        ("agent", "drain", "a1", "--wait", "--timeout"),
    ],
)
def test_what_is_no_time_to_wait_is_refused(command, time):
    answer = muster(*command, time)
    assert answer.code == 2
    assert answer.err.endswith(f"{time!r} is no time to wait; write seconds, or a span such as 30m or 1h30m\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "Missing argument 'SESSION...'"),
        (("nosuch",), "there is no session 'nosuch'; see `muster ls --all`"),
        (("train", "--for", "lunch"), "'lunch' is not one of 'ended', 'running'"),
    ],
)
def test_wrong_input_is_refused(arguments, problem):
    answer = muster("wait", *arguments)
    assert (answer.code, problem in answer.err) == (2, True), answer.err
