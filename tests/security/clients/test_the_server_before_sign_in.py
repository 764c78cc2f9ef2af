"""A client without a token locks users out, or fills the server's memory."""

import asyncio
import json
import stat
from collections.abc import Iterable

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from muster.service.audit import AuditLog
from muster.web.caller import MAX_FAILURES
from muster.web.protection import MAX_REQUEST_BYTES, MAX_UNKNOWN_BYTES, RequestSize

SESSIONS = "/api/v1/sessions"


def test_wrong_tokens_from_an_address_lock_no_valid_user_of_it_out(caller, browser, app):
    ada = caller("ada")
    stranger = TestClient(app, headers={"Authorization": "Bearer muster_wrong"}, raise_server_exceptions=False)
    statuses = [stranger.get(SESSIONS).status_code for _ in range(3 * MAX_FAILURES)]
    assert statuses == [401] * MAX_FAILURES + [429] * 2 * MAX_FAILURES
    assert ada.get(SESSIONS).status_code == 200
    bob = browser("bob")
    assert bob.get("/sessions", follow_redirects=False).status_code == 200
    sign_in = [stranger.post("/sign-in", data={"token": "wrong"}).status_code for _ in range(3)]
    assert sign_in == [429] * 3


NO_URL = "http://["


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/sign-in", {"Origin": NO_URL}, 403),
        ("POST", f"/sign-in?next={NO_URL}", {}, 303),
        ("GET", f"/sign-in/oidc?next={NO_URL}", {}, 404),
        ("GET", "/live", {"HX-Request": "true", "HX-Current-URL": NO_URL}, 401),
    ],
)
def test_what_is_no_url_is_an_answer_like_others(browser, method, path, headers, status):
    stranger = browser("ada", sign_in=False)
    form = {"token": stranger.secret} if method == "POST" else None
    answer = stranger.request(method, path, headers=headers, data=form, follow_redirects=False)
    assert answer.status_code == status
    assert answer.headers.get("location", "/") == "/"


def test_a_terminal_that_is_opened_from_no_url_is_refused(browser):
    opening = browser("ada").websocket_connect("/sessions/train/terminal", headers={"Origin": NO_URL})
    with pytest.raises(WebSocketDisconnect) as refused, opening:
        pass
    assert refused.value.code == 4403


def pieces(count: int) -> Iterable[bytes]:
    for _ in range(count):
        yield b"x" * (32 << 10)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer muster_wrong"}, {"Cookie": "muster=wrong"}])
@pytest.mark.parametrize("body", [b"x" * (MAX_UNKNOWN_BYTES + 1), pieces], ids=["announced", "in pieces"])
def test_strangers_send_small_bodies_only(app, headers, body):
    stranger = TestClient(app, headers=headers, raise_server_exceptions=False)
    answer = stranger.post(SESSIONS, content=body if isinstance(body, bytes) else body(4))
    assert answer.status_code == 401
    assert answer.json()["type"] == "urn:muster:no-token"
    assert stranger.post("/sign-in", content=b"x" * (MAX_UNKNOWN_BYTES + 1)).status_code == 401


def test_users_send_larger_ones(caller, browser):
    spec = {"cpu": 1, "command": "cat", "input": "x" * (512 << 10)}
    assert caller("ada").post(SESSIONS, json=spec).status_code == 201
    assert browser("ada").post("/launch", data={"input": "x" * (512 << 10)}).status_code != 401
    assert caller("bob").post(SESSIONS, content=b"x" * (MAX_REQUEST_BYTES + 1)).status_code == 413


def test_a_length_that_is_none_is_too_large(app):
    stranger = TestClient(app, raise_server_exceptions=False)
    for length in ("9" * 5000, "-1", "x", "9" * 19):
        assert stranger.post(SESSIONS, content=b"x", headers={"Content-Length": length}).status_code == 413


def test_a_body_that_never_comes_is_waited_for_no_longer_than_a_time():
    sent: list[dict[str, object]] = []

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message) -> None:
        sent.append(message)

    async def application(*_: object) -> None:
        raise AssertionError

    limited = RequestSize(application, lambda _: False, timeout_s=0.01)
    asyncio.run(limited({"type": "http", "headers": []}, never, send))
    assert sent[0]["status"] == 408


def test_audit_files_are_nobody_elses_however_old(service):
    log = AuditLog(service.settings, most_bytes=1)
    for _ in range(3):
        log.write({"user": "ada"})
    files = sorted(service.settings.state_dir.glob("audit.log*"))
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_strangers_cannot_push_what_users_did_out_of_the_audit_log(service):
    log = AuditLog(service.settings, most_bytes=1000)
    log.write({"user": "ada", "path": "/"})
    for _ in range(1000):
        log.write({"user": None, "path": "/"})
    files = service.settings.state_dir.glob("audit.log*")
    assert [json.loads(line)["user"] for path in files for line in path.read_text().splitlines()] == ["ada"]
    assert len(list(service.settings.state_dir.glob("audit-strangers.log*"))) == 9


def test_no_request_fills_the_audit_log_by_its_length(caller, app, service):
    path = f"{SESSIONS}/{'%ff' * 20_000}"
    assert caller("ada").delete(path).status_code == 422
    assert TestClient(app).delete(path).status_code == 401
    for name in ("audit.log", "audit-strangers.log"):
        (record,) = map(json.loads, (service.settings.state_dir / name).read_text().splitlines())
        assert len(record["path"]) == 1001
        assert record["path"].startswith(SESSIONS)
