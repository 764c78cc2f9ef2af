"""Whose session it is: nobody sees or touches another's."""

import pytest

from muster.core.model.token import Scope
from muster.core.model.wait import Wait, WaitCode
from muster.service.sessions.live import LiveChanges
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.api.test_api import SESSIONS, SMALL, submitted

READS = ["", "/why", "/events", "/kernels/main1/log"]


@pytest.fixture
def hers(caller):
    """Return another user's session, with something in it that nobody else may read."""
    return submitted(caller("eve"), name="private-work", env={"PASSWORD": "hush-hush"})


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("scope", [Scope.USER, Scope.READ])
def test_another_users_session_is_not_there(caller, hers, path, scope):
    ada = caller("ada", scope)
    for reference in ("private-work", hers["id"], hers["id"][:8]):
        answer = ada.get(f"{SESSIONS}/{reference}{path}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"there is no session {reference!r}"


@pytest.mark.parametrize("action", ["terminate", "cancel", "hold", "release", "restart"])
def test_another_users_session_is_not_changed(caller, hers, action):
    ada = caller("ada")
    assert ada.post(f"{SESSIONS}/{action}", json={"sessions": ["private-work"]}).status_code == 404
    assert ada.delete(f"{SESSIONS}/{hers['id']}").status_code == 404
    assert ada.post(f"{SESSIONS}/private-work/rename", json={"name": "mine"}).status_code == 404
    assert ada.patch(f"{SESSIONS}/private-work", json={"cpu": 2}).status_code == 404
    assert caller("root", Scope.ADMIN).get(f"{SESSIONS}/private-work").json()["state"] == "PENDING"


@pytest.mark.parametrize("path", ["", "/dry-run"])
def test_nothing_starts_after_a_session_that_is_not_ones_own(caller, hers, path):
    ada, root = caller("ada"), caller("root", Scope.ADMIN)
    problems = []
    for reference in (hers["id"], "no-such"):
        answer = ada.post(SESSIONS + path, json={**SMALL, "after": [reference]})
        assert answer.status_code == 422
        problems.append(answer.json()["errors"][0]["problem"].replace(reference, "X"))
    assert problems[0] == problems[1]
    assert root.post(SESSIONS + path, json={**SMALL, "after": [hers["id"]]}).status_code in {200, 201}


def test_a_wait_names_no_other_users_session_in_any_view(caller, hers, service):
    ada, root = caller("ada"), caller("root", Scope.ADMIN)
    mine = submitted(ada, name="mine")
    message = "session private-work of eve is ahead"
    service.store.save_waits({mine["id"]: Wait(WaitCode.BEHIND, message, waits_for=(hers["id"],))})
    for path in ("", "/mine", "/mine/why"):
        text = ada.get(f"{SESSIONS}{path}").text
        assert "private-work" not in text, path
        assert hers["id"] not in text, path
        assert "another user's session is ahead" in text, path
        assert "private-work" in root.get(f"{SESSIONS}{path}").text, path
    assert "private-work" not in ada.post(f"{SESSIONS}/hold", json={"sessions": ["mine"]}).text
    assert "private-work" not in ada.post(f"{SESSIONS}/release", json={"sessions": ["mine"]}).text
    service.store.save_waits({mine["id"]: Wait(WaitCode.BEHIND, message, waits_for=(hers["id"],))})
    updated = ada.patch(f"{SESSIONS}/mine", json={"priority": 10})
    assert (updated.status_code, "private-work" in updated.text, hers["id"] in updated.text) == (200, False, False)
    service.store.save_waits({mine["id"]: Wait(WaitCode.BEHIND, message, waits_for=(hers["id"],))})
    renamed = ada.post(f"{SESSIONS}/mine/rename", json={"name": "mine2"})
    assert (renamed.status_code, "private-work" in renamed.text, hers["id"] in renamed.text) == (200, False, False)
    ended = ada.post(f"{SESSIONS}/terminate", json={"sessions": ["mine2"]})
    assert (ended.status_code, "private-work" in ended.text, hers["id"] in ended.text) == (200, False, False)
    token = service.service.tokens.create("live", "ada", Scope.READ, None)[0]
    changes = LiveChanges(service.store).after(0, 1 << 40, token)
    assert {live.session.id for live in changes} == {mine["id"]}
    assert "private-work" not in str([live.visible_to_owner.wait for live in changes])


def test_a_suggestion_names_no_other_users_session_and_says_all_that_has_to_be_done(caller, service):
    service.store.agents.save([make_agent("a1", cpus=4)])
    service.store.add([placed_on(make_session(1, name="private-work", owner="eve", cpu=4), "a1")])
    ada = caller("ada")
    submitted(ada, name="mine", hold=True)
    answer = ada.get(f"{SESSIONS}/mine/why", params={"what_if": True})
    assert "release it, and another user's session ends" in [one["text"] for one in answer.json()["suggestions"]]
    assert "private-work" not in answer.text


def test_a_submit_that_is_repeated_names_no_other_users_session(caller, hers, service):
    ada = caller("ada")
    key = {"Idempotency-Key": "once"}
    mine = ada.post(SESSIONS, json=SMALL, headers=key).json()["items"][0]
    wait = Wait(WaitCode.BEHIND, "session private-work of eve is ahead", waits_for=(hers["id"],))
    service.store.save_waits({mine["id"]: wait})
    again = ada.post(SESSIONS, json=SMALL, headers=key)
    assert again.status_code in {200, 201}
    assert again.json()["items"][0]["id"] == mine["id"]
    assert "another user's session is ahead" in again.text
    assert "private-work" not in again.text
    assert hers["id"] not in again.text


def test_lists_hold_only_the_callers_own_for_any_query(caller, hers):
    ada = caller("ada")
    submitted(ada, name="mine")
    for query in ({}, {"owner": "eve"}, {"ended": True}, {"state": "PENDING"}):
        text = ada.get(SESSIONS, params=query).text
        assert "private-work" not in text
        assert "hush-hush" not in text
    assert [one["name"] for one in ada.get("/api/v1/queue").json()["items"]] == ["mine"]
    root = caller("root", Scope.ADMIN)
    assert root.get(SESSIONS).json()["total"] == 2
    assert root.get(SESSIONS, params={"owner": "eve"}).json()["items"][0]["id"] == hers["id"]


@pytest.mark.usefixtures("hers")
def test_a_name_means_ones_own_session_though_anothers_bears_it_now(caller):
    ada, eve = caller("ada"), caller("eve", Scope.ADMIN)
    eve.delete(f"{SESSIONS}/private-work")
    mine = submitted(ada, name="private-work")
    assert ada.get(f"{SESSIONS}/private-work").json()["id"] == mine["id"]
    ada.delete(f"{SESSIONS}/private-work")
    submitted(eve, name="private-work")
    assert ada.get(f"{SESSIONS}/private-work").json()["id"] == mine["id"]


@pytest.mark.usefixtures("hers")
def test_agents_tell_nothing_of_others_sessions(caller, service):
    service.store.agents.save([make_agent("a1")])
    session = placed_on(service.store.find("private-work"), "a1")
    assert session.agents == ("a1",)
    for path in ("agents", "gpus"):
        assert "private-work" not in caller("ada" if path == "agents" else "bob").get(f"/api/v1/{path}").text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", SESSIONS, SMALL),
        ("POST", f"{SESSIONS}/dry-run", SMALL),
        ("POST", f"{SESSIONS}/terminate", {"sessions": ["mine"]}),
        ("POST", f"{SESSIONS}/hold", {"sessions": ["mine"]}),
        ("DELETE", f"{SESSIONS}/mine", None),
        ("POST", f"{SESSIONS}/mine/rename", {"name": "x"}),
        ("PATCH", f"{SESSIONS}/mine", {"cpu": 2}),
    ],
)
def test_a_token_that_reads_changes_nothing(caller, method, path, body):
    submitted(caller("ada"), name="mine")
    reader = caller("ada", Scope.READ)
    answer = reader.request(method, path, json=body)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:muster:scope")
    assert reader.get(f"{SESSIONS}/mine").json()["state"] == "PENDING"


def test_only_administrators_submit_for_others(caller):
    answer = caller("ada").post(SESSIONS, json=SMALL, params={"owner": "eve"})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:muster:scope")
    made = caller("root", Scope.ADMIN).post(SESSIONS, json=SMALL, params={"owner": "eve"})
    assert made.json()["items"][0]["owner"] == "eve"
