"""A user names a project that is not theirs: its limits, its images and what is shared with it are its members'."""

import html
import json

import pytest
from fastapi.testclient import TestClient

from muster.core.model.projects import Projects
from muster.core.model.token import Scope
from muster.service.identity.tokens import Tokens
from muster.service.service import Service
from muster.settings import load_settings
from muster.store.store import Store
from muster.web.app import make_app
from tests.command_line import muster, write_settings

MEMBERS = {"vision": ["eve"], "teaching": ["*"]}
PRIVATE = {"images": [{"name": "seen", "reference": "lab/seen:1", "projects": ["vision"]}]}
SMALL = {"cpu": 1, "mem": "64M"}
SESSIONS, FOLDERS = "/api/v1/sessions", "/api/v1/folders"


@pytest.fixture
def service(service, tmp_path):
    """Return the control node of a site with members of projects."""
    (tmp_path / "images.yml").write_text(json.dumps(PRIVATE), encoding="utf-8")
    settings = load_settings(write_settings(tmp_path, {"projects": MEMBERS, "max_priority": {"eve": 80}}))
    return type(service)(service.store, settings, Service(service.store, settings))


@pytest.fixture
def app(service):
    return make_app(service.service)


def errors(answer) -> list[str]:
    assert answer.status_code == 422, answer.text
    return [error["field"] for error in answer.json()["errors"]]


@pytest.mark.parametrize("path", [SESSIONS, f"{SESSIONS}/dry-run"])
def test_a_project_is_claimed_by_its_members_alone(caller, service, path):
    ada, eve = caller("ada"), caller("eve")
    answers = {name: ada.post(path, json={**SMALL, "project": name}) for name in ("vision", "none-such")}
    assert [errors(answer) for answer in answers.values()] == [["project"]] * 2
    details = {name: answer.json()["detail"] for name, answer in answers.items()}
    assert details["vision"] == "project: ada has no project 'vision'; name one of default, teaching"
    assert details["none-such"] == details["vision"].replace("vision", "none-such")
    assert service.store.search() == []
    for project in ("default", "teaching"):
        assert ada.post(path, json={**SMALL, "project": project}).status_code in {200, 201}
    assert eve.post(path, json={**SMALL, "project": "vision"}).status_code in {200, 201}


def test_the_pages_have_the_same_rules(browser, service):
    ada, eve = browser("ada"), browser("eve")
    form = {"name": "lab", "project": "vision"}
    refused = ada.post("/launch", data=form, follow_redirects=False)
    assert refused.status_code == 422
    assert "ada has no project 'vision'" in html.unescape(refused.text)
    assert ada.get("/folders", params={"project": "vision"}).status_code == 422
    assert service.store.search() == []
    assert eve.post("/launch", data=form, follow_redirects=False).status_code == 303
    assert eve.get("/folders", params={"project": "vision"}).status_code == 200
    assert [(session.owner, session.spec.project) for session in service.store.search()] == [("eve", "vision")]


def test_an_administrator_cannot_bring_somebody_into_a_project_by_submitting_for_them(caller):
    root = caller("root", Scope.ADMIN)
    assert errors(root.post(SESSIONS, params={"owner": "ada"}, json={**SMALL, "project": "vision"})) == ["project"]
    assert root.post(SESSIONS, params={"owner": "eve"}, json={**SMALL, "project": "vision"}).status_code == 201


def test_a_token_is_for_its_projects_alone(caller, app, service):
    _, secret = service.service.tokens.create("ci", "eve", Scope.USER, None, ["teaching"])
    caller("eve")
    bound = TestClient(app, headers={"Authorization": f"Bearer {secret}"}, raise_server_exceptions=False)
    for project in ("vision", "default"):
        assert errors(bound.post(SESSIONS, json={**SMALL, "project": project})) == ["project"]
    assert bound.post(SESSIONS, json={**SMALL, "project": "teaching"}).status_code == 201
    assert bound.get(FOLDERS, params={"project": "vision"}).status_code == 422


def test_a_folder_shared_with_a_project_is_visible_to_its_members_alone(caller):
    eve, ada = caller("eve"), caller("ada")
    assert eve.post(FOLDERS, json={"name": "data"}).status_code == 201
    assert eve.post(f"{FOLDERS}/data/share", json={"grantee": "@vision", "read_only": False}).status_code == 200
    for path, owner in ((FOLDERS, {}), (f"{FOLDERS}/data", {"owner": "eve"})):
        answer = ada.get(path, params={"project": "vision", "sizes": "false", **owner})
        assert errors(answer) == ["project"]
    claimed = {**SMALL, "project": "vision", "mounts": ["eve/data"]}
    assert errors(ada.post(SESSIONS, json=claimed)) == ["project"]
    assert [one["name"] for one in eve.get(FOLDERS, params={"project": "vision"}).json()["items"]] == ["data"]


