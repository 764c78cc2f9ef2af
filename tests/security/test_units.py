"""What the units of the control node take from the programs that they run, and what they must leave them."""

import re

import pytest

from tests.modules.agent_code import ROOT

# Each gives a unit a view of its own of the file systems.
OWN_VIEW = (
    "BindPaths|BindReadOnlyPaths|InaccessiblePaths|MountFlags|PrivateDevices|PrivateMounts|PrivateTmp|ProtectClock"
    "|ProtectControlGroups|ProtectHome|ProtectHostname|ProtectKernelLogs|ProtectKernelModules|ProtectKernelTunables"
    "|ProtectProc|ProtectSystem|ReadOnlyPaths|ReadWritePaths|RootDirectory|TemporaryFileSystem"
)
# The rights that agents' modules need if the control node is an agent too: folders with quotas and any owner.
FOR_FOLDERS = {"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"}


def directives(unit: str) -> list[tuple[str, str]]:
    text = (ROOT / f"roles/control_node/templates/{unit}.service.j2").read_text("utf-8")
    return re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "directive",
    [
        "NoNewPrivileges=true",
        "PrivateTmp=true",
        "ProtectKernelModules=true",
        "SystemCallFilter=~@clock @cpu-emulation @debug @module @obsolete @raw-io @reboot @swap",
        "ProtectKernelTunables=true",
        "ProtectSystem=full",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX",
        "RestrictNamespaces=true",
    ],
)
def test_the_server_is_shut_in(directive: str) -> None:
    assert tuple(directive.split("=")) in directives("muster-web")


def test_the_server_loads_no_module_and_traces_nobody_but_makes_folders() -> None:
    taken = {
        word for name, value in directives("muster-web") if name == "CapabilityBoundingSet" for word in value.split()
    }
    taken = {word.lstrip("~") for word in taken}
    assert {"CAP_SYS_MODULE", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_NET_ADMIN", "CAP_MKNOD"} <= taken
    assert not taken & FOR_FOLDERS


def test_mounts_of_a_daemon_on_its_own_agent_reach_the_engine() -> None:
    assert ("NoNewPrivileges", "true") in directives("muster")
    assert [name for name, _ in directives("muster") if re.fullmatch(OWN_VIEW, name)] == []
