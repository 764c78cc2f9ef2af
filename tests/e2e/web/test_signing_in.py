"""Signing in by a token or by a real OpenID Connect provider, in a real browser at both widths, light and dark."""

import secrets

import pytest
from playwright.sync_api import Page, expect

from muster.oidc_settings import CALLBACK
from tests.control_node import ControlNode
from tests.e2e.web.conftest import serious_findings
from tests.servers.oidc_provider import CLIENT, SECRET, Person, running_provider, signing_key
from tests.servers.web_server import free_port, web_server
from tests.waiting import PATIENCE_S

WIDTHS = (390, 1280)
ADA, EVE = Person("ada", ("researchers",)), Person("eve")


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory, port):
    redirect_uri = f"http://127.0.0.1:{port}{CALLBACK}"
    directory = tmp_path_factory.mktemp("provider")
    with running_provider(directory, free_port(), (ADA, EVE), redirect_uri, [signing_key()]) as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory, issuer, port):
    secret = tmp_path_factory.mktemp("secret") / "client_secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    oidc = {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret_file": str(secret),
        "public_url": f"http://127.0.0.1:{port}",
        "name": "Example Login",
        "scopes": ["openid", "profile", "groups"],
        "allowed_groups": ["researchers"],
    }
    settings = {"unworked_after_s": 1e9, "web": {"oidc": oidc}}
    made = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}", settings)
    made.run("ls")
    yield made
    made.remove_traces()


@pytest.fixture(scope="module")
def server(node, port, tmp_path_factory):
    with web_server(node, tmp_path_factory.mktemp("web"), port=port) as made:
        yield made


@pytest.fixture
def visitor(chromium, server):
    """Yield a function that opens a page of somebody who has not signed in."""
    contexts = []

    def make(*, width: int, dark: bool = False) -> Page:
        context = chromium.new_context(
            base_url=server.url, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(1000 * PATIENCE_S)
        contexts.append(context)
        return context.new_page()

    yield make
    for context in contexts:
        context.close()


def sign_in_at_the_provider(page: Page, person: Person) -> None:
    page.locator("input[name=login]").fill(person.name)
    page.locator("input[name=login]").press("Enter")
    page.locator("input[name=password]").fill(person.password)
    page.locator("input[name=password]").press("Enter")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_the_way_in_keeps_nobody_out(visitor, width, dark):
    page = visitor(width=width, dark=dark)
    page.goto("/account")
    expect(page.get_by_role("link", name="Sign in with Example Login")).to_be_in_viewport(ratio=1)
    assert serious_findings(page) == []
    page.get_by_label("Token").fill("muster_wrong")
    page.get_by_role("button", name="Sign in with a token").click()
    expect(page.get_by_role("alert").filter(has_text="token")).to_be_visible()
    assert serious_findings(page) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_provider_signs_in_and_leads_back_to_the_page(visitor, width):
    page = visitor(width=width)
    page.goto("/account")
    page.get_by_role("link", name="Sign in with Example Login").click()
    sign_in_at_the_provider(page, ADA)
    expect(page.get_by_role("heading", name="Account")).to_be_visible()
    expect(page.get_by_text("oidc:ada").first).to_be_visible()
    assert serious_findings(page) == []
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_who_may_not_is_told_why(visitor):
    page = visitor(width=390)
    page.goto("/overview")
    page.get_by_role("link", name="Sign in with Example Login").click()
    sign_in_at_the_provider(page, EVE)
    expect(page.get_by_role("alert").filter(has_text="eve")).to_be_visible()
    expect(page.get_by_role("link", name="Sign in with Example Login")).to_be_visible()
    assert serious_findings(page) == []
