"""One playbook run, and what each host answered. The only import of ansible-runner."""

import os
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from muster.ansible_gateway.layout import ansible_root
from muster.core.errors import AnsibleFailedError


@dataclass(slots=True)
class Answers:
    """By host: the result of the last task that succeeded, or one line that says why there is none."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def problems(self) -> dict[str, str]:
        return {host: str(result.get("msg", result)) for host, result in self.failed.items()} | self.unreachable


@contextmanager
def private_directory() -> Iterator[Path]:
    """For a run's files, secrets among them: mode 0700, gone afterwards. On tmpfs where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a tmpfs: secrets do not reach a disk
    with tempfile.TemporaryDirectory(prefix="muster-", dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def run_playbook(name: str, inventory: Path, variables: Mapping[str, Any], directory: Path, limit: str = "") -> Answers:
    """Runs `playbooks/<name>.yml`. Raises AnsibleFailedError when no host was even asked."""
    answers = Answers()
    messages: list[str] = []

    # Nothing slow may happen here: ansible-runner waits for it.
    def handle(event: Mapping[str, Any]) -> bool:
        data = event.get("event_data", {})
        host = data.get("host")
        match event["event"]:
            case "runner_on_ok":
                answers.results[host] = data["res"]
            case "runner_on_failed":
                answers.failed[host] = data["res"]
            case "runner_on_unreachable":
                answers.unreachable[host] = f"unreachable: {' '.join(str(data['res'].get('msg', '')).split())}"
            case _ if event.get("stdout"):
                messages.append(event["stdout"])
        return False

    root = ansible_root()
    scripts = sysconfig.get_path("scripts")
    runner = ansible_runner.run(
        private_data_dir=str(directory),
        playbook=str(root / "playbooks" / f"{name}.yml"),
        inventory=str(inventory),
        extravars=dict(variables),
        limit=limit or None,
        envvars={
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        },
        event_handler=handle,
        # Its own would take over SIGTERM and SIGINT and cancel a playbook half-way: a pass that has begun is finished.
        cancel_callback=lambda: False,
        quiet=True,
        suppress_env_files=True,
    )
    if not (answers.results or answers.failed or answers.unreachable) and runner.rc:
        lines = [line for message in messages for line in message.splitlines() if line.strip()]
        cause = next((line for line in lines if "ERROR" in line), lines[-1] if lines else f"exit code {runner.rc}")
        raise AnsibleFailedError(f"playbooks/{name}.yml on inventory {inventory}: {cause}")
    return answers
