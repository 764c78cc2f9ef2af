"""The ways into main1 and its peers: the configuration file of `muster ssh`, and the plain command for a laptop."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.model.session import Session
from muster.core.values.errors import AgentUnreachableError, NotPossibleInStateError
from muster.service.reach.ssh_access import has_way_in, plain_ssh_command, ssh_config, ssh_host_alias
from muster.settings import Settings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session

REMOTE = {
    "connection": "ssh",
    "address": "192.0.2.7",
    "port": 2022,
    "user": "admin",
    "ssh_args": "-o ProxyCommand='ssh -W %h:%p bastion' -o 'UserKnownHostsFile=/etc/muster/known hosts'",
    "private_key_file": "/etc/muster/key",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state of 100%")


@pytest.fixture
def session() -> Session:
    return running_session(1, "a1", cluster_size=2)


def as_ssh_reads_it(config: Path, host: str) -> dict[str, str]:
    """Return the options that ssh derives for a host, with lower-case keys."""
    done = subprocess.run(["ssh", "-G", "-F", config, host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def words_of_proxy(settings: Settings, session: Session, **attributes: Any) -> list[str]:
    config = ssh_config(settings, session, make_agent(**attributes))
    return shlex.split(as_ssh_reads_it(config, "main1")["proxycommand"])


def test_main1_of_a_local_agent_is_reached_directly(settings, session):
    config = ssh_config(settings, session, make_agent())
    main = as_ssh_reads_it(config, "main1")
    assert (main["hostname"], main["port"], main["user"]) == ("127.0.0.1", "30001", "work")
    assert "proxycommand" not in main
    assert main["stricthostkeychecking"] in {"true", "yes"}
    assert main["identitiesonly"] == "yes"


def test_main1_that_only_its_agent_reaches_is_reached_through_it_with_the_inventorys_options(settings, session):
    words = words_of_proxy(settings, session, **REMOTE)
    assert words == [
        *("ssh", "-W", "[%h]:%p", "-o", "ProxyCommand=ssh -W %%h:%%p bastion"),
        *("-o", "UserKnownHostsFile=/etc/muster/known hosts", "-i", "/etc/muster/key"),
        *("-p", "2022", "-l", "admin", "192.0.2.7"),
    ]


def test_options_missing_in_the_inventory_are_left_to_ssh(settings, session):
    words = words_of_proxy(settings, session, connection="ssh", address="node-1", port="", user="")
    assert words == ["ssh", "-W", "[%h]:%p", "node-1"]


@pytest.mark.parametrize(
    ("publish_address", "connection", "host"),
    [
        ("0.0.0.0", "ssh", "192.0.2.7"),
        ("::", "ssh", "192.0.2.7"),
        ("198.51.100.7", "ssh", "198.51.100.7"),
        ("0.0.0.0", "local", "127.0.0.1"),
        ("127.0.0.1", "local", "127.0.0.1"),
    ],
)
def test_main1_that_is_published_to_others_is_reached_directly(settings, session, publish_address, connection, host):
    agent = make_agent(**{**REMOTE, "publish_address": publish_address, "connection": connection})
    main = as_ssh_reads_it(ssh_config(settings, session, agent), "main1")
    assert (main["hostname"], "proxycommand" in main) == (host, False)
    command = plain_ssh_command(settings, session, session.main, agent)
    assert "-J" not in command
    assert command[-1] == f"work@{host}"


def unpublished(session: Session, address: str | None = "10.200.3.2") -> Session:
    main, *others = session.kernels
    return replace(session, kernels=(replace(main, ssh_port=None, address=address), *others))


def test_main1_that_is_not_published_is_reached_on_its_bridge(settings, session):
    main = as_ssh_reads_it(ssh_config(settings, unpublished(session), make_agent()), "main1")
    assert (main["hostname"], main["port"], "proxycommand" in main) == ("10.200.3.2", "2200", False)


# It may be another now than at the launch.
@pytest.mark.parametrize("publish_address", ["127.0.0.1", "0.0.0.0", "198.51.100.7"])
def test_only_the_agent_reaches_the_bridge(settings, session, publish_address):
    agent = make_agent(**{**REMOTE, "publish_address": publish_address})
    main = as_ssh_reads_it(ssh_config(settings, unpublished(session), agent), "main1")
    assert (main["hostname"], main["port"], "proxycommand" in main) == ("10.200.3.2", "2200", True)
    command = plain_ssh_command(settings, unpublished(session), session.main, agent)
    assert command[:5] == ["ssh", "-J", "admin@192.0.2.7:2022", "-p", "2200"]
    assert command[-1] == "work@10.200.3.2"


def test_a_host_has_no_way_into_an_overlay(settings):
    session = running_session(1, "a1", "a2", cluster_size=2, cluster_mode="multi-node")
    assert has_way_in(session)
    assert not has_way_in(unpublished(session))
    with pytest.raises(NotPossibleInStateError, match=r"main1 of session .* is on no network at present; try again"):
        ssh_config(settings, unpublished(session), make_agent())


def test_a_kernel_that_was_cut_off_is_reached_no_way(settings, session):
    cut_off = unpublished(session, address=None)
    with pytest.raises(NotPossibleInStateError, match="on no network at present"):
        plain_ssh_command(settings, cut_off, cut_off.main, make_agent())


def test_the_other_kernels_are_reached_through_main1(settings, session):
    config = ssh_config(settings, session, make_agent(**REMOTE))
    sub = as_ssh_reads_it(config, "sub1")
    assert (sub["hostname"], sub["port"], sub["user"]) == ("sub1", "2200", "work")
    # The state directory's name has blanks and a percent sign, which a ProxyJump would give a shell as they are.
    assert "proxyjump" not in sub
    assert shlex.split(sub["proxycommand"].replace("%%", "%")) == ["ssh", "-F", str(config), "-W", "%h:%p", "main1"]


def test_each_kernel_has_a_name_that_no_other_session_has(settings, session):
    config = ssh_config(settings, session, make_agent())
    for kernel in session.kernels:
        assert as_ssh_reads_it(config, ssh_host_alias(session, kernel)) | {"host": ""} == as_ssh_reads_it(
            config, kernel.name
        ) | {"host": ""}
    other = running_session(2, "a1", name="other", cluster_size=2)
    assert not {ssh_host_alias(session, k) for k in session.kernels} & {ssh_host_alias(other, k) for k in other.kernels}


def test_only_the_sessions_own_host_key_is_trusted(settings, session):
    config = ssh_config(settings, session, make_agent())
    alias = as_ssh_reads_it(config, "sub1")["hostkeyalias"]
    known = (config.parent / "known_hosts").read_text(encoding="utf-8")
    assert known == f"{alias} {session.public_key}\n"
    assert config.parent.stat().st_mode & 0o777 == 0o700


def test_the_plain_command_jumps_over_the_agent(settings, session):
    command = plain_ssh_command(settings, session, session.main, make_agent(**REMOTE))
    assert command[:5] == ["ssh", "-J", "admin@192.0.2.7:2022", "-p", "30001"]
    assert command[-1] == "work@127.0.0.1"
    without = plain_ssh_command(settings, session, session.main, make_agent(connection="ssh", address="fd00::7"))
    assert without[1:3] == ["-J", "[fd00::7]"]


def test_the_plain_command_for_another_kernel_goes_over_main1(settings, session):
    command = plain_ssh_command(settings, session, session.kernels[1], make_agent(**REMOTE))
    (proxy,) = [word.removeprefix("ProxyCommand=") for word in command if word.startswith("ProxyCommand=")]
    inner = shlex.split(proxy)
    assert inner[:5] == ["ssh", "-W", "sub1:2200", "-J", "admin@192.0.2.7:2022"]
    assert (inner[-1], command[-1]) == ("work@127.0.0.1", "work@sub1")


def test_a_port_that_is_used_again_brings_no_old_host_key_back(settings):
    first, second = (running_session(number, "a1", name=f"s{number}") for number in (1, 2))
    commands = [plain_ssh_command(settings, s, s.main, make_agent(**REMOTE)) for s in (first, second)]
    aliases = [word for command in commands for word in command if word.startswith("HostKeyAlias=")]
    assert len(set(aliases)) == 2


def test_a_session_that_does_not_run_has_no_way_in(settings):
    with pytest.raises(NotPossibleInStateError, match="RUNNING"):
        ssh_config(settings, make_session(1), make_agent())


def test_options_of_the_inventory_that_are_no_words_are_said(settings, session):
    with pytest.raises(AgentUnreachableError, match="agent a1: ansible_ssh_common_args"):
        ssh_config(settings, session, make_agent(connection="ssh", ssh_args="-o 'broken"))
