"""What administrators change in a real browser, at both widths, light and dark: a cluster in the database alone."""

import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

import pytest
from playwright.sync_api import Page, expect

from muster.store.store import Store
from tests.control_node import ControlNode
from tests.e2e.web.conftest import serious_findings
from tests.strategies.agents import make_agent
from tests.waiting import eventually

WIDTHS = (390, 1280)
PAGES = ("/account", "/reservations", "/limits")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return a control node whose queue nobody works, with two agents that exist in its database alone."""
    limits = {"users": {"ada": {"running": {"gpu": 4}}}}
    settings = {"unworked_after_s": 1e9, "limits": limits, "shares": {"ada": 2}}
    made = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}", settings)
    made.run("ls")
    with closing(store_of(made)) as store:
        store.agents.save([make_agent(f"agent-{n}", cpus=16) for n in (1, 2)])
    yield made
    made.remove_traces()


def store_of(node: ControlNode) -> Store:
    return Store(f"sqlite:///{node.directory / 'state' / 'muster.db'}")


def audits(node: ControlNode, changes: Collection[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return how often the audit log has each of these changes."""
    log = node.directory / "state" / "audit.log"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return Counter(change for one in records if (change := (one["method"], one["path"])) in changes)


@contextmanager
def each_audited(node: ControlNode, *changes: tuple[str, str]) -> Iterator[None]:
    """Hold that the audit log gets each of these changes as often as it is named: its lines come after answers."""
    expected = audits(node, changes) + Counter(changes)
    yield
    assert eventually(lambda: audits(node, changes), lambda counted: counted >= expected) == expected


def confirm(page: Page) -> None:
    page.locator("#confirm-yes").click()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_these_pages_keep_nobody_out(visit, width, dark):
    page = visit("root", "admin", width=width, dark=dark)
    for path in PAGES:
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        assert serious_findings(page) == [], path


