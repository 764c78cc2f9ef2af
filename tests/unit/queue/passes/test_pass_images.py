"""Images that agents lack are brought to them beside everything else."""

import json
from dataclasses import replace

import pytest

from muster.core.images.committed import CommittedImage
from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import MAX_LAUNCHES
from muster.core.model.session import LaunchStep, PullProgress, Result, SessionState
from muster.core.values.errors import ImageError
from tests.simulated.control_node import an_agent
from tests.strategies.values import NOW

S = SessionState
IMAGE = "registry.example/torch:2"


MADE = CommittedImage(
    *("eve/train", "2", "eve"), public=False, message="", parent="", parent_id="", session_id="", session_name="",
    kernel_name="main1", agent_id="a1", architecture="x86_64", created_at=NOW, image_id="sha256:" + "2" * 64,
)  # fmt: skip


def reasons(node, session):
    return [line.reason for line in node.store.story(session.id)]


def test_an_image_that_is_missing_is_pulled_before_the_launch(node, agents):
    session = node.submit(image=IMAGE)
    assert node.run().started == [session.id]
    assert reasons(node, session)[2:] == [f"pulling {IMAGE} on a1", "launching", "running"]
    assert node.gateway.pulled == [("a1", IMAGE)]
    assert agents[1].hardware["images"] == an_agent().hardware["images"]


@pytest.mark.parametrize(
    "image", ["busybox", "docker.io/library/debian:12", "sha256:busybox:latest", "registry.example:5000/team/image:1"]
)
def test_an_image_that_the_agents_have_is_not_pulled(node, image):
    session = node.submit(image=image)
    node.run()
    assert (node.state(session), node.gateway.pulled) == (S.RUNNING, [])


def test_images_that_were_removed_from_every_agent_are_pulled_again(node, agents):
    """As `docker system prune -a` removes them, before any report shows it. No session and no agent is to blame."""
    node.run()
    for agent in agents:
        agent.hardware = {**agent.hardware, "images": []}
    sessions = [node.submit(cpu=1) for _ in range(4)]
    for _ in range(4):
        node.run(observe=False)
        node.now += 10
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 4
    assert {node.session(session).attempts for session in sessions} == {0}
    assert not any(agent.is_suspect for agent in node.store.agents.all())
    assert any(reason.startswith("removed before the launch: busybox on a1") for reason in reasons(node, sessions[0]))


def test_a_gangs_images_are_pulled_wherever_they_are_missing(node):
    roles = [{"name": "ps", "image": "debian:13", "replicas": 1}]
    session = node.submit(image=IMAGE, roles=roles, cluster_size=4, cluster_mode="multi-node")
    node.run()
    assert node.state(session) is S.RUNNING
    pulling = reasons(node, session)[2]
    assert pulling.startswith("pulling debian:13 on a")
    assert pulling.endswith(f"; {IMAGE} on a1, a2")
    assert len(node.gateway.pulled) == 3


def test_a_pull_shows_its_progress_and_delays_nobody_else(node, agents):
    agents[0].pull_hangs = True
    session = node.submit(image=IMAGE)
    node.go_on_until(lambda: node.session(session).progress)
    waiting = node.session(session)
    assert (waiting.state, waiting.step) == (S.PREPARING, LaunchStep.PULLING)
    (pull,) = waiting.progress
    assert pull == PullProgress("a1", IMAGE, 1, 2)
    other = node.submit()
    node.go_on_until(lambda: node.state(other) is S.RUNNING)
    assert (node.session(other).agents, node.session(session).step) == (("a1",), LaunchStep.PULLING)
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.state(session) is S.RUNNING)
    assert (node.session(session).step, node.session(session).progress) == (None, ())


def test_a_pull_that_can_never_succeed_is_an_error(node, agents):
    agents[0].pull_fails = ImageError("no such image in the registry", permanent=True)
    session = node.submit(image=IMAGE)
    assert node.run().failed == [session.id]
    failed = node.session(session)
    assert (failed.state, failed.result, failed.step) == (S.ERROR, Result.FAILURE, None)
    assert failed.reason == "no such image in the registry"
    assert agents[0].containers == {}


def test_a_pull_that_fails_now_is_tried_again(node, agents):
    agents[0].pull_fails = ImageError("the registry does not answer", permanent=False)
    session = node.submit(image=IMAGE)
    node.run()
    assert (node.state(session), node.session(session).attempts) == (S.PENDING, 1)
    assert node.session(session).wait.code == "retry"
    agents[0].pull_fails = None
    node.now += 60
    node.run()
    assert node.state(session) is S.RUNNING


