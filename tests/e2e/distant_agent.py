"""An agent that is reached by ssh: an sshd in a container, on the host's network and with an engine's socket."""

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container

from muster.core.agents.agent import Agent
from tests.strategies.agents import make_agent
from tests.waiting import eventually

IMAGE = "muster/default:latest"
RUNTIME = "/opt/muster/runtime"
# ada is in the group that may use the engine, bob is not, and eve may not forward anything.
_ACCOUNTS = f"""
for user in ada:2001 bob:2002 eve:2003; do
  echo "${{user%:*}}:x:${{user#*:}}:${{user#*:}}::/:/bin/sh" >>/etc/passwd
  echo "${{user%:*}}:*:19000::::::" >>/etc/shadow
done
echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
echo "docker:x:$(stat -c %g /var/run/docker.sock):ada,eve" >>/etc/group
mkdir -p /run/sshd
exec {RUNTIME}/sbin/sshd -D -e -f /keys/sshd_config
"""
_SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey /keys/host
AuthorizedKeysFile /keys/authorized_keys
StrictModes no
UsePAM no
PidFile none
Match User eve
  AllowStreamLocalForwarding no
"""


@dataclass(frozen=True)
class DistantHost:
    """A host with an sshd and an engine; `key` logs in."""

    container: Container
    directory: Path
    port: int

    @property
    def key(self) -> Path:
        return self.directory / "key"

    def attributes(self, user: str = "root") -> dict[str, Any]:
        """Return the attributes that playbooks/group_vars/agents.yml makes of an inventory."""
        return {
            "connection": "ssh",
            "address": "127.0.0.1",
            "port": self.port,
            "user": user,
            "ssh_args": f"-o UserKnownHostsFile={shlex.quote(str(self.directory / 'known_hosts'))}",
            "private_key_file": str(self.key),
        }

    def agent(self, agent_id: str = "far", user: str = "root") -> Agent:
        return make_agent(agent_id, **self.attributes(user))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing on the host run until the block ends, as on one that lost its power."""
        eventually(self._froze)
        try:
            yield
        finally:
            self.container.unpause()

    def _froze(self) -> bool:
        """Return whether the engine could freeze it: it gives up where processes begin faster than it stops them."""
        try:
            self.container.pause()
        except APIError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True


@contextmanager
def distant_host(directory: Path, engine_socket: Path) -> Iterator[DistantHost]:
    directory.mkdir()
    # The sshd reads it as the user who logs in.
    directory.chmod(0o755)
    port = _free_port()
    for name in ("key", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    shutil.copy(directory / "key.pub", directory / "authorized_keys")
    kind, key = (directory / "host.pub").read_text().split()[:2]
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (directory / "sshd_config").write_text(_SSHD_CONFIG.format(port=port))
    client = docker.from_env()
    container = client.containers.run(
        IMAGE,
        ["-c", _ACCOUNTS],
        entrypoint="sh",
        detach=True,
        network_mode="host",
        volumes={
            str(directory): {"bind": "/keys", "mode": "ro"},
            RUNTIME: {"bind": RUNTIME, "mode": "ro"},
            str(engine_socket): {"bind": "/var/run/docker.sock", "mode": "rw"},
        },
    )
    try:
        eventually(lambda: b"listening" in container.logs(), complaint=lambda: container.logs().decode())
        yield DistantHost(container, directory, port)
    finally:
        container.remove(force=True)


@contextmanager
def second_engine(
    directory: Path, configuration: Mapping[str, Any] | None = None, search_path: str = os.environ["PATH"]
) -> Iterator[Path]:
    """Yield the socket of another Docker engine on this machine, which has no image and no network.

    `configuration` are keys of its daemon.json, and `search_path` is where its programs are looked for.
    """
    directory.mkdir()
    path = directory / "docker.sock"
    log = directory / "log"
    options = {
        "host": f"unix://{path}",
        "data-root": directory / "data",
        "exec-root": directory / "exec",
        "pidfile": directory / "pid",
        "containerd-namespace": "muster-e2e",
        "containerd-plugins-namespace": "muster-e2e-plugins",
        "bridge": "none",
        "iptables": "false",
        "ip-forward": "false",
        # Without anything of the machine's own engine.
        "config-file": directory / "daemon.json",
    }
    (directory / "daemon.json").write_text(json.dumps(configuration or {"storage-driver": "vfs"}))
    # A network namespace of its own: an engine without a bridge removes the docker0 that it finds. And a containerd of
    # its own, also where the machine runs one.
    command = ["dockerd", *(f"--{name}={value}" for name, value in options.items())]
    hidden = 'mkdir -p /run/containerd && mount -t tmpfs none /run/containerd && exec "$@"'
    with log.open("wb") as output:
        engine = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", hidden, "sh", *command],
            env={**os.environ, "PATH": search_path},
            stdout=output,
            stderr=output,
        )
    try:
        eventually(path.exists, complaint=log.read_text)
        yield path
    finally:
        engine.terminate()
        engine.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
