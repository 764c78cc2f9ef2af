"""Data folders and secrets by the API: their owners, and what each user sees of them."""

import json
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest

from muster.contract.folders import FolderState
from muster.core.model.folders import MountedFolder
from muster.core.model.token import Scope
from muster.core.turn.answer import AgentAnswer
from muster.service.folders import folders
from muster.service.folders.views import MeasuredFolderView
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.unit.web.api.test_api import submitted

FOLDERS = "/api/v1/folders"
SECRETS = "/api/v1/secrets"


@pytest.fixture
def asked_agents(monkeypatch):
    """Return the list of requests to agents for folders. Agent a1 answers, and far does not."""
    calls = []

    class Gateway:
        def __init__(self, inventory, cluster):
            del inventory, cluster

        def folders(self, agent_ids, root, state, folders, on_answer):
            del root
            calls.append((state, [folder.path for folder in folders]))
            measured = {"exists": True, "used_bytes": 5, "files": 2, "quota": None, "shared_from": None}
            for agent_id in agent_ids:
                if agent_id == "far":
                    on_answer(AgentAnswer("far", problem="no route to far", reached=False))
                else:
                    states = [FolderState(path=folder.path, **measured) for folder in folders]
                    on_answer(AgentAnswer(agent_id, folders=states))

    monkeypatch.setattr(folders, "AnsibleGateway", Gateway)
    return calls


@pytest.fixture
def mounted(service):
    """Return a session of that user that mounts a folder."""

    def mount(number, owner, of, name):
        folder = service.store.folders.find(of, name)
        one = MountedFolder(folder.id, of, name, folder.path, folder.number, None, "/mnt/data", read_only=True)
        made = replace(make_session(number, name=f"{owner}-uses"), owner=owner, folders=(one,))
        service.store.add([made])
        return made

    return mount


def test_a_folder_is_made_shown_listed_and_removed(caller, service, asked_agents):
    service.store.agents.save([make_agent("a1")])
    ada = caller("ada")
    made = ada.post(FOLDERS, json={"name": "data", "quota_bytes": 1 << 30})
    assert made.status_code == 201, made.text
    folder_view = MeasuredFolderView.model_validate(made.json())
    of_folder = (folder_view.owner, folder_view.quota_bytes, folder_view.used_bytes, folder_view.problems)
    assert of_folder == ("ada", 1 << 30, 5, {})
    assert ada.post(FOLDERS, json={"name": "data"}).json()["type"] == "urn:muster:name-taken"
    listed = ada.get(FOLDERS).json()
    assert [(one["name"], one["used_bytes"]) for one in listed["items"]] == [("data", None)]
    assert asked_agents == [("present", [folder_view.path])]
    assert ada.get(FOLDERS, params={"sizes": True}).json()["items"][0]["used_bytes"] == 5
    assert ada.get(f"{FOLDERS}/data").json()["files"] == 2
    assert ada.post(f"{FOLDERS}/data/quota", json={"quota_bytes": None}).json()["quota_bytes"] is None
    assert ada.delete(f"{FOLDERS}/data").json() == {
        "name": "data",
        "removed": True,
        "removed_from": ["a1"],
        "left_on": [],
        "problems": {},
    }
    assert ada.get(f"{FOLDERS}/data").status_code == 404
    assert asked_agents[-1] == ("absent", [folder_view.path])


@pytest.mark.usefixtures("asked_agents")
def test_an_agent_that_does_not_answer_is_named_and_keeps_its_part(caller, service):
    service.store.agents.save([make_agent("a1"), make_agent("far")])
    ada = caller("ada")
    assert ada.post(FOLDERS, json={"name": "data"}).json()["problems"] == {"far": "no route to far"}
    removed = ada.delete(f"{FOLDERS}/data").json()
    assert (removed["removed"], removed["left_on"]) == (False, ["far"])
    assert ada.get(f"{FOLDERS}/data").json()["state"] == "removing"


def test_anothers_folder_is_not_there(caller, service):
    assert caller("eve").post(FOLDERS, json={"name": "private"}).status_code == 201
    ada = caller("ada")
    of_eve = {"owner": "eve"}
    for answer in (
        ada.get(f"{FOLDERS}/private", params=of_eve),
        ada.delete(f"{FOLDERS}/private", params=of_eve),
        ada.post(f"{FOLDERS}/private/quota", json={"quota_bytes": 1 << 30}, params=of_eve),
        ada.post(f"{FOLDERS}/private/share", json={"grantee": "ada"}, params=of_eve),
        ada.post(f"{FOLDERS}/private/unshare", json={"grantee": "ada"}, params=of_eve),
    ):
        assert answer.status_code == 404
        assert answer.json()["detail"] == "eve has no folder 'private'"
    for of_others in ({"all": True}, of_eve):
        assert ada.get(FOLDERS, params=of_others).json()["type"] == "urn:muster:scope"
    assert ada.post(FOLDERS, json={"name": "gift"}, params=of_eve).json()["type"] == "urn:muster:scope"
    root = caller("root", Scope.ADMIN)
    assert [one["owner"] for one in root.get(FOLDERS, params={"all": True}).json()["items"]] == ["eve"]
    assert root.delete(f"{FOLDERS}/private", params=of_eve).json()["removed"] is True
    last = json.loads((service.settings.state_dir / "audit.log").read_text().splitlines()[-1])
    assert (last["user"], last["path"], last["owner"]) == ("root", f"{FOLDERS}/private", "eve")