def test_a_pull_that_fails_again_and_again_is_an_error(node, agents):
    for agent in agents:
        agent.pull_fails = ImageError("the registry does not answer", permanent=False)
    session = node.submit(image=IMAGE)
    for _ in range(MAX_LAUNCHES):
        assert node.state(session) is S.PENDING
        node.run()
        node.now += 3600
    assert (node.state(session), node.session(session).attempts) == (S.ERROR, MAX_LAUNCHES)
    assert len(node.gateway.pulled) == MAX_LAUNCHES


def test_each_session_that_waits_for_a_failed_pull_learns_of_it(node, agents):
    for agent in agents:
        agent.pull_fails = ImageError("no such image", permanent=True)
    sessions = [node.submit(image=IMAGE) for _ in range(4)]
    node.run()
    assert [node.state(session) for session in sessions] == [S.ERROR] * 4


def test_an_image_that_was_removed_from_an_agent_is_pulled_again(node, agents):
    first = node.submit(image=IMAGE)
    node.run()
    agents[0].hardware["images"].pop()
    node.run()
    second = node.submit(image=IMAGE)
    node.run()
    assert (node.state(first), node.state(second)) == (S.RUNNING, S.RUNNING)
    assert node.gateway.pulled == [("a1", IMAGE)] * 2


def test_an_image_that_agents_list_under_no_such_name_is_pulled_once(node, agents):
    image = f"debian@sha256:{'0' * 64}"
    agents[0].lists_what_it_pulled = False
    sessions = [node.submit(image=image), node.submit(image=image)]
    node.run()
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 2
    assert node.gateway.pulled == [("a1", image)]


def test_a_session_that_is_ended_during_a_pull_is_not_launched(node, agents):
    session = node.submit(image=IMAGE)
    node.gateway.meanwhile = lambda: node.state(session) is S.PREPARING and node.end(session)
    node.run()
    assert node.state(session) is S.TERMINATED
    assert [agent.made for agent in agents] == [0, 0]


def test_a_pull_that_a_crash_cut_short_is_begun_again(node, agents):
    session = node.submit(image=IMAGE)
    agents[0].pull_hangs = True
    node.go_on()
    assert node.session(session).step is LaunchStep.PULLING
    node.restart()
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.state(session) is S.RUNNING)
    assert node.gateway.pulled == [("a1", IMAGE)] * 2


def test_a_session_whose_agent_goes_away_during_a_pull_starts_elsewhere(node, agents):
    session = node.submit(image=IMAGE)
    agents[0].pull_hangs = True
    node.go_on()
    agents[0].reachable = False
    node.worker.observe_all()
    node.go_on_until(lambda: node.state(session) is S.RUNNING)
    assert node.session(session).agents == ("a2",)
    assert "agent a1 does not answer any more" in reasons(node, session)
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.worker.is_idle)
    assert agents[0].made == 0


@pytest.mark.parametrize("image", ["eve/train:2", "docker.io/eve/train:2", "registry.example/team/secret:1"])
def test_a_name_that_became_anothers_private_image_is_not_launched(node, agents, tmp_path, image):
    """Ada has guessed the name, and holds her session until the image is there."""
    session = node.submit(image=image)
    node.store.apply([transitions.hold(node.session(session), "ada", node.now)])
    node.run()
    node.store.images.claim(MADE)
    node.store.images.made(MADE)
    private = [{"name": "secret", "reference": "registry.example/team/secret:1", "users": ["eve"]}]
    (tmp_path / "images.yml").write_text(json.dumps({"images": private}), encoding="utf-8")
    node.store.apply([transitions.release(node.session(session), "ada", node.now)])
    node.run()
    failed = node.session(session)
    assert failed.state is S.ERROR
    assert failed.reason.startswith(f"image: there is no image {image!r} in the catalog for ada in project default; ")
    assert not any(agent.of_session(session.id) for agent in agents)


@pytest.mark.parametrize("catalog", ["images: [", "images: []"])
def test_what_the_catalog_keeps_from_nobody_is_launched(node, tmp_path, catalog):
    (tmp_path / "images.yml").write_text(catalog, encoding="utf-8")
    public = replace(MADE, public=True)
    node.store.images.claim(public)
    node.store.images.made(public)
    sessions = [node.submit(image=image, cpu=0.1) for image in ("eve/train:2", "busybox", "sha256:busybox:latest")]
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 3
