"""Administrators set limits and share weights in the browser and by the API; nobody else sees or changes them."""

import json
import re

import pytest

from muster.core.model.overrides import Limited
from muster.core.model.policy import Limit
from muster.core.model.token import Scope

HTMX = {"HX-Request": "true"}
LIMITS, WEIGHTS = "/api/v1/limits", "/api/v1/share-weights"


@pytest.fixture
def audited(service):
    def read() -> list[tuple[str, int]]:
        lines = (service.settings.state_dir / "audit.log").read_text().splitlines()
        return [(one["path"], one["status"]) for one in map(json.loads, lines)]

    return read


def announced(answer) -> str:
    assert answer.status_code == 204, answer.text
    return json.loads(answer.headers["hx-trigger"])["muster:announce"]


def test_a_limit_is_set_in_the_browser_changed_and_removed(browser, service, audited):
    root = browser("root", Scope.ADMIN)
    form = {"kind": "user", "name": "ada", "running_mem": "64G", "running_cpu": "0.5", "pending_sessions": "10"}
    said = "User ada: running 0.5 CPU, 64 GiB memory; waiting 10 sessions"
    assert announced(root.post("/limits", data=form, headers=HTMX)) == said
    (override,) = service.store.overrides.all().limits
    assert (override.limited, override.name, override.changed_by) == (Limited.USER, "ada", "root")
    assert override.limit == Limit({"cpu": 500, "mem": 64 << 30}, {"sessions": 10})
    page = root.get("/limits?kind=user&name=ada").text
    assert "set by root" in page
    part = root.get("/limits", headers=HTMX).text
    assert "set by root" in part
    assert "<form" in part
    assert "<h1" not in part
    typed = re.search(r'<input id="running-mem"[^>]*value="([^"]*)"', page)
    assert typed is not None
    assert typed[1] == "64G"
    assert 'value="0.5"' in page
    assert announced(root.post("/limits/user/ada/unset", headers=HTMX)) == "User ada: no limit of its own"
    assert not service.store.overrides.all().limits
    assert audited()[-2:] == [
        ("/limits?kind=user&name=ada&running.cpu=500&running.mem=68719476736&pending.sessions=10", 204),
        ("/limits/user/ada/unset", 204),
    ]


@pytest.mark.parametrize("path", ["/limits", "/reservations"])
def test_a_page_that_resources_lead_to_is_theirs_in_the_navigation(browser, path):
    page = browser("root", Scope.ADMIN).get(path).text
    assert re.findall(r'<a href="([^"]+)" aria-current="page">', page) == ["/resources"]


def test_a_share_weight_is_set_in_the_browser_and_removed(browser, service, audited):
    root = browser("root", Scope.ADMIN)
    answer = root.post("/share-weights", data={"user": "ada", "weight": "2.5"}, headers=HTMX)
    assert announced(answer) == "ada has share weight 2.5"
    assert [(one.owner, one.weight) for one in service.store.overrides.all().weights] == [("ada", 2.5)]
    assert 'value="2.5"' in root.get("/limits?user=ada").text
    assert announced(root.post("/share-weights/ada/unset", headers=HTMX)) == "ada has share weight 1"
    assert audited()[-2:] == [("/share-weights?user=ada&weight=2.5", 204), ("/share-weights/ada/unset", 204)]


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        (
            "/limits",
            {"kind": "user", "name": "ada", "running_gpu": "-1"},
            "Running at a time, GPU: &#39;-1&#39; is too",
        ),
        ("/limits", {"kind": "user", "name": "ada", "pending_kernels": "much"}, "Waiting at a time, Containers: "),
        ("/limits", {"kind": "user", "name": "a b"}, "is no name; write up to 255 characters"),
        ("/limits", {"kind": "array", "name": "ada"}, "has no limits; use one of user, project"),
        ("/share-weights", {"user": "ada", "weight": "0"}, "0 is no share weight"),
        ("/share-weights", {"user": "ada", "weight": "much"}, "is no number; write a number above 0"),
        ("/share-weights", {"user": "", "weight": "1"}, "is no name"),
    ],
)
def test_wrong_input_is_answered_by_its_field_and_changes_nothing(browser, service, path, form, said):
    answer = browser("root", Scope.ADMIN).post(path, data=form, headers=HTMX)
    assert answer.status_code == 422
    assert said in answer.text
    everything = service.store.overrides.all()
    assert not everything.limits
    assert not everything.weights


