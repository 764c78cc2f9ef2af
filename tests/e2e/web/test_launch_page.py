"""The launch page in a browser: it answers while one types, by keyboard and on a phone."""

import re

import pytest
from playwright.sync_api import expect

from tests.control_node import ControlNode
from tests.e2e.conftest import NewNode
from tests.e2e.web.conftest import serious_findings


@pytest.fixture(scope="module")
def node(new_node: NewNode) -> ControlNode:
    """Return a control node with a catalog."""
    preset = {"description": "four small containers", "spec": {"cluster_size": 4, "cpu": 0.25}}
    made = new_node(presets={"Sweep": preset})
    (made.directory / "images.yml").write_text("images:\n  - {name: default, reference: 'muster/default:latest'}\n")
    made.start_daemon()
    return made


@pytest.fixture
def page(visit):
    page = visit("ada")
    page.goto("/launch")
    return page


def test_the_preview_follows_typing_and_leaves_the_field_alone(page):
    line = page.locator("#answer-line")
    expect(line).to_contain_text("Starts now on localhost (main1)")
    memory = page.get_by_label("Memory", exact=True)
    memory.fill("much")
    expect(line).to_contain_text("Cannot be launched: Memory: 'much'")
    expect(page.locator("#problem-mem")).to_contain_text("write bytes such as 512M")
    expect(memory).to_have_attribute("aria-invalid", "true")
    expect(memory).to_be_focused()
    memory.fill("64M")
    expect(line).to_contain_text("Starts now")
    expect(page.locator("#problem-mem")).to_be_hidden()
    expect(memory).not_to_have_attribute("aria-invalid", "true")


def test_a_suggestion_fills_in_the_form(page):
    page.get_by_label("CPU", exact=True).fill("5000")
    answer = page.get_by_role("complementary", name="Preview")
    expect(answer).to_contain_text("Can never start: ")
    answer.get_by_role("button", name=re.compile(r"Apply \([\d.]+ CPU for each container")).click()
    expect(page.locator("#answer-line")).to_contain_text("Starts now")
    expect(page.get_by_label("CPU", exact=True)).not_to_have_value("5000")


def test_rows_are_added_and_removed_by_keyboard_and_the_text_is_copied(page):
    page.get_by_text("Environment and secrets").click()
    page.get_by_role("button", name="Add a variable").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("LANG")
    page.keyboard.press("Tab")
    page.keyboard.type("de DE")
    command = page.locator("#as-command")
    expect(command).to_have_text("muster submit --env 'LANG=de DE'")
    page.get_by_role("button", name="Copy the command line").click()
    expect(page.locator("#announcement")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "muster submit --env 'LANG=de DE'"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Remove this variable").last.press("Enter")
    expect(command).to_have_text("muster submit")
    expect(page.get_by_role("button", name="Add a variable")).to_be_focused()


def test_the_slider_and_its_number_agree(page):
    slider = page.get_by_label("Cluster size, slider")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Cluster size", exact=True)).to_have_value("3")
    expect(page.locator("#sum")).to_contain_text("3 containers")
    page.get_by_label("Cluster size", exact=True).fill("2")
    expect(slider).to_have_value("2")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_preset_of_the_site_fills_in_the_form(visit, width):
    page = visit("ada", width=width)
    page.goto("/launch")
    presets = page.get_by_role("navigation", name="Presets")
    expect(presets).to_contain_text("four small containers")
    presets.get_by_role("link", name="Sweep").click()
    expect(page.get_by_label("Cluster size", exact=True)).to_have_value("4")
    expect(page.get_by_label("CPU", exact=True)).to_have_value("0.25")
    expect(page.locator("#sum")).to_contain_text("4 containers")
    assert serious_findings(page) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_an_image_is_picked_and_a_mistyped_name_is_said_at_once(visit, width):
    page = visit("ada", width=width)
    page.goto("/launch")
    expect(page.get_by_label("Priority", exact=True)).to_be_hidden()
    page.get_by_text("Choose an image from the catalog").click()
    first = page.locator("#image-picker button").first
    name = first.inner_text()
    first.click()
    expect(page.get_by_label("Image", exact=True)).to_have_value(name)
    expect(page.locator("#as-command")).to_contain_text(name)
    page.get_by_label("Image", exact=True).fill("no-such-image:7")
    expect(page.locator("#verdict")).to_contain_text("no-such-image:7")
    page.get_by_label("Folder", exact=True).first.fill("dta")
    expect(page.locator("#problem-mounts")).to_contain_text("dta")
    assert serious_findings(page) == []
    # A problem in a folded section opens it.
    page.get_by_text("Place and time").click()
    page.get_by_label("Priority", exact=True).fill("much")
    expect(page.locator("#problem-priority")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_the_form_is_usable_on_a_phone_and_with_a_screen_reader(visit, dark):
    page = visit("ada", width=360, dark=dark)
    page.goto("/launch")
    page.get_by_text("Advanced").click()
    page.get_by_text("Load a session file").click()
    page.get_by_label("CPU", exact=True).fill("much")
    expect(page.locator("#problem-cpu")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious_findings(page) == []
    expect(page.get_by_role("button", name="Launch", exact=True)).to_be_in_viewport()
