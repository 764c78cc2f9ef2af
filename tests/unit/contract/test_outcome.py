"""What an agent says of its manifest's sessions: of those, of no others, and no more than it was asked for."""

import base64
import copy
import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.folders import folders_from_agent
from muster.contract.manifest import Manifest
from muster.contract.outcome import MOST_LOG_BYTES, outcomes_from_agent
from muster.contract.values import ContractError
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.session import SessionState
from tests.hostile.malformed import ODD, changed, paths, problem_of
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair, new_id

S = SessionState
STARTS = placed_on(make_session(1), "a1", state=S.PREPARING)
RUNS = placed_on(make_session(2), "a1")
ENDS = placed_on(make_session(3), "a1", state=S.TERMINATING)


def written() -> Manifest:
    keys = {STARTS.id: fake_key_pair("s1")}
    return manifest(make_agent("a1"), [STARTS, RUNS, ENDS], keys, 7, LaunchPolicy(), lambda name, _: name)


def result(log: bytes = b"done\n") -> dict[str, Any]:
    named = ((STARTS, "released"), (RUNS, "kept"), (ENDS, "stopped"))
    words = {
        "session_id": ENDS.id,
        "kernel_id": ENDS.main.id,
        "name": "main1",
        "exit_code": 143,
        "oom_killed": False,
        "started_at": "2026-01-01T00:00:00.123456789Z",
        "finished_at": None,
        "log_gz_b64": base64.b64encode(gzip.compress(log)).decode(),
        "log_truncated": False,
        "use": None,
    }
    entries = [{"id": s.id, "outcome": outcome, "error": None, "permanent": False} for s, outcome in named]
    return {"changed": True, "generation": 7, "sessions": entries, "last_words": [words]}


def test_outcomes_are_by_session_each_with_its_last_words():
    outcomes = outcomes_from_agent(result(), written())
    assert {key: outcome.outcome for key, outcome in outcomes.items()} == {
        STARTS.id: "released",
        RUNS.id: "kept",
        ENDS.id: "stopped",
    }
    (words,) = outcomes[ENDS.id].last_words
    assert gzip.decompress(words.log_gz) == b"done\n"
    assert outcomes[RUNS.id].last_words == ()


def reply(**by_field: Any) -> dict[str, Any]:
    return {**result(), **by_field}


def spoken(**values: Any) -> dict[str, Any]:
    (words,) = result()["last_words"]
    return reply(last_words=[{**words, **values}])


def first(**values: Any) -> dict[str, Any]:
    one, *others = result()["sessions"]
    return reply(sessions=[{**one, **values}, *others])


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({}, "answer.sessions: Field required (and 1 more)"),
        (reply(sessions=result()["sessions"][:-1]), "answer: sessions are not those of its manifest"),
        (reply(sessions=[*result()["sessions"], result()["sessions"][0]]), "answer: sessions are not those of"),
        (first(id=new_id(9)), "answer: sessions are not those of its manifest"),
        (first(outcome="stopped"), f"answer: session {STARTS.id} is stopped, which the manifest does not say"),
        (first(outcome="started"), f"answer: session {STARTS.id} is started, which the manifest does not say"),
        (first(outcome="failed"), f"answer: session {STARTS.id} failed without an error"),
        (first(outcome="exploded"), "answer.sessions[0].outcome: Input should be"),
        (first(permanent="no"), "answer.sessions[0].permanent: Input should be a valid boolean"),
        (spoken(session_id=RUNS.id, kernel_id=RUNS.main.id), "answer: last_words are not of kernels that it was to"),
        (spoken(session_id=new_id(9)), "answer: last_words are not of kernels that it was to stop"),
        (spoken(kernel_id=RUNS.main.id), "answer: last_words are not of kernels that it was to stop"),
        (spoken(name="../main1"), "answer: last_words are not of kernels that it was to stop"),
        (reply(last_words=result()["last_words"] * 2), "answer: last_words are not of kernels that it was to stop"),
        (spoken(log_gz_b64="%"), f"answer: the log of kernel {ENDS.main.id} is not base64 of gzip"),
        (spoken(log_gz_b64="aGVsbG8="), f"answer: the log of kernel {ENDS.main.id} is not base64 of gzip"),
        (spoken(started_at="yesterday"), "answer.last_words[0].started_at: String should match pattern"),
    ],
)
def test_outcomes_outside_the_manifest_are_refused(said, line):
    with pytest.raises(ContractError) as refused:
        outcomes_from_agent(said, written())
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("log", [b"\0" * (MOST_LOG_BYTES + 1), b"\0" * (64 << 20)])
def test_a_log_that_would_unpack_to_more_than_was_asked_for_is_refused(log):
    with pytest.raises(ContractError, match=f"is longer than {MOST_LOG_BYTES} bytes"):
        outcomes_from_agent(result(log), written())


def test_something_behind_the_log_is_refused():
    packed = base64.b64encode(gzip.compress(b"x") + b"more").decode()
    with pytest.raises(ContractError, match="is not base64 of gzip"):
        outcomes_from_agent(spoken(log_gz_b64=packed), written())


@given(
    st.sampled_from([path for path in paths(result()) if path[0] in {"sessions", "last_words"}]),
    st.sampled_from(("removed", "added", "retyped", "nested")),
    ODD,
)
def test_an_answer_with_something_else_in_it_is_taken_or_refused_in_one_line(path, change, odd):
    said = changed(result(), path, change, odd)
    problem = problem_of(lambda: outcomes_from_agent(said, written()))
    assert not problem or (problem.startswith("answer") and problem.isprintable())


FOLDER = {"path": "f", "exists": True, "used_bytes": 5, "files": 2, "quota": None, "shared_from": None}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"folders": None},
        {"folders": []},
        {"folders": [FOLDER, FOLDER]},
        {"folders": [{**FOLDER, "path": "another"}]},
        {"folders": [{**FOLDER, "used_bytes": "5"}]},
        {"folders": [{**FOLDER, "more": 1}]},
        {"folders": [{name: value for name, value in FOLDER.items() if name != "quota"}]},
    ],
)
def test_an_answer_about_other_folders_is_refused(said):
    assert folders_from_agent({"folders": [copy.copy(FOLDER)]}, ["f"])[0].used_bytes == 5
    with pytest.raises(ContractError):
        folders_from_agent(said, ["f"])
