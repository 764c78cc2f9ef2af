"""The queue's page: waiting sessions with place and reason; several held, released or cancelled at once."""

import html
import re

import pytest

from muster.core.model.token import Scope
from tests.strategies.agents import make_agent
from tests.unit.web.api.test_api import SESSIONS, submitted


@pytest.fixture
def agent(service):
    """Save one agent with 8 cores: a session of 6 fits, and two of them do not."""
    agent = make_agent("a1")
    assert agent.capacity.cpu == 8000
    service.store.agents.save([agent])


def rows(text):
    """Return by session name the text of its row."""
    found = re.findall(r'<tr id="session-[^"]+">(.*?)</tr>', text, re.DOTALL)
    words = [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in found]
    names = [re.search(r'<a href="[^"]+">([^<]+)</a>', row)[1] for row in found]
    return dict(zip(names, words, strict=True))


def test_an_empty_queue_says_so(browser):
    assert "No sessions are waiting." in browser("ada").get("/queue").text


@pytest.mark.usefixtures("agent")
def test_sessions_stand_in_the_order_in_which_they_are_tried_with_their_reasons(browser, caller):
    ada = caller("ada")
    submitted(ada, name="too-large", cpu=80)
    submitted(ada, name="low", cpu=6, priority=10)
    submitted(ada, name="high", cpu=6, priority=90, time_limit="1h")
    submitted(ada, name="kept", cpu=1, hold=True)
    submitted(ada, name="gang", cpu=1, cluster_size=4)
    text = browser("ada", name="page").get("/queue").text
    by_name = rows(text)
    assert next(iter(by_name)) == "high"
    assert "next" in by_name["high"]
    assert "the scheduler starts it next" in by_name["high"]
    assert by_name["kept"].count("held") == 1
    assert "by ada" in by_name["kept"]
    assert "not before it is released" in by_name["kept"]
    assert "never fits" in by_name["too-large"]
    assert "never, as it is" in by_name["too-large"]
    assert "4 containers, together" in by_name["gang"]
    places = [int(found[1]) for row in by_name.values() if (found := re.search(r"(\d+) of 4", row))]
    assert places == sorted(places)
    assert places
    assert "4 sessions wait: 1 held, 1 that can never start; 1 about to start." in text


@pytest.mark.usefixtures("agent")
def test_an_estimate_is_shown_if_the_scheduler_knows_it(browser, caller):
    ada = caller("ada")
    submitted(ada, name="first", cpu=6, time_limit="1h")
    submitted(ada, name="second", cpu=6)
    submitted(ada, name="third", cpu=6)
    by_name = rows(browser("ada", name="page").get("/queue").text)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC \(in (1h|59m\d*s?)\)", by_name["second"]), by_name
    assert "unknown, since " in by_name["third"]


@pytest.mark.usefixtures("agent")
def test_users_see_only_their_own_sessions_with_place_and_number_of_all(browser, caller):
    eve, ada = caller("eve"), caller("ada")
    submitted(eve, name="eves-0", cpu=6, priority=95, time_limit="1h")
    submitted(eve, name="secret-plan", cpu=7, priority=90)
    submitted(eve, name="eves-1", cpu=7, priority=80)
    submitted(ada, name="mine", cpu=2)
    text = browser("ada", name="page").get("/queue").text
    assert list(rows(text)) == ["mine"]
    assert "3 of 3" in rows(text)["mine"]
    assert "3 sessions wait, 1 of them yours" in text
    for name in ("secret-plan", "eves-", ">eve<"):
        assert name not in text
    assert "another user" in rows(text)["mine"]
    everything = browser("root", Scope.ADMIN).get("/queue").text
    assert set(rows(everything)) == {"mine", "eves-0", "eves-1", "secret-plan"}
    assert "eve" in rows(everything)["eves-1"]
    assert "secret-plan" in rows(everything)["mine"]


