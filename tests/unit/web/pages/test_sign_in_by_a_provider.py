"""Signing in to the pages by a real OpenID Connect provider, which runs beside the tests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from muster.core.model.token import Scope
from muster.oidc_settings import CALLBACK
from muster.web.app import make_app
from muster.web.separation.client import brokered_service
from tests.security.clients.taken_over_server import brokered_server
from tests.servers.oidc_provider import CLIENT, SECRET, Person, approved, running_provider, signing_key
from tests.servers.web_server import free_port
from tests.unit.web.conftest import ServedNode

PUBLIC = "http://127.0.0.1:8080"
ADA, BOB, EVE = Person("ada", ("researchers",)), Person("bob", ("researchers", "operators")), Person("eve")


@dataclass(frozen=True)
class Site:
    """A provider, and the directory in which it runs."""

    issuer: str
    port: int
    directory: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("provider")
    port = free_port()
    with running_provider(directory, port, (ADA, BOB, EVE), PUBLIC + CALLBACK, [signing_key()]) as issuer:
        yield Site(issuer, port, directory)


def set_provider(service: ServedNode, tmp_path: Path, issuer: str, **values: object) -> None:
    secret = tmp_path / "client_secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    oidc = {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret_file": secret,
        "public_url": PUBLIC,
        "name": "Example Login",
        "scopes": ("openid", "profile", "groups"),
        "allowed_groups": ("researchers",),
        "administrator_groups": ("operators",),
        **values,
    }
    service.set_web(oidc=oidc)


@pytest.fixture
def pages(service: ServedNode, tmp_path: Path, site: Site) -> Iterator[FastAPI]:
    """Yield the server's application, whose service is all requests to a broker."""
    set_provider(service, tmp_path, site.issuer)
    with brokered_server(service.service) as server:
        yield make_app(brokered_service(server.line))


@pytest.fixture
def browser(pages: FastAPI) -> TestClient:
    return TestClient(pages, base_url=PUBLIC, raise_server_exceptions=False, follow_redirects=False)


def came_back(browser: TestClient, person: Person, path: str = "/sign-in/oidc") -> str:
    """Sign in at the provider, and return the URL at which it sends the browser back."""
    begun = browser.get(path)
    assert begun.status_code == 303, begun.text
    return approved(begun.headers["location"], person)


def test_who_signs_in_at_the_provider_has_their_own_pages(browser, service):
    assert "Sign in with Example Login" in browser.get("/sign-in").text
    answer = browser.get(came_back(browser, ADA, "/sign-in/oidc?next=%2Fqueue%3Fage%3D1"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?age=1")
    account = browser.get("/account")
    assert account.status_code == 200
    assert "oidc:ada" in account.text
    (token,) = service.service.tokens.all()
    assert (token.name, token.user, token.scope) == ("oidc:ada", "ada", Scope.USER)
    assert token.expires_at is not None


def test_the_providers_url_asks_for_a_code_with_a_challenge(browser):
    requested = parse_qs(urlsplit(browser.get("/sign-in/oidc").headers["location"]).query)
    assert requested["response_type"] == ["code"]
    assert requested["code_challenge_method"] == ["S256"]
    assert requested["redirect_uri"] == [PUBLIC + CALLBACK]
    assert len(requested["state"][0]) == len(requested["nonce"][0]) == len(requested["code_challenge"][0]) == 43
    assert SECRET not in str(requested)


def test_the_cookies_are_for_this_server_and_no_script(browser):
    begun = browser.get("/sign-in/oidc")
    back = browser.get(approved(begun.headers["location"], ADA))
    for cookie in (begun.headers["set-cookie"], back.headers["set-cookie"]):
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie


def test_a_group_of_the_settings_makes_an_administrator(browser, service):
    assert browser.get(came_back(browser, BOB)).status_code == 303
    assert [token.scope for token in service.service.tokens.all()] == [Scope.ADMIN]
    assert browser.get("/reservations").status_code == 200


def test_who_is_not_allowed_gets_a_line_that_says_so(browser, service):
    answer = browser.get(came_back(browser, EVE))
    assert answer.status_code == 401
    assert "eve may not sign in here; ask an administrator" in answer.text
    assert service.service.tokens.all() == []


def test_a_sign_in_ends_by_signing_out_and_with_its_token(browser, service, pages):
    browser.get(came_back(browser, ADA))
    other = TestClient(pages, base_url=PUBLIC, follow_redirects=False)
    other.get(came_back(other, ADA))
    found = browser.get("/account").text.split('name="csrf" value="')[1][:64]
    assert browser.post("/sign-out", data={"csrf": found}, headers={"Origin": PUBLIC}).status_code == 303
    assert browser.get("/account").status_code == 303
    assert other.get("/account").status_code == 200
    service.service.tokens.revoke("oidc:ada")
    assert other.get("/account").status_code == 303


def test_a_code_is_used_once(browser, pages):
    begun = browser.get("/sign-in/oidc")
    cookie = browser.cookies["muster-oidc"]
    back = approved(begun.headers["location"], ADA)
    assert browser.get(back).status_code == 303
    thief = TestClient(pages, base_url=PUBLIC, cookies={"muster-oidc": cookie}, follow_redirects=False)
    answer = thief.get(back)
    assert answer.status_code == 401
    assert "muster" not in answer.cookies


def test_what_another_browser_began_signs_nobody_in(browser, pages):
    """Nobody is signed in as somebody else by a link."""
    back = came_back(browser, ADA)
    victim = TestClient(pages, base_url=PUBLIC, follow_redirects=False)
    assert victim.get(back).status_code == 401
    victim.get("/sign-in/oidc")
    answer = victim.get(back)
    assert answer.status_code == 401
    assert "in another browser" in answer.text
    assert "muster" not in answer.cookies
    assert browser.get(back).status_code == 303


def test_keys_that_the_provider_changes_are_read_anew(service, tmp_path):
    port = free_port()
    people, redirect = (ADA,), PUBLIC + CALLBACK
    set_provider(service, tmp_path, f"http://127.0.0.1:{port}")
    browser = TestClient(make_app(service.service), base_url=PUBLIC, follow_redirects=False)
    for _ in range(2):
        with running_provider(tmp_path, port, people, redirect, [signing_key()]):
            assert browser.get(came_back(browser, ADA)).status_code == 303


def test_without_the_provider_a_token_signs_in(service, tmp_path, secret_of, caplog):
    set_provider(service, tmp_path, f"http://127.0.0.1:{free_port()}")
    browser = TestClient(make_app(service.service), base_url=PUBLIC, follow_redirects=False)
    answer = browser.get("/sign-in/oidc")
    assert answer.status_code == 503
    assert "it cannot be reached; try again, or sign in with a token" in answer.text
    assert "it cannot be reached: [Errno 111] Connection refused" in caplog.text
    assert browser.post("/sign-in", data={"token": secret_of("ada")}).status_code == 303
    assert browser.get("/account").status_code == 200


def test_a_sign_in_is_in_the_audit_log_without_its_code(browser, service):
    back = came_back(browser, ADA)
    browser.get(back)
    text = (service.settings.state_dir / "audit.log").read_text()
    (record,) = [json.loads(line) for line in text.splitlines()]
    assert (record["user"], record["token"], record["path"], record["status"]) == ("ada", "oidc:ada", CALLBACK, 303)
    assert parse_qs(urlsplit(back).query)["code"][0] not in text