def test_a_projects_images_are_its_members_alone(caller):
    eve, ada = caller("eve"), caller("ada")
    shown = [{one["name"] for one in who.get("/api/v1/images").json()["items"]} for who in (eve, ada)]
    assert shown == [{"seen"}, set()]
    for project, image in (("default", "lab/seen:1"), ("vision", "lab/seen:1"), ("vision", "seen")):
        assert errors(ada.post(SESSIONS, json={**SMALL, "project": project, "image": image}))
    assert eve.post(SESSIONS, json={**SMALL, "project": "vision", "image": "lab/seen:1"}).status_code == 201


def test_more_than_the_usual_priority_needs_the_sites_leave(caller):
    ada, eve = caller("ada"), caller("eve")
    refused = ada.post(SESSIONS, json={**SMALL, "priority": 51})
    assert refused.json()["detail"] == "priority: ada may ask for 50 at the most; write 50 or less"
    assert ada.post(SESSIONS, json={**SMALL, "priority": 50}).status_code == 201
    assert eve.post(SESSIONS, json={**SMALL, "priority": 80}).status_code == 201
    assert errors(eve.post(SESSIONS, json={**SMALL, "priority": 81})) == ["priority"]


def test_the_command_line_has_the_same_rules(service, monkeypatch):
    answer = muster("submit", "--cpu", "1", "--project", "vision", "--priority", "60")
    assert answer.code == 2
    assert "ada has no project 'vision'" in answer.err
    assert "priority" in answer.err
    assert service.store.search() == []
    monkeypatch.setenv("SUDO_USER", "eve")
    assert muster("submit", "--cpu", "1", "--project", "vision").code == 0


@pytest.mark.parametrize(
    "way",
    [
        ("submit", "--dry-run", "--cpu", "1", "--project", "vision"),
        ("submit", "--cpu", "1", "-f", "{directory}/session.yml"),
        ("submit", "--cpu", "1", "{directory}/job.sh"),
        ("submit", "--cpu", "1", "--project", "vision", "--array", "0-3"),
        ("submit", "--cpu", "1", "--project", "Vision"),
        ("submit", "--cpu", "1", "--project", "vision "),
    ],
)
def test_no_way_of_the_command_line_leads_into_anothers_project(service, tmp_path, way):
    (tmp_path / "session.yml").write_text("project: vision\n", encoding="utf-8")
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#MUSTER --project vision\ntrue\n", encoding="utf-8")
    answer = muster(*(word.format(directory=tmp_path) for word in way))
    assert (answer.code, "project" in answer.err) == (2, True), answer.err
    assert service.store.search() == []


def test_who_is_no_member_any_more_has_lost_the_project_by_all_of_their_tokens(caller, service, tmp_path):
    eve = caller("eve")
    assert eve.post(FOLDERS, json={"name": "data"}).status_code == 201
    assert eve.post(f"{FOLDERS}/data/share", json={"grantee": "@vision", "read_only": False}).status_code == 200
    secrets = [
        service.service.tokens.create(f"ci-{len(projects)}", "eve", Scope.USER, None, projects)[1]
        for projects in ([], ["vision"], ["vision", "teaching"])
    ]
    settings = load_settings(write_settings(tmp_path, {"projects": {**MEMBERS, "vision": ["ann"]}}))
    for secret in secrets:
        after = TestClient(
            make_app(Service(service.store, settings)),
            headers={"Authorization": f"Bearer {secret}"},
            raise_server_exceptions=False,
        )
        for path in (SESSIONS, f"{SESSIONS}/dry-run"):
            assert errors(after.post(path, json={**SMALL, "project": "vision"})) == ["project"]
        assert errors(after.get(FOLDERS, params={"project": "vision"})) == ["project"]
        assert after.get("/api/v1/images").json()["items"] == []


def test_without_members_every_project_is_open():
    assert Projects().admit("ada", "anything")
    assert Projects().refusal("ada", "anything") is None
    assert not Projects({"vision": ["eve"]}).admit("ada", "other")
    assert Projects({"vision": ["eve"]}).admit("ada", "default")
    assert not Projects({"default": ["eve"]}).admit("ada", "default")
    assert Projects({"vision": ["eve"]}).refusal("ada", "x", ["y"]).remedy == "ask an administrator for one"


def test_a_tokens_projects_are_kept(tmp_path):
    store = Store(f"sqlite:///{tmp_path / 'muster.db'}")
    token, secret = Tokens(store).create("ci", "ada", Scope.USER, None, ["vision", "vision", "teaching"])
    assert Tokens(store).of_secret(secret).projects == token.projects == ("vision", "teaching")
    store.close()
