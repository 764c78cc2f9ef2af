"""From a manifest's kernel to the body that creates its container: pure functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .. import names
from ..gpus import device_nodes, gpu_access
from ..gpus.gpu_access import Bind

if TYPE_CHECKING:
    from ..manifest import Kernel, Manifest, Overlay, Session

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The engine keeps this many times as much log as last words may hold, in two files.
LOG_ROTATION = 4
LOG_FILE_LEAST_BYTES = 1 << 20
ANY_PORT = "0"
# Two files of 1 MiB for each app, as many as a session may have.
_APPS_BYTES = 64 << 20


def complete_environment(kernel: Kernel, image_environment: list[str], runtime_path: str, shell: str) -> dict[str, str]:
    """Return everything that a kernel's processes find in their environment."""
    environment = dict(entry.split("=", 1) for entry in image_environment if "=" in entry)
    environment.update(kernel.spec["env"])
    access, user = kernel.spec["gpu_access"], kernel.spec["user"]
    # Frameworks take a machine with srun for one of Slurm's, so only sessions with its variables have it.
    slurm = f":{runtime_path}/libexec/slurm" if "SLURM_JOB_ID" in environment else ""
    if access:
        environment.update(access["env"])
    environment.update(
        HOME=user["home"],
        HOSTNAME=kernel.name,
        LOGNAME=user["name"],
        PATH=f"{environment.get('PATH') or DEFAULT_PATH}:{runtime_path}/bin{slurm}",
        SHELL=shell,
        USER=user["name"],
    )
    # NVIDIA's runtime gives a container what this says; where that runtime is the default one, an image's "all" would
    # reach devices of other sessions, and so would a variable that is not there.
    environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpu_access.visible_devices(access)) or "void"
    return environment


def sshd_config_with(config: str, environment: dict[str, str]) -> str:
    """Return the sshd configuration with the whole environment for logins, in the one line that sshd accepts."""
    settings = " ".join(
        '"{}={}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"'))
        for name, value in environment.items()
        if "\n" not in value
    )
    # At the top: after a Match block the setting would belong to that.
    return f"SetEnv {settings}\n{config}"


def labels(cluster: str, session_id: str, generation: str) -> dict[str, str]:
    """Return the labels that a session's networks and containers share."""
    return {
        names.LABEL_CLUSTER: cluster,
        names.LABEL_SESSION: session_id,
        names.LABEL_GENERATION: generation,
    }


def bridge_body(cluster: str, session: Session) -> dict[str, Any]:
    """Return the body that creates the network of a session on one host. One that is lent is not marked as its own."""
    name = session.network["name"]
    of_cluster = {names.LABEL_CLUSTER: cluster}
    return {
        "Name": name,
        "CheckDuplicate": True,
        "Driver": session.network["driver"],
        # The prefix by which roles/session_firewall recognises the bridges of sessions.
        "Options": {"com.docker.network.bridge.name": names.bridge_name(name)},
        "Labels": of_cluster if names.is_lent(name) else labels(cluster, session.id, session.generation),
    }


def overlay_body(cluster: str, overlay: Overlay) -> dict[str, Any]:
    """Return the body that creates the network of a session over several hosts."""
    options = {}
    if overlay.mtu is not None:
        options["com.docker.network.driver.mtu"] = str(overlay.mtu)
    if overlay.encrypted:
        options["encrypted"] = ""
    return {
        "Name": overlay.name,
        "CheckDuplicate": True,
        "Driver": names.OVERLAY,
        "Scope": "swarm",
        "Attachable": True,
        "Options": options,
        "Labels": labels(cluster, overlay.session_id, overlay.generation),
    }


