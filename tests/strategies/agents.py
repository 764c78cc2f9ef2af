"""Agents: plain makers for tables of examples, and a strategy for small ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from muster.contract.report import report_from_agent
from muster.core.agents.agent import Agent, AgentState, agent_from_report
from tests.simulated.hosts import host_of
from tests.strategies.values import NOW, M


def observed(agent_id: str, report: Mapping[str, Any], inventory: Mapping[str, Any], now: float = NOW) -> Agent:
    """Return the agent of a report as it comes over the wire."""
    return agent_from_report(agent_id, report_from_agent(report), inventory, now)


def reporting(agent: Agent, **changes: Any) -> Agent:
    """Return the agent with other values in its report, which are as they come over the wire."""
    report = report_from_agent({**agent.report.model_dump(mode="json"), **changes})
    return agent_from_report(agent.id, report, agent.inventory, agent.observed_at)


def listed(agent: Agent, **changes: Any) -> Agent:
    """Return the agent with other inventory attributes."""
    return agent_from_report(agent.id, agent.report, {**agent.inventory, **changes}, agent.observed_at)


def make_agent(agent_id: str = "a1", **hardware: Any) -> Agent:
    return observed(agent_id, *host_of(agent_id, **hardware))


def joined_agent(agent_id: str, **hardware: Any) -> Agent:
    return make_agent(agent_id, swarm="manager", **hardware)


_STATES = (*[AgentState.ALIVE] * 4, AgentState.UNREACHABLE, AgentState.LOST)


@st.composite
def agents(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 3) -> tuple[Agent, ...]:
    """Draw small agents with GPUs cut into units, in a swarm or not, now and then away or drained."""
    return tuple(
        replace(
            make_agent(
                f"a{number}",
                cpus=draw(st.sampled_from((0, 1, 2, 4, 8))),
                mem_bytes=draw(st.sampled_from((0, 512, 1024, 4096, 8192))) * M,
                gpus=draw(st.integers(0, 3)),
                units_per_gpu=draw(st.sampled_from((0, 1, 1, 2, 4))),
                resource_group=draw(st.sampled_from(("default", "default", "gpu"))),
                swarm=draw(st.sampled_from(("manager", "manager", "worker", ""))),
            ),
            state=draw(st.sampled_from(_STATES)),
            drain_reason=draw(st.sampled_from((None, None, None, None, "disks"))),
        )
        for number in range(1, draw(st.integers(min_size, max_size)) + 1)
    )
