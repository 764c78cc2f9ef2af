"""The words of the pages: plain English, without commands, flags and metavariables in sentences."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import muster.web
from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.reasons import behind
from muster.web.words import beside_label, plain_words, wait_label
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.api.test_api import SESSIONS, SMALL
from tests.unit.web.pages.test_launch_page import words_of

TEMPLATES = Path(muster.web.__file__).parent / "templates"
PAGES = (
    *("/overview", "/sessions", "/launch", "/queue", "/resources", "/reservations", "/limits", "/usage", "/folders"),
    *("/images", "/account", "/sessions/mine", "/resources/a1"),
)
# What is meant to be copied into a terminal or a file, and values that the session file has too.
_CODE = re.compile(r"<(pre|code|option)\b.*?</\1>", re.DOTALL)
_COMMAND_LINE = re.compile(r"(?<![\w-])--[a-z]|\b(?:NAME|OWNER|VALUE|COMMAND|PORT|USER)\b|\bkernels?\b(?!”)|`")


@pytest.mark.parametrize("path", PAGES)
def test_no_sentence_of_a_page_is_worded_like_the_command_line(browser, caller, service, path):
    service.store.agents.save([make_agent()])
    assert caller("ada").post(SESSIONS, json={**SMALL, "name": "mine", "cpu": 999}).status_code == 201
    shown = browser("ada", Scope.ADMIN).get(path)
    assert shown.status_code == 200
    assert _COMMAND_LINE.findall(words_of(_CODE.sub("", shown.text))) == []


@pytest.mark.parametrize(
    "path",
    ["", "/use", "/more", "/rename", "/extend", "/commit", "/terminal?kernel=main1", "/kernels/main1/log-dialog"],
)
def test_no_sentence_of_a_running_session_is_worded_like_the_command_line(browser, service, path):
    spec = make_session(1, command="train", time_limit="1h", signal="USR1@120").spec
    running = replace(placed_on(make_session(1), "a1", state=SessionState.RUNNING), spec=spec)
    kernel = replace(running.main, container_state="running", container_id="c1")
    service.store.add([replace(running, kernels=(kernel,))])
    shown = browser("ada").get(f"/sessions/{running.id}{path}")
    assert shown.status_code == 200
    assert _COMMAND_LINE.findall(words_of(_CODE.sub("", shown.text))) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("there is no agent a9; see `muster agents`", "there is no agent a9"),
        ("--quota: 3 bytes are too few; write 1M or more", "quota: 3 bytes are too few; write 1M or more"),
        ("it is made; choose another name, or `muster folder rm x`", "it is made; choose another name"),
        ("NAME: 'a b' is no name; write letters", "name: 'a b' is no name; write letters"),
        ("NEW: 'a b' is no name; write letters", "name: 'a b' is no name; write letters"),
        ("NAME:TAG: 'a' has no tag; write one", "name: 'a' has no tag; write one"),
        ("ada has no secret 'x'; set it with `muster secret set x`", "ada has no secret 'x'; set it"),
        ("a -- b: the user wrote --this", "a -- b: the user wrote --this"),
    ],
)
def test_a_message_is_shown_without_its_commands_and_flags(message, words):
    assert plain_words(message) == words


def test_every_wait_has_a_label_of_a_few_words():
    labels = [wait_label(Wait(code, "")) for code in WaitCode]
    assert len(set(labels)) == len(WaitCode)
    assert all("-" not in label and len(label) < 20 for label in labels)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (None, "the scheduler starts it next"),
        (Wait(WaitCode.HELD, "held by ada"), "by ada"),
        (Wait(WaitCode.BUSY, "too little is free now; agent a1 lacks 2 GPU"), "agent a1 lacks 2 GPU"),
        (Wait(WaitCode.BUSY, "no agent of group gpu takes sessions now"), "no agent of group gpu takes sessions now"),
        (Wait(WaitCode.BEGIN, "does not start before 12:00"), "not before 12:00"),
        (Wait(WaitCode.DEPENDENCY, "starts after train ends"), "after train ends"),
        (Wait(WaitCode.WINDOW, "agents are closed to it: 2 for maintenance"), "2 for maintenance"),
    ],
)
def test_what_stands_beside_a_label_does_not_say_it_again(wait, words):
    assert beside_label(wait) == words
    repeated = {*wait_label(wait).split()} & {*words.split()}
    assert not repeated


@pytest.mark.parametrize("delays", [False, True])
def test_a_launch_that_waits_says_so_once(delays):
    assert not behind(make_session(1), delays=delays).message.startswith("wait")


@pytest.mark.parametrize(
    ("said", "once_said"),
    [
        (">Result<", "What becomes of it"),
        (">Total resources<", "What it adds up to"),
        (">As command / YAML<", "The same as text"),
        (">History<", "What happened"),
        (">Actions<", "Reach it"),
        (">Description<", "What it is"),
        (">Group by<", "A line for each"),
        ("Ask an administrator", "Whoever keeps the control node"),
        (">Cancel<", ">Keep<"),
        ("containers", "kernels run"),
    ],
)
def test_pages_call_things_by_their_plain_names(said, once_said):
    pages = "".join(template.read_text() for template in TEMPLATES.glob("*.html"))
    assert said in pages
    assert once_said not in pages
