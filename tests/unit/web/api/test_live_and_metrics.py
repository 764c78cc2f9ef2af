"""Live changes, numbers for Prometheus, and the dashboard that is made of them."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from muster.contract.report import UseSample, report_from_agent
from muster.core.agents.agent import Agent
from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError
from muster.service.sessions.live import LiveChanges
from muster.web.server import ServerOptions
from tests.reports import kernel_entry
from tests.simulated.hosts import host_of, report_of
from tests.strategies.agents import make_agent, observed
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW
from tests.unit.web.api.test_api import SESSIONS, SMALL

ROOT = Path(__file__).parents[4]
WITH_IMAGES = {
    **report_of("a2", gpus=2),
    "disk": {"path": "/var/lib/docker", "total_bytes": 10_000_000_000, "free_bytes": 3_000_000_000},
    "kernels": [
        kernel_entry(
            placed_on(make_session(2), "a2"),
            "main1",
            gpus=[
                {
                    **dict.fromkeys(
                        ("amount", "capacity", "mem_bytes", "compute", "used_bytes", "processes", "enforced_bytes")
                    ),
                    "uuid": "GPU-a2-0",
                }
            ],
            use={**dict.fromkeys(UseSample.model_fields), "at": 1.0, "gpu_percent": 40.0},
        )
    ],
    "images": [
        {"id": "sha256:1", "tags": ["a:1"], "size_bytes": 2_000_000_000},
        {"id": "sha256:2", "tags": [], "size_bytes": 3_000_000_000},
    ],
}


def events_of(lines):
    """Yield each event as its number and its data."""
    number = None
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        if line.startswith("data: "):
            yield number, json.loads(line[6:])


@pytest.fixture
def client(server, secret_of):
    def make(user):
        headers = {"Authorization": f"Bearer {secret_of(user)}"}
        return httpx.Client(base_url=server, headers=headers, timeout=30)

    return make


def test_a_subscriber_receives_changes_of_its_users_sessions_and_of_no_others(client):
    ada, eve = client("ada"), client("eve")
    with ada.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(": since ")
        eve.post(SESSIONS, json={**SMALL, "name": "hers"})
        ada.post(SESSIONS, json={**SMALL, "name": "mine"})
        ada.delete(f"{SESSIONS}/mine")
        events = events_of(lines)
        first = [next(events) for _ in range(2)]
    assert [(event["session"]["name"], event["to"]) for _, event in first] == [
        ("mine", "PENDING"),
        ("mine", "CANCELLED"),
    ]
    with ada.stream("GET", "/api/v1/events", headers={"Last-Event-ID": str(first[0][0])}) as stream:
        missed = next(events_of(stream.iter_lines()))
    assert missed[0] == first[1][0]


def test_the_store_is_not_read_without_subscribers(service):
    live = LiveChanges(service.store)
    received = []
    with live.running():
        service.service.commands.submit(SMALL, "ada")
        assert live.add(received.append, None) == service.store.last_event()
        live.remove(received.append)
    assert received == []


@pytest.fixture
def prometheus(app):
    return TestClient(app, client=("127.0.0.1", 50000))


def measured(client):
    text = client.get("/metrics").text
    return dict(re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))


def test_metrics_count_the_queue_the_sessions_and_the_slots(caller, service, prometheus):
    service.store.agents.save([make_agent("a1")])
    ada = caller("ada")
    ada.post(SESSIONS, json={**SMALL, "name": "train"})
    service.store.add_to_counters({"pass-le-0.1": 2, "pass-us": 150_000})
    samples = measured(prometheus)
    assert samples['muster_queue_length{group="default"}'] == "1.0"
    assert 0 <= float(samples['muster_queue_oldest_wait_seconds{group="default"}']) < 500
    assert samples['muster_sessions{state="PENDING"}'] == "1.0"
    assert samples['muster_agents{group="default",state="ALIVE"}'] == "1.0"
    assert float(samples['muster_slots{group="default",slot="cpu"}']) > 0
    assert samples['muster_slots_used{group="default",slot="cpu"}'] == "0.0"
    service.store.add([make_session(1, submitted_at=time.time() - 1000)])
    assert 1000 <= float(measured(prometheus)['muster_queue_oldest_wait_seconds{group="default"}']) < 1500
    assert samples["muster_submitted_total"] == "1.0"
    assert samples["muster_pass_duration_seconds_count"] == "2.0"
    assert samples['muster_pass_duration_seconds_bucket{le="0.03"}'] == "0.0"
    assert samples["muster_pass_duration_seconds_sum"] == "0.15"
    ada.delete(f"{SESSIONS}/train")
    ada.post(SESSIONS, json={**SMALL, "name": "again"})
    assert measured(prometheus)["muster_submitted_total"] == "3.0"


def test_users_make_no_series_by_naming_groups(caller, service, prometheus):
    ada = caller("ada")
    for number in range(3):
        # No agent has reported yet: the groups are not known.
        made = ada.post(SESSIONS, json={**SMALL, "name": f"s{number}", "resource_group": f"made-up-{number}"})
        assert made.status_code == 201
    samples = measured(prometheus)
    assert {name for name in samples if "queue_length" in name} == {'muster_queue_length{group="(none)"}'}
    assert samples['muster_queue_length{group="(none)"}'] == "3.0"
    service.store.agents.save([make_agent("a1", resource_group="made-up-1")])
    samples = measured(prometheus)
    assert samples['muster_queue_length{group="(none)"}'] == "2.0"
    assert samples['muster_queue_length{group="made-up-1"}'] == "1.0"


def with_sick_gpus() -> Agent:
    """Return an agent with a GPU in quarantine, one with a warning and a healthy one."""
    report, inventory = host_of("a1", gpus=3)
    report["gpu_health"][0] |= {"xids": [{"number": 79, "sequence": 3}], "recovery": "reset"}
    report["gpu_health"][1]["throttled"] = ["heat"]
    return observed("a1", report, inventory)


def test_metrics_name_sick_gpus_and_the_symptoms(service, prometheus):
    service.store.agents.save([with_sick_gpus()])
    sick = {name: value for name, value in measured(prometheus).items() if name.startswith("muster_gpu_")}
    assert sick == {
        'muster_gpu_quarantined{agent="a1",gpu="GPU-a1-0",symptom="recovery"}': "1.0",
        'muster_gpu_quarantined{agent="a1",gpu="GPU-a1-0",symptom="xid-79"}': "1.0",
        'muster_gpu_warning{agent="a1",gpu="GPU-a1-1"}': "1.0",
    }


def test_metrics_tell_of_launches_hosts_and_requests(caller, service, prometheus):
    busy = replace(make_agent("a2", gpus=2), report=report_from_agent(WITH_IMAGES))
    service.store.agents.save([make_agent("a1"), busy])
    measured(prometheus)  # launches are counted from here on
    session = placed_on(make_session(1), "a1", state=SessionState.PENDING)
    service.store.add([session])
    for number, state in enumerate((SessionState.SCHEDULED, SessionState.PREPARING, SessionState.RUNNING)):
        service.store.apply([transition(session, state, "on", NOW + 4 * number)])
        session = replace(session, state=state)
    caller("ada").get("/api/v1/sessions/nosuch")
    samples = measured(prometheus)
    assert samples["muster_launch_duration_seconds_count"] == "1.0"
    assert samples["muster_launch_duration_seconds_sum"] == "8.0"
    assert samples['muster_launch_duration_seconds_bucket{le="5.0"}'] == "0.0"
    assert samples['muster_launch_duration_seconds_bucket{le="10.0"}'] == "1.0"
    assert measured(prometheus)["muster_launch_duration_seconds_count"] == "1.0"
    assert samples['muster_agent_gpus{agent="a2"}'] == "2.0"
    assert samples['muster_agent_gpus_used{agent="a2"}'] == "0.4"
    assert samples['muster_agent_disk_free_bytes{agent="a2"}'] == "3e+09"
    assert samples['muster_agent_image_bytes{agent="a2"}'] == "5e+09"
    assert samples['muster_http_requests_total{method="GET",status="404"}'] == "1.0"
    assert samples['muster_http_requests_total{method="GET",status="200"}'] == "1.0"
    assert samples["muster_http_request_duration_seconds_count"] == "2.0"
    assert samples["muster_queue_unworked"] == "0.0"
    prometheus.request("MADEUP", "/metrics")
    assert measured(prometheus)['muster_http_requests_total{method="other",status="405"}'] == "1.0"


def dashboards_queries() -> list[str]:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "muster.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_metrics_that_there_are_and_for_all_of_them(service, prometheus):
    service.store.agents.save([with_sick_gpus()])
    named = {name.partition("{")[0] for name in measured(prometheus)}
    in_dashboards = {name for query in dashboards_queries() for name in re.findall(r"\bmuster_[a-z_]+", query)}
    assert in_dashboards
    assert in_dashboards <= named
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in named if name.startswith("muster_")}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in in_dashboards} == families


@pytest.fixture(scope="module")
def promtool() -> Callable[..., None]:
    """Return a function that has Prometheus' own linter check something, and find nothing."""
    program = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.prefix, "promtool"))
    assert program, "there is no promtool; `./dev unit` fetches it"

    def check(*arguments: str, text: str = "") -> None:
        done = subprocess.run([program, "check", *arguments], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout

    return check


def test_prometheus_own_linter_finds_nothing_in_the_metrics(service, prometheus, promtool):
    service.store.agents.save([with_sick_gpus()])
    measured(prometheus)
    text = prometheus.get("/metrics").text
    assert "muster_gpu_quarantined{" in text
    promtool("metrics", text=text)


def test_prometheus_understands_the_dashboards_queries(promtool, tmp_path):
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(dashboards_queries())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("rules", str(file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ServerOptions("0.0.0.0", 80), "--host: 0.0.0.0 can be reached"),
        (ServerOptions("muster.example", 80), "--host: "),
        (ServerOptions("127.0.0.1", 80, tls_cert=ROOT / "README.md"), "--tls-cert: "),
        (ServerOptions("127.0.0.1", 80, ROOT / "nosuch", ROOT / "README.md"), "--tls-cert: .*nosuch is no file"),
    ],
)
def test_the_server_does_not_listen_where_tokens_would_travel_unprotected(options, message):
    with pytest.raises(BadInputError, match=message):
        options.check()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_the_server_listens_on_this_machine_without_options(host):
    ServerOptions(host, 8080).check()
    ServerOptions("0.0.0.0", 8080, insecure=True).check()
    ServerOptions("0.0.0.0", 8080, ROOT / "README.md", ROOT / "README.md").check()
