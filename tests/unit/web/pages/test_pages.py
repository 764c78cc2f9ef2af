"""Signing in to the pages, what keeps others out of them, and the list of sessions."""

import hashlib
import re

import httpx
import pytest
from fastapi.testclient import TestClient

from muster.core.model.token import Scope
from muster.core.values.errors import StoreUnavailableError
from muster.service.identity.tokens import Tokens
from muster.web.rendering import STATIC
from muster.web.streams import subscribers
from tests.strategies.sessions import make_session
from tests.unit.web.api.test_api import SESSIONS, SMALL

HERE = "http://testserver"


def test_an_unknown_visitor_signs_in_and_returns_to_the_page(browser):
    ada = browser("ada", sign_in=False)
    sent = ada.get("/sessions?show=all", follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Fsessions%3Fshow%3Dall")
    back = ada.post(sent.headers["location"], data={"token": ada.secret}, follow_redirects=False)
    assert (back.status_code, back.headers["location"]) == (303, "/sessions?show=all")
    cookie = back.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert ada.secret not in cookie
    assert "Sessions" in ada.get("/sessions").text


def test_a_page_too_long_to_be_led_back_to_keeps_nobody_from_signing_in(browser):
    ada = browser("ada", sign_in=False)
    sent = ada.get("/folders/ada/data/files", params={"path": "数据/" * 250})
    assert (sent.status_code, sent.url.path, 'name="token"' in sent.text) == (200, "/sign-in", True)


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example/x", "/\\evil.example", "\\\\evil.example"])
def test_signing_in_leads_to_no_other_site(browser, wanted):
    ada = browser("ada", sign_in=False)
    back = ada.post("/sign-in", params={"next": wanted}, data={"token": ada.secret}, follow_redirects=False)
    assert re.fullmatch(r"/[^/\\].*|/", back.headers["location"])


def test_a_wrong_token_is_refused_and_ten_slow_down_their_sender_alone(browser):
    eve = browser("eve", sign_in=False)
    first = eve.post("/sign-in", data={"token": "<b>guess</b>"})
    assert first.status_code == 401
    assert "not known here" in first.text
    for _ in range(9):
        eve.post("/sign-in", data={"token": "guess"})
    assert eve.post("/sign-in", data={"token": "guess"}).status_code == 429
    assert eve.post("/sign-in", data={"token": eve.secret}, follow_redirects=False).status_code == 303


def test_signing_out_and_losing_the_token_end_the_sign_in(browser, service):
    ada, again = browser("ada"), browser("ada", name="again")
    assert ada.post("/sign-out", follow_redirects=False).headers["location"] == "/sign-in"
    ada.cookies.set("muster", ada.cookie)
    assert ada.get("/sessions", follow_redirects=False).status_code == 303
    assert again.get("/sessions", follow_redirects=False).status_code == 200
    service.store.tokens.remove("again")
    assert again.get("/sessions", follow_redirects=False).status_code == 303
    assert again.get("/live", follow_redirects=False).status_code == 303


def test_a_users_streams_end_when_they_sign_out(browser, server, monkeypatch):
    monkeypatch.setattr(subscribers, "HEARTBEAT_S", 0.2)
    ada = browser("ada")
    with httpx.stream("GET", f"{server}/live", cookies={"muster": ada.cookie}, timeout=30) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(": since ")
        assert ": here" in lines
        ada.post("/sign-out")
        assert set(lines) <= {"", ": here"}


def test_a_cookie_opens_no_api_and_a_bearer_token_no_page(browser, caller):
    assert browser("ada").get(SESSIONS).status_code == 401
    assert caller("eve").get("/sessions", follow_redirects=False).status_code == 303


def test_a_change_needs_the_pages_own_secret_and_its_origin(browser):
    ada = browser("ada")
    assert f'hx-headers=\'{{"X-CSRF-Token": "{ada.csrf}"}}\'' in ada.get("/sessions").text
    form = {"action": "terminate", "selected": "mine"}
    for headers in (
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        refused = ada.post("/sessions/change", data=form, headers=headers)
        assert refused.status_code == 403, headers
        assert "load the page again" in refused.text
    del ada.headers["X-CSRF-Token"]
    assert ada.post("/sessions/change", data=form).status_code == 403
    assert ada.post("/sessions/change", data={**form, "csrf": ada.csrf}).status_code == 404


def test_another_sites_page_signs_nobody_in(browser):
    eve = browser("eve", sign_in=False)
    refused = eve.post("/sign-in", data={"token": eve.secret}, headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403


def test_pages_allow_no_scripts_but_their_own(browser):
    answer = browser("ada").get("/sessions")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", answer.text)
    assert answer.headers["x-frame-options"] == "DENY"
    for url in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        file = browser("ada", sign_in=False, name=f"t{abs(hash(url))}").get(url)
        assert file.status_code == 200, url
        assert "immutable" in file.headers["cache-control"]


def test_where_it_travels_by_tls_the_cookie_does_so_only(app, service):
    _, secret = service.service.tokens.create("tls", "ada", Scope.USER, None)
    with TestClient(app, base_url="https://testserver") as client:
        cookie = client.post("/sign-in", data={"token": secret}, follow_redirects=False).headers["set-cookie"]
        assert cookie.startswith("__Host-muster=")
        assert "Secure" in cookie
        assert client.get("/sessions", follow_redirects=False).status_code == 200
        # Anybody on the way may have written a page that came without TLS.
        headers = {"X-CSRF-Token": hashlib.sha256(f"csrf {client.cookies['__Host-muster']}".encode()).hexdigest()}
        for scheme, status in (("http", 403), ("https", 303)):
            headers["Origin"] = f"{scheme}://testserver"
            assert client.post("/sign-out", headers=headers, follow_redirects=False).status_code == status


def test_the_list_shows_what_may_be_seen_filtered_and_sorted(browser, caller):
    ada, eve = caller("ada"), caller("eve")
    for name in ("b-train", "a-train", "serve"):
        assert ada.post(SESSIONS, json={**SMALL, "name": name}).status_code == 201
    eve.post(SESSIONS, json={**SMALL, "name": "hers"})
    ada.delete(f"{SESSIONS}/serve")
    page = browser("ada", name="page")

    def names(address):
        return re.findall(r'<a href="/sessions/[^"]+">([^<]+)</a>', page.get(address).text)

    assert names("/sessions?sort=name") == ["a-train", "b-train"]
    assert names("/sessions?sort=-name") == ["b-train", "a-train"]
    assert names("/sessions?name=a-tr&show=all") == ["a-train"]
    assert names("/sessions?show=CANCELLED") == ["serve"]
    assert "hers" not in names("/sessions?owner=eve")
    page = browser("root", Scope.ADMIN)
    assert names("/sessions?sort=name") == ["a-train", "b-train", "hers"]
    assert names("/sessions?owner=eve") == ["hers"]


def test_a_list_that_has_become_shorter_shows_its_last_page(browser, caller, monkeypatch):
    """As that of who was on page 2 when its only session ended."""
    monkeypatch.setattr("muster.web.pages.sessions.list_page.PAGE_LENGTH", 2)
    ada = caller("ada")
    for name in ("one", "two"):
        ada.post(SESSIONS, json={**SMALL, "name": name})
    page = browser("ada", name="page")
    for address in ("/sessions?page=2", "/sessions?show=all&page=2000"):
        text = page.get(address, headers={"HX-Request": "true"}).text
        assert re.findall(r'<a href="/sessions/[^"]+">([^<]+)</a>', text) == ["two", "one"]
    ada.post(SESSIONS, json={**SMALL, "name": "three"})
    text = page.get("/sessions?page=3").text
    assert re.findall(r'<a href="/sessions/[^"]+">([^<]+)</a>', text) == ["one"]
    assert re.findall(r'aria-current="page"><span class="sr-only">Page </span>(\d+)</a>', text) == ["2"]


@pytest.mark.parametrize("address", ["?show=BAD", "?sort=colour", "?page=0", "?show=%00"])
def test_an_address_that_cannot_be_is_one_line(browser, address):
    answer = browser("ada").get(f"/sessions{address}")
    assert answer.status_code == 422
    assert answer.text.count('class="problem"') == 1
    assert "Traceback" not in answer.text


def test_htmx_gets_the_list_alone_and_what_is_selected_stays_so(browser, caller):
    ada = caller("ada")
    key = ada.post(SESSIONS, json={**SMALL, "name": "mine"}).json()["items"][0]["id"]
    page = browser("ada", name="page")
    part = page.get("/sessions", params={"selected": [key]}, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert re.search(rf'value="{key}" checked', part)


@pytest.mark.parametrize("path", ["/launch", "/usage", "/account", "/overview", "/images"])
def test_a_page_that_has_no_part_of_its_own_for_htmx_is_whole(browser, path):
    """Anybody may send the header."""
    answer = browser("ada").get(path, headers={"HX-Request": "true"})
    assert (answer.status_code, "<html" in answer.text) == (200, path in {"/launch", "/usage"})


@pytest.mark.parametrize("path", ["/launch", "/launch/preview", "/sessions/change", "/queue/change"])
def test_a_form_of_another_charset_than_utf_8_is_refused(browser, path):
    """In UTF-7, `+2AA-` is half of a surrogate pair, which nothing can encode."""
    ada = browser("ada")
    for csrf in (ada.headers.pop("X-CSRF-Token"), "+2AA-"):
        fields = {"csrf": csrf, "name": "+2AA-", "action": "hold", "selected": "+2AA-"}
        parts = [f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}' for name, text in fields.items()]
        headers = {"Content-Type": 'multipart/form-data; boundary=B; charset="utf-7"'}
        answer = ada.post(path, content="\r\n".join([*parts, "--B--\r\n"]), headers=headers, follow_redirects=False)
        assert (answer.status_code, "a form is UTF-8" in answer.text) == (422, True)
        headers["Content-Type"] = "multipart/form-data; boundary=B; charset=UTF-8"
        answer = ada.post(path, content="\r\n".join([*parts, "--B--\r\n"]), headers=headers, follow_redirects=False)
        assert "a form is UTF-8" not in answer.text


def test_several_are_ended_at_once_or_none(browser, caller, service):
    ada, eve = caller("ada"), caller("eve")
    mine = [ada.post(SESSIONS, json={**SMALL, "name": f"mine-{n}"}).json()["items"][0]["id"] for n in range(2)]
    hers = eve.post(SESSIONS, json={**SMALL, "name": "hers"}).json()["items"][0]["id"]
    page = browser("ada", name="page")
    htmx = {"HX-Request": "true"}
    refused = page.post("/sessions/change", data={"action": "terminate", "selected": [*mine, hers]}, headers=htmx)
    assert refused.status_code == 404
    assert refused.headers["hx-retarget"] == "#problem"
    assert ada.get(SESSIONS).json()["total"] == 2
    done = page.post("/sessions/change", data={"action": "terminate", "selected": mine}, headers=htmx)
    assert done.headers["hx-trigger"] == '{"muster:announce": "2 sessions are ending"}'
    assert ada.get(SESSIONS).json()["total"] == 0
    assert eve.get(SESSIONS).json()["total"] == 1
    audit = (service.settings.state_dir / "audit.log").read_text()
    assert mine[0] in audit
    none = page.post("/sessions/change", data={"action": "terminate"}, headers=htmx)
    assert (none.status_code, "select one or more" in none.text) == (422, True)


def test_a_token_that_may_only_read_is_offered_no_change(browser, caller):
    caller("ada").post(SESSIONS, json={**SMALL, "name": "mine"})
    reader = browser("ada", Scope.READ)
    assert "Terminate" not in reader.get("/sessions").text
    assert reader.post("/sessions/change", data={"action": "terminate", "selected": "mine"}).status_code == 403


def test_users_texts_are_shown_as_text(browser):
    found = browser("ada").get("/sessions", params={"project": '"><script>alert(1)</script>'})
    assert found.status_code == 200
    assert "<script>alert" not in found.text
    assert "&lt;script&gt;alert" in found.text


def test_vendored_files_are_those_that_their_list_names():
    listed = dict(re.findall(r"`([\w./-]+)` .*?`([0-9a-f]{64})`", (STATIC / "vendor" / "README.md").read_text()))
    there = {
        str(path.relative_to(STATIC / "vendor")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").rglob("*")
        if path.suffix in {".js", ".css"}
    }
    assert listed == there


@pytest.mark.parametrize(
    ("path", "own", "others"),
    [
        ("/sessions", {"train", "vision"}, {"hers", "eve", "secret"}),
        ("/usage", {"vision"}, {"eve", "secret"}),
        ("/usage?span=nosuch", {"vision"}, {"eve", "secret"}),
        ("/folders", {"vision"}, {"eve", "secret"}),
    ],
)
def test_filters_suggest_what_the_user_may_see(browser, service, path, own, others):
    mine = make_session(1, owner="ada", name="train", project="vision")
    service.store.add([mine, make_session(2, owner="eve", name="hers", project="secret")])
    suggested = re.compile(r'<option value="([^"]*)"></option>')
    page = browser("ada").get(path).text
    assert own <= set(suggested.findall(page))
    assert not others & set(suggested.findall(page))
    assert re.search(r'<input id="project"[^>]* list="projects"', page)
    assert own | others <= set(suggested.findall(browser("root", Scope.ADMIN).get(path).text))


def test_a_part_of_a_page_is_sent_without_its_filters_suggestions(browser):
    part = browser("bob").get("/sessions", headers={"HX-Request": "true"}).text
    assert "<datalist" not in part


def test_a_page_that_is_not_there_says_so_in_plain_words_and_leads_on(browser):
    ada = browser("ada")
    missing = ada.get("/sessions/nonesuch")
    assert missing.status_code == 404
    assert "<h1>Not found</h1>" in missing.text
    assert 'href="/queue"' in missing.text
    assert "Account of </span>ada" in missing.text
    wrong = ada.get("/resources?span=year")
    assert (wrong.status_code, "Unprocessable" in wrong.text) == (422, False)
    assert "<h1>Something is wrong in the request</h1>" in wrong.text
    nowhere = ada.get("/nope")
    assert (nowhere.status_code, "there is nothing at /nope" in nowhere.text) == (404, True)
    assert '<nav aria-label="Pages">' in nowhere.text
    assert '<a href="/queue">Queue</a>' in nowhere.text
    assert '<nav aria-label="Pages">' in ada.put("/sign-in").text


def test_a_path_that_is_not_there_shows_strangers_no_navigation_and_asks_nobody_of_them(browser, monkeypatch):
    stranger = browser("nobody", sign_in=False)
    shown = stranger.get("/nope")
    assert (shown.status_code, '<nav aria-label="Pages">' in shown.text) == (404, False)
    ada = browser("ada")

    def away(*_arguments):
        raise StoreUnavailableError("the database does not answer")

    monkeypatch.setattr(Tokens, "signed_in", away)
    assert ada.get("/nope").status_code == 404
