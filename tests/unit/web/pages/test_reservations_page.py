"""Administrators set agents aside in the browser and by the API; nobody else sees or changes reservations."""

import json

import pytest

from muster.core.model.token import Scope
from tests.strategies.agents import make_agent

HTMX = {"HX-Request": "true"}
API = "/api/v1/reservations"


@pytest.fixture(autouse=True)
def _agents(service):
    service.store.agents.save([make_agent("a1"), make_agent("a2")])


def records(service):
    """Return what the audit log says of reservations."""
    lines = (service.settings.state_dir / "audit.log").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "/reservations" in record["path"]]


def test_an_administrator_reserves_agents_and_takes_them_back(browser, service):
    root = browser("root", Scope.ADMIN)
    form = {
        "name": "course",
        "begin": "+1h",
        "end": "+2h",
        "agents": "a1, a2",
        "users": "ada",
        "reason": "a <b>course</b>",
    }
    made = root.post("/reservations", data=form, headers=HTMX)
    assert (made.status_code, made.headers["hx-trigger"]) == (204, '{"muster:announce": "course is reserved"}')
    (reservation,) = service.store.reservations.all()
    assert (reservation.agents, reservation.users) == ({"a1", "a2"}, {"ada"})
    assert reservation.ends_at - reservation.begins_at == 7200
    page = root.get("/reservations").text
    assert "a &lt;b&gt;course&lt;/b&gt;" in page
    assert "user ada" in page
    assert root.post("/reservations/course/remove", headers=HTMX).status_code == 204
    assert not service.store.reservations.all()
    made_line, removed_line = records(service)
    assert (made_line["path"], removed_line["path"]) == ("/reservations?name=course", "/reservations/course/remove")
    assert made_line["after"] == removed_line["before"] | {"running_into": []}
    assert "before" not in made_line
    assert "after" not in removed_line
    content = removed_line["before"]
    assert (content["agents"], content["users"], content["reason"]) == (["a1", "a2"], ["ada"], form["reason"])
    assert content["ends_at"] > content["begins_at"]


@pytest.mark.parametrize("scope", [Scope.USER, Scope.READ])
def test_nobody_else_does(browser, caller, service, scope):
    ada, client = browser("ada", scope), caller("eve", scope)
    assert ada.get("/reservations").status_code == 403
    assert "/reservations" not in ada.get("/resources").text
    assert ada.post("/reservations", data={"name": "mine", "end": "+2h"}).status_code == 403
    assert client.get(API).status_code == 403
    assert client.post(f"{API}/mine", json={"end": "+2h"}).status_code == 403
    assert client.delete(f"{API}/mine").status_code == 403
    assert not service.store.reservations.all()


def test_the_audit_log_names_what_was_in_a_reservation_of_the_api_and_nothing_of_a_refused_one(caller, service):
    root = caller("root", Scope.ADMIN)
    made = root.post(f"{API}/patch", json={"end": "+2h", "resource_group": "default", "reason": "kernel"}).json()
    root.post(f"{API}/patch", json={"end": "+2h"})
    removed = root.delete(f"{API}/patch").json()
    done, refused, taken_back = records(service)
    assert (done["after"], done["after"]["reason"]) == (made, "kernel")
    assert not {"before", "after"} & refused.keys()
    assert taken_back["before"] == removed


def test_the_api_does_the_same_and_refuses_what_cannot_be(caller):
    root = caller("root", Scope.ADMIN)
    made = root.post(f"{API}/patch", json={"end": "+2h", "resource_group": "default"})
    assert (made.status_code, made.json()["maintenance"], made.json()["running_into"]) == (201, True, [])
    assert root.post(f"{API}/patch", json={"end": "+2h"}).status_code == 409
    for body in (
        {"end": "yesterday"},
        {"end": "+2h", "agents": ["nosuch"]},
        {"end": "+2h", "resource_group": "nosuch"},
        {"end": "+2h", "agents": ["a1"], "resource_group": "default"},
        {},
    ):
        assert root.post(f"{API}/other", json=body).status_code in {404, 422}
    assert [one["name"] for one in root.get(API).json()["items"]] == ["patch"]
    assert root.delete(f"{API}/patch").json()["name"] == "patch"
    assert root.delete(f"{API}/patch").status_code == 404
