"""The pages of agents: free capacity, shares of GPUs, usage over time; no user sees others' sessions."""

import html
import re
import time
from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.agents.launch_record import LaunchRecord
from muster.core.model.agent_sample import AgentSample, Amount
from muster.core.model.session import Allocation, GpuShare
from muster.core.model.token import Scope
from tests.simulated.hosts import host_of
from tests.strategies.agents import make_agent, observed, reporting
from tests.strategies.sessions import make_session, placed_on

NASTY = '"><script>alert(1)</script>'
GIB = 1 << 30
NONE = Amount(0, 0, 0.0)


def plain(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def on_gpu(number, owner, name, amount, **values):
    """Return a session with a share of the first GPU of a1."""
    session = placed_on(make_session(number, name=name, **values), "a1")
    allocation = Allocation("a1", (GpuShare("GPU-a1-0", amount, whole=False),))
    return replace(session, owner=owner, kernels=(replace(session.kernels[0], allocation=allocation),))


@pytest.fixture
def shared_gpu(service):
    """Share a GPU of two units: another user has a half, and ada a quarter."""
    agent = make_agent("a1", gpus=1, units_per_gpu=2, rack="r7", labels={"disk": "ssd"})
    service.store.agents.save([agent])
    service.store.add([on_gpu(1, "ada", "mine", 500), on_gpu(2, "somebody-else", "private-work", 1000)])
    return agent


def sampled(service, agent_id="a1", group="default", **amounts):
    now = time.time()
    given = {"cpu": Amount(8000, 4000, 1500.0), "mem": NONE, "gpu": NONE, "gpu_mem": NONE, **amounts}
    service.store.samples.add([AgentSample(agent_id, group, now - 60 * n, given) for n in range(3)])


@pytest.mark.usefixtures("shared_gpu")
@pytest.mark.parametrize("path", ["/resources", "/resources/a1", "/resources?group=default&span=week"])
def test_only_the_amounts_of_others_sessions_are_shown(browser, path):
    ada = browser("ada").get(path)
    assert ada.status_code == 200
    assert "mine" in ada.text
    for secret in ("private-work", "somebody-else", make_session(2).id, make_session(2).kernels[0].id):
        assert secret not in ada.text
    assert "1 container of other users" in plain(ada.text)
    assert "another user: 1 fGPU" in plain(ada.text)
    assert "private-work" in browser("root", Scope.ADMIN).get(path).text
    assert "mine" not in browser("bob").get(path).text


@pytest.mark.usefixtures("shared_gpu")
def test_a_gpu_is_drawn_to_scale(browser):
    text = browser("ada").get("/resources/a1").text
    picture = re.search(r'<svg class="gpu".*?</svg>', text, re.DOTALL)[0]
    shares = re.findall(r'class="gpu-share gpu-share-(\w+)" x="([\d.]+)" y="1" width="([\d.]+)"', picture)
    whole = float(re.search(r'class="gpu-free" x="1.0" y="1" width="([\d.]+)"', picture)[1]) + 2
    parts = {kind: (float(width) + 2) / whole for kind, _, width in shares}
    assert parts == pytest.approx({"1": 0.25, "other": 0.5})
    assert sorted(float(x) - 1 for _, x, _ in shares) == pytest.approx([0, whole * 0.25])
    label = html.unescape(re.search(r'aria-label="(GPU 0[^"]*)"', picture)[1])
    assert label.startswith("GPU 0: mine main1 0.5 fGPU")
    assert "another user 1 fGPU" in label
    assert label.endswith("0.5 fGPU free")


def test_a_sick_gpu_is_marked_with_its_cause(service, browser):
    report, inventory = host_of("a1", gpus=2)
    report["gpu_health"][0]["xids"] = [{"number": 79, "sequence": 3}]
    report["gpu_health"][1]["throttled"] = ["<heat>"]
    service.store.agents.save([observed("a1", report, inventory, time.time())])
    ada = browser("ada")
    for path in ("/resources", "/resources/a1"):
        text = plain(ada.get(path).text)
        assert text.count("QUARANTINED Xid 79: the GPU has fallen off the bus") == 1
        assert text.count("its clocks are slowed: <heat>") == 1


def test_instances_of_a_gpu_share_one_bar(service, browser):
    report, inventory = host_of("a1", gpus=2)
    for number, gpu in enumerate(report["gpus"]):
        gpu |= {"index": 0, "uuid": f"MIG-{number}", "parent_uuid": "GPU-1", "mig_profile": "3g.40gb", "fraction": 500}
    service.store.agents.save([observed("a1", report, inventory, time.time())])
    text = browser("ada").get("/resources/a1").text
    assert text.count('<svg class="gpu"') == 1
    widths = re.findall(r'class="gpu-free" x="([\d.]+)" y="1" width="([\d.]+)"', text)
    assert [(float(x) - 1, float(width) + 2) for x, width in widths] == [(0, 240), (240, 240)]
    assert "MIG 3g.40gb: free" in plain(text)


def test_agents_in_trouble_come_first_and_say_why(service, browser):
    lost = replace(
        make_agent("z9"), state=AgentState.LOST, problem=f"ssh: {NASTY}", unreachable_since=time.time() - 200_000
    )
    service.store.agents.save([make_agent("a1"), lost])
    service.store.agents.drain("a1", NASTY)
    service.store.agents.save([make_agent("b1")])
    text = browser("ada").get("/resources").text
    assert re.findall(r'<tr id="agent-(\w+)">', text) == ["a1", "z9", "b1"]
    assert NASTY not in text
    assert f"ssh: {NASTY}" in html.unescape(text)
    assert "no answer for 2d" in plain(text)
    assert "DRAINED" in text
    assert "2 ALIVE, 1 LOST; 1 drained." in text


def test_an_agent_says_what_it_could_not_remove(service, browser):
    left = [{"name": f"network muster-{n}", "error": "it is in use"} for n in range(2)]
    service.store.agents.save([reporting(make_agent("a1"), leftovers=left)])
    ada = browser("ada")
    for path in ("/resources", "/resources/a1"):
        assert "The agent cannot yet remove 2 parts of ended sessions" in plain(ada.get(path).text)
    service.store.agents.save([reporting(make_agent("a1"), leftovers=left[:1])])
    assert "remove 1 part of ended sessions" in plain(ada.get("/resources/a1").text)


def test_plots_say_in_words_and_in_a_table_what_they_show(service, browser):
    service.store.agents.save([make_agent("a1"), make_agent("g1", resource_group="gpu")])
    sampled(service)
    sampled(service, "g1", "gpu", cpu=Amount(2000, 1000, None), gpu=Amount(8000, 2500, 1250.0))
    text = browser("ada").get("/resources").text
    assert "CPU of group default, last hour" in text
    assert "Used: last 1.5 CPU, mean 1.5 CPU, most 1.5 CPU" in text
    assert "Allocated: last 2.5 GPU" in text
    assert "Used: not known" in text
    assert text.count("<figure") == 3
    rows = re.findall(r'<tr><th scope="row" class="nowrap">([^<]+)</th>(.*?)</tr>', text)
    assert len(rows) == 6
    assert plain(rows[0][1]) == "1.5 CPU 4 CPU 8 CPU"
    one = browser("ada", name="again").get("/resources/g1?span=day").text
    assert "GPU of agent g1, last day" in one
    assert "CPU of group" not in one


def test_a_group_is_paged_and_all_groups_show_the_first_agents(service, browser):
    service.store.agents.save([make_agent(f"a{number:03}") for number in range(130)])
    ada = browser("ada")
    assert ada.get("/resources").text.count('<tr id="agent-') == 20
    assert "All 130 agents of default" in ada.get("/resources").text
    first, second = (ada.get(f"/resources?group=default&page={page}").text for page in (1, 2))
    assert (first.count('<tr id="agent-'), second.count('<tr id="agent-')) == (100, 30)
    assert 'aria-current="page"><span class="sr-only">Page </span>2</a>' in second
    # The group may have had more agents when somebody came to the page.
    assert ada.get("/resources?group=default&page=3").text.count('<tr id="agent-') == 30


@pytest.mark.usefixtures("shared_gpu")
def test_htmx_requests_the_live_part_alone(browser):
    for path in ("/resources", "/resources/a1"):
        text = browser("ada", name=f"ada{len(path)}").get(path, headers={"HX-Request": "true"}).text
        assert "<html" not in text
        assert 'id="live"' not in text
        assert "mine" in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/resources/none", 404),
        ("/resources?group=none", 404),
        ("/resources?span=year", 422),
        ("/resources/a1?span=", 422),
    ],
)
def test_missing_resources_are_named_without_a_traceback(service, browser, path, status):
    service.store.agents.save([make_agent("a1")])
    answer = browser("ada").get(path)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_without_agents_the_page_says_so(browser):
    assert "There are no agents yet" in browser("ada").get("/resources").text


