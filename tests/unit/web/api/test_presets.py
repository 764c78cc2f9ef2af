"""Presets by the API and on the command line: the user's own, which nobody else sees, and the site's."""

import json
from dataclasses import replace

import pytest

from muster.core.model.token import Scope
from muster.core.spec.session_spec import SessionSpec
from muster.service.specs.presets import MAX_PRESET_BYTES, MOST_OF_ONE
from muster.settings import PresetSettings
from muster.store.presets import OwnPreset
from tests.strategies.values import NOW

PRESETS = "/api/v1/presets"


@pytest.fixture(autouse=True)
def _site(service):
    """Let the site offer a preset."""
    offered = {"Notebook": PresetSettings(description="one GPU", spec=SessionSpec(gpu=1))}
    object.__setattr__(service.settings, "presets", offered)


def named(client):
    return [(one["name"], one["own"]) for one in client.get(PRESETS).json()["items"]]


def test_a_user_saves_reads_replaces_and_removes_a_preset(caller, service):
    ada = caller("ada")
    saved = ada.put(f"{PRESETS}/small", json={"cpu": 2, "begin": "+1h"})
    assert saved.status_code == 200
    assert (saved.json()["own"], saved.json()["spec"]) == (True, {"cpu": 2})
    assert ada.get(f"{PRESETS}/small").json() == saved.json()
    ada.put(f"{PRESETS}/small", json={"cpu": 3})
    assert named(ada) == [("small", True), ("Notebook", False)]
    removed = ada.delete(f"{PRESETS}/small")
    assert (removed.status_code, removed.json()["spec"]) == (200, {"cpu": 3})
    assert ada.delete(f"{PRESETS}/small").status_code == 404
    log = (service.settings.state_dir / "audit.log").read_text().splitlines()
    assert [json.loads(line)["method"] for line in log] == ["PUT", "PUT", "DELETE", "DELETE"]


def test_the_sites_are_read_by_all_and_changed_by_nobody(caller):
    reader, ada = caller("eve", Scope.READ), caller("ada")
    site = reader.get(f"{PRESETS}/Notebook").json()
    assert (site["own"], site["description"], site["spec"], site["changed_at"]) == (False, "one GPU", {"gpu": 1}, None)
    assert ada.delete(f"{PRESETS}/Notebook").status_code == 404
    # A user's own goes before the site's of that name, for them alone.
    ada.put(f"{PRESETS}/Notebook", json={"cpu": 4})
    assert ada.get(f"{PRESETS}/Notebook").json()["spec"] == {"cpu": 4}
    assert reader.get(f"{PRESETS}/Notebook").json()["spec"] == {"gpu": 1}


def test_nobody_else_sees_changes_or_removes_it(caller, service):
    service.store.presets.put(OwnPreset("ada", "mine", {"cpu": 2}, NOW), MOST_OF_ONE)
    for user, scope in (("eve", Scope.USER), ("root", Scope.ADMIN)):
        other = caller(user, scope)
        assert named(other) == [("Notebook", False)]
        assert other.get(f"{PRESETS}/mine").status_code == 404
        assert other.delete(f"{PRESETS}/mine").status_code == 404
    reader = caller("ada", Scope.READ)
    assert reader.get(f"{PRESETS}/mine").status_code == 200
    assert reader.put(f"{PRESETS}/mine", json={"cpu": 9}).status_code == 403
    assert reader.delete(f"{PRESETS}/mine").status_code == 403
    assert dict(service.store.presets.of("ada")[0].spec) == {"cpu": 2}


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("a" * 61, {}, "preset"),
        ("a%07b", {}, "preset"),
        ("%20a", {}, "preset"),
        ("a", {"cpu": -1}, "cpu"),
        ("a", {"nosuch": 1}, "nosuch"),
        ("a", {"command": "x" * MAX_PRESET_BYTES}, "preset"),
    ],
)
def test_what_is_no_preset_is_refused_with_its_field(caller, service, name, spec, field):
    answer = caller("ada").put(f"{PRESETS}/{name}", json=spec)
    assert answer.status_code == 422
    assert field in json.dumps(answer.json())
    assert not service.store.presets.of("ada")


def test_a_name_may_hold_a_slash_and_there_is_a_most(caller, service):
    ada = caller("ada")
    assert ada.put(f"{PRESETS}/nlp%2Flarge", json={}).json()["name"] == "nlp/large"
    assert ada.get(f"{PRESETS}/nlp%2Flarge").status_code == 200
    one = service.store.presets.of("ada")[0]
    for number in range(MOST_OF_ONE - 1):
        service.store.presets.put(replace(one, name=f"p{number}"), MOST_OF_ONE)
    refused = ada.put(f"{PRESETS}/more", json={})
    assert refused.status_code == 422
    assert "remove one of them first" in refused.text