def test_several_are_held_released_and_cancelled_at_once(browser, caller):
    ada = caller("ada")
    ids = [submitted(ada, name=name)["id"] for name in ("one", "two")]
    page = browser("ada", name="page")
    page.headers["HX-Request"] = "true"

    def change(action, selected):
        return page.post("/queue/change", data={"action": action, "selected": selected})

    held = change("hold", ids)
    assert (held.status_code, held.headers["hx-trigger"]) == (204, '{"muster:announce": "2 sessions are held"}')
    assert [one["held_by"] for one in ada.get(SESSIONS).json()["items"]] == ["ada", "ada"]
    assert "one is released" in change("release", ids[:1]).headers["hx-trigger"]
    assert "2 sessions are cancelled" in change("cancel", ids).headers["hx-trigger"]
    assert ada.get(SESSIONS).json()["total"] == 0


def test_an_invalid_query_is_refused_in_one_line(browser, caller):
    submitted(caller("ada"), name="one")
    page = browser("ada", name="page")
    nothing = page.post("/queue/change", data={"action": "hold"}, headers={"HX-Request": "true"})
    assert (nothing.status_code, nothing.headers["hx-retarget"]) == (422, "#problem")
    assert '<p class="problem">no session is selected; select one or more in the table</p>' in nothing.text
    assert page.post("/queue/change", data={"action": "<b>", "selected": "one"}).status_code == 422


@pytest.mark.parametrize("action", ["hold", "release", "cancel"])
def test_nobody_changes_anothers_session_or_with_a_token_that_reads(browser, caller, action):
    hers = submitted(caller("eve"), name="hers")["id"]
    mine = submitted(caller("ada"), name="mine")["id"]
    ada, reader = browser("ada", name="page"), browser("ada", Scope.READ)
    assert ada.post("/queue/change", data={"action": action, "selected": [mine, hers]}).status_code == 404
    assert reader.post("/queue/change", data={"action": action, "selected": [mine]}).status_code == 403
    del ada.headers["X-CSRF-Token"]
    assert ada.post("/queue/change", data={"action": action, "selected": [mine]}).status_code == 403
    root = caller("root", Scope.ADMIN)
    for session in (hers, mine):
        shown = root.get(f"{SESSIONS}/{session}").json()
        assert (shown["state"], shown["held_by"]) == ("PENDING", None)
    assert "checkbox" not in reader.get("/queue").text


