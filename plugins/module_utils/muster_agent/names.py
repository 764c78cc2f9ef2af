"""What Muster's things are called on a host: labels, container and network names, paths."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

LABEL_CLUSTER = "muster.cluster"
LABEL_SESSION = "muster.session"
LABEL_SESSION_NAME = "muster.session-name"
LABEL_KERNEL = "muster.kernel"
LABEL_KERNEL_NAME = "muster.kernel-name"
LABEL_GENERATION = "muster.generation"
LABEL_SSHD_PORT = "muster.sshd-port"
LABEL_PUBLIC_KEY = "muster.public-key"
LABEL_GPUS = "muster.gpus"
LABEL_APPS = "muster.apps"
LABEL_DISK = "muster.disk"
# The engine gives a container each label of its image that its maker does not set. Of these it is to have ours alone.
NO_LABELS = dict.fromkeys(
    (
        *(LABEL_SESSION, LABEL_SESSION_NAME, LABEL_KERNEL, LABEL_KERNEL_NAME, LABEL_GENERATION, LABEL_SSHD_PORT),
        *(LABEL_PUBLIC_KEY, LABEL_GPUS, LABEL_APPS, LABEL_DISK),
    ),
    "",
)

KEY_ROOT = Path("/run/muster")
DISK_COUNTS = KEY_ROOT / ".disk"
STATE_ROOT = Path("/var/lib/muster/agent")
KEYS_IN_CONTAINER = "/run/muster"
APPS_IN_CONTAINER = "/run/muster-apps"
FGPU_ROOT = Path("/run/muster-fgpu")
MOUNT_ROOT = Path("/run/muster-mounts")
FGPU_STATE_IN_CONTAINER = "/run/fgpu"
FGPU_PATH = "/opt/muster/fgpu"
# The name has the leases' layout: libraries of two layouts cannot use one file. No cluster has such a name.
_LEASES = ".leases-2"
OVERLAY = "overlay"
# Sessions' own networks have a hexadecimal digit where this one's name goes on with a letter.
_LENT = "muster-lent-"
# The engine puts every container of an overlay on this bridge too: its way out, and in for published ports.
GATEWAY_BRIDGE = "docker_gwbridge"
_ENDED = "exited"
_LIVED = {"running", "paused", _ENDED}
RUNTIME_PATH = "/opt/muster/runtime"


def container_name(session_id: str, kernel_name: str) -> str:
    return f"{network_name(session_id)}-{kernel_name}"


def network_name(session_id: str) -> str:
    return f"muster-{session_id.replace('-', '')[:12]}"


def lent_network_name(session_id: str, generation: str, attempt: int) -> str:
    """Return a name for a new network that is lent to this launch first; another one for each attempt."""
    words = f"{session_id} {generation} {attempt}"
    return _LENT + hashlib.sha256(words.encode()).hexdigest()[:12]


def is_lent(network: str) -> bool:
    """Return whether the network of this name is lent to one session after the other."""
    return network.startswith(_LENT)


def bridge_name(network: str) -> str:
    """Return the interface's name of a network on one host; the kernel allows 15 characters."""
    return f"mus-{network[-12:-1]}"


def gpu_lease(gpu_uuid: str) -> Path:
    """Return the compute lease of a GPU, which the kernels of all clusters on it share."""
    return FGPU_ROOT / _LEASES / gpu_uuid / "lease"


def of_cluster(cluster: str) -> str:
    """Return the label filter that finds a cluster's things."""
    return f"{LABEL_CLUSTER}={cluster}"


def of_session(session_id: str) -> str:
    """Return the label filter that finds a session's things."""
    return f"{LABEL_SESSION}={session_id}"


class ClusterPaths:
    """The paths of one cluster on this host."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.keys = KEY_ROOT / cluster
        self.fgpu = FGPU_ROOT / cluster
        self.mounts = MOUNT_ROOT / cluster
        self.state = STATE_ROOT / cluster
        self.generation = self.state / "generation"
        self.database = self.state / "database"
        self.lock = self.state / "lock"
        self.spool = self.state / "spool"
        # The place of last words while the disk is full.
        self.spool_in_memory = KEY_ROOT / ".last-words" / cluster
        self.disk_counts = DISK_COUNTS / cluster
        self.image_facts = self.state / "images"

    def kernel_keys(self, session_id: str, kernel_name: str) -> Path:
        return self.keys / session_id / kernel_name

    def kernel_mounts(self, session_id: str, kernel_name: str) -> Path:
        return self.mounts / session_id / kernel_name

    def kernel_usage(self, session_id: str, kernel_name: str) -> Path:
        return self.fgpu / session_id / kernel_name / "usage"

    @property
    def spools(self) -> tuple[Path, Path]:
        return self.spool, self.spool_in_memory

    def session_spool(self, session_id: str) -> Path:
        return self.spool / session_id


class SeenContainer(NamedTuple):
    """A container of ours as the engine's list shows it; `networks` are the names of those that it is on.

    `has_share`: it has a part of a GPU, to which its memory is limited.
    """

    id: str
    name: str
    session_id: str
    kernel_id: str
    kernel_name: str
    generation: str
    state: str
    networks: frozenset[str] = frozenset()
    has_share: bool = False

    @property
    def has_run(self) -> bool:
        """Return whether it runs or has ended; in any other state it never ran, or is being removed."""
        return self.state in _LIVED

    @property
    def has_ended(self) -> bool:
        return self.state == _ENDED

    @classmethod
    def from_list(cls, entry: dict[str, Any]) -> SeenContainer:
        labels = entry["Labels"]
        return cls(
            id=entry["Id"],
            name=entry["Names"][0].lstrip("/") if entry["Names"] else entry["Id"][:12],
            session_id=labels.get(LABEL_SESSION, ""),
            kernel_id=labels.get(LABEL_KERNEL, ""),
            kernel_name=labels.get(LABEL_KERNEL_NAME, ""),
            generation=labels.get(LABEL_GENERATION, ""),
            state=entry["State"],
            networks=frozenset(entry["NetworkSettings"]["Networks"]),
            has_share=any(gpu["mem_bytes"] for gpu in json.loads(labels.get(LABEL_GPUS) or "[]")),
        )


class SeenNetwork(NamedTuple):
    """A network of ours as the engine's list shows it."""

    id: str
    name: str
    session_id: str
    generation: str
    driver: str

    @classmethod
    def from_list(cls, entry: dict[str, Any]) -> SeenNetwork:
        labels = entry["Labels"]
        return cls(
            id=entry["Id"],
            name=entry["Name"],
            session_id=labels.get(LABEL_SESSION, ""),
            generation=labels.get(LABEL_GENERATION, ""),
            # Until the swarm has allocated a network, its managers list it without a driver. Ours are overlays all.
            driver=OVERLAY if entry["Scope"] == "swarm" else entry["Driver"],
        )
