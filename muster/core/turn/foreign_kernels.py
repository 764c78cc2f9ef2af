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


def listed(session_ids: Iterable[str]) -> str:
    """Return the starts of some of these ids, and how many more there are.

    All users see an agent's problem, and not others' names of sessions.
    """
    names = sorted({session_id[:8] for session_id in session_ids})
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _with_foreign_kernels(agent: Agent, snapshot: Snapshot) -> Agent:
    foreign = [kernel.session_id for kernel in agent.report.kernels if kernel.generation < snapshot.begins_at]
    if not foreign:
        return agent
    problem = (
        f"it has containers of sessions that are older than this database ({listed(foreign)}): see `database` and"
        " `state_dir` in the settings, restore a backup, or remove them with `muster pass --remove-unknown`"
    )
    return replace(agent, problem="; ".join(filter(None, (agent.problem, problem))))