def test_an_administrator_drains_with_a_reason_and_resumes(service, browser):
    service.store.agents.save([make_agent("a1")])
    root = browser("root", Scope.ADMIN)
    assert 'href="/resources/a1#drain"' in root.get("/resources").text
    htmx = {"HX-Request": "true"}
    said = root.post("/resources/a1/drain", data={"reason": " new disk "}, headers=htmx)
    assert (said.status_code, "a1 is drained" in said.headers["HX-Trigger"]) == (204, True)
    assert [agent.drain_reason for agent in service.store.agents.all()] == ["new disk"]
    assert "new disk" in root.get("/resources/a1").text
    assert 'hx-post="/resources/a1/resume"' in root.get("/resources").text
    assert root.post("/resources/a1/resume", headers=htmx).status_code == 204
    assert [agent.drain_reason for agent in service.store.agents.all()] == [None]
    assert root.post("/resources/none/drain", headers=htmx).status_code == 404


def test_a_suspect_agent_says_why_and_an_administrator_resumes_it(service, browser):
    service.store.agents.save([make_agent("a1")])
    service.store.agents.save_launch_records({"a1": LaunchRecord((), time.time() + 600, "launches fail there")})
    root = browser("root", Scope.ADMIN)
    for path in ("/resources", "/resources/a1"):
        text = root.get(path).text
        assert "SUSPECT" in text
        assert "launches fail there" in text
        assert 'hx-post="/resources/a1/resume"' in text
    assert "1 ALIVE; 1 suspect." in root.get("/resources").text
    assert root.post("/resources/a1/resume", headers={"HX-Request": "true"}).status_code == 204
    assert "SUSPECT" not in browser("ada").get("/resources").text


