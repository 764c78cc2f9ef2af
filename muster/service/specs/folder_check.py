"""Mounts of new sessions: folders that may be mounted, and directories that agents have."""

import time
from collections.abc import Collection
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.folders import MountedFolder, mounted_folders, qualified
from muster.core.model.plain_directories import missing_folders, possible_agents
from muster.core.spec.session_spec import SessionSpec
from muster.core.turn.answer import AgentAnswer
from muster.core.values.errors import AnsibleFailedError, PassInProgressError, SpecError
from muster.service.wake import AGENTS, wake
from muster.settings import Settings
from muster.store.database.lock import queue_lock
from muster.store.store import Store

_PATIENCE_S = 5.0
_POLL_S = 0.1


def folders_of(store: Store, spec: SessionSpec, owner: str) -> tuple[MountedFolder, ...]:
    """Return the folders with an owner that a new session mounts. Raises SpecError for mounts that are refused."""
    named = [pair for mount in spec.mounts if (pair := qualified(mount.folder))]
    return mounted_folders(spec, owner, store.folders.mountable(owner, spec.project, named))


def check_folders(store: Store, settings: Settings, spec: SessionSpec, owner: str, *, asks_agents: bool) -> None:
    """Check what a new session mounts. Raises SpecError for mounts that are refused, and for folders that nobody has.

    Agents know their directories as of their last report. With `asks_agents` they report again before a directory
    counts as missing: it may have been made just now.
    """
    targets = {folder.target for folder in folders_of(store, spec, owner)}
    if all(mount.target in targets for mount in spec.mounts):
        return
    agents = possible_agents(spec, store.agents.all())
    errors = missing_folders(spec, targets, agents)
    if errors and asks_agents:
        errors = missing_folders(spec, targets, _reported_anew(store, settings, spec, agents))
    if errors:
        raise SpecError(errors)


def _reported_anew(store: Store, settings: Settings, spec: SessionSpec, before: Collection[Agent]) -> Collection[Agent]:
    """Return the agents once those that answer have reported again, or as they are after a few seconds.

    Where nobody works the queue, as between two runs of cron, they are visited here.
    """
    if not _is_worked(settings):
        return _visited(settings, before)
    seen = {agent.id: agent.observed_at for agent in before if agent.state is AgentState.ALIVE}
    wake(settings, store, AGENTS)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        now = possible_agents(spec, store.agents.all())
        if time.monotonic() > deadline or all(agent.observed_at > seen.get(agent.id, -1.0) for agent in now):
            return now
        time.sleep(_POLL_S)


def _visited(settings: Settings, agents: Collection[Agent]) -> Collection[Agent]:
    """Return the agents with what those that answer report now. Nothing of it is recorded: the queue's worker does."""
    from muster.ansible_gateway.gateway import AnsibleGateway, inventory_of  # noqa: PLC0415 - Ansible's libraries load slowly

    reports = {agent.id: agent.report for agent in agents}
    alive = [agent.id for agent in agents if agent.state is AgentState.ALIVE]
    if not alive:
        return agents

    def note(answer: AgentAnswer) -> None:
        if answer.report is not None:
            reports[answer.agent_id] = answer.report

    gateway = AnsibleGateway(inventory_of(settings), settings.cluster, settings.folders_root)
    try:
        gateway.observe(alive, note)
    except AnsibleFailedError:
        return agents
    return [replace(agent, report=reports[agent.id]) for agent in agents]


def _is_worked(settings: Settings) -> bool:
    try:
        with queue_lock(settings.database_url, settings.state_dir, wait=False):
            return False
    except PassInProgressError:
        return True
