"""Mounts of plain directories, which lie beside folders with an owner: whether any agent has them."""

from collections.abc import Collection, Iterable

from muster.core.agents.agent import Agent
from muster.core.model.folders import NAME_PATTERN
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError


def possible_agents(spec: SessionSpec, agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Return the agents that the spec's group and names leave."""
    return tuple(
        agent
        for agent in agents
        if agent.resource_group == spec.resource_group
        and (not spec.agents or agent.id in spec.agents)
        and agent.id not in spec.exclude_agents
    )


def missing_folders(
    spec: SessionSpec, owned_targets: Collection[str], agents: Collection[Agent]
) -> tuple[FieldError, ...]:
    """Return an error for each mount that is neither a folder with an owner nor a directory on any of these agents.

    `owned_targets` are where folders with an owner are mounted. Agents report the first level of their data root. While
    one of the agents has not reported it, nothing is missing for sure.
    """
    reported = [agent.report.directories for agent in agents]
    if not reported or None in reported:
        return ()
    there = {name for names in reported for name in names or ()}
    return tuple(
        FieldError(f"mounts[{number}].folder", f"there is no folder {mount.folder!r}", _remedy(mount.folder))
        for number, mount in enumerate(spec.mounts)
        if mount.target not in owned_targets and mount.folder.split("/")[0] not in there
    )


def _remedy(folder: str) -> str:
    if NAME_PATTERN.fullmatch(folder):
        return f"make it with `muster folder create {folder}`, or name another; see `muster folder ls`"
    return "name another, or make one of your own; see `muster folder ls`"
