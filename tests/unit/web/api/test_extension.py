"""More time for running sessions: within the site's bound for their users, beyond it for administrators."""

from dataclasses import replace

import pytest

from muster.core.lifecycle import transitions
from muster.core.lifecycle.idle import IdleRules, ends
from muster.core.model.token import Scope
from muster.core.scheduling.future import end_of
from muster.settings import Settings
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session

SESSIONS = "/api/v1/sessions"
HTMX = {"HX-Request": "true"}
HOUR = 3600


@pytest.fixture(name="trains")
def _trains(service):
    """Return a session that runs for two hours at the most."""
    session = running_session(1, "a1", name="train", command="x", time_limit="2h")
    service.store.add([session])
    return session


def more(client, seconds, name="train"):
    return client.post(f"{SESSIONS}/extend", json={"sessions": [name], "seconds": seconds})


def test_a_user_extends_up_to_the_sites_bound_and_an_administrator_beyond_it(caller, trains, service):
    ada, root = caller("ada"), caller("root", Scope.ADMIN)
    assert more(ada, 22 * HOUR).json()["items"][0]["time_limit_s"] == 24 * HOUR
    refused = more(ada, 3 * HOUR)
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "time: 3h is too much for session train: users may extend a session by 1d in all, and has had 22h;"
        " ask an administrator"
    )
    assert more(root, 30 * HOUR).json()["items"][0]["time_limit_s"] == 54 * HOUR
    story = [line["reason"] for line in ada.get(f"{SESSIONS}/train/events").json()["items"]]
    assert "extended by 22h by ada: its time limit is 1d" in story
    assert story[-1] == "extended by 1d6h by root: its time limit is 2d6h"
    (stored,) = service.store.get([trains.id]).values()
    assert end_of(stored, trains.started_at) == trains.started_at + 54 * HOUR
    assert stored.spec.time_limit == 2 * HOUR


@pytest.mark.usefixtures("trains")
def test_nobody_but_an_administrator_extends_beyond_the_longest_life(caller, service):
    idle = Settings.model_validate({"idle": {"max_lifetime": "3h"}}).idle
    object.__setattr__(service.settings, "idle", idle)
    ada = caller("ada")
    assert "this site lives, 3h" in more(ada, 2 * HOUR).json()["detail"]
    assert more(ada, HOUR).status_code == 200
    assert more(caller("root", Scope.ADMIN), HOUR).status_code == 200


@pytest.mark.usefixtures("trains")
def test_only_what_runs_with_a_limit_is_extended_and_only_by_its_owner(caller, service):
    endless = running_session(2, "a1", name="endless", command="x")
    of_array = {"array": "3-4", "array_id": "a", "time_limit": "1h"}
    runs = running_session(3, "a1", name="sweep-3", array_index=3, **of_array)
    waits = make_session(4, name="sweep-4", array_index=4, **of_array)
    service.store.add([endless, runs, waits])
    ada = caller("ada")
    assert (more(ada, 60, "endless").status_code, more(ada, 60, "sweep-4").status_code) == (409, 409)
    assert "only a RUNNING session can be extended" in more(ada, 60, "sweep-4").json()["detail"]
    assert more(ada, 0).status_code == 422
    assert more(caller("eve"), 60).status_code == 404
    assert more(caller("ada", Scope.READ), 60).status_code == 403
    assert [one["name"] for one in more(ada, 60, "sweep").json()["items"]] == ["sweep-3"]


def test_the_page_of_a_session_has_the_action(browser, trains):
    page = browser("ada")
    assert 'id="do-extend"' in page.get(f"/sessions/{trains.id}").text
    assert "The time limit is 2h" in page.get(f"/sessions/{trains.id}/extend", headers=HTMX).text
    for time, problem in (("soon", "soon"), ("40h", "users may extend a session by 1d in all")):
        refused = page.post(f"/sessions/{trains.id}/extend", data={"time": time}, headers=HTMX)
        assert 'id="more-time-problem"' in refused.text, refused.text
        assert problem in refused.text
    done = page.post(f"/sessions/{trains.id}/extend", data={"time": "90m"}, headers=HTMX)
    assert done.headers["hx-redirect"] == f"/sessions/{trains.id}"
    assert "3h30m, ends at" in page.get(f"/sessions/{trains.id}").text


def test_the_warning_of_an_earlier_end_is_withdrawn_and_comes_again_in_time(trains):
    rules = IdleRules(warn_before_s=600)
    near = trains.started_at + 2 * HOUR - 300
    warning = ends(trains, {}, rules, near)
    warned = replace(trains, notice=warning.session["notice"])
    event = transitions.extend(warned, HOUR, "ada", near)
    extended = replace(warned, **event.session)
    assert extended.notice is None
    assert ends(extended, {}, rules, near) is None
    assert "time limit of 3h is reached" in ends(extended, {}, rules, near + HOUR).reason
