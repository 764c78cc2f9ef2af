"""One playbook run, and each host's answer as it comes. The only import of ansible-runner."""

import os
import re
import shlex
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner

from muster.ansible_gateway.loaded_ansible import LOADED_ANSIBLE
from muster.ansible_gateway.play_order import AWAITS
from muster.contract.values import one_line
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.core.values.errors import AnsibleFailedError
from muster.shipped_files import ansible_root

ReadResult = Callable[[str, Mapping[str, Any], str], AgentAnswer]
"""Makes the answer of a host from its id, the result of its task, and why that failed (empty: it did not).

But for INVENTORY (see `layout.py`) the result is the host's own word, which is not to be trusted.
"""
# ssh's message when it could not connect. A run connects once, and sends the module through the connection.
_NO_CONNECTION = re.compile(
    r"ssh: connect to host |ssh: Could not resolve hostname |Host key verification failed|Permission denied \("
)
# Ansible's words where it has no password of the inventory's vault, a wrong one, or cannot have one from its file.
_NO_VAULT = re.compile(r"(?i)vault (secrets|password)\b")


@dataclass(frozen=True, slots=True)
class Inventory:
    """An inventory, and the files (or programs) that give the passwords of what is encrypted in it."""

    path: Path
    vault_password_files: tuple[Path, ...] = ()


def run_playbook(
    name: str,
    inventory: Inventory,
    variables: Mapping[str, Any],
    directory: Path,
    read_result: ReadResult,
    on_answer: AnswerHandler,
    limit: str = "",
    awaits: Path | None = None,
) -> None:
    """Run `playbooks/<name>.yml`, a play of one task, and call `on_answer` with each host's answer as it comes.

    If it `awaits` an order there, it begins when that comes. Raises AnsibleFailedError if the run ended before it
    reached any host, or broke off.
    """
    hosts: set[str] = set()
    messages: list[str] = []
    finished = False

    # Nothing slow may happen here: ansible-runner waits for it.
    def handle(event: Mapping[str, Any]) -> bool:
        nonlocal finished
        finished = finished or event["event"] == "playbook_on_stats"
        data = event.get("event_data", {})
        answer = _answer(event["event"], data.get("host", ""), data.get("res", {}), read_result)
        if answer:
            hosts.add(answer.agent_id)
            on_answer(answer)
        elif event.get("stdout"):
            messages.append(event["stdout"])
        return False

    root = ansible_root()
    scripts = sysconfig.get_path("scripts")
    vaults = [f"--vault-password-file={file}" for file in inventory.vault_password_files]
    executable, *arguments = (*LOADED_ANSIBLE.command(), *vaults, str(root / "playbooks" / f"{name}.yml"))
    runner = ansible_runner.run(
        private_data_dir=str(directory),
        binary=executable,
        cmdline=shlex.join(arguments),
        inventory=str(inventory.path),
        extravars=dict(variables),
        limit=limit or None,
        envvars={
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            **({AWAITS: str(awaits)} if awaits else {}),
        },
        event_handler=handle,
        # Its own handlers of SIGTERM and SIGINT would cancel a playbook half-way. A playbook that has begun must end.
        cancel_callback=lambda: False,
        quiet=True,
        suppress_env_files=True,
        # Nothing is gathered, so a file for each host would be looked for in vain.
        fact_cache_type="memory",
    )
    if not finished or (not hosts and runner.rc):
        lines = [line for message in messages for line in message.splitlines() if line.strip()]
        cause = next((line for line in lines if "ERROR" in line), lines[-1] if lines else f"exit code {runner.rc}")
        problem = _with_remedy(one_line(cause))
        raise AnsibleFailedError(f"playbooks/{name}.yml on inventory {inventory.path}: {problem}")


def _answer(event: str, host: str, result: Mapping[str, Any], read_result: ReadResult) -> AgentAnswer | None:
    message = _with_remedy(one_line(str(result.get("msg", result))))
    match event:
        case "runner_on_ok":
            return read_result(host, result, "")
        case "runner_on_failed":
            return read_result(host, result, message)
        case "runner_on_unreachable":
            nothing_begun = _NO_CONNECTION.search(message) is not None
            return AgentAnswer(host, problem=f"unreachable: {message}", reached=False, nothing_begun=nothing_begun)
        case _:
            return None


def _with_remedy(message: str) -> str:
    return f"{message} (see `vault_password_files` in the settings)" if _NO_VAULT.search(message) else message
