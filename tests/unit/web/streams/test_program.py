"""Programs over WebSockets: who is let in, and what the first frames say. Real ones run in tests/e2e."""

import json

import pytest

from muster.core.model.token import Scope
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session

PATH = "/api/v1/sessions/train/kernels/main1/exec"


def problem_of(client, path=PATH, *frames):
    with client.websocket_connect(path) as websocket:
        for frame in frames:
            websocket.send_text(json.dumps(frame))
        said = json.loads(websocket.receive_text())
        assert list(said) == ["problem"]
        return said["problem"]["type"].removeprefix("urn:muster:"), said["problem"]["detail"]


@pytest.fixture
def train(service):
    session = running_session(1, "a1", owner="ada", name="train")
    service.store.add([session])


@pytest.mark.usefixtures("train")
def test_without_a_token_nobody_starts_a_program(caller):
    client = caller("ada")
    del client.headers["Authorization"]
    assert problem_of(client)[0] == "no-token"
    client.headers["Authorization"] = "Bearer muster_guessed"
    assert problem_of(client)[0] == "no-token"


@pytest.mark.usefixtures("train")
def test_nor_does_another_user_or_a_reader(caller):
    assert problem_of(caller("bob"))[0] == "not-found"
    assert problem_of(caller("ada", Scope.READ))[0] == "scope"


def test_nor_anybody_where_nothing_runs(caller, service):
    service.store.add([make_session(2, owner="ada", name="waits")])
    client = caller("ada")
    assert problem_of(client, "/api/v1/sessions/waits/kernels/-/exec")[0] == "not-possible-in-state"
    assert problem_of(client, "/api/v1/sessions/nosuch/kernels/-/exec")[0] == "not-found"


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    "frame", [{}, {"command": []}, {"command": "id"}, {"command": ["id"], "user": "root"}, [], "id", {"eof": True}]
)
def test_a_first_frame_that_is_no_command_is_refused(caller, frame):
    kind, detail = problem_of(caller("ada"), PATH, frame)
    assert (kind, detail) == ("bad-input", 'the first frame is {"command": [...], "terminal": true or false}')


@pytest.mark.usefixtures("train")
def test_a_kernel_without_an_agent_is_a_problem_of_the_answer(caller):
    kind, _ = problem_of(caller("ada"), PATH, {"command": ["id"]})
    assert kind == "not-possible-in-state"
