"""The API: what it answers, and what it refuses in which words."""

import gzip
import json

import pytest
from fastapi.testclient import TestClient

from muster.core.model.session import KernelLog
from muster.core.model.token import Scope
from muster.web.caller import MAX_FAILURES
from muster.web.protection import MAX_REQUEST_BYTES
from tests.strategies.agents import make_agent, reporting

SESSIONS = "/api/v1/sessions"
SMALL = {"cpu": 0.1, "mem": "64M", "shm": "16M"}


def submitted(client, **spec):
    answer = client.post(SESSIONS, json={**SMALL, **spec})
    assert answer.status_code == 201, answer.text
    return answer.json()["items"][0]


def test_a_session_is_submitted_shown_listed_and_ended(caller):
    ada = caller("ada")
    session = submitted(ada, name="train", cluster_size=2, command="true")
    assert (session["owner"], session["state"], session["cluster_size"]) == ("ada", "PENDING", 2)
    shown = ada.get(f"{SESSIONS}/train").json()
    assert shown["id"] == session["id"]
    assert [line["to"] for line in shown["story"]] == ["PENDING"]
    assert ada.get(f"{SESSIONS}/{session['id'][:8]}/events").json()["items"][0]["reason"] == "submitted"
    assert [one["name"] for one in ada.get(SESSIONS).json()["items"]] == ["train"]
    why = ada.get(f"{SESSIONS}/train/why").json()
    assert (why["state"], why["wait"]) == ("PENDING", None)
    assert ada.delete(f"{SESSIONS}/train").json()["items"][0]["state"] == "CANCELLED"
    assert ada.get(SESSIONS).json() == {"items": [], "next_cursor": None, "total": 0}
    assert ada.get(SESSIONS, params={"ended": True}).json()["total"] == 1


def test_a_wrong_spec_gets_all_its_errors_in_the_words_of_the_command_line(caller):
    answer = caller("ada").post(SESSIONS, json={"cpu": "much", "cluster_sise": 3})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    refusal = answer.json()
    assert refusal["type"] == "urn:muster:spec"
    assert {error["field"] for error in refusal["errors"]} == {"cpu", "cluster_sise"}
    assert "cluster_sise: there is no such field; did you mean cluster_size?" in refusal["detail"].splitlines()


def test_a_remedy_names_the_document_to_a_program_and_a_command_to_a_person(caller):
    roles = [{"name": "x" * number} for number in range(1, 22)]
    ada = caller("ada")
    (error,) = ada.post(SESSIONS, json={"roles": roles}).json()["errors"]
    assert (error["field"], error["remedy"]) == ("roles", "see /api/v1/openapi.json")
    (error,) = ada.post(SESSIONS, json={"roles": roles}, headers={"Prefer": "command-line"}).json()["errors"]
    assert error["remedy"] == "see `muster submit --schema`"


@pytest.mark.parametrize("action", ["terminate", "cancel", "hold", "release", "restart", "extend"])
@pytest.mark.parametrize("reference", [r"\ud800", "x" * 256], ids=["surrogate", "long"])
def test_what_can_be_no_reference_of_a_session_is_refused_by_its_field(caller, action, reference):
    more = ', "seconds": 60' if action == "extend" else ""
    body, headers = f'{{"sessions": ["{reference}"]{more}}}', {"Content-Type": "application/json"}
    answer = caller("ada").post(f"{SESSIONS}/{action}", content=body, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "sessions.0")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"name": NaN}', b'{"name": "\\ud800"}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_mapping_is_refused(caller, body):
    answer = caller("ada").post(SESSIONS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("body: ")


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (f"{SESSIONS}/nosuch", 404, "not-found"),
        (f"{SESSIONS}/%00", 404, "not-found"),
        (f"{SESSIONS}?cursor=x", 422, "bad-input"),
        (f"{SESSIONS}?limit=0", 422, "bad-input"),
        (f"{SESSIONS}?state=HAPPY", 422, "bad-input"),
        (f"{SESSIONS}/nosuch/kernels/main1/log", 404, "not-found"),
        ("/api/v1/agents/nosuch", 404, "not-found"),
        ("/api/v1/agents?label=x", 422, "bad-input"),
        ("/api/v1/nosuch", 404, "http"),
    ],
)
def test_missing_and_impossible_things_are_errors_of_the_caller(caller, path, status, kind):
    answer = caller("ada").get(path)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:muster:{kind}")


