"""What a plan changes on a host, as Ansible's `changed` and `diff` tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .differences import ABSENT, Differences
from .names import OVERLAY, SeenContainer, container_name, is_lent

if TYPE_CHECKING:
    from .manifest import Kernel, Session
    from .plan import Launch, Observed, Plan, Release, Repair

CONTAINERS, NETWORKS, KEYS, WORDS, GO = "containers", "networks", "key directories", "last words", "go"
CONNECTIONS = "connections"
PRESENT = "present"


def differences_of(plan: Plan, observed: Observed) -> Differences:
    differences = Differences()
    _add_discards(differences, plan)
    _add_launches(differences, plan, observed)
    for release in plan.releases:
        for kernel, _ in release.waiting:
            _add_go(differences, release.session, kernel, release.released)
    for repair in plan.repairs:
        _add_repair(differences, repair)
    _add_stops(differences, plan, observed)
    return differences


def _add_repair(differences: Differences, repair: Repair) -> None:
    network = repair.session.network["name"]
    if repair.network_missing:
        differences.add(NETWORKS, network, ABSENT, PRESENT)
    for seen in repair.cut_off:
        differences.add(CONNECTIONS, seen.name, ABSENT, network)


def _add_discards(differences: Differences, plan: Plan) -> None:
    for seen in plan.discarded_containers:
        differences.add(CONTAINERS, seen.name, described(seen), ABSENT)
    for network in (*plan.discarded_networks, *plan.discarded_overlays):
        differences.add(NETWORKS, network.name, PRESENT, ABSENT)
    for overlay in plan.missing_overlays:
        differences.add(NETWORKS, overlay.name, ABSENT, PRESENT)
    for session_id, name in plan.discarded_keys:
        differences.add(KEYS, f"{session_id}/{name}".rstrip("/"), PRESENT, ABSENT)
    for session_id in plan.discarded_spools:
        differences.add(WORDS, session_id, PRESENT, ABSENT)


def _add_launches(differences: Differences, plan: Plan, observed: Observed) -> None:
    for launch in plan.launches:
        session = launch.session
        for kernel in launch.missing:
            name = container_name(session.id, kernel.name)
            differences.add(CONTAINERS, name, ABSENT, _wanted(session, kernel))
            if not session.release and launch.released.get(kernel.name):  # of a container that is made anew
                differences.add(GO, name, _go(launch.released, kernel), ABSENT)
        if session.id not in observed.keys and launch.missing:
            differences.add(KEYS, session.id, ABSENT, PRESENT)
        if launch.network_missing:
            differences.add(NETWORKS, session.network["name"], ABSENT, PRESENT)
        if session.release:
            for kernel in session.kernels:
                _add_go(differences, session, kernel, launch.released)


def _wanted(session: Session, kernel: Kernel) -> str:
    cpuset = kernel.spec["resources"].get("cpuset")
    words = ["running", f"generation {session.generation}"]
    words += [f"on CPUs {cpuset}"] if cpuset else []
    words += [f"with {_gpu(gpu)}" for gpu in kernel.spec["gpus"]]
    return ", ".join(words)


def _gpu(gpu: dict[str, Any]) -> str:
    uuid, compute = gpu["uuid"], gpu["compute"]
    return uuid if compute is None else f"{compute / 1000:g} of {uuid}"


def _add_go(differences: Differences, session: Session, kernel: Kernel, released: dict[str, str]) -> None:
    name = container_name(session.id, kernel.name)
    differences.add(GO, name, _go(released, kernel), f"generation {session.generation}")


def _go(released: dict[str, str], kernel: Kernel) -> str:
    generation = released.get(kernel.name)
    return f"generation {generation}" if generation else ABSENT


def _add_stops(differences: Differences, plan: Plan, observed: Observed) -> None:
    for stop in plan.stops:
        for seen in stop.containers:
            differences.add(CONTAINERS, seen.name, described(seen), ABSENT)
        for network in stop.networks:
            differences.add(NETWORKS, network.name, PRESENT, ABSENT)
        if stop.session.id in observed.keys:
            differences.add(KEYS, stop.session.id, PRESENT, ABSENT)


def retract_launch(differences: Differences, launch: Launch) -> None:
    """Tell what a launch that failed leaves: nothing of its session but an overlay."""
    session = launch.session
    for kernel in launch.missing:
        differences.add(CONTAINERS, container_name(session.id, kernel.name), ABSENT, ABSENT)
    for _, seen in launch.present:
        differences.add(CONTAINERS, seen.name, described(seen), ABSENT)
    for kernel in session.kernels:
        differences.add(GO, container_name(session.id, kernel.name), _go(launch.released, kernel), ABSENT)
    differences.add(KEYS, session.id, PRESENT if launch.released else ABSENT, ABSENT)
    if is_lent(session.network["name"]):  # it stays for the next one
        before = ABSENT if launch.network_missing else PRESENT
        differences.add(NETWORKS, session.network["name"], before, before)
    elif session.network["driver"] != OVERLAY:
        differences.add(NETWORKS, session.network["name"], ABSENT if launch.network_missing else PRESENT, ABSENT)


def retract_release(differences: Differences, release: Release) -> None:
    """Tell what a release that failed leaves: all as it was."""
    for kernel, _ in release.waiting:
        before = _go(release.released, kernel)
        differences.add(GO, container_name(release.session.id, kernel.name), before, before)


def retract_repair(differences: Differences, repair: Repair) -> None:
    """Tell that kernels stay cut off; a network that was made stays."""
    for seen in repair.cut_off:
        differences.add(CONNECTIONS, seen.name, ABSENT, ABSENT)


def described(seen: SeenContainer) -> str:
    return f"{seen.state}, generation {seen.generation}" if seen.generation else seen.state
