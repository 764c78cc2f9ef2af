"""From what a host shows and what its manifest says to the steps that make them agree: a pure function."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from .manifest import KEEP, LAUNCH, RELEASE, STOP, Kernel, Manifest, Overlay, Session
from .names import OVERLAY, SeenContainer, SeenNetwork, is_lent, lent_network_name

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each keeps an address range from others, and spares the next launch the making of a network.
_MOST_SPARE = 16


class Observed(NamedTuple):
    """The state of a cluster on a host."""

    containers: list[SeenContainer]
    networks: list[SeenNetwork]
    keys: dict[str, dict[str, str]]  # session id -> name of a kernel with a key directory -> generation released
    spools: set[str]  # session ids
    is_manager: bool  # of its swarm: only managers may make and remove overlays
    overlay_obstacle: str  # why no kernel on an overlay may start here; empty if it may
    spare_networks: Sequence[str] = ()  # lent ones that nothing is on
    left_networks: Sequence[str] = ()  # lent ones that only ended kernels are on, which this manifest removes


class Launch(NamedTuple):
    session: Session  # with the network that is lent to it
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
    session: Session  # with the network that is lent to it
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
    spare_networks: list[str]  # that stay for later launches


class _Lending:
    """The networks of one host that are lent: which sessions are on which, and what is left."""

    def __init__(self, observed: Observed) -> None:
        self._there = {seen.name for seen in observed.networks}
        self._taken = {name for seen in observed.containers for name in seen.networks}
        self.spare = sorted(observed.spare_networks)
        self._left = sorted(observed.left_networks)

    def to(self, session: Session, container: SeenContainer | None) -> Session:
        """Return the session with the network that its container is on, or one that nobody else is on."""
        if not session.is_lent_to:
            return session
        own = _network_of(session, container)
        return session._replace(network={**session.network, "name": own or self._free(session)})

    def _free(self, session: Session) -> str:
        for found in (self.spare, self._left):
            if found:
                return found.pop(0)
        names = (lent_network_name(session.id, session.generation, attempt) for attempt in count())
        return next(name for name in names if name not in self._there and name not in self._taken)


def _network_of(session: Session, container: SeenContainer | None) -> str | None:
    """Return the network of a container as a kernel of this session: its session's, or one that is lent to it."""
    networks = sorted(container.networks) if container else []
    return next((name for name in networks if name == session.network["name"] or _may_be_on(session, name)), None)


def _may_be_on(session: Session, network: str) -> bool:
    return session.is_lent_to and is_lent(network)


def lent_on(
    manifest: Manifest, containers: Sequence[SeenContainer], networks: Sequence[SeenNetwork]
) -> tuple[list[str], list[str]]:
    """Return the lent networks that no container is on, and those that only ended ones are on, which go.

    An ended container has left its network: it is on it in name only.
    """
    sessions = {session.id: session for session in manifest.sessions}
    stopped = {session.id for session in manifest.sessions if session.desired == STOP}
    left = [seen for seen in containers if seen.has_ended]
    left = [seen for seen in left if seen.session_id in stopped or _is_discarded(seen, sessions)]
    named = {name for seen in containers for name in seen.networks}
    taken = {name for seen in containers if seen not in left for name in seen.networks}
    lent = sorted(seen.name for seen in networks if is_lent(seen.name))
    return [name for name in lent if name not in named], [name for name in lent if name in named - taken]


def plan_for(manifest: Manifest, observed: Observed) -> Plan:
    """Return the steps that make the host match its manifest."""
    lending = _Lending(observed)
    sessions = {session.id: session for session in manifest.sessions}
    discarded_containers = [seen for seen in observed.containers if _is_discarded(seen, sessions)]
    kept = [seen for seen in observed.containers if seen not in discarded_containers]
    bridges = [seen for seen in observed.networks if seen.driver != OVERLAY]
    discarded_networks = [seen for seen in bridges if _is_bridge_discarded(seen, sessions)]
    networks = [seen for seen in bridges if seen not in discarded_networks]
    missing_overlays, discarded_overlays = _overlays(manifest, observed)
    launches = [
        _launch(session, kept, networks, observed, lending)
        for session in manifest.sessions
        if session.desired == LAUNCH
    ]
    repairs = _repairs(manifest, kept, {seen.name for seen in networks}, lending)
    spare, surplus = lending.spare[:_MOST_SPARE], lending.spare[_MOST_SPARE:]
    return Plan(
        discarded_containers=discarded_containers,
        discarded_networks=[*discarded_networks, *(seen for seen in networks if seen.name in surplus)],
        discarded_keys=_discarded_keys(sessions, observed),
        discarded_spools=sorted(
            session_id
            for session_id in observed.spools
            if _is_spool_discarded(session_id, sessions, manifest.kept_spools)
        ),
        launches=launches,
        releases=[
            _release(session, kept, observed.keys.get(session.id, {}))
            for session in manifest.sessions
            if session.desired == RELEASE
        ],
        repairs=repairs,
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
        spare_networks=spare,
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
    return seen.generation != session.generation or not seen.has_run


def _is_spool_discarded(session_id: str, sessions: dict[str, Session], kept: frozenset[str]) -> bool:
    session = sessions.get(session_id)
    return session_id not in kept if session is None else session.desired != STOP


def _is_bridge_discarded(seen: SeenNetwork, sessions: dict[str, Session]) -> bool:
    if is_lent(seen.name):
        return False
    session = sessions.get(seen.session_id)
    return session is None or (session.desired == LAUNCH and seen.generation != session.generation)


def _overlays(manifest: Manifest, observed: Observed) -> tuple[list[Overlay], list[SeenNetwork]]:
    """Return the overlays that the keeper lacks, and those of the cluster that shall not exist."""
    if manifest.overlays is None or not observed.is_manager:
        return [], []
    present = [seen for seen in observed.networks if seen.driver == OVERLAY]
    names = {seen.name for seen in present}
    desired = {overlay.name for overlay in manifest.overlays}
    # An overlay newer than this manifest was made by another keeper, whose manifest is newer too.
    discarded = [
        seen for seen in present if seen.name not in desired and int(seen.generation or 0) <= manifest.generation
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
    session: Session,
    containers: list[SeenContainer],
    networks: list[SeenNetwork],
    observed: Observed,
    lending: _Lending,
) -> Launch:
    present = {seen.kernel_id: seen for seen in containers if seen.session_id == session.id}
    session = lending.to(session, next(iter(present.values()), None))
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


def _repairs(
    manifest: Manifest, containers: list[SeenContainer], networks: set[str], lending: _Lending
) -> list[Repair]:
    running = {(seen.kernel_id, seen.generation): seen for seen in containers if seen.state == "running"}
    repairs = []
    for session in manifest.sessions:
        own = [running.get((kernel.id, session.generation)) for kernel in session.kernels]
        cut_off = [seen for seen in own if seen is not None and _network_of(session, seen) is None]
        if session.desired == KEEP and cut_off:
            repaired = lending.to(session, cut_off[0])
            is_missing = session.network["driver"] != OVERLAY and repaired.network["name"] not in networks
            repairs.append(Repair(repaired, cut_off, is_missing))
    return repairs