def test_sessions_come_in_pages_in_every_order(caller):
    ada = caller("ada")
    for name in ("c", "a", "d", "b", "e"):
        submitted(ada, name=name)

    def names(sort):
        found, cursor = [], None
        while True:
            page = ada.get(SESSIONS, params={"sort": sort, "limit": 2, **({"cursor": cursor} if cursor else {})}).json()
            found += [session["name"] for session in page["items"]]
            assert page["total"] == 5
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    assert names("submitted") == ["c", "a", "d", "b", "e"]
    assert names("-submitted") == ["e", "b", "d", "a", "c"]
    assert names("name") == ["a", "b", "c", "d", "e"]
    assert names("-state") == ["e", "b", "d", "a", "c"]
    first = ada.get(SESSIONS, params={"sort": "name", "limit": 1}).json()["next_cursor"]
    assert ada.get(SESSIONS, params={"sort": "-name", "cursor": first}).status_code == 422
    assert ada.get(SESSIONS, params={"name_contains": "d"}).json()["total"] == 1


def test_an_idempotency_key_submits_once(caller):
    ada, eve = caller("ada"), caller("eve")
    key = {"Idempotency-Key": "run-1"}
    first = ada.post(SESSIONS, json={**SMALL, "name": "once"}, headers=key)
    again = ada.post(SESSIONS, json={**SMALL, "name": "once"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["items"] == again.json()["items"]
    assert (first.json()["again"], again.json()["again"]) == (False, True)
    other = ada.post(SESSIONS, json={**SMALL, "name": "other"}, headers=key)
    assert (other.status_code, other.json()["type"]) == (409, "urn:muster:idempotency-key-used")
    assert eve.post(SESSIONS, json={**SMALL, "name": "hers"}, headers=key).status_code == 201
    assert ada.post(SESSIONS, json={**SMALL, "name": "once"}).json()["type"] == "urn:muster:name-taken"


def test_a_dry_run_queues_nothing(caller, service):
    ada = caller("ada")
    dry_run = ada.post(f"{SESSIONS}/dry-run", json=SMALL).json()
    assert (dry_run["items"][0]["starts_now"], dry_run["items"][0]["wait"]["code"]) == (False, "no-agents")
    service.store.agents.save([make_agent("a1")])
    assert ada.post(f"{SESSIONS}/dry-run", json=SMALL).json()["items"][0]["kernels"][0]["agent"] == "a1"
    assert ada.get(SESSIONS).json()["total"] == 0


def test_what_may_go_wrong_is_in_the_answer_to_a_submit_and_to_a_dry_run(caller, service):
    service.store.agents.save([reporting(make_agent("a1"), directories=["datasets"])])
    ada = caller("ada")
    for path, status in (("/dry-run", 200), ("", 201)):
        answer = ada.post(SESSIONS + path, json={**SMALL, "image": "example.org/lab/typo:1", "mounts": ["datasets"]})
        assert answer.status_code == status
        (warning,) = answer.json()["warnings"]
        assert warning.startswith("image example.org/lab/typo:1: neither the catalog nor an agent has it")
        refused = ada.post(SESSIONS + path, json={**SMALL, "mounts": ["datasets", "data"]})
        assert refused.status_code == 422
        assert [error["field"] for error in refused.json()["errors"]] == ["mounts[1].folder"]
        assert refused.json()["errors"][0]["remedy"] == "make it, or name another"


def test_several_are_changed_at_once_or_none(caller):
    ada = caller("ada")
    for name in ("a", "b"):
        submitted(ada, name=name)
    assert ada.post(f"{SESSIONS}/hold", json={"sessions": ["a", "nosuch"]}).status_code == 404
    held = ada.post(f"{SESSIONS}/hold", json={"sessions": ["a", "b"]}).json()["items"]
    assert [session["held_by"] for session in held] == ["ada", "ada"]
    released = ada.post(f"{SESSIONS}/release", json={"sessions": ["a"]}).json()["items"]
    assert released[0]["held_by"] is None
    assert ada.post(f"{SESSIONS}/a/rename", json={"name": "z"}).json()["name"] == "z"
    ended = ada.post(f"{SESSIONS}/cancel", json={"sessions": ["z", "b"]}).json()["items"]
    assert {session["state"] for session in ended} == {"CANCELLED"}
    assert ada.post(f"{SESSIONS}/restart", json={"sessions": ["z"]}).status_code == 409


def test_agents_are_drained_and_resumed_by_administrators(caller, service):
    service.store.agents.save([make_agent("a1")])
    root, ada = caller("root", Scope.ADMIN), caller("ada")
    refused = ada.post("/api/v1/agents/a1/drain", json={})
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:muster:scope")
    assert root.post("/api/v1/agents/a1/drain", json={"reason": "new disks"}).json()["drain_reason"] == "new disks"
    assert [agent["drain"] for agent in ada.get("/api/v1/agents").json()["items"]] == ["DRAINED"]
    assert root.post("/api/v1/agents/a1/resume").json()["drain_reason"] is None
    assert ada.get("/api/v1/gpus").json() == {"items": []}


def test_the_log_of_what_has_no_container_is_refused(caller):
    ada = caller("ada")
    submitted(ada, name="train")
    answer = ada.get(f"{SESSIONS}/train/kernels/main1/log")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:muster:not-possible-in-state")
    assert ada.get(f"{SESSIONS}/train/kernels/sub9/log").json()["type"] == "urn:muster:not-found"


def test_the_kept_log_of_an_ended_session_is_returned(caller, service):
    ada = caller("ada")
    session = submitted(ada, name="train")
    ada.delete(f"{SESSIONS}/train")
    service.store.keep_logs([KernelLog(session["id"], "main1", gzip.compress(b"one\ntwo\n"))])
    answer = ada.get(f"{SESSIONS}/train/kernels/-/log", params={"tail": 1})
    assert (answer.text, answer.headers["content-type"]) == ("two\n", "text/plain; charset=utf-8")


def test_a_line_of_a_kept_log_ends_as_one_of_a_running_sessions_does(caller, service):
    """A progress bar is one line, however often it was drawn."""
    ada = caller("ada")
    session = submitted(ada, name="train")
    ada.delete(f"{SESSIONS}/train")
    service.store.keep_logs(
        [KernelLog(session["id"], "main1", gzip.compress(b"begun\r\n1 %\r2 %\r100 %\ndone\nat last"))]
    )
    tails = [ada.get(f"{SESSIONS}/train/kernels/-/log", params={"tail": tail}).content for tail in (0, 1, 3, 4, 5)]
    last = b"1 %\r2 %\r100 %\ndone\nat last"
    assert tails == [b"", b"at last", last, b"begun\r\n" + last, b"begun\r\n" + last]


def test_a_caller_without_a_valid_token_is_refused_and_slowed_down_after_repeats(app):
    nobody = TestClient(app)
    answer = nobody.get(SESSIONS)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    wrong = {"Authorization": "Bearer muster_wrong"}
    statuses = [nobody.get(SESSIONS, headers=wrong).status_code for _ in range(MAX_FAILURES + 1)]
    assert statuses == [401] * MAX_FAILURES + [429]
    assert nobody.get("/healthz").json() == {"status": "ok"}
    assert nobody.get("/readyz").status_code == 200


def test_a_request_that_is_too_large_is_refused(caller):
    ada = caller("ada")
    large = b" " * (MAX_REQUEST_BYTES + 1)
    for content in (large, iter([large])):
        answer = ada.post(SESSIONS, content=content)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:muster:too-large")


def test_answers_carry_what_keeps_browsers_from_harm(caller):
    ada = caller("ada")
    for path in (SESSIONS, f"{SESSIONS}/nosuch", "/metrics"):
        headers = ada.get(path, headers={"Origin": "https://elsewhere.example"}).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "access-control-allow-origin" not in headers


def test_changes_and_refusals_are_noted(caller, service):
    ada, reader = caller("ada"), caller("ada", Scope.READ)
    session = submitted(ada, name="train")
    ada.get(SESSIONS)
    reader.delete(f"{SESSIONS}/train")
    path = service.settings.state_dir / "audit.log"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    noted = [(line["user"], line["token"], line["method"], line["status"], line["sessions"]) for line in lines]
    assert noted == [("ada", "ada-user", "POST", 201, [session["id"]]), ("ada", "ada-read", "DELETE", 403, [])]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_session_that_waits_is_updated_by_a_merge_patch(caller):
    ada = caller("ada")
    before = submitted(ada, name="a", env={"A": "1", "B": "2"}, priority=20, after_any=[])
    done = ada.patch(f"{SESSIONS}/a", json={"cpu": "0.2", "env": {"A": None, "C": 3}, "priority": None})
    assert done.status_code == 200
    assert done.json()["changes"] == ["priority 20 → 50", "cpu 0.1 → 0.2", "env A, C"]
    (after,) = done.json()["items"]
    changed = {"cpu": "200m", "env": {"B": "2", "C": "3"}, "priority": 50}
    assert after["spec"] == {**before["spec"], **changed}
    assert ada.get(f"{SESSIONS}/a").json()["kernels"][0]["slots"]["cpu"] == 200


def test_a_wrong_update_gets_all_its_errors_and_changes_nothing(caller):
    ada = caller("ada")
    before = submitted(ada, name="a")
    refused = ada.patch(f"{SESSIONS}/a", json={"cpu": "lots", "nope": 1, "name": "b"})
    assert refused.status_code == 422
    assert sorted(error["field"] for error in refused.json()["errors"]) == ["cpu", "name", "nope"]
    assert "muster rename" not in refused.text
    for body in ("[]", "{", '{"env": [1]}', '{"env": {"A": {}}}', '{"labels": {"": null, "a": []}}', '{"": 1}'):
        assert ada.patch(f"{SESSIONS}/a", content=body).status_code == 422, body
    assert ada.get(f"{SESSIONS}/a").json()["spec"] == before["spec"]
    ada.post(f"{SESSIONS}/cancel", json={"sessions": ["a"]})
    late = ada.patch(f"{SESSIONS}/a", json={"cpu": 1})
    assert (late.status_code, late.json()["detail"]) == (
        409,
        "session a is CANCELLED; only a PENDING session can be updated",
    )
