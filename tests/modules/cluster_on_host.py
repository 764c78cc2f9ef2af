"""Real modules against the real Docker engine: a cluster of its own for every test, and nothing left of it."""

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common import warnings
from ansible.module_utils.testing import patch_module_args
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from muster.core.spec.mounts import HOME
from tests.modules.agent_code import (
    ROOT,
    agent_converge,
    agent_names,
    agent_report,
    engine_api,
    host_mounts,
    kernel_cgroup,
    removal,
)
from tests.waiting import eventually

RUNTIME = Path(agent_names.RUNTIME_PATH)
IMAGE = f"modtest-busybox:{os.getpid()}"
USER: dict[str, Any] = {"name": "work", "uid": 1000, "gid": 1000, "home": HOME}
SSHD_CONFIG = """\
Port 2200
HostKey /run/muster/id_ed25519
AuthorizedKeysFile /run/muster/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
LogLevel ERROR
Subsystem sftp internal-sftp
"""
SSH_CONFIG = """\
Host main* sub*
  Port 2200
  User work
  IdentityFile /run/muster/id_ed25519
  UserKnownHostsFile /run/muster/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
"""

# It waits for leave before each request to the engine, and at its end.
RUN = """
import json, sys, threading
from tests.modules.agent_code import agent_manifest, converge, engine_api
one_at_a_time, connect = threading.Lock(), engine_api._SocketConnection.connect
def wait_for_leave():
    with one_at_a_time:
        print(flush=True)
        sys.stdin.readline()
def connect_with_leave(connection):
    wait_for_leave()
    connect(connection)
engine_api._SocketConnection.connect = connect_with_leave
manifest = json.loads(sys.stdin.readline())
converge.converge(engine_api.EngineApi(), agent_manifest.parse_manifest(manifest), sys.stderr.write)
wait_for_leave()
"""


class ModuleFailedError(Exception):
    """A module ended with fail_json; `result` is what it said."""

    def __init__(self, result):
        super().__init__(result["msg"])
        self.result = result