def test_the_live_part_keeps_what_is_selected_and_says_nothing_else(browser, caller):
    ada = caller("ada")
    one, two = (submitted(ada, name=name)["id"] for name in ("one", "two"))
    page = browser("ada", name="page")
    part = page.get("/queue", params={"selected": one}, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert re.search(rf'value="{one}" checked', part)
    assert not re.search(rf'value="{two}" checked', part)


def test_users_texts_are_text_on_the_page(browser, caller):
    ada = caller("ada")
    made = submitted(ada, name="mine", resource_group="<script>alert(1)</script>")
    text = browser("ada", name="page").get("/queue").text
    assert made["id"] in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text


def test_a_long_queue_has_numbered_pages(browser, caller, monkeypatch):
    monkeypatch.setattr("muster.web.pages.queue_page.FIRST_ROWS", 2)
    monkeypatch.setattr("muster.web.pages.queue_page.PAGE_ROWS", 2)
    ada = caller("ada")
    for number in range(5):
        submitted(ada, name=f"s{number}", priority=50 - number)
    page = browser("ada", name="page")
    text = page.get("/queue").text
    assert list(rows(text)) == ["s0", "s1"]
    assert "All 5 rows of default" in text
    assert list(rows(page.get("/queue?group=default&page=3").text)) == ["s4"]
    # It may have become shorter since.
    assert list(rows(page.get("/queue?group=default&page=4").text)) == ["s4"]
    assert list(rows(page.get("/queue?page=4").text)) == ["s0", "s1"]
    assert re.findall(r'rel="(prev|next)" href="([^"]+)"', page.get("/queue?group=default&page=2").text) == [
        ("prev", "/queue?group=default&page=1"),
        ("next", "/queue?group=default&page=3"),
    ]


@pytest.mark.usefixtures("agent")
def test_what_is_alike_is_one_row_that_opens_and_is_changed_as_a_whole(browser, caller):
    eve, ada = caller("eve"), caller("ada")
    for number in range(3):
        submitted(ada, name=f"sweep-{number}", cpu=80)
    submitted(ada, name="other", cpu=81)
    submitted(eve, name="eves", cpu=80)
    page = browser("ada", name="page")
    text = page.get("/queue").text
    by_name = rows(text)
    assert set(by_name) == {"sweep-0 … sweep-2", "other"}
    assert "1 to 3 of 5" in by_name["sweep-0 … sweep-2"]
    assert "3 sessions" in by_name["sweep-0 … sweep-2"]
    value = shown_row(page)
    assert f'value="{value}" checked' in page.get("/queue", params={"selected": value}).text
    opened = html.unescape(re.search(r'href="(/queue\?group=default&amp;within=[^"]+)"', text)[1])
    assert list(rows(page.get(opened).text)) == ["sweep-0", "sweep-1", "sweep-2"]
    page.headers["HX-Request"] = "true"
    done = page.post("/queue/change", data={"action": "cancel", "selected": value})
    assert "3 sessions are cancelled" in done.headers["hx-trigger"]
    assert [one["name"] for one in ada.get(SESSIONS).json()["items"]] == ["other"]
    again = page.post("/queue/change", data={"action": "cancel", "selected": value})
    assert (again.status_code, "the queue has changed meanwhile" in again.text) == (404, True)


@pytest.mark.usefixtures("agent")
def test_a_row_is_changed_only_as_far_as_it_was_shown(browser, caller):
    ada = caller("ada")
    ids = [submitted(ada, name=f"sweep-{number}", cpu=80)["id"] for number in range(3)]
    page = browser("ada", name="page")
    shown = shown_row(page)
    submitted(ada, name="sweep-3", cpu=80)
    refused = browser("eve", name="eves-page").post("/queue/change", data={"action": "hold", "selected": shown})
    assert refused.status_code == 404
    page.headers["HX-Request"] = "true"
    assert page.post("/queue/change", data={"action": "hold", "selected": shown}).status_code == 204
    held = {one["id"] for one in ada.get(SESSIONS).json()["items"] if one["held_by"]}
    assert held == set(ids)


@pytest.mark.usefixtures("agent")
def test_no_session_is_changed_that_has_taken_anothers_place_in_a_row(browser, caller):
    ada = caller("ada")
    ids = [submitted(ada, name=f"sweep-{number}", cpu=80)["id"] for number in range(4)]
    page = browser("ada", name="page")
    shown = shown_row(page)
    ada.delete(f"{SESSIONS}/{ids[1]}")
    submitted(ada, name="sweep-4", cpu=80)
    page.headers["HX-Request"] = "true"
    refused = page.post("/queue/change", data={"action": "cancel", "selected": shown})
    assert (refused.status_code, "the queue has changed meanwhile" in refused.text) == (404, True)
    assert ada.get(SESSIONS).json()["total"] == 4


def shown_row(page):
    """Return what the page's row of several sessions sends when it is selected."""
    (value,) = re.findall(r'value="(row:[^"]+)"', page.get("/queue").text)
    return value


@pytest.mark.usefixtures("agent")
def test_the_api_says_no_more_of_others_than_the_page(caller):
    eve, ada = caller("eve"), caller("ada")
    submitted(eve, name="eves-0", cpu=6, priority=95, time_limit="1h")
    submitted(eve, name="secret-plan", cpu=7, priority=90)
    submitted(ada, name="mine", cpu=2)
    answer = ada.get("/api/v1/queue")
    (mine,) = answer.json()["items"]
    assert (mine["position"], mine["wait"]["code"], mine["wait"]["waits_for"]) == (2, "behind", [])
    assert "secret-plan" not in answer.text
    everything = caller("root", Scope.ADMIN).get("/api/v1/queue").json()["items"]
    assert "secret-plan" in everything[-1]["wait"]["message"]
