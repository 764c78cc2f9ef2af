"""`muster ssh-config`: what ssh and editors make of the entries."""

import subprocess

import pytest

from muster.core.model.session import SessionState
from tests.command_line import muster
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.running_sessions import running_session


@pytest.fixture
def home(service, tmp_path):
    """Return ada's home directory, who has sessions that run, one that waits, and a configuration of their own."""
    service.store.agents.save([make_agent("a1")])
    service.store.add(
        [
            running_session(1, "a1", name="lab", cluster_size=2),
            placed_on(make_session(2, name="over"), "a1", state=SessionState.TERMINATED),
            make_session(3, name="waits"),
            running_session(4, "a1", name="hers", owner="eve"),
        ]
    )
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / ".ssh" / "config").write_text("Host *\n  User somebody\n")
    return tmp_path / "home"


def resolved(home, host):
    """Return what ssh itself makes of the configuration for a host."""
    answer = subprocess.run(
        ["ssh", "-F", home / ".ssh" / "config", "-G", host], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in answer.stdout.splitlines() if " " in line)


def test_each_kernel_of_ones_running_sessions_is_a_host(home, service):
    assert muster("ssh-config").out == "lab.muster is lab\n"
    text = (home / ".ssh" / "config").read_text()
    assert text.endswith("Host *\n  User somebody\n")
    assert text.startswith(f'Include "{home}/.ssh/muster/config"\n')
    session = service.store.find("lab")
    for host, kernel in (("lab.muster", "main1"), ("sub1.lab.muster", "sub1")):
        found = resolved(home, host)
        assert (found["user"], found["hostname"]) == ("work", kernel)
        assert f"exec {session.id}:{kernel} -- " in found["proxycommand"]
        assert found["proxycommand"].endswith("nc 127.0.0.1 2200")
        assert found["identityfile"].endswith("/state/id_ed25519")
    alias = resolved(home, "lab.muster")["hostkeyalias"]
    known = (home / ".ssh" / "muster" / "known_hosts").read_text()
    assert known == f"{alias} {session.public_key}\n"
    assert resolved(home, "example.org")["user"] == "somebody"


def test_entries_are_written_anew_and_the_include_once(home):
    for _ in range(2):
        assert muster("ssh-config", "lab").code == 0
    assert (home / ".ssh" / "config").read_text().count("Include") == 1
    muster("terminate", "lab")
    assert muster("ssh-config").out == "No session of yours runs\n"
    assert "Host " not in (home / ".ssh" / "muster" / "config").read_text()


def test_another_machine_goes_by_the_server_with_its_token_file(home, server, secret_of, tmp_path):
    token = tmp_path / "token"
    token.write_text(secret_of("ada"))
    there = ("--server", server, "--token-file", str(token))
    printed = muster(*there, "ssh-config", "--print").out
    assert f"--server {server} --token-file {token} exec " in printed
    assert "IdentityFile" not in printed
    assert not (home / ".ssh" / "muster").exists()
    assert muster(*there, "ssh-config", "hers").code == 2
    refused = muster(*there, "ssh-config", "waits")
    assert (refused.code, len(refused.errors)) == (1, 1)


@pytest.mark.usefixtures("home")
def test_the_page_of_a_running_session_opens_it_in_vs_code(browser, service):
    page = browser("ada").get(f"/sessions/{service.store.find('lab').id}")
    assert 'href="vscode://vscode-remote/ssh-remote+lab.muster/home/work"' in page.text
    assert "muster ssh-config" in page.text
    waits = browser("ada", name="again").get(f"/sessions/{service.store.find('waits').id}")
    assert "vscode://" not in waits.text
