"""Users make and revoke their own tokens: by the API, in the browser and on the command line."""

import re

import pytest

from muster.core.model.token import Scope
from muster.service.identity.owned_tokens import MOST_OF_ONE

TOKENS = "/api/v1/tokens"


def make(client, name, **body):
    return client.post(f"{TOKENS}/{name}", json=body)


def named(client):
    return [one["name"] for one in client.get(TOKENS).json()["items"]]


def test_a_user_makes_uses_and_revokes_a_token(caller):
    ada = caller("ada")
    made = make(ada, "laptop", scope="read", expires="1d", projects=["vision"])
    assert made.status_code == 201
    fields = made.json()
    assert (fields["user"], fields["scope"], fields["projects"]) == ("ada", "read", ["vision"])
    assert "token" not in ada.get(TOKENS).json()["items"][0]
    ada.headers["Authorization"] = f"Bearer {fields['token']}"
    assert named(ada) == ["ada-user", "laptop"]
    assert ada.delete(f"{TOKENS}/laptop").status_code == 403
    other = caller("bob")
    assert (named(other), other.delete(f"{TOKENS}/laptop").status_code) == (["bob-user"], 404)
    assert caller("root", Scope.ADMIN).delete(f"{TOKENS}/laptop").json()["name"] == "laptop"
    assert ada.get(TOKENS).status_code == 401


@pytest.mark.parametrize(
    ("scope", "wished", "status"),
    [
        (Scope.USER, "admin", 403),
        (Scope.USER, "user", 201),
        (Scope.READ, "read", 403),
        (Scope.ADMIN, "admin", 201),
        (Scope.USER, "root", 422),
    ],
)
def test_no_token_makes_one_that_may_do_more(caller, scope, wished, status):
    assert make(caller("ada", scope), "new", scope=wished).status_code == status


def test_nor_for_longer_nor_for_other_projects_nor_for_others(caller, service):
    _, secret = service.service.tokens.create("short", "ada", Scope.USER, "1h", ["vision"])
    ada = caller("ada")
    ada.headers["Authorization"] = f"Bearer {secret}"
    assert make(ada, "longer", expires="2h").json()["detail"].startswith("expires: your own token expires at")
    assert make(ada, "wider", projects=["vision", "other"]).status_code == 403
    assert ada.post(f"{TOKENS}/bobs?owner=bob", json={}).status_code == 403
    same = make(ada, "same").json()
    (parent,) = [one for one in service.service.tokens.all() if one.name == "short"]
    (made,) = [one for one in service.service.tokens.all() if one.name == "same"]
    assert (made.expires_at, made.projects, same["user"]) == (parent.expires_at, ("vision",), "ada")
    assert caller("root", Scope.ADMIN).post(f"{TOKENS}/bobs?owner=bob", json={}).json()["user"] == "bob"


def test_a_user_has_so_many_tokens_at_the_most(caller, service):
    ada = caller("ada")
    for number in range(MOST_OF_ONE - 1):
        service.service.tokens.create(f"t{number}", "ada", Scope.READ, None)
    refused = make(ada, "one-more")
    assert (refused.status_code, "revoke one of them first" in refused.json()["detail"]) == (422, True)
    assert ada.delete(f"{TOKENS}/t1").status_code == 200
    assert make(ada, "one-more").status_code == 201


def test_the_page_shows_a_new_token_once(browser, service):
    ada = browser("ada")
    form = {"name": "laptop", "scope": "user", "expires": "30d", "project": "vision, speech"}
    shown = ada.post("/account/tokens", data=form, headers={"HX-Request": "true"}).text
    (secret,) = re.findall(r'id="made-secret"[^>]*>(muster_[\w-]+)<', shown)
    assert service.service.tokens.of_secret(secret).projects == ("vision", "speech")
    page = ada.get("/account").text
    assert "laptop" in page
    assert secret not in page
    assert secret not in (service.settings.state_dir / "audit.log").read_text()
    assert '"path": "/account/tokens?name=laptop"' in (service.settings.state_dir / "audit.log").read_text()
    assert ada.post("/account/tokens/laptop/revoke", headers={"HX-Request": "true"}).status_code == 204
    assert "laptop" not in ada.get("/account").text


def test_the_page_offers_no_scope_that_is_refused(browser):
    page = browser("ada").get("/account").text
    assert re.findall(r'<input type="radio" name="scope" value="(\w+)"', page) == ["user", "read"]
    assert "New token" not in browser("ada", Scope.READ).get("/account").text


def test_others_tokens_are_not_on_the_page_nor_revoked_there(browser):
    ada, eve = browser("ada"), browser("eve")
    assert "eve-user-pages" not in ada.get("/account").text
    assert ada.post("/account/tokens/eve-user-pages/revoke").status_code == 404
    assert eve.get("/account").status_code == 200
    assert (
        ada.post("/account/tokens", data={"name": "x"}, headers={"Origin": "https://evil.example"}).status_code == 403
    )