@pytest.mark.parametrize("width", WIDTHS)
def test_a_limit_is_set_over_that_of_the_settings_and_removed(visit, node, width):
    set_it = ("POST", "/limits?kind=user&name=ada&running.gpu=8&pending.sessions=100")
    changes = set_it, ("POST", "/limits/user/ada/unset")
    with each_audited(node, *changes):
        page = visit("root", "admin", width=width)
        page.goto("/resources")
        page.get_by_role("link", name="Limits", exact=True).click()
        row = page.get_by_role("row", name="user ada")
        expect(row).to_contain_text("4 GPU")
        row.get_by_role("link", name="Change the limit of user ada").click()
        running = page.get_by_role("group", name="Running at a time")
        expect(running.get_by_label("GPU", exact=True)).to_have_value("4")
        running.get_by_label("GPU", exact=True).fill("many")
        page.get_by_role("button", name="Set limit").click()
        expect(page.get_by_role("alert")).to_contain_text("Running at a time, GPU: 'many' is not a whole number")
        running.get_by_label("GPU", exact=True).fill("8")
        page.get_by_role("group", name="Waiting at a time").get_by_label("Sessions").fill("100")
        page.get_by_role("button", name="Set limit").click()
        expect(page.get_by_text("User ada: running 8 GPU; waiting 100 sessions")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()
        expect(row).to_contain_text("set by root")
        expect(row).to_contain_text("running 4 GPU; waiting any")
        row.get_by_role("button", name="Remove the limit of user ada").click()
        confirm(page)
        expect(row).to_contain_text("settings file")
        expect(row).not_to_contain_text("8 GPU")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_share_weight_is_set_and_removed(visit, node, width):
    changes = ("POST", "/share-weights?user=bob&weight=0.5"), ("POST", "/share-weights/bob/unset")
    with each_audited(node, *changes):
        page = visit("root", "admin", width=width)
        page.goto("/limits")
        page.get_by_label("User", exact=True).fill("bob")
        page.get_by_label("Weight", exact=True).fill("0.5")
        page.get_by_role("button", name="Set weight").click()
        row = page.get_by_role("row", name="bob")
        expect(row).to_contain_text("0.5")
        with closing(store_of(node)) as store:
            assert [(one.owner, one.weight) for one in store.overrides.all().weights] == [("bob", 0.5)]
        row.get_by_role("button", name="Remove the share weight of bob").click()
        confirm(page)
        expect(row).to_have_count(0)
        expect(page.get_by_role("row", name="ada").last).to_contain_text("settings file")


@pytest.mark.parametrize("width", WIDTHS)
def test_agents_are_reserved_and_given_back(visit, node, width):
    reserve = ("POST", "/reservations?name=disks")
    changes = reserve, reserve, ("POST", "/reservations/disks/remove")  # the first is refused
    with each_audited(node, *changes):
        page = visit("root", "admin", width=width)
        page.goto("/reservations")
        expect(page.get_by_text("Nothing is reserved.")).to_be_visible()
        for label, text in (("Name", "disks"), ("End", "yesterday"), ("Agents", "agent-1"), ("Reason", "new disks")):
            page.get_by_label(label, exact=True).fill(text)
        page.get_by_role("button", name="Reserve").click()
        expect(page.get_by_role("alert")).to_contain_text("write 2026-11-22T08:00, 08:00 or +2h")
        page.get_by_label("End", exact=True).fill("+2h")
        page.get_by_role("button", name="Reserve").click()
        row = page.get_by_role("row", name="disks")
        expect(row).to_contain_text("active")
        expect(row).to_contain_text("nobody (maintenance)")
        with closing(store_of(node)) as store:
            assert [one.agents for one in store.reservations.all()] == [{"agent-1"}]
        row.get_by_role("button", name="Take back disks").click()
        confirm(page)
        expect(page.get_by_text("Nothing is reserved.")).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_user_makes_a_token_sees_it_once_and_revokes_it(visit, server, width):
    page = visit("ada", width=width)
    page.goto("/account")
    name = f"laptop-{width}"
    page.get_by_label("Name", exact=True).fill(name)
    rights = page.get_by_role("group", name="Rights")
    for text in (
        "sees and changes your own sessions and folders",
        "sees your own sessions and folders, and changes nothing",
    ):
        # In full, also on a phone.
        expect(rights.get_by_text(text)).to_be_visible()
        box = rights.get_by_text(text).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    rights.get_by_role("radio", name="read").check()
    page.get_by_role("button", name="Create").click()
    secret = page.locator("#made-secret").inner_text()
    with server.client(secret) as client:
        assert client.get("/sessions").status_code == 200
        assert serious_findings(page) == []
        page.reload()
        expect(page.locator("#made-secret")).to_have_count(0)
        row = page.get_by_role("row", name=name)
        expect(row).to_contain_text("read")
        row.get_by_role("button", name=f"Revoke {name}").click()
        confirm(page)
        expect(row).to_have_count(0)
        assert client.get("/sessions").status_code == 401


@pytest.mark.parametrize("width", WIDTHS)
def test_a_preset_is_saved_begun_with_and_removed(visit, width):
    page = visit("ada", width=width)
    page.goto("/launch")
    page.get_by_label("CPU", exact=True).fill("3")
    page.get_by_label("Name of the preset").fill("three cores")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Preset three cores is saved.")).to_be_visible()
    expect(page.get_by_label("CPU", exact=True)).to_have_value("3")
    assert serious_findings(page) == []
    page.goto("/launch")
    expect(page.get_by_label("CPU", exact=True)).not_to_have_value("3")
    presets = page.get_by_role("navigation", name="Presets")
    presets.get_by_role("link", name="three cores").click()
    expect(page.get_by_label("CPU", exact=True)).to_have_value("3")
    presets.get_by_role("button", name="Remove three cores").click()
    confirm(page)
    expect(presets).to_have_count(0)
