"""What the server tells when nobody works the queue: readiness, metrics, API, pages."""

import re
import time
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from muster.core.model.heartbeat import Heartbeat, Worker
from muster.core.model.token import Scope
from muster.service.service import Service
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.unit.web.conftest import ServedNode

DRY_RUN = "/api/v1/sessions/dry-run"
SMALL = {"cpu": 0.1, "mem": "64M", "shm": "16M"}


@pytest.fixture
def service(service):
    """Return the service with the limit that a site has."""
    settings = service.settings.model_copy(update={"unworked_after_s": None})
    assert settings.unworked_limit_s == 180
    return ServedNode(service.store, settings, Service(service.store, settings))


@pytest.fixture
def beat(service):
    def write(ago_s):
        service.store.heartbeats.save(Heartbeat(time.time() - ago_s, Worker.DAEMON, "ctl-1", 7))

    service.store.add([replace(make_session(1), submitted_at=time.time())])
    write(0)
    return write


def test_readiness_fails_with_the_reason_and_comes_back(app, beat):
    client = TestClient(app)
    assert client.get("/readyz").status_code == 200
    beat(1025)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["status"].startswith("nobody has worked the queue for 17m5s (last: the daemon on ctl-1)")
    beat(1)
    assert client.get("/readyz").json() == {"status": "ok"}


def test_metrics_tell_when_the_queue_was_worked_and_count_no_stale_agent_as_alive(app, beat, service):
    client = TestClient(app, client=("127.0.0.1", 50000))
    service.store.agents.save([replace(make_agent("a1"), observed_at=time.time() - 1020)])
    beat(1025)
    samples = dict(re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", client.get("/metrics").text, re.MULTILINE))
    assert 1000 < time.time() - float(samples["muster_last_pass_timestamp_seconds"]) < 1100
    assert samples['muster_agents{group="default",state="ALIVE"}'] == "0.0"
    assert samples['muster_agents{group="default",state="STALE"}'] == "1.0"


def test_a_queue_that_was_never_worked_has_the_timestamp_zero(app):
    assert "muster_last_pass_timestamp_seconds 0.0" in TestClient(app, client=("::1", 50000)).get("/metrics").text


def test_the_api_says_for_how_long_and_promises_no_start(caller, beat, service):
    service.store.agents.save([replace(make_agent("a1"), observed_at=time.time())])
    ada = caller("ada")
    assert ada.get("/api/v1/queue/heartbeat").json() == {"unworked": None, "unworked_for_s": None}
    (item,) = ada.post(DRY_RUN, json=SMALL).json()["items"]
    assert item["starts_now"] is True
    beat(1025)
    found = ada.get("/api/v1/queue/heartbeat").json()
    assert found["unworked"].startswith("nobody has worked the queue for 17m")
    assert 1025 <= found["unworked_for_s"] < 1100
    forecast = ada.post(DRY_RUN, json=SMALL).json()
    assert forecast["unworked"].startswith("nobody has worked the queue")
    assert forecast["items"][0]["starts_now"] is False


@pytest.mark.parametrize("path", ["/sessions", "/queue", "/resources", "/launch", "/usage", "/folders", "/images"])
def test_each_page_has_a_banner_that_goes_by_itself(browser, beat, path):
    ada = browser("ada")
    assert "has worked the queue" not in ada.get(path).text
    beat(1025)
    page = ada.get(path).text
    assert "Nobody has worked the queue for 17m" in page
    assert 'hx-get="/queue/heartbeat"' in page
    beat(0)
    part = ada.get("/queue/heartbeat", headers={"HX-Request": "true"})
    assert (part.status_code, part.text.strip()) == (200, "")


def test_the_pages_show_a_stale_agent_and_promise_no_start(browser, beat, service):
    service.store.agents.save([replace(make_agent("a1"), observed_at=time.time() - 1020)])
    beat(1025)
    admin = browser("root", Scope.ADMIN)
    page = admin.get("/resources").text
    assert 'data-state="STALE"' in page
    assert 'data-state="ALIVE"' not in page
    assert "unknown, since nobody works the queue" in admin.get("/queue").text
    admin_preview = admin.post("/launch/preview", data={"cpu": "0.1", "mem": "64M", "shm": "16M", "csrf": admin.csrf})
    assert "Waits: nobody has worked the queue" in admin_preview.text
