"""The usage of a session's containers over its life: as plots on its page, and by the API."""

import re
from dataclasses import replace

import pytest

from muster.core.usage.history import UsageStep
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.unit.running_sessions import running_session

EVEN = int(NOW // 3600 * 3600)


@pytest.fixture
def train(service):
    """Return a session of three containers that used CPU and memory, and no GPU, for four steps."""
    session = replace(running_session(1, "a1", owner="ada", name="train", cluster_size=3), generation=2)
    service.store.add([session])
    steps = [
        UsageStep(kernel.id, 2, session.id, EVEN + 15 * n, kernel.rank + n, 1, float(1 << 30), 1)
        for kernel in session.kernels
        for n in range(4)
    ]
    service.store.usage_steps.add(steps)
    return session


def test_the_page_has_a_line_for_each_container_and_its_numbers(browser, train):
    page = browser("ada").get(f"/sessions/{train.id}").text
    assert "Usage over its life" in page
    pictures = re.findall(r'role="img" aria-label="(\w+) of train over its life"', page)
    assert pictures == ["CPU", "Memory"]
    assert "Sub2: last 5 CPU, mean 3.5 CPU, most 5 CPU" in page
    assert "Main1: last 1 GiB" in page
    assert "Table of numbers: usage of train over its life" in page


def test_lines_of_several_runs_are_told_apart_by_their_number(browser, service, train):
    main = train.kernels[0]
    service.store.usage_steps.add([UsageStep(main.id, 7, train.id, EVEN + 600, 1.0, 1)])
    page = browser("ada").get(f"/sessions/{train.id}").text
    assert "Main1, run 1 of 2: last" in page
    assert "Main1, run 2 of 2: last" in page
    assert "run 7" not in page


def test_a_large_session_shows_some_of_its_containers_at_a_time(browser, service):
    session = replace(running_session(1, "a1", owner="ada", name="wide", cluster_size=8), generation=1)
    service.store.add([session])
    service.store.usage_steps.add([UsageStep(k.id, 1, session.id, EVEN, 1.0, 1) for k in session.kernels])
    ada = browser("ada")
    page = ada.get(f"/sessions/{session.id}").text
    assert "1 to 6 of 8" in page
    assert "CPU sub6" not in page
    part = ada.get(f"/sessions/{session.id}/usage?begin=6", headers={"HX-Request": "true"}).text
    assert "7 to 8 of 8" in part
    assert "CPU sub7" in part
    assert "<html" not in part


def test_the_api_has_the_points_and_others_do_not(caller, train):
    ada = caller("ada")
    items = ada.get("/api/v1/sessions/train/usage").json()["items"]
    assert [(item["kernel"], item["run"], len(item["points"])) for item in items] == [
        ("main1", 2, 4),
        ("sub1", 2, 4),
        ("sub2", 2, 4),
    ]
    assert items[1]["points"][1] | {"at": ""} == {"at": "", "cpu_cores": 2.0, "mem_bytes": float(1 << 30), "gpus": None}
    assert caller("eve").get(f"/api/v1/sessions/{train.id}/usage").status_code == 404


def test_a_session_that_was_never_observed_has_no_plots(browser, caller, service):
    service.store.add([make_session(2, owner="ada", name="waits")])
    assert caller("ada").get("/api/v1/sessions/waits/usage").json() == {"items": []}
    assert "Usage over its life" not in browser("ada").get("/sessions/waits").text
