"""The manifest on both sides: what the control node may write is what agents read, and neither takes anything else."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.contract.manifest import Manifest
from muster.contract.twin import manifest_schema
from muster.core.agents.gpu_providers import PROVIDERS
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.session import Allocation, GpuShare, LaunchStep, Session, SessionState
from tests.hostile.malformed import ODD, changed, paths
from tests.modules.agent_code import agent_manifest
from tests.modules.agent_code import manifest_schema as agents_schema
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on, sessions_in_any_state
from tests.strategies.values import fake_key_pair, new_id

S = SessionState
APP = {"name": "mine", "port": 8888, "command": "serve", "health": "/api", "token": True}


def wire(written: Manifest) -> dict[str, Any]:
    """Return the manifest as an agent reads it."""
    return json.loads(written.model_dump_json())


def full_manifest() -> dict[str, Any]:
    """Return a manifest with a session of each kind, in which hardly a list is empty."""
    agent = make_agent("a1", gpus=1, units_per_gpu=2, swarm="manager", overlay_mtu=1400)
    spec = {"fgpu": "0.5", "command": "true", "mounts": ["sets:/sets"], "apps": [APP], "publish": ["80"]}
    starts = placed_on(make_session(1, **spec), "a1", state=S.PREPARING)
    share = Allocation("a1", (GpuShare("GPU-a1-0", 500, whole=False),))
    starts = replace(starts, kernels=(replace(starts.main, allocation=share),))
    waits = make_session(2, cluster_size=2, command="true", signal="USR1")
    spread = replace(placed_on(waits, "a1", "a2"), notice="it ends at noon", signals=1)
    ends = placed_on(make_session(3), "a1", state=S.TERMINATING)
    keys = {starts.id: fake_key_pair("s1")}
    written = manifest(
        agent,
        [starts, spread, ends],
        keys,
        7,
        LaunchPolicy(),
        lambda name, _: name,
        keeps_overlays=True,
        kept_spools=[new_id(4)],
    )
    return wire(written)


PATHS = sorted(paths(full_manifest()), key=str)


def test_the_agents_schema_is_made_of_the_control_nodes_types():
    assert manifest_schema() == agents_schema.MANIFEST


def is_taken_by_the_control_node(data: object) -> bool:
    try:
        Manifest.model_validate(data)
    except ValidationError:
        return False
    return True


def problem_on_the_agent(data: object) -> str:
    try:
        agent_manifest.parse_manifest(data)
    except agent_manifest.ManifestError as error:
        return str(error)
    return ""


@given(st.sampled_from(PATHS), st.sampled_from(("removed", "added", "retyped", "nested")), ODD)
def test_both_sides_take_the_same_manifests(path, change, odd):
    data = changed(full_manifest(), path, change, odd)
    problem = problem_on_the_agent(data)
    assert bool(problem) != is_taken_by_the_control_node(data), problem
    assert problem.isprintable()


@pytest.mark.parametrize("path", [path for path in PATHS if isinstance(path[-1], str)], ids=str)
def test_an_agent_refuses_what_it_does_not_know_and_misses_what_is_not_there(path):
    if path[-2:-1] in {("env",), ("files",), ("libraries",)}:
        return
    assert "is missing" in problem_on_the_agent(changed(full_manifest(), path, "removed", None)) or path[-1] in {
        "version",
        "desired",
    }
    assert problem_on_the_agent(changed(full_manifest(), path, "added", "x")) or path[-2:-1] == ("env",)


@given(ODD)
def test_anything_else_is_no_manifest(odd):
    assert problem_on_the_agent(odd)


@st.composite
def placed_sessions(draw: st.DrawFn) -> list[Session]:
    """Draw sessions on agents, in any of the steps that a manifest knows."""
    made = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        session = draw(sessions_in_any_state(number * 100))
        here = draw(st.sampled_from((("a1",), ("a1", "a2"))))
        state = draw(st.sampled_from((S.PREPARING, S.RUNNING, S.TERMINATING)))
        step = draw(st.sampled_from((LaunchStep.STARTING, LaunchStep.RELEASING)))
        placed = placed_on(session, *here, state=state)
        kernels = tuple(_with_gpus(kernel, draw) for kernel in placed.kernels)
        made.append(replace(placed, kernels=kernels, step=step if state is S.PREPARING else None))
    return made


def _with_gpus(kernel: Any, draw: st.DrawFn) -> Any:
    shares = draw(
        st.sampled_from(((), (GpuShare("GPU-a1-0", 500, whole=False),), (GpuShare("GPU-a1-1", 2000, whole=True),)))
    )
    return replace(kernel, allocation=replace(kernel.allocation, gpus=shares))


@given(
    placed_sessions(),
    st.sampled_from(sorted(PROVIDERS)),
    st.sampled_from(("auto", "nvidia", "cdi")),
    st.booleans(),
)
def test_every_manifest_that_the_core_writes_is_read_by_agents(sessions, provider, devices, keeps_overlays):
    agent = make_agent(
        "a1", gpus=2, units_per_gpu=2, numa_nodes=2, swarm="manager", fgpu_provider=provider, fgpu_devices=devices
    )
    keys = {session.id: fake_key_pair(session.name) for session in sessions if session.step is LaunchStep.STARTING}
    secrets = {secret.name: "s" for session in sessions for secret in session.spec.secrets}
    keys = {key: replace(pair, secrets=secrets) for key, pair in keys.items()}
    written = manifest(agent, sessions, keys, 7, LaunchPolicy(), lambda name, _: name, keeps_overlays=keeps_overlays)
    parsed = agent_manifest.parse_manifest(wire(written))
    assert [session.id for session in parsed.sessions] == [session.id for session in sessions]
    assert (parsed.overlays is not None) == keeps_overlays
