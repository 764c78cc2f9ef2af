"""From what a host shows and what its manifest says to the steps that make them agree: a pure function."""

from __future__ import annotations

from typing import NamedTuple

from .manifest import KEEP, LAUNCH, RELEASE, STOP, Kernel, Manifest, Overlay, Session
from .names import OVERLAY, SeenContainer, SeenNetwork

# In any other state a container never ran, or is on its way out: it is made anew.
_LIVED = {"running", "paused", "exited"}


class Observed(NamedTuple):
    """The state of a cluster on a host."""

    containers: list[SeenContainer]
    networks: list[SeenNetwork]
    keys: dict[str, dict[str, str]]  # session id -> name of a kernel with a key directory -> generation released
    spools: set[str]  # session ids
    is_manager: bool  # of its swarm: only managers may make and remove overlays
    overlay_obstacle: str  # why no kernel on an overlay may start here; empty if it may


class Launch(NamedTuple):
    session: Session
    missing: list[Kernel]
    present: list[tuple[Kernel, SeenContainer]]
    network_missing: bool
    released: dict[str, str]  # kernel's name -> generation released
    obstacle: str  # why the missing kernels must not be launched; empty if they may


class Release(NamedTuple):
    session: Session
    waiting: list[tuple[Kernel, SeenContainer | None]]  # not released yet; None: there is no such container
    released: dict[str, str]  # kernel's name -> generation released


class Repair(NamedTuple):
    session: Session
    cut_off: list[SeenContainer]  # they run, and are not on their session's network
    network_missing: bool  # one of this host alone, which makes it


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
    releases: list[Release]
    repairs: list[Repair]
    stops: list[Stop]
    missing_overlays: list[Overlay]
    discarded_overlays: list[SeenNetwork]


def plan_for(manifest: Manifest, observed: Observed) -> Plan:
    """Return the steps that make the host match its manifest."""
    sessions = {session.id: session for session in manifest.sessions}
    discarded_containers = [seen for seen in observed.containers if _is_discarded(seen, sessions)]
    kept = [seen for seen in observed.containers if seen not in discarded_containers]
    bridges = [seen for seen in observed.networks if seen.driver != OVERLAY]
    discarded_networks = [seen for seen in bridges if _is_bridge_discarded(seen, sessions)]
    networks = [seen for seen in bridges if seen not in discarded_networks]
    missing_overlays, discarded_overlays = _overlays(manifest, observed)
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
            _launch(session, kept, networks, observed) for session in manifest.sessions if session.desired == LAUNCH
        ],
        releases=[
            _release(session, kept, observed.keys.get(session.id, {}))
            for session in manifest.sessions
            if session.desired == RELEASE
        ],
        repairs=_repairs(manifest, kept, {seen.name for seen in networks}),
        stops=[
            Stop(
                session,
                [seen for seen in kept if seen.session_id == session.id],
                [seen for seen in networks if seen.session_id == session.id],
            )
            for session in manifest.sessions
            if session.desired == STOP
        ],
        missing_overlays=missing_overlays,
        discarded_overlays=discarded_overlays,
    )


def _is_discarded(seen: SeenContainer, sessions: dict[str, Session]) -> bool:
    session = sessions.get(seen.session_id)
    if session is None:
        return True
    if session.desired == STOP:
        return False
    if seen.kernel_id not in {kernel.id for kernel in session.kernels}:
        return True
    if session.desired in {KEEP, RELEASE}:
        return False
    return seen.generation != session.generation or seen.state not in _LIVED


def _is_bridge_discarded(seen: SeenNetwork, sessions: dict[str, Session]) -> bool:
    session = sessions.get(seen.session_id)
    return session is None or (session.desired == LAUNCH and seen.generation != session.generation)


def _overlays(manifest: Manifest, observed: Observed) -> tuple[list[Overlay], list[SeenNetwork]]:
    """Return the overlays that the keeper lacks, and those of the cluster that shall not exist."""
    if manifest.overlays is None or not observed.is_manager:
        return [], []
    present = [seen for seen in observed.networks if seen.driver == OVERLAY]
    names = {seen.name for seen in present}
    wanted = {overlay.name for overlay in manifest.overlays}
    # What is newer than this manifest was made by another keeper, which knows more.
    discarded = [
        seen for seen in present if seen.name not in wanted and int(seen.generation or 0) <= manifest.generation
    ]
    return [overlay for overlay in manifest.overlays if overlay.name not in names], discarded


def _discarded_keys(sessions: dict[str, Session], observed: Observed) -> list[tuple[str, str]]:
    discarded = []
    for session_id, names in sorted(observed.keys.items()):
        session = sessions.get(session_id)
        if session is None:
            discarded.append((session_id, ""))
        elif session.desired != STOP:
            strangers = names.keys() - {kernel.name for kernel in session.kernels}
            discarded.extend((session_id, name) for name in sorted(strangers))
    return discarded


def _launch(
    session: Session, containers: list[SeenContainer], networks: list[SeenNetwork], observed: Observed
) -> Launch:
    present = {seen.kernel_id: seen for seen in containers if seen.session_id == session.id}
    missing = [kernel for kernel in session.kernels if kernel.id not in present]
    on_overlay = session.network["driver"] == OVERLAY
    return Launch(
        session=session,
        missing=missing,
        present=[(kernel, present[kernel.id]) for kernel in session.kernels if kernel.id in present],
        network_missing=not on_overlay and session.network["name"] not in {seen.name for seen in networks},
        released=observed.keys.get(session.id, {}),
        obstacle=observed.overlay_obstacle if on_overlay and missing else "",
    )


def _release(session: Session, containers: list[SeenContainer], released: dict[str, str]) -> Release:
    present = {seen.kernel_id: seen for seen in containers if seen.generation == session.generation}
    return Release(
        session,
        [
            (kernel, present.get(kernel.id))
            for kernel in session.kernels
            if released.get(kernel.name) != session.generation
        ],
        released,
    )


def _repairs(manifest: Manifest, containers: list[SeenContainer], networks: set[str]) -> list[Repair]:
    running = {(seen.kernel_id, seen.generation): seen for seen in containers if seen.state == "running"}
    repairs = []
    for session in manifest.sessions:
        name = session.network["name"]
        own = [running.get((kernel.id, session.generation)) for kernel in session.kernels]
        cut_off = [seen for seen in own if seen is not None and name not in seen.networks]
        if session.desired == KEEP and cut_off:
            repairs.append(Repair(session, cut_off, session.network["driver"] != OVERLAY and name not in networks))
    return repairs
