"""The ssh command that reaches an agent, with the options that the inventory gives to Ansible."""

import os
import shlex

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError


def is_local(agent: Agent) -> bool:
    """Return whether the agent is the control node itself."""
    return agent.connection.is_local


def ssh_user(agent: Agent) -> str:
    """Return the user; empty where the inventory leaves it to ssh."""
    return agent.connection.user


def ssh_port(agent: Agent) -> str:
    """Return the port; empty where the inventory leaves it to ssh."""
    return str(agent.connection.port or "")


def ssh_address(agent: Agent) -> str:
    return agent.connection.address or agent.id


def ssh_command(agent: Agent, *options: str) -> list[str]:
    """Return `ssh … <address>`, to be followed by a remote command.

    `options` come first: of an option that is given twice, ssh takes the first. Raises AgentUnreachableError for
    options of the inventory that cannot be split into words.
    """
    try:
        given = shlex.split(agent.connection.ssh_args)
    except ValueError as error:
        raise AgentUnreachableError(
            f"agent {agent.id}: ansible_ssh_common_args and ansible_ssh_extra_args: {error}; mend the inventory"
        ) from None
    key = agent.connection.private_key_file
    return [
        *("ssh", *options, *given),
        *(("-i", os.path.expanduser(key)) if key else ()),  # noqa: PTH111 - a string goes in and out
        *(("-p", ssh_port(agent)) if ssh_port(agent) else ()),
        *(("-l", ssh_user(agent)) if ssh_user(agent) else ()),
        ssh_address(agent),
    ]


def by_sh(script: str, *arguments: str) -> str:
    """Return a remote command that runs the script by sh, whatever the user's login shell is: sshd gives it to that.

    Raises ValueError for what a login shell changes within quotes: csh takes an end of line for the end of the quoted
    text and replaces exclamation marks, fish takes backslashes away.
    """
    words = ["exec", "sh", "-c", script, "sh", *arguments]
    if any(character in word for word in words for character in "\n!\\"):
        raise ValueError(f"not every login shell hands this on as it is: {script}")
    return shlex.join(words)