def container_body(
    manifest: Manifest,
    session: Session,
    kernel: Kernel,
    environment: dict[str, str],
    folders: dict[str, str],
    gpu_binds: list[Bind],
    storage_options: dict[str, str],
) -> dict[str, Any]:
    """Return the body that creates a kernel's container; `folders` are the mounts' folders as staged on this host."""
    spec = kernel.spec
    binds = [*_binds(manifest, session, kernel, folders), *gpu_binds]
    ports: dict[str, dict[str, str]] = {f"{manifest.sshd_port}/tcp": {}}
    bindings: dict[str, list[dict[str, str]]] = {}
    for publish in spec["publish"]:
        port = f"{publish['container_port']}/tcp"
        ports[port] = {}
        host_port = str(publish["host_port"])
        binding = {"HostIp": publish["host_ip"], "HostPort": "" if host_port == ANY_PORT else host_port}
        bindings.setdefault(port, []).append(binding)
    return {
        "Image": spec["image"],
        "Hostname": kernel.name,
        "User": f"{spec['user']['uid']}:{spec['user']['gid']}",
        "WorkingDir": spec["user"]["home"],
        "Entrypoint": [f"{manifest.runtime_path}/bin/entrypoint"],
        "Cmd": spec["command"] or [],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "ExposedPorts": ports,
        "Labels": {
            **names.NO_LABELS,
            **labels(manifest.cluster, session.id, session.generation),
            names.LABEL_SESSION_NAME: session.name,
            names.LABEL_KERNEL: kernel.id,
            names.LABEL_KERNEL_NAME: kernel.name,
            names.LABEL_SSHD_PORT: str(manifest.sshd_port),
            names.LABEL_PUBLIC_KEY: session.public_key,
            names.LABEL_GPUS: json.dumps(spec["gpus"]),
            names.LABEL_APPS: json.dumps(spec["apps"]),
            **_disk_label(kernel),
        },
        # An image's own signal and health check were made for its own entrypoint, which is not run.
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_host_config(manifest, session, kernel, binds, bindings),
            **({"StorageOpt": storage_options} if storage_options else {}),
        },
        "NetworkingConfig": {"EndpointsConfig": {session.network["name"]: {"Aliases": [kernel.name]}}},
    }


def _host_config(
    manifest: Manifest,
    session: Session,
    kernel: Kernel,
    binds: list[Bind],
    bindings: dict[str, list[dict[str, str]]],
) -> dict[str, Any]:
    resources = kernel.spec["resources"]
    config: dict[str, Any] = {
        "NetworkMode": session.network["name"],
        "PortBindings": bindings,
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "CapDrop": ["ALL"],
        # The groups of folders whose owners have other uids.
        "GroupAdd": [str(group) for group in kernel.spec.get("groups", ())],
        "SecurityOpt": ["no-new-privileges"],
        "NanoCpus": resources["cpu_milli"] * 1_000_000,
        "Memory": resources["mem_bytes"],
        "MemorySwap": resources["mem_bytes"],
        "ShmSize": resources["shm_bytes"],
        "PidsLimit": resources["pids"],
        "CpusetCpus": resources.get("cpuset") or "",
        "LogConfig": {
            "Type": "json-file",
            "Config": {
                "max-size": str(max(LOG_ROTATION * manifest.log_max_bytes, LOG_FILE_LEAST_BYTES)),
                "max-file": "2",
            },
        },
        "Mounts": [
            {"Type": "bind", "Source": bind.source, "Target": bind.target, "ReadOnly": bind.read_only} for bind in binds
        ],
    }
    if any(app["starts"] for app in kernel.spec["apps"]):
        config["Tmpfs"] = {names.APPS_IN_CONTAINER: _apps_options(kernel)}
    access = kernel.spec["gpu_access"]
    if access and access["devices"]:
        config["DeviceRequests"] = [gpu_access.device_request(access["devices"])]
        # What the hook alone gives is lost to the container when systemd writes its allowed devices anew.
        config["Devices"] = [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}
            for path in device_nodes.nodes_of(gpu_access.visible_devices(access))
        ]
    return config


def _disk_label(kernel: Kernel) -> dict[str, str]:
    """Return the label with the disk limit, by which a report counts what the kernel writes."""
    limit = kernel.spec["resources"]["disk_bytes"]
    return {} if limit is None else {names.LABEL_DISK: str(limit)}


def _apps_options(kernel: Kernel) -> str:
    """Return options of the tmpfs for logs and exit codes of apps: no image made of the container may hold them."""
    user = kernel.spec["user"]
    return f"rw,nosuid,nodev,noexec,size={_APPS_BYTES},mode=0700,uid={user['uid']},gid={user['gid']}"


def _binds(manifest: Manifest, session: Session, kernel: Kernel, folders: dict[str, str]) -> list[Bind]:
    keys = str(names.ClusterPaths(manifest.cluster).kernel_keys(session.id, kernel.name))
    return [
        Bind(keys, names.KEYS_IN_CONTAINER, read_only=True),
        Bind(manifest.runtime_path, manifest.runtime_path, read_only=True),
        *(
            Bind(folders[mount["folder"]], mount["target"], read_only=bool(mount.get("read_only")))
            for mount in kernel.spec["mounts"]
        ),
    ]
