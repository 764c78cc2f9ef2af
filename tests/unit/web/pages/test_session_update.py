"""The dialog in which users change what a session asks for while it waits."""

import html
import json
import re

import pytest

from muster.core.model.session import SessionState
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.api.test_api import SESSIONS, submitted

HTMX = {"HX-Request": "true"}


@pytest.fixture
def ada(caller):
    return caller("ada")


@pytest.fixture
def mine(ada):
    spec = {"cpu": 0.5, "mem": "256M", "time_limit": "2h", "priority": 20, "cluster_size": "2-4", "begin": "now+1h"}
    return submitted(ada, name="mine", command="train", **spec)


def shown(text: str) -> dict[str, str]:
    """Return the texts of the dialog's fields by their names."""
    inputs = re.findall(r'<input id="update-[a-z_]+" name="([a-z_]+)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in inputs}


def test_the_dialog_has_what_the_session_asks_for_as_its_user_would_write_it(browser, mine):
    dialog = browser("ada").get(f"/sessions/{mine['id']}/update", headers=HTMX).text
    assert shown(dialog) == {
        "priority": "20",
        "time_limit": "2h",
        "cluster_size": "2-4",
        "cpu": "0.5",
        "mem": "256M",
        "gpu": "",
        "fgpu": "",
    }
    assert 'name="mem" value="256M" placeholder="1G"' in dialog


def test_what_was_changed_is_changed_and_nothing_else(browser, ada, mine):
    page = browser("ada")
    fields = shown(page.get(f"/sessions/{mine['id']}/update", headers=HTMX).text)
    changed = {**fields, "mem": " 1536M ", "time_limit": "", "gpu": "0"}
    done = page.post(f"/sessions/{mine['id']}/update", data=changed, headers=HTMX)
    assert done.headers["hx-redirect"] == f"/sessions/{mine['id']}"
    after = ada.get(f"{SESSIONS}/mine").json()
    assert after["spec"] == {**mine["spec"], "mem": 1536 << 20, "time_limit": None}
    assert after["story"][-1]["reason"] == "updated by ada: time_limit 2h → none; mem 256M → 1536M"
    done = page.post(f"/sessions/{mine['id']}/update", data={"cpu": "1"}, headers=HTMX)
    assert done.headers["hx-redirect"] == f"/sessions/{mine['id']}"
    assert ada.get(f"{SESSIONS}/mine").json()["spec"]["priority"] == 20


def test_the_dialog_keeps_what_was_entered_and_says_what_is_wrong(browser, ada, mine, service):
    page = browser("ada")
    entered = {"mem": 'lots"><b>', "cpu": "-1", "priority": "20"}
    refused = page.post(f"/sessions/{mine['id']}/update", data=entered, headers=HTMX)
    assert refused.status_code == 422
    assert shown(refused.text)["mem"] == entered["mem"]
    assert "<b>" not in refused.text
    (problem,) = re.findall(r'id="update-problem" role="alert">([^<]*)<', refused.text)
    assert "cpu" in problem
    assert "mem" in problem
    assert ada.get(f"{SESSIONS}/mine").json()["spec"] == mine["spec"]
    line = json.loads((service.settings.state_dir / "audit.log").read_text().splitlines()[-1])
    assert (line["path"].rpartition("/")[2], line["status"]) == ("update", 422)


def test_only_a_session_that_waits_is_changed(browser, service):
    running = placed_on(make_session(1), "a1", state=SessionState.RUNNING)
    service.store.add([running])
    page = browser("ada")
    refused = page.get(f"/sessions/{running.id}/update", headers=HTMX)
    assert (refused.status_code, "only a PENDING session can be updated" in refused.text) == (409, True)
    refused = page.post(f"/sessions/{running.id}/update", data={"cpu": "2"}, headers=HTMX)
    assert refused.status_code == 409
    assert browser("bob").get(f"/sessions/{running.id}/update", headers=HTMX).status_code == 404
