"""What a manifest says of the cores that a kernel may run on, of overlays, and of the port of main1's sshd."""

import json
from dataclasses import replace

import pytest

from muster.core.launch.manifest import LaunchPolicy, latest_begin, manifest
from muster.core.model.session import Allocation, Session, SessionState
from tests.modules.agent_code import agent_manifest
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW, fake_key_pair

KEYS = fake_key_pair("s1")


def session_on_nodes(number: int, cpu: int, *numa_nodes: tuple[int, ...], running: bool = False) -> Session:
    """Return a session with one kernel on a1 for each entry of `numa_nodes`."""
    state = SessionState.RUNNING if running else SessionState.PREPARING
    session = placed_on(make_session(number, cpu=cpu, cluster_size=len(numa_nodes)), "a1", state=state)
    kernels = zip(session.kernels, numa_nodes, strict=True)
    return replace(session, kernels=tuple(replace(k, allocation=Allocation("a1", (), nodes)) for k, nodes in kernels))


def cpusets(launched: Session, *others: Session) -> list[str | None]:
    """Return the cpusets of kernels launched on a host of two nodes with four cores each."""
    agent = make_agent("a1", cpus=8, gpus=4, numa_nodes=2)
    written = manifest(agent, [launched, *others], {launched.id: KEYS}, 7, LaunchPolicy(), lambda name, _: name)
    kernels = agent_manifest.parse_manifest(json.loads(written.model_dump_json())).sessions[0].kernels
    return [kernel.spec["resources"]["cpuset"] for kernel in kernels]


@pytest.mark.parametrize(
    ("numa_nodes", "cpu", "cpuset"),
    [((1,), 4, "4-7"), ((0,), 1, "0-3"), ((0, 1), 4, None), ((), 4, None), ((1,), 5, None)],
)
def test_a_kernel_may_run_on_the_cores_of_the_nodes_that_it_was_given(numa_nodes, cpu, cpuset):
    assert cpusets(session_on_nodes(1, cpu, numa_nodes)) == [cpuset]


def test_kernels_of_one_node_are_bound_to_it_while_it_has_the_cores_that_they_were_promised():
    assert cpusets(session_on_nodes(1, 2, (0,), (0,), (1,))) == ["0-3", "0-3", "4-7"]
    assert cpusets(session_on_nodes(1, 2, (0,), (0,), (0,), (1,))) == [None, None, None, "4-7"]
    assert cpusets(session_on_nodes(1, 2, (0,), (1,)), session_on_nodes(2, 3, (0,), running=True)) == [None, "4-7"]


@pytest.mark.parametrize(
    ("wish", "able", "encrypted"),
    [
        ("auto", ("a1", "a2", "a3"), True),
        ("auto", ("a1", "a2"), True),
        ("auto", ("a1", "a3"), False),
        ("auto", (), False),
        (True, (), True),
        ("true", (), True),
        (False, ("a1", "a2"), False),
    ],
)
def test_an_overlay_is_encrypted_where_all_of_its_agents_can_unless_the_site_decides(wish, able, encrypted):
    keeper = make_agent("a3", swarm="manager", overlay_encrypted=wish)
    spread = placed_on(make_session(1, cluster_size=2), "a1", "a2")
    written = manifest(
        keeper, [spread], {}, 7, LaunchPolicy(), lambda name, _: name, keeps_overlays=True, encrypting=able
    )
    assert [overlay.encrypted for overlay in written.overlays or ()] == [encrypted]


@pytest.mark.parametrize(
    ("publish_address", "agents", "published"),
    [
        ("127.0.0.1", ("a1",), False),
        ("::1", ("a1",), False),
        ("127.0.0.1", ("a1", "a2"), True),  # no host reaches an address on an overlay
        ("0.0.0.0", ("a1",), True),
        ("192.0.2.7", ("a1",), True),
    ],
)
def test_main1s_sshd_is_published_where_its_own_address_is_not_enough(publish_address, agents, published):
    session = placed_on(make_session(1, cluster_size=2), *agents, state=SessionState.PREPARING)
    agent = make_agent("a1", publish_address=publish_address)
    written = manifest(agent, [session], {session.id: KEYS}, 7, LaunchPolicy(), lambda name, _: name)
    kernels = agent_manifest.parse_manifest(json.loads(written.model_dump_json())).sessions[0].kernels
    ports = [kernel.spec["publish"] for kernel in kernels]
    port = {"container_port": 2200, "host_ip": publish_address, "host_port": "30000-32767"}
    main = [port] if published else []
    assert ports == [main, []][: len(ports)]


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (LaunchPolicy(lost_after_s=300.0, start_timeout_s=60, stop_grace_s=10), 300),
        # As long as the control node waits for the answer.
        (LaunchPolicy(lost_after_s=5.0, start_timeout_s=60, stop_grace_s=10), 190),
    ],
)
def test_commands_begin_before_their_agent_counts_as_lost(policy, seconds):
    agent = replace(make_agent("a1"), observed_at=NOW)
    agent = replace(agent, report=agent.report.model_copy(update={"uptime_s": 1000.5}))
    assert latest_begin(agent, NOW + 20, policy) == 1020 + seconds
    # The control node's clock was set back since the report.
    assert latest_begin(agent, NOW - 20, policy) is None
    assert latest_begin(replace(agent, report=agent.report.model_copy(update={"uptime_s": None})), NOW, policy) is None
