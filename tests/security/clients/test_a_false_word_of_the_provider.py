"""Somebody signs in as another by a token, a code, a name or a link that the site's provider did not give them."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from joserfc.jws import JWSRegistry

from muster.core.model.token import Scope
from muster.core.values.errors import BadInputError
from muster.oidc_settings import CALLBACK
from muster.service.identity.oidc_users import SignInRefusedError
from muster.web.app import make_app
from muster.web.caller import MAX_FAILURES
from muster.web.separation.client import brokered_service
from tests.security.clients.taken_over_server import brokered_server
from tests.unit.web.conftest import ServedNode

PUBLIC = "http://127.0.0.1:8080"
CLIENT, SECRET = "muster", "the-clients-secret-of-32-characters"
KEY = RSAKey.generate_key(2048, auto_kid=True)
FOREIGN = RSAKey.generate_key(2048, parameters={"kid": KEY.kid})


@dataclass
class FalseProvider:
    """A provider that describes itself well, and whose token endpoint answers what a test wants."""

    url: str = ""
    described: dict[str, Any] = field(default_factory=dict)
    token: Callable[[], Mapping[str, Any]] = dict
    status: int = 200
    userinfo: Mapping[str, Any] | None = None
    requests: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(self, path: str, body: bytes) -> tuple[int, Mapping[str, Any]]:
        match path:
            case "/.well-known/openid-configuration":
                ends = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
                own = {f"{name}_endpoint": f"{self.url}/{word}" for name, word in ends.items()}
                return 200, {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **own, **self.described}
            case "/keys":
                return 200, {"keys": [KEY.as_dict(private=False)]}
            case "/token":
                self.requests.append(parse_qs(body.decode()))
                return self.status, self.token()
            case "/userinfo" if self.userinfo is not None:
                return 200, self.userinfo
        return 404, {}


@pytest.fixture
def provider() -> Iterator[FalseProvider]:
    false = FalseProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            status, content = false.answer(urlsplit(self.path).path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    false.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield false
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def set_oidc(service: ServedNode, provider: FalseProvider, tmp_path: Path) -> Callable[..., None]:
    secret = tmp_path / "client_secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    right = {"issuer": provider.url, "client_id": CLIENT, "client_secret_file": secret, "public_url": PUBLIC}

    def set_(**values: object) -> None:
        service.set_web(oidc={**right, "allowed_users": ("*",), **values})

    set_()
    return set_


@pytest.fixture
def browser(service: ServedNode) -> TestClient:
    return TestClient(make_app(service.service), base_url=PUBLIC, raise_server_exceptions=False, follow_redirects=False)


@dataclass
class Attempt:
    """A sign-in that a browser has begun, and what an ID token for it says."""

    browser: TestClient
    provider: FalseProvider
    request: dict[str, list[str]]

    @property
    def claims(self) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": self.provider.url,
            "aud": CLIENT,
            "sub": "4711",
            "iat": now,
            "exp": now + 300,
            "nonce": self.request["nonce"][0],
            "preferred_username": "ada",
        }

    def come_back(self, id_token: object, **parameters: str) -> Any:
        self.provider.token = lambda: {"access_token": "a", "token_type": "Bearer", "id_token": id_token}
        return self.browser.get(CALLBACK, params={"code": "c", "state": self.request["state"][0], **parameters})


@pytest.fixture
def attempt(browser: TestClient, provider: FalseProvider) -> Attempt:
    return begun(browser, provider)


def begun(browser: TestClient, provider: FalseProvider, path: str = "/sign-in/oidc") -> Attempt:
    answer = browser.get(path)
    assert answer.status_code == 303, answer.text
    return Attempt(browser, provider, parse_qs(urlsplit(answer.headers["location"]).query))


def signed(claims: Mapping[str, Any], key: Any = KEY, algorithm: str = "RS256") -> str:
    header = {"alg": algorithm, "kid": KEY.kid}
    return jwt.encode(header, dict(claims), key, registry=JWSRegistry(algorithms=[algorithm]))


def assert_refused(answer: Any, service: ServedNode) -> None:
    assert answer.status_code == 401, answer.text
    assert "muster" not in answer.cookies
    assert service.service.tokens.all() == []


def test_a_right_token_signs_in_by_pkce(attempt, provider):
    assert attempt.come_back(signed(attempt.claims), iss=provider.url).status_code == 303
    assert attempt.browser.get("/account").status_code == 200
    (request,) = provider.requests
    assert (request["code"], request["grant_type"]) == (["c"], ["authorization_code"])
    assert len(request["code_verifier"][0]) == 43
    assert "client_secret" not in request


@pytest.mark.parametrize(
    "false",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": ["another"], "azp": CLIENT},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"aud": [CLIENT, "another"]},
        {"aud": None},
        {"exp": 1},
        {"exp": None},
        {"exp": "never"},
        {"iat": None},
        {"iat": int(time.time()) + 86400},
        {"nbf": int(time.time()) + 86400},
        {"sub": None},
        {"at_hash": "another"},
    ],
    ids=str,
)
def test_a_claim_that_is_not_this_sign_ins_signs_nobody_in(attempt, service, false):
    claims = {name: value for name, value in {**attempt.claims, **false}.items() if value is not None}
    assert_refused(attempt.come_back(signed(claims)), service)


def unsigned(claims: Mapping[str, Any]) -> str:
    return signed(claims, OctKey.generate_key(), "none")


def by_the_clients_secret(claims: Mapping[str, Any]) -> str:
    return signed(claims, OctKey.import_key(SECRET), "HS256")


def by_the_public_key_as_a_secret(claims: Mapping[str, Any]) -> str:
    return signed(claims, OctKey.import_key(json.dumps(KEY.as_dict(private=False))), "HS256")


def by_another_key(claims: Mapping[str, Any]) -> str:
    return signed(claims, FOREIGN)


def altered(claims: Mapping[str, Any]) -> str:
    header, _, signature = signed(claims).split(".")
    _, body, _ = signed({**claims, "preferred_username": "bob"}).split(".")
    return f"{header}.{body}.{signature}"


def with_a_key_of_its_own(claims: Mapping[str, Any]) -> str:
    header = {"alg": "RS256", "jwk": FOREIGN.as_dict(private=False)}
    return jwt.encode(header, dict(claims), FOREIGN)


@pytest.mark.parametrize(
    "forged",
    [
        unsigned,
        by_the_clients_secret,
        by_the_public_key_as_a_secret,
        by_another_key,
        altered,
        with_a_key_of_its_own,
    ],
)
def test_a_token_that_the_provider_did_not_sign_signs_nobody_in(attempt, service, forged):
    assert_refused(attempt.come_back(forged(attempt.claims)), service)


@pytest.mark.parametrize("none", [None, "", "a.b", "a.b.c", 5, ["x"], "\ud800"])
def test_what_is_no_token_signs_nobody_in(attempt, service, none):
    answer = attempt.come_back(none)
    assert answer.status_code in {401, 503}
    assert "muster" not in answer.cookies
    assert service.service.tokens.all() == []


@pytest.mark.parametrize(
    "parameters", [{"state": "another"}, {"state": ""}, {"iss": "https://evil.example"}, {"code": ""}]
)
def test_another_state_or_issuer_asks_the_provider_nothing(attempt, provider, service, parameters):
    assert_refused(attempt.come_back(signed(attempt.claims), **parameters), service)
    assert provider.requests == []


def test_an_attempt_ends_with_its_sign_in(attempt):
    cookie = attempt.browser.cookies["muster-oidc"]
    token = signed(attempt.claims)
    assert attempt.come_back(token).status_code == 303
    assert "muster-oidc" not in attempt.browser.cookies
    attempt.browser.cookies.clear()
    attempt.browser.cookies["muster-oidc"] = cookie
    # As if the provider took a code twice.
    answer = attempt.come_back(token)
    assert answer.status_code == 401
    assert "muster" not in answer.cookies


@pytest.mark.parametrize("sealed", ["", "x", "é", "A" * 200, "====", "A" * 3999])
def test_what_was_not_sealed_here_is_no_attempt(browser, service, sealed):
    headers = {"Cookie": f"muster-oidc={sealed}".encode()}
    assert_refused(browser.get(CALLBACK, params={"code": "c", "state": "s"}, headers=headers), service)


def test_an_attempt_lasts_ten_minutes(attempt, service, monkeypatch):
    token, later = signed(attempt.claims), time.time() + 601
    monkeypatch.setattr("muster.service.identity.oidc.time.time", lambda: later)
    assert_refused(attempt.come_back(token), service)


@pytest.mark.parametrize(
    "url", ["https://evil.example/x", "//evil.example/x", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)"]
)
def test_nobody_is_led_to_another_site(browser, provider, url):
    attempt = begun(browser, provider, f"/sign-in/oidc?next={url}")
    location = attempt.come_back(signed(attempt.claims)).headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "evil.example" not in urlsplit(location).netloc


@pytest.mark.parametrize(
    "name", ["root", "*", "%team", "a/b", "", " ada", "ada\n", "ada@site", "x" * 59, 5, ["ada"], None]
)
def test_no_name_that_means_more_than_a_user(attempt, service, name):
    assert_refused(attempt.come_back(signed({**attempt.claims, "preferred_username": name})), service)


def test_no_holder_of_an_administrators_token_without_the_settings_word(browser, provider, service, set_oidc):
    service.service.tokens.create("ops", "ada", Scope.ADMIN, None)
    attempt = begun(browser, provider)
    answer = attempt.come_back(signed(attempt.claims))
    assert answer.status_code == 401
    assert "ada is an administrator" in answer.text.replace("&#39;", "'")
    set_oidc(administrators=("ada",))
    attempt = begun(TestClient(make_app(service.service), base_url=PUBLIC, follow_redirects=False), provider)
    assert attempt.come_back(signed(attempt.claims)).status_code == 303


def test_nobody_makes_a_token_in_the_providers_place(service):
    with pytest.raises(BadInputError):
        service.service.tokens.create("oidc:ada", "bob", Scope.USER, None)


def test_a_group_makes_nobody_root(browser, provider, service, set_oidc):
    set_oidc(administrator_groups=("operators",))
    attempt = begun(browser, provider)
    claims = {**attempt.claims, "preferred_username": "root", "groups": ["operators"]}
    assert_refused(attempt.come_back(signed(claims)), service)


def test_who_is_taken_out_of_the_administrators_is_none_with_the_next_sign_in(browser, provider, service, set_oidc):
    set_oidc(administrator_groups=("operators",))
    for groups, scope in ((["operators"], Scope.ADMIN), ([], Scope.USER)):
        attempt = begun(browser, provider)
        assert attempt.come_back(signed({**attempt.claims, "groups": groups})).status_code == 303
        assert [token.scope for token in service.service.tokens.all()] == [scope]


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": None},
    ],
)
def test_a_provider_that_describes_another_is_none(browser, provider, described):
    provider.described = described
    answer = browser.get("/sign-in/oidc")
    assert answer.status_code == 503
    assert "or sign in with a token" in answer.text


@pytest.mark.parametrize(("subject", "status"), [("4711", 303), ("4712", 401), (None, 401)])
def test_what_the_provider_says_of_another_is_not_about_the_user(attempt, provider, subject, status):
    """A claim that the ID token lacks is asked for separately."""
    provider.userinfo = {"sub": subject, "preferred_username": "bob", "nonce": "x"}
    claims = {name: value for name, value in attempt.claims.items() if name != "preferred_username"}
    assert attempt.come_back(signed(claims)).status_code == status


def test_a_token_endpoint_that_fails_is_the_providers_trouble(attempt, provider):
    provider.status = 500
    assert attempt.come_back(None).status_code == 503


def test_a_secret_that_others_may_read_signs_nobody_in(attempt, service):
    service.settings.web.oidc.client_secret_file.chmod(0o644)
    answer = attempt.come_back(signed(attempt.claims))
    assert answer.status_code == 503
    assert str(service.settings.web.oidc.client_secret_file) not in answer.text


def test_without_the_settings_there_is_no_such_way(service):
    service.set_web()
    pages = TestClient(make_app(service.service), base_url=PUBLIC, follow_redirects=False)
    assert pages.get("/sign-in/oidc").status_code == 404
    assert "/sign-in/oidc" not in pages.get("/sign-in").text
    assert_refused(pages.get(CALLBACK, params={"code": "c", "state": "s"}), service)


def test_text_of_a_link_is_not_shown(browser):
    parameters = {"error": "call 0190 <b>", "error_description": "call 0190"}
    assert "0190" not in browser.get(CALLBACK, params=parameters).text


def test_wrong_codes_lock_no_right_one_out(browser, provider):
    statuses = [browser.get(CALLBACK, params={"code": "c", "state": "s"}).status_code for _ in range(MAX_FAILURES + 2)]
    assert statuses == [401] * MAX_FAILURES + [429] * 2
    attempt = begun(browser, provider)
    assert attempt.come_back(signed(attempt.claims)).status_code == 303


def test_a_server_that_was_taken_over_says_nobodys_name(service, provider):
    """It has what browsers bring, of which it makes sign-ins of those browsers' users only."""
    with brokered_server(service.service) as server:
        oidc = brokered_service(server.line).oidc
        begun = oidc.begin("/")
        assert "nonce" not in begun.sealed
        state = parse_qs(urlsplit(begun.url).query)["state"][0]
        provider.token = lambda: {"access_token": "a", "token_type": "Bearer", "id_token": unsigned({"sub": "ada"})}
        with pytest.raises(SignInRefusedError):
            oidc.finish(begun.sealed, state, "c", None)
        assert service.service.tokens.all() == []
        with pytest.raises(TypeError):
            server.line.request("server.finish_oidc", None, [begun.sealed, state, "c", None, "ada"])
