"""Launches that a restored database does not know, and should (docs/operations.md, "Backup and restore")."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.core.model.session import Session
from tests.simulation.hosts import Host


@dataclass(frozen=True)
class Unknown:
    """A launch that the database does not know since it was restored; `since` is when that was.

    `kernels` are the names of its gang.
    """

    generation: int
    kernels: frozenset[str]
    hosts: tuple[Host, ...]
    since: float


def unknown_launch(session: Session, gangs: Mapping[int, set[str]], hosts: Iterable[Host]) -> Unknown | None:
    """Return the newest launch after the one that the session is in, if all of its commands have begun.

    `gangs` are the names of the kernels of each launch.
    """
    begun: dict[int, dict[str, Host]] = defaultdict(dict)
    for host in hosts:
        for container in host.containers.values():
            lives = container.state in {"running", "exited"} and host.is_released(container)
            if container.session_id == session.id and container.generation > session.generation and lives:
                begun[container.generation][container.kernel_name] = host
    whole = [number for number, kernels in begun.items() if kernels.keys() == gangs[number]]
    if not whole:
        return None
    on = tuple(begun[max(whole)].values())
    return Unknown(max(whole), frozenset(gangs[max(whole)]), on, on[0].timeline.now)


def is_disturbed(unknown: Unknown, session: Session, hosts: Iterable[Host]) -> bool:
    """Return whether something else than the control node may have kept it from being adopted."""
    there = {
        container.kernel_name
        for host in hosts
        for container in host.containers.values()
        if (container.session_id, container.generation) == (session.id, unknown.generation)
    }
    # Others may have removed a container of it meanwhile.
    was_in_trouble = any(host.troubles or host.well_since >= unknown.since for host in unknown.hosts)
    return was_in_trouble or there != unknown.kernels
