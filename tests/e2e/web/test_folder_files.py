"""The files of a folder in a real browser: uploaded, looked at, downloaded, renamed, removed."""

import base64
import re
import secrets
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from muster.core.agents.agent_connection import AgentConnection
from muster.store.store import Store
from tests.control_node import ControlNode
from tests.e2e.web.conftest import serious_findings
from tests.strategies.agents import make_agent
from tests.waiting import eventually

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>document.title = "taken over"</script></svg>'


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return a control node that is its own agent. Nobody works its queue: folders need no engine."""
    made = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}", {"unworked_after_s": 1e9})
    made.run("ls")
    store = Store(f"sqlite:///{made.directory / 'state' / 'muster.db'}")
    store.agents.save([replace(make_agent("localhost"), connection=AgentConnection(connection="local"))])
    store.close()
    yield made
    made.remove_traces()


def checked(page, width):
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)])
def test_files_are_uploaded_looked_at_renamed_and_removed(visit, server, width, dark):
    name = f"files-{width}-{'dark' if dark else 'light'}"
    server.node.run("folder", "create", name, "--owner", "ada")
    page = visit("ada", width=width, dark=dark)
    page.goto(f"/folders/ada/{name}")
    expect(page.get_by_text("in 0 files")).to_be_visible()
    page.get_by_role("link", name="Files", exact=True).click()
    expect(page.get_by_text("Nothing is here.")).to_be_visible()
    page.get_by_label("Files", exact=True).set_input_files(
        [
            {"name": "loss & more.csv", "mimeType": "text/csv", "buffer": b"step,loss\n1,<b>0.5</b>\n"},
            {"name": "plot.png", "mimeType": "image/png", "buffer": PIXEL},
            {"name": "drawing.svg", "mimeType": "image/svg+xml", "buffer": SVG},
        ]
    )
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("drawing.svg: uploaded")).to_be_visible()
    expect(page.get_by_role("link", name="loss & more.csv")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("results")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("link", name="results/")).to_be_visible()
    checked(page, width)

    page.get_by_role("link", name="loss & more.csv").click()
    expect(page.get_by_role("region", name="Text of loss & more.csv")).to_contain_text("<b>0.5</b>")
    checked(page, width)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    assert downloading.value.suggested_filename == "loss & more.csv"
    assert downloading.value.path().read_bytes() == b"step,loss\n1,<b>0.5</b>\n"
    page.get_by_text("Rename or move").click()
    page.get_by_label("New path in the folder").fill("results/loss.csv")
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("heading", name="loss.csv").wait_for()
    page.get_by_role("navigation", name="Path").get_by_role("link", name="results").click()
    expect(page.get_by_role("link", name="loss.csv")).to_be_visible()

    page.get_by_role("link", name=name).click()
    page.get_by_role("link", name="Files", exact=True).click()
    page.get_by_role("link", name="plot.png").click()
    picture = page.get_by_role("img", name="plot.png")
    expect(picture).to_be_visible()
    assert picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 1
    checked(page, width)
    page.get_by_role("link", name="Files", exact=True).click()
    page.get_by_role("link", name="drawing.svg").click()
    expect(page.get_by_role("region", name="Text of drawing.svg")).to_contain_text("taken over")
    assert "taken over" not in page.title()
    page.get_by_role("link", name="Files", exact=True).click()
    page.get_by_role("link", name="results/").click()
    page.get_by_role("button", name="Remove").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_role("link", name="results/")).to_have_count(0)
    expect(page.get_by_role("link", name="plot.png")).to_be_visible()
    server.node.run("folder", "rm", name, "--owner", "ada", "--yes")


@pytest.mark.parametrize("width", [390, 1280])
def test_an_administrator_sets_a_quota_and_all_see_sizes_without_a_click(visit, server, width):
    name = f"limited-{width}"
    server.node.run("folder", "create", name, "--owner", "ada")
    page = visit("root", "admin", width=width)
    page.goto(f"/folders/ada/{name}")
    page.get_by_label("Largest size").fill("2G")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_text(f"{name} may hold 2 GiB")).to_be_visible()
    log = server.node.directory / "state" / "audit.log"
    path = f"/folders/ada/{name}/quota?quota_bytes={2 << 30}"
    eventually(log.read_text, lambda text: f'"path": "{path}"' in text)
    ada = visit("ada", width=width)
    ada.goto("/folders")
    row = ada.get_by_role("row", name=name)
    expect(row.locator('[data-label="Size"]')).to_contain_text(re.compile(r"\d (B|KiB)"))
    expect(row.locator('[data-label="Quota"]')).to_contain_text("2 GiB")
    checked(ada, width)
    server.node.run("folder", "rm", name, "--owner", "ada", "--yes")
