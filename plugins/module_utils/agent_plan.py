"""From what a host shows and what its manifest says to the steps that make them agree: a pure function."""

from __future__ import annotations

from typing import NamedTuple

from .agent_manifest import KEEP, LAUNCH, STOP, Kernel, Manifest, Session
from .agent_names import OVERLAY, SeenContainer, SeenNetwork, container_name
from .differences import ABSENT, Differences

# In any other state a container never ran, or is on its way out: it is made anew.
_LIVED = {"running", "paused", "exited"}


class Observed(NamedTuple):
    """What of a cluster a host shows."""

    containers: list[SeenContainer]
    networks: list[SeenNetwork]
    keys: dict[str, set[str]]  # session id -> names of kernels with a key directory
    spools: set[str]  # session ids
    swarm_node: str  # this host's id as a manager of its swarm; empty where it is none


class Launch(NamedTuple):
    session: Session
    missing: list[Kernel]
    present: list[tuple[Kernel, SeenContainer]]
    network_missing: bool
    swarm_node: str


class Stop(NamedTuple):
    session: Session
    containers: list[SeenContainer]
    networks: list[SeenNetwork]


class Plan(NamedTuple):
    discarded_containers: list[SeenContainer]
    discarded_networks: list[SeenNetwork]
    discarded_keys: list[tuple[str, str]]  # session id, and a kernel's name or "" for all of the session
    discarded_spools: list[str]
    launches: list[Launch]
    stops: list[Stop]


def plan_for(manifest: Manifest, observed: Observed) -> Plan:
    """Return the steps that make the host match its manifest."""
    sessions = {session.id: session for session in manifest.sessions}
    discarded_containers = [seen for seen in observed.containers if _is_discarded(seen, sessions)]
    discarded_networks = [seen for seen in observed.networks if _is_network_discarded(seen, sessions, observed)]
    kept = [seen for seen in observed.containers if seen not in discarded_containers]
    networks = [seen for seen in observed.networks if seen not in discarded_networks]
    return Plan(
        discarded_containers=discarded_containers,
        discarded_networks=discarded_networks,
        discarded_keys=_discarded_keys(sessions, observed),
        discarded_spools=sorted(
            session_id
            for session_id in observed.spools
            if session_id not in sessions or sessions[session_id].desired != STOP
        ),
        launches=[
            _launch(session, kept, networks, observed.swarm_node)
            for session in manifest.sessions
            if session.desired == LAUNCH
        ],
        stops=[
            Stop(
                session,
                [seen for seen in kept if seen.session_id == session.id],
                [seen for seen in networks if seen.session_id == session.id],
            )
            for session in manifest.sessions
            if session.desired == STOP
        ],
    )


def differences_of(plan: Plan, observed: Observed) -> Differences:
    """Return what the plan changes, as Ansible's `changed` and `diff` tell it."""
    differences = Differences()
    _add_discards(differences, plan)
    _add_launches(differences, plan, observed)
    _add_stops(differences, plan, observed)
    return differences


def _add_discards(differences: Differences, plan: Plan) -> None:
    for seen in plan.discarded_containers:
        differences.add("containers", seen.name, _described(seen), ABSENT)
    for network in plan.discarded_networks:
        differences.add("networks", network.name, "present", ABSENT)
    for session_id, name in plan.discarded_keys:
        differences.add("key directories", f"{session_id}/{name}".rstrip("/"), "present", ABSENT)
    for session_id in plan.discarded_spools:
        differences.add("last words", session_id, "present", ABSENT)


def _add_launches(differences: Differences, plan: Plan, observed: Observed) -> None:
    for launch in plan.launches:
        session = launch.session
        for kernel in launch.missing:
            name = container_name(session.id, kernel.name)
            differences.add("containers", name, ABSENT, f"running, generation {session.generation}")
        if session.id not in observed.keys and launch.missing:
            differences.add("key directories", session.id, ABSENT, "present")
        if launch.network_missing:
            differences.add("networks", session.network["name"], ABSENT, "present")


def _add_stops(differences: Differences, plan: Plan, observed: Observed) -> None:
    for stop in plan.stops:
        for seen in stop.containers:
            differences.add("containers", seen.name, _described(seen), ABSENT)
        for network in stop.networks:
            differences.add("networks", network.name, "present", ABSENT)
        if stop.session.id in observed.keys:
            differences.add("key directories", stop.session.id, "present", ABSENT)


def retract_launch(differences: Differences, launch: Launch) -> None:
    """Tell what a launch that failed leaves: nothing of its session."""
    session = launch.session
    for kernel in launch.missing:
        differences.add("containers", container_name(session.id, kernel.name), ABSENT, ABSENT)
    for _, seen in launch.present:
        differences.add("containers", seen.name, _described(seen), ABSENT)
    differences.add("key directories", session.id, "present" if launch.present else ABSENT, ABSENT)
    differences.add("networks", session.network["name"], ABSENT if launch.network_missing else "present", ABSENT)


def _is_discarded(seen: SeenContainer, sessions: dict[str, Session]) -> bool:
    session = sessions.get(seen.session_id)
    if session is None:
        return True
    if session.desired == STOP:
        return False
    if seen.kernel_id not in {kernel.id for kernel in session.kernels}:
        return True
    if session.desired == KEEP:
        return False
    return seen.generation != session.generation or seen.state not in _LIVED


def _is_network_discarded(seen: SeenNetwork, sessions: dict[str, Session], observed: Observed) -> bool:
    session = sessions.get(seen.session_id)
    if seen.driver == OVERLAY:
        # Every manager of a swarm sees it; only the one that made it may take it for a leftover.
        return session is None and seen.swarm_node == observed.swarm_node
    if session is None:
        return True
    return session.desired == LAUNCH and seen.generation != session.generation


def _discarded_keys(sessions: dict[str, Session], observed: Observed) -> list[tuple[str, str]]:
    discarded = []
    for session_id, names in sorted(observed.keys.items()):
        session = sessions.get(session_id)
        if session is None:
            discarded.append((session_id, ""))
        elif session.desired != STOP:
            strangers = names - {kernel.name for kernel in session.kernels}
            discarded.extend((session_id, name) for name in sorted(strangers))
    return discarded


def _launch(session: Session, containers: list[SeenContainer], networks: list[SeenNetwork], swarm_node: str) -> Launch:
    present = {seen.kernel_id: seen for seen in containers if seen.session_id == session.id}
    # An overlay is made, and listed with its labels, by managers only.
    is_ours_to_make = session.network["driver"] != OVERLAY or bool(swarm_node)
    return Launch(
        session=session,
        missing=[kernel for kernel in session.kernels if kernel.id not in present],
        present=[(kernel, present[kernel.id]) for kernel in session.kernels if kernel.id in present],
        network_missing=is_ours_to_make and session.network["name"] not in {seen.name for seen in networks},
        swarm_node=swarm_node,
    )


def _described(seen: SeenContainer) -> str:
    return f"{seen.state}, generation {seen.generation}" if seen.generation else seen.state
