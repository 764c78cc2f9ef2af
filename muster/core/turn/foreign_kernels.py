"""Kernels that another database of the cluster launched: a new one must not take them for leftovers.

A database that is new by mistake, since its disk was not mounted or a setting names another one, knows of no session.
To make agents match it would end all that runs.
"""

from collections.abc import Iterable
from dataclasses import replace

from muster.core.agents.agent import Agent
from muster.core.model.snapshot import Snapshot

_SHOWN = 3


def runs_foreign_kernels(agent: Agent, snapshot: Snapshot) -> bool:
    """Return whether the agent reports kernels of launches from before this database."""
    return any(kernel.generation < snapshot.begins_at for kernel in agent.report.kernels)


def with_foreign_kernels(agents: Iterable[Agent], snapshot: Snapshot) -> tuple[Agent, ...]:
    """Return the agents, those that run foreign kernels with that as their problem."""
    return tuple(_with_foreign_kernels(agent, snapshot) for agent in agents)


def _with_foreign_kernels(agent: Agent, snapshot: Snapshot) -> Agent:
    names = sorted({k.session_id[:8] for k in agent.report.kernels if k.generation < snapshot.begins_at})
    if not names:
        return agent
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    problem = (
        f"it has containers of sessions that are older than this database ({listed}): see `database` and `state_dir`"
        " in the settings, restore a backup, or remove them with `muster pass --remove-unknown`"
    )
    return replace(agent, problem="; ".join(filter(None, (agent.problem, problem))))
