"""What is kept of a run that broke a promise: what each host and the control node show at the moment of the verdict."""

from contextlib import suppress
from pathlib import Path

from tests.lab.chaos.control_node import ChaosControlNode
from tests.lab.host import HostError
from tests.lab.lab import Lab

_EVENTS_SINCE = "15m"
# By the name of the file. An engine that hangs must not hold up the rest.
_ON_HOSTS = {
    "containers": "docker ps --all --no-trunc; docker ps --all --quiet | xargs --no-run-if-empty docker inspect",
    "networks": "docker network ls --no-trunc; docker network ls --quiet | xargs docker network inspect --verbose",
    "swarm": "docker node ls; docker info",
    "events": f"docker events --since {_EVENTS_SINCE} --until 0s",
    "engine-log": f"journalctl --unit docker --no-pager --since=-{_EVENTS_SINCE}",
    "files": "find /run/muster /run/muster-mounts /var/lib/muster -ls; df; mount",
}
_MOST_S = 30


def keep_evidence(lab: Lab, node: ChaosControlNode, directory: Path) -> None:
    """Write what all show now into this new directory; what cannot be read is left out."""
    directory.mkdir()
    for host in lab.hosts:
        for name, commands in _ON_HOSTS.items():
            with suppress(HostError):
                done = lab.run(host.name, "timeout", str(_MOST_S), "sh", "-c", commands, check=False)
                (directory / f"{host.name}-{name}").write_text(done.out + done.err, encoding="utf-8")
        shown = node.run("agent", "show", host.name, "--json", check=False)
        (directory / f"{host.name}-agent.json").write_text(shown.out + shown.err, encoding="utf-8")
    # With the agents' last reports and the sessions' stories in it.
    node.run("backup", str(directory / "backup"), check=False)
