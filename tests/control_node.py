"""A control node of its own on this machine's real engine: its own cluster name, state, folders and daemon."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import yaml

from muster.core.model.session import FINAL
from muster.settings import load_settings
from muster.store.store import Store
from tests.done import Done
from tests.running.forked_cli import ForkedMuster, run_forked
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
SMALL = ("--cpu", "0.05", "--mem", "64M", "--shm", "16M")
UNTIL_ENDED = "until [ -e /tmp/end ]; do sleep 0.1; done"


@dataclass
class ControlNode:
    """A Muster installation in a directory, used through its command line as a person would."""

    directory: Path
    cluster: str
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    daemon: ForkedMuster | None = None

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.folders.mkdir()
        inventory = {
            "all": {
                "children": {
                    "control": {"hosts": {"localhost": {"ansible_connection": "local"}}},
                    "agents": {
                        "hosts": {
                            "localhost": {
                                "ansible_connection": "local",
                                "resource_group": "default",
                                "cpu_overcommit": 4,
                            }
                        }
                    },
                }
            }
        }
        (self.directory / "inventory.yml").write_text(yaml.safe_dump(inventory))
        self.config.write_text(
            yaml.safe_dump(
                {
                    "cluster": self.cluster,
                    "state_dir": str(self.directory / "state"),
                    "inventory": str(self.directory / "inventory.yml"),
                    "catalog": str(self.directory / "images.yml"),
                    "folders_root": str(self.folders),
                    "observe_interval_s": 30,
                    "stop_grace_s": 1,
                    **self.settings,
                }
            )
        )

    @property
    def config(self) -> Path:
        return self.directory / "muster.yml"

    @property
    def folders(self) -> Path:
        return self.directory / "folders"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables, "MUSTER_CONFIG": str(self.config)}

    def run(self, *arguments: str, stdin: str = "", check: bool = True, timeout: float = 600) -> Done:
        done = run_forked(arguments, self.environment, stdin, timeout)
        assert "Traceback" not in done.err, done.err
        if check:
            assert done.code == 0, f"muster {' '.join(arguments)}: {done.code}\n{done.out}{done.err}"
        return done

    def playbook(self, name: str, *arguments: str) -> Done:
        done = subprocess.run(
            [
                *(SCRIPTS / "ansible-playbook", "-i", self.directory / "inventory.yml"),
                *("-e", f"muster_config={self.config}", ROOT / "playbooks" / f"{name}.yml", *arguments),
            ],
            cwd=ROOT,
            env={**self.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def submit(self, *arguments: str) -> str:
        """Return the new session's name."""
        return self.run("submit", *arguments, "--json").json()[0]["name"]

    def start(self, *arguments: str) -> str:
        """Return the name of a new session that runs."""
        name = self.submit(*SMALL, *arguments)
        self.reaches(name, "RUNNING")
        return name

    def show(self, name: str) -> dict[str, Any]:
        return self.run("show", name, "--json").json()

    def reaches(self, name: str, *states: str, within: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for one of the states and return the session. Fails at once if it ends in another state."""
        deadline = time.monotonic() + within
        # Looked up in the store: a command started ten times a second would take the machine from what is waited for.
        # It is closed before the next command: SQLite does not work in the fork of a process that has the file open.
        with closing(Store(load_settings(self.config).database_url)) as store:
            while (session := store.find(name)).state not in states:
                assert session.state not in FINAL, f"{name} is {session.state}: {session.reason}"
                assert time.monotonic() < deadline, f"{name} is {session.state}: {session.reason} {session.wait}"
                time.sleep(0.1)
        return self.show(name)

    def memory(self) -> int:
        """Return how many bytes of memory sessions may have on the only agent."""
        return int(self.run("agents", "--json").json()[0]["capacity"]["mem"])

    def exec(self, reference: str, *command: str, check: bool = True, stdin: str = "") -> Done:
        return self.run("exec", reference, "--", *command, check=check, stdin=stdin)

    def end_command(self, reference: str) -> None:
        """Let a command go on that waits `UNTIL_ENDED`. The program that says so may be killed with its container."""
        done = self.exec(reference, "touch", "/tmp/end", check=False)
        assert done.code in (0, 137), f"{done.code}\n{done.out}{done.err}"

    def launch_daemon(self) -> None:
        """Start the daemon, whether or not it can work."""
        self.daemon = ForkedMuster(("daemon",), self.environment, self.directory / "daemon.log")

    def start_daemon(self) -> None:
        """Start the daemon; return when it knows an agent."""
        self.launch_daemon()
        eventually(lambda: self.run("agents", "--json").json(), complaint=(self.directory / "daemon.log").read_text)

    def stop_daemon(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            assert self.daemon.wait() == 0, (self.directory / "daemon.log").read_text()
            self.daemon = None

    def left_on_host(self) -> dict[str, list[str]]:
        """Return names of sessions' containers, networks and key directories of this cluster on the host."""
        client = docker.from_env()
        label = {"label": f"muster.cluster={self.cluster}"}
        keys = Path("/run/muster") / self.cluster
        return {
            "containers": [c.name for c in client.containers.list(all=True, filters=label)],
            "networks": [n.name for n in client.networks.list(filters={"label": [label["label"], "muster.session"]})],
            "key directories": [p.name for p in keys.iterdir() if p.is_dir()] if keys.exists() else [],
        }

    def end_everything(self) -> None:
        names = [session["id"] for session in self.run("ls", "--json").json()]
        if names:
            self.run("terminate", *names)
        deadline = time.monotonic() + PATIENCE_S
        while self.run("ls", "--json").json():
            if self.daemon is None:
                self.run("pass", "--wait", check=False)
            assert time.monotonic() < deadline, self.run("ls").out
            time.sleep(0.2)

    def remove_traces(self) -> None:
        for network in docker.from_env().networks.list(filters={"label": f"muster.cluster={self.cluster}"}):
            network.remove()
        run = Path("/run/muster")
        for path in (run / self.cluster, run / ".disk" / self.cluster, Path("/var/lib/muster/agent") / self.cluster):
            shutil.rmtree(path, ignore_errors=True)
        # In no other group's directory, since others' groups come and go meanwhile.
        groups = Path("/sys/fs/cgroup")
        for group in (*groups.glob(f"muster/{self.cluster}"), *groups.glob(f"*/muster/{self.cluster}")):
            subprocess.run(["find", group, "-depth", "-type", "d", "-delete"], check=False)


NOTHING: dict[str, list[str]] = {"containers": [], "networks": [], "key directories": []}


def provision(*arguments: str) -> Done:
    """Run `playbooks/site.yml` on this machine without the control node's role: the tests have their own."""
    tags = ("--tags", "docker_engine,session_firewall,session_runtime,images")
    done = subprocess.run(
        [SCRIPTS / "ansible-playbook", "-i", "inventory/local.yml", "playbooks/site.yml", *tags, *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