class Cluster:
    """A cluster's view of this host, and the manifests that a control node would write for it."""

    def __init__(self, folders_root, capsys):
        self.name = f"modtest-{uuid.uuid4().hex[:8]}"
        self.generation = 1
        self.folders_root = folders_root
        self.engine = engine_api.EngineApi()
        self.paths = agent_names.ClusterPaths(self.name)
        self._capsys = capsys

    def manifest(self, *sessions, **settings):
        return {
            "version": 1,
            "cluster": self.name,
            "generation": self.generation,
            "databases": [],
            "runtime_path": str(RUNTIME),
            "sshd_port": 2200,
            "folders_root": str(self.folders_root),
            "begin_by_s": None,
            "start_timeout_s": 30,
            "stop_grace_s": 5,
            "log_max_bytes": 65536,
            "overlays": None,
            "sessions": list(sessions),
            "kept_spools": [],
            **settings,
        }

    def converge(self, *sessions, check=False, **settings):
        return self.converge_manifest(self.manifest(*sessions, **settings), check=check)

    def converge_manifest(self, manifest, *, check=False):
        return self._run(agent_converge, {"manifest": json.dumps(manifest), "_ansible_check_mode": check})

    def report(self, **given):
        return self._run(agent_report, {"cluster": self.name, **given})["report"]

    def _run(self, module, arguments):
        # There, warnings are shown and no part of a result.
        assert "ansible._internal" not in sys.modules, "a test has made this process one of the control node"
        self._capsys.readouterr()
        warnings._global_warnings.clear()  # a module's process ends with it; this one does not
        with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
            module.main()
        result = json.loads(self._capsys.readouterr().out)
        if ended.value.code:
            raise ModuleFailedError(result)
        result["warnings"] = [warning["event"]["msg"] for warning in result.get("warnings", ())]
        return result

    def containers(self):
        return {entry["Names"][0].lstrip("/"): entry for entry in self.engine.containers(self._label)}

    def states(self):
        return {name: entry["State"] for name, entry in self.containers().items()}

    def networks(self):
        return [name for name in self._all_networks() if not agent_names.is_lent(name)]

    def lent_networks(self):
        return [name for name in self._all_networks() if agent_names.is_lent(name)]

    def _all_networks(self):
        return sorted(entry["Name"] for entry in self.engine.networks(self._label))

    def key_directories(self):
        root = self.paths.keys
        return sorted(str(path.relative_to(root)) for path in root.glob("*/*") if path.is_dir())

    def leaves_nothing(self):
        spools = list(self.paths.spool.glob("*")) if self.paths.spool.is_dir() else []
        usages = list(self.paths.fgpu.glob("*")) if self.paths.fgpu.is_dir() else []
        mounts = list(self.paths.mounts.glob("*")) if self.paths.mounts.is_dir() else []
        return not (self.containers() or self.networks() or self.key_directories() or spools or usages or mounts)

    def run_in(self, session, kernel, *command):
        """Run a command in a kernel's container and return its output."""
        name = agent_names.container_name(session["id"], kernel)
        done = subprocess.run(["docker", "exec", name, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def remove(self):
        for entry in self.containers().values():
            self.engine.remove_container(entry["Id"])
        for entry in self.engine.networks(self._label):
            remove = removal.remove_overlay if entry["Scope"] == "swarm" else removal.remove_network
            remove(self.engine, entry["Id"])
        kernel_cgroup.sweep(self.name, ())
        host_mounts.remove_mount_points(self.paths.mounts)
        host_mounts.unmount_below(self.paths.fgpu)
        paths = self.paths
        for path in (paths.keys, paths.disk_counts, paths.spool_in_memory, paths.fgpu, paths.state):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def _label(self):
        return agent_names.of_cluster(self.name)


def session(kernels=("main1",), desired="launch", **changes):
    """Return a session's entry in a manifest; `changes` go to every kernel, or to the one that a key names."""
    session_id = str(uuid.uuid4())
    files = key_files(kernels)
    entries = []
    for index, name in enumerate(kernels):
        kernel = {
            "id": session_id if index == 0 else str(uuid.uuid4()),
            "name": name,
            "image": IMAGE,
            "command": [],
            "env": {"BACKENDAI_CLUSTER_HOSTS": ",".join(kernels)},
            "user": USER,
            "resources": {
                "cpu_milli": 1000,
                "mem_bytes": 64 << 20,
                "shm_bytes": 8 << 20,
                "disk_bytes": None,
                "pids": 128,
                "cpuset": None,
            },
            "gpus": [],
            "apps": [],
            "gpu_access": None,
            "mounts": [],
            "groups": [],
            "publish": [{"container_port": 2200, "host_ip": "127.0.0.1", "host_port": 0}] if index == 0 else [],
            "files": files,
        }
        kernel.update({key: value for key, value in changes.items() if key in kernel})
        kernel.update(changes.get(name, {}))
        kernel["mounts"] = [{"owned": False, **mount} for mount in kernel["mounts"]]
        entries.append(kernel)
    return {
        "id": session_id,
        "name": "try",
        "generation": 1,
        "desired": desired,
        "release": True,
        "public_key": "ssh-ed25519 AAAA muster-try",
        "network": {"name": agent_names.network_name(session_id), "driver": "bridge"},
        "folders": [],
        "files": {},
        "kernels": entries,
    }


def desired(entry, what):
    """Return a session as a later manifest names it: its kernels with ids and names only."""
    kernels = [{"id": kernel["id"], "name": kernel["name"]} for kernel in entry["kernels"]]
    kept = {name: entry[name] for name in ("id", "name", "generation", "network")}
    return {**kept, "desired": what, "notice": None, "signal": None, "kernels": kernels}


def on_overlay(entry, **changes):
    """Return a session as one whose kernels lie on several agents, and its overlay for the keeper's manifest."""
    network = {**entry["network"], "driver": "overlay"}
    overlay = {
        "session_id": entry["id"],
        "name": network["name"],
        "generation": entry["generation"],
        "mtu": None,
        "encrypted": False,
        **changes,
    }
    return {**entry, "release": False, "network": network}, overlay


def key_files(hosts):
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return {
        "id_ed25519": {"content": private, "mode": "0600"},
        "authorized_keys": {"content": f"{public}\n", "mode": "0644"},
        "known_hosts": {"content": "".join(f"[{host}]:2200 {public}\n" for host in hosts), "mode": "0644"},
        "ssh_config": {"content": SSH_CONFIG, "mode": "0644"},
        "sshd_config": {"content": SSHD_CONFIG, "mode": "0644"},
    }


def log_of(words):
    return gzip.decompress(base64.b64decode(words["log_gz_b64"])).decode()


def log_with(cluster, container_id, text):
    """Wait until a container has written something, and return its whole log."""
    return eventually(lambda: b"".join(cluster.engine.logs(container_id)), lambda log: text in log)


def killed_when(reached, manifest):
    """Start a run in a process of its own and kill it at the first of its steps before which a point is reached.

    True if there was one. A step is a request to the engine, or the run's end.
    """
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as run:
        print(json.dumps(manifest), file=run.stdin, flush=True)
        while run.stdout.readline():
            if reached():
                run.kill()
                return True
            print(file=run.stdin, flush=True)
    return False