def test_a_folder_that_is_shared_is_seen_without_what_concerns_others(caller, mounted):
    eve, ada = caller("eve"), caller("ada")
    eve.post(FOLDERS, json={"name": "data"})
    for grantee in ("ada", "bob", "@vision"):
        assert eve.post(f"{FOLDERS}/data/share", json={"grantee": grantee, "read_only": False}).status_code == 200
    mounted(1, "ada", "eve", "data")
    mounted(2, "bob", "eve", "data")
    hers = eve.get(f"{FOLDERS}/data").json()
    assert [share["grantee"] for share in hers["shared_with"]] == ["@vision", "ada", "bob"]
    assert hers["used_by"] == ["ada-uses", "bob-uses"]
    his = ada.get(f"{FOLDERS}/data", params={"owner": "eve"}).json()
    assert [share["grantee"] for share in his["shared_with"]] == ["ada"]
    assert his["used_by"] == ["ada-uses"]
    refused = ada.delete(f"{FOLDERS}/data", params={"owner": "eve"})
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        "folder eve/data is eve's; only its owner can change it",
    )
    assert eve.delete(f"{FOLDERS}/data").status_code == 409
    taken = eve.post(f"{FOLDERS}/data/unshare", json={"grantee": "bob"}).json()
    assert taken == {"name": "data", "grantee": "bob", "still_mounted_by": ["ada-uses", "bob-uses"]}
    assert caller("bob").get(FOLDERS).json()["items"] == []
    in_project = caller("bob", Scope.READ).get(FOLDERS, params={"project": "vision"}).json()["items"]
    assert [one["name"] for one in in_project] == ["data"]


def test_a_secret_is_set_named_used_and_removed(caller, service):
    ada = caller("ada")
    assert ada.put(f"{SECRETS}/api-token", json={"value": "hush-hush"}).json() == {"name": "api-token"}
    (listed,) = ada.get(SECRETS).json()["items"]
    assert (listed["name"], set(listed)) == ("api-token", {"name", "changed_at"})
    session = service.store.get([submitted(ada, secrets=["api-token"])["id"]])
    assert [service.secrets.values(one) for one in session.values()] == [{"api-token": "hush-hush"}]
    assert ada.delete(f"{SECRETS}/api-token").status_code == 200
    assert ada.delete(f"{SECRETS}/api-token").status_code == 404
    assert ada.get(SECRETS).json()["items"] == []


@contextmanager
def no_room_for_files():
    """Let this process write no byte more to any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_as_such_and_changes_nothing(caller, service):
    ada = caller("ada")
    assert ada.get(SECRETS).json()["items"] == []
    with no_room_for_files():
        answer = ada.put(f"{SECRETS}/key", json={"value": "s3cret"})
    found = answer.json()
    assert (answer.status_code, found["type"]) == (507, "urn:muster:unwritable")
    assert found["detail"].startswith(f"{service.settings.seal_key}")
    assert found["detail"].endswith("cannot be written: File too large; free space there")
    assert ada.get(SECRETS).json()["items"] == []
    assert ada.put(f"{SECRETS}/key", json={"value": "s3cret"}).status_code == 200


def test_what_only_reads_is_answered_while_the_database_cannot_be_written(caller, service):
    """As on a full disk, or a replica: when the token was last used is then not noted."""
    ada = caller("ada")
    with no_room_for_files():
        assert [ada.get(SECRETS).status_code for _ in range(2)] == [200, 200]
        assert ada.put("/api/v1/presets/mine", json={}).status_code == 503
    (token,) = service.store.tokens.all()
    assert token.last_used_at is None
    assert ada.get(SECRETS).status_code == 200
    (token,) = service.store.tokens.all()
    assert token.last_used_at is not None


def test_a_secret_is_its_owners_alone_and_never_shown(caller, service):
    ada, root = caller("ada"), caller("root", Scope.ADMIN)
    answers = [ada.put(f"{SECRETS}/token", json={"value": "hush-hush"})]
    answers += [ada.get(SECRETS), root.get(SECRETS), ada.put(f"{SECRETS}/to ken", json={"value": "hush-hush"})]
    answers += [ada.put(f"{SECRETS}/token", json={"value": "hush-hush", "more": 1})]
    answers += [ada.put(f"{SECRETS}/token", json={"value": ["hush-hush"]})]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 422, 422, 422]
    assert answers[2].json()["items"] == []
    assert root.delete(f"{SECRETS}/token").status_code == 404
    reader = caller("ada", Scope.READ)
    assert reader.put(f"{SECRETS}/token", json={"value": "other"}).status_code == 403
    assert reader.delete(f"{SECRETS}/token").status_code == 403
    audit = (service.settings.state_dir / "audit.log").read_text()
    assert "hush-hush" not in audit + "".join(answer.text for answer in answers)
    noted = [json.loads(line) for line in audit.splitlines()]
    assert {"PUT", "DELETE"} == {line["method"] for line in noted}


@pytest.mark.parametrize(
    ("body", "words"),
    [({"value": ""}, "the secret is empty"), ({"value": "x" * 70_000}, "larger than 64 KiB"), ({}, "value: ")],
)
def test_a_value_that_is_none_is_refused(caller, body, words):
    answer = caller("ada").put(f"{SECRETS}/token", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_a_secret_that_is_half_of_a_surrogate_pair_is_refused(caller):
    """JSON can write one, and nothing encode it."""
    headers = {"Content-Type": "application/json"}
    answer = caller("ada").put(f"{SECRETS}/key", content=r'{"value": "\ud800"}', headers=headers)
    assert (answer.status_code, "half of a surrogate pair" in answer.json()["detail"]) == (422, True)