@pytest.mark.parametrize("scope", [Scope.USER, Scope.READ])
def test_only_administrators_drain(service, browser, scope):
    service.store.agents.save([make_agent("a1")])
    ada = browser("ada", scope)
    assert "drain" not in ada.get("/resources/a1").text.lower()
    for action in ("drain", "resume"):
        assert ada.post(f"/resources/a1/{action}", headers={"HX-Request": "true"}).status_code == 403
    assert service.store.agents.all()[0].drain_reason is None


def test_an_agents_page_shows_only_catalog_images_that_the_user_may_use(service, browser):
    report, inventory = host_of("a1")
    report["images"].append({"id": "sha256:x", "tags": ["eve/private-model:1"], "size_bytes": 1})
    service.store.agents.save([observed("a1", report, inventory, time.time())])
    assert "private-model" not in browser("ada").get("/resources/a1").text


def test_use_over_time_by_the_api_has_the_numbers_of_the_plots(service, caller):
    service.store.agents.save([make_agent("a1"), make_agent("g1", resource_group="gpu")])
    sampled(service)
    sampled(service, "g1", "gpu", cpu=Amount(2000, 1000, None))
    ada = caller("ada")

    def cpu(**query):
        found = ada.get("/api/v1/use/over-time", params=query).json()
        points = found["points"]
        assert len(points) == {"hour": 60, "day": 96, "week": 168}[found["span"]]
        return [point["cpu"] for point in points if point["cpu"]]

    assert cpu(agent="a1") == [{"capacity": 8000, "allocated": 4000, "used": 1500}] * 3
    assert cpu(group="gpu") == [{"capacity": 2000, "allocated": 1000, "used": None}] * 3
    assert cpu() == [{"capacity": 10000, "allocated": 5000, "used": 1500}] * 3
    assert cpu(span="week", agent="a1")[-1] == {"capacity": 8000, "allocated": 4000, "used": 1500}
    for wrong, status in (
        ({"agent": "none"}, 404),
        ({"group": "none"}, 404),
        ({"span": "year"}, 422),
        ({"agent": "a1", "group": "gpu"}, 422),
    ):
        assert ada.get("/api/v1/use/over-time", params=wrong).status_code == status


def test_an_agents_page_outlives_a_catalog_that_cannot_be_read(browser, service):
    service.store.agents.save([make_agent("a1")])
    ada = browser("ada")
    assert "none of the catalog" in ada.get("/resources/a1").text
    service.settings.catalog.write_text("images: [")
    page = ada.get("/resources/a1")
    assert page.status_code == 200
    assert "image catalog cannot be read" in page.text
    assert ada.get("/sessions").status_code == 200
    refused = ada.get("/images")
    assert refused.status_code == 503
    assert "cannot be read" in refused.text
