"""Kernels that another database of the cluster launched: this one must not take them for leftovers.

A database that is new by mistake, since its disk was not mounted or a setting names another one, knows of no session.
Nor does that of a second control node which was given the same hosts, and one that was left behind when its backup was
restored elsewhere knows only the older ones. To make agents match it would end what runs.
"""

from collections.abc import Iterable
from dataclasses import replace

from muster.core.agents.agent import Agent
from muster.core.model.snapshot import Snapshot

_SHOWN = 3


def runs_foreign_kernels(agent: Agent, snapshot: Snapshot) -> bool:
    """Return whether the agent reports kernels that another database has launched."""
    return bool(_foreign(agent, snapshot))


def databases_of(agents: Iterable[Agent]) -> frozenset[str]:
    """Return the ids of the databases by whose manifests the agents say that they run what they run."""
    return frozenset(agent.report.database for agent in agents if agent.report.database is not None)


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
    foreign = _foreign(agent, snapshot)
    if not foreign:
        return agent
    problem = (
        f"it has containers that another database launched ({listed(foreign)}): see `database`, `state_dir` and"
        " `cluster` in the settings, stop the other control node if there is one, restore a backup, or remove them"
        " with `muster pass --remove-unknown`"
    )
    return replace(agent, problem="; ".join(filter(None, (agent.problem, problem))))


def _foreign(agent: Agent, snapshot: Snapshot) -> list[str]:
    """Return the ids of the sessions whose kernels on the agent are another database's."""
    of_another = _obeys_another(agent, snapshot)
    return [k.session_id for k in agent.report.kernels if of_another or k.generation < snapshot.begins_at]


def _obeys_another(agent: Agent, snapshot: Snapshot) -> bool:
    database = agent.report.database
    return bool(snapshot.databases) and database is not None and database not in snapshot.databases
