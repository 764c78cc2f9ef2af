"""Users save what the launch form says under a name of their own, begin with it again, and remove it."""

import json

import pytest

from muster.core.model.token import Scope
from muster.service.specs.presets import MOST_OF_ONE
from muster.store.presets import OwnPreset
from tests.strategies.values import NOW
from tests.unit.web.pages.test_launch_page import form_sent, with_fields

HTMX = {"HX-Request": "true"}
SAVE = "/launch/presets"


def saved(service, owner="ada"):
    return {preset.name: dict(preset.spec) for preset in service.store.presets.of(owner)}


def test_the_form_is_saved_listed_begun_with_and_removed(browser, service):
    ada = browser("ada")
    empty = form_sent(ada.get("/launch").text)
    sent = with_fields(empty, preset="Half & more", cpu="0.5", mem="64M", env_name="LANG", env_value="de", count="3")
    answer = ada.post(SAVE, data=sent)
    assert answer.status_code == 200
    assert "Preset Half &amp; more is saved." in answer.text
    # What was filled in is still there.
    assert dict(form_sent(answer.text))["cpu"] == "0.5"
    assert saved(service) == {"Half & more": {"cpu": 0.5, "mem": "64M", "env": {"LANG": "de"}}}
    page = ada.get("/launch").text
    assert 'href="/launch?own_preset=Half+%26+more">Half &amp; more</a>' in page
    filled = dict(form_sent(ada.get("/launch?own_preset=Half+%26+more").text))
    assert (filled["cpu"], filled["mem"], filled["count"]) == ("0.5", "64M", "1")
    removed = ada.post(f"{SAVE}/remove", data={"preset": "Half & more"}, headers=HTMX)
    assert json.loads(removed.headers["hx-trigger"])["muster:announce"] == "Preset Half & more is removed"
    assert saved(service) == {}
    assert "Your own" not in ada.get(SAVE, headers=HTMX).text
    assert ada.get("/launch?own_preset=Half+%26+more").status_code == 404
    log = (service.settings.state_dir / "audit.log").read_text()
    assert '"path": "/launch/presets?name=Half%20%26%20more"' in log


def test_nobody_else_sees_or_removes_it(browser, service):
    service.store.presets.put(OwnPreset("ada", "zither", {"cpu": 2}, NOW), MOST_OF_ONE)
    for user, scope in (("eve", Scope.USER), ("root", Scope.ADMIN)):
        other = browser(user, scope)
        assert "zither" not in other.get("/launch").text
        assert other.get("/launch?own_preset=zither").status_code == 404
        assert other.post(f"{SAVE}/remove", data={"preset": "zither"}).status_code == 404
    reader = browser("ada", Scope.READ)
    assert reader.post(f"{SAVE}/remove", data={"preset": "zither"}).status_code == 403
    assert reader.post(SAVE, data={"preset": "more"}).status_code == 403
    assert saved(service) == {"zither": {"cpu": 2}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"preset": ""}, "&#39;&#39; is no name; write 1 to 60 characters"),
        ({"preset": "x" * 61}, "is no name; write 1 to 60 characters"),
        ({"preset": "a\nb"}, "is no name"),
        ({"preset": "lab", "mem": "much"}, "write bytes such as 512M"),
        ({"preset": "lab", "more": "script: |\n" + "  # words\n" * 8000}, "the session is larger than 64 KiB"),
    ],
)
def test_what_cannot_be_saved_is_said_and_the_form_stays(browser, service, fields, said):
    ada = browser("ada")
    answer = ada.post(SAVE, data=with_fields(form_sent(ada.get("/launch").text), cpu="0.5", **fields))
    assert answer.status_code == 422
    assert "The preset cannot be saved: " in answer.text
    assert said in answer.text
    assert dict(form_sent(answer.text))["cpu"] == "0.5"
    assert saved(service) == {}


def test_one_user_has_so_many_at_the_most(browser, service):
    for number in range(MOST_OF_ONE):
        service.store.presets.put(OwnPreset("ada", f"p{number}", {}, NOW), MOST_OF_ONE)
    ada = browser("ada")
    answer = ada.post(SAVE, data={"preset": "one more"})
    assert answer.status_code == 422
    assert f"you have {MOST_OF_ONE} presets; remove one of them first" in answer.text
    assert ada.post(SAVE, data={"preset": "p0", "cpu": "2", "dot_folders": "on"}).status_code == 200
    assert saved(service)["p0"] == {"cpu": 2}


def test_a_begin_is_not_saved(browser, service):
    ada = browser("ada")
    assert (
        ada.post(SAVE, data={"preset": "later", "begin": "now+2h", "cpu": "2", "dot_folders": "on"}).status_code == 200
    )
    assert saved(service) == {"later": {"cpu": 2}}