@pytest.mark.parametrize("scope", [Scope.USER, Scope.READ])
def test_nobody_else_sees_or_changes_them(browser, caller, service, scope):
    ada, client = browser("ada", scope), caller("eve", scope)
    assert ada.get("/limits").status_code == 403
    assert "/limits" not in ada.get("/resources").text
    assert ada.post("/limits", data={"kind": "user", "name": "ada"}).status_code == 403
    assert ada.post("/share-weights", data={"user": "ada", "weight": "9"}).status_code == 403
    assert ada.post("/limits/user/ada/unset").status_code == 403
    assert ada.post("/share-weights/ada/unset").status_code == 403
    for path, body in ((f"{LIMITS}/user/ada", {}), (f"{WEIGHTS}/ada", {"weight": 9})):
        assert client.put(path, json=body).status_code == 403
        assert client.delete(path).status_code == 403
    assert client.get(LIMITS).status_code == client.get(WEIGHTS).status_code == 403
    assert not service.store.overrides.all().limits


def test_the_api_gives_back_what_it_takes(caller, audited):
    root = caller("root", Scope.ADMIN)
    bounds = {"running": {"gpu": 8, "mem": 1 << 40}, "pending": {}}
    made = root.put(f"{LIMITS}/resource_group/gpu", json=bounds).json()["limit"]
    assert (made["running"], made["pending"], made["source"]) == (bounds["running"], {}, "administrator")
    assert (made["kind"], made["name"], made["replaces"], made["changed_by"]) == ("resource_group", "gpu", None, "root")
    again = {"running": made["running"], "pending": made["pending"]}
    assert root.put(f"{LIMITS}/resource_group/gpu", json=again).json()["limit"]["running"] == bounds["running"]
    sources = [(one["kind"], one["name"], one["source"]) for one in root.get(LIMITS).json()["items"]]
    assert sources == [("user", "*", "default"), ("resource_group", "gpu", "administrator")]
    assert root.put(f"{LIMITS}/user/*", json={"running": {"gpu": None}}).json()["limit"]["running"] == {}
    assert root.delete(f"{LIMITS}/user/*").json()["limit"]["source"] == "default"
    assert root.delete(f"{LIMITS}/resource_group/gpu").json() == {"limit": None}
    assert root.delete(f"{LIMITS}/resource_group/gpu").status_code == 404
    assert root.put(f"{WEIGHTS}/ada", json={"weight": 2}).json()["share_weight"]["weight"] == 2
    assert [one["owner"] for one in root.get(WEIGHTS).json()["items"]] == ["ada"]
    assert root.delete(f"{WEIGHTS}/ada").json() == {"share_weight": None}
    assert root.delete(f"{WEIGHTS}/ada").status_code == 404
    assert ("/api/v1/limits/resource_group/gpu?running.mem=1099511627776&running.gpu=8", 200) in audited()
    assert ("/api/v1/limits/user/*?none=true", 200) in audited()
    assert ("/api/v1/share-weights/ada?weight=2", 200) in audited()


def test_the_api_refuses_what_its_schema_does_not_allow(caller, service):
    root = caller("root", Scope.ADMIN)
    for body in ({"running": {"gpus": 1}}, {"running": {"gpu": -1}}, {"pending": {"mem": 10**19}}, {"waiting": {}}):
        assert root.put(f"{LIMITS}/user/ada", json=body).status_code == 422
    assert root.put(f"{LIMITS}/array/ada", json={}).status_code == 422
    assert root.put(f"{LIMITS}/user/a%20b", json={}).status_code == 422
    for weight in (0, -1, 1e9, "much", None):
        assert root.put(f"{WEIGHTS}/ada", json={"weight": weight}).status_code == 422
    assert not service.store.overrides.all().limits


def test_a_limit_that_was_set_holds_for_the_next_submit(caller):
    root, ada = caller("root", Scope.ADMIN), caller("ada")
    assert root.put(f"{LIMITS}/user/ada", json={"pending": {"sessions": 0}}).status_code == 200
    refused = ada.post("/api/v1/sessions", json={"command": "true"})
    assert refused.status_code == 422
    assert "user ada may have 0 sessions waiting" in refused.json()["detail"]
    root.delete(f"{LIMITS}/user/ada")
    assert ada.post("/api/v1/sessions", json={"command": "true"}).status_code == 201
