"""`muster --server`: the same commands by the API, from a machine that is no control node."""

import gzip
import re

import pytest

from muster.core.token import Scope
from tests.command_line import muster
from tests.strategies import make_agent

SMALL = ("--cpu", "0.1", "--mem", "64M", "--shm", "16M")


@pytest.fixture
def remote(server, secret_of, tmp_path):
    """Runs a command through the server as that user; without a way to the control node's own files."""

    def make(user, scope=Scope.USER):
        file = tmp_path / f"{user}-{scope}"
        file.write_text(f"{secret_of(user, scope)}\n")

        def run(*arguments):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MUSTER_CONFIG", str(tmp_path / "nosuch.yml"))
                return muster("--server", server, "--token-file", str(file), *arguments)

        return run

    return make


def without_times(text):
    return re.sub(r" +", " ", re.sub(r"\b(\d+(ms|[smhd]))+\b", "TIME", text))


def same(remote, *arguments):
    """What both ways print."""
    here, there = muster(*arguments), remote(*arguments)
    assert (there.code, without_times(there.out), there.err) == (here.code, without_times(here.out), here.err)
    return there


def test_every_command_prints_what_it_prints_on_the_control_node(remote, service):
    service.store.save_agents([make_agent("a1")])
    ada = remote("ada", Scope.ADMIN)
    answer = ada("submit", *SMALL, "--name", "train", "-N", "2", "--env", "A=b", "--begin", "now+1h", "-c", "true")
    assert (answer.code, answer.out.split()[:2]) == (0, ["Submitted", "train"])
    ada("submit", *SMALL, "--name", "many", "--array", "0-2%1")
    for arguments in (
        *(("ls",), ("ls", "--json"), ("ls", "--all", "--limit", "2"), ("ls", "--state", "pending", "--mine")),
        *(("show", "train"), ("show", "train", "--json"), ("why", "train"), ("why", "train", "--json")),
        *(("queue",), ("agents",), ("agents", "--json"), ("agents", "--gpus"), ("agents", "--label", "disk=ssd")),
        *(("show", "nosuch"), ("logs", "train"), ("why", "many"), ("submit", "--cpu", "much", "--mem", "1")),
        ("submit", *SMALL, "--name", "train"),
        ("submit", *SMALL, "--name", "next", "--dry-run"),
        ("hold", "many"),
        ("release", "many-1", "--json"),
    ):
        same(ada, *arguments)
    assert same(ada, "why", "train", "--what-if").code == 0
    assert ada("cancel", "many").out == "many-[0-2]: 3 are CANCELLED\n"
    assert ada("terminate", "--all").out == "train is CANCELLED\n"
    session = service.store.find("train")
    service.store.keep_log(session.id, "main1", gzip.compress(b"one\ntwo\n"))
    assert same(ada, "logs", "train", "--tail", "1").out == "two\n"
    waited = ada("submit", *SMALL, "--name", "late", "--wait", "--wait-timeout", "0", "--quiet")
    assert (waited.code, waited.errors) == (
        1,
        ["muster: still waiting for late (PENDING); `muster why SESSION` says why"],
    )


def test_it_shows_and_touches_what_the_tokens_user_may(remote):
    ada, eve, reader = remote("ada"), remote("eve"), remote("ada", Scope.READ)
    ada("submit", *SMALL, "--name", "train")
    assert eve("ls", "--json").json == []
    refused = eve("terminate", "train")
    assert (refused.code, refused.errors) == (2, ["muster: there is no session 'train'; see `muster ls --all`"])
    refused = reader("terminate", "train")
    assert (refused.code, refused.errors) == (
        1,
        ["muster: token ada-read may only read; use one of scope user or admin"],
    )
    assert ada("submit", *SMALL, "--owner", "eve").code == 1


def test_what_needs_the_control_node_says_so_in_a_line(remote):
    for command in (("pass",), ("agent", "ls"), ("token", "ls"), ("ssh", "train"), ("web",)):
        answer = remote("ada")(*command) if command == ("pass",) else muster("--server", "http://127.0.0.1:1", *command)
        assert answer.code == 2
        assert answer.errors == [
            f"muster: --server: muster {command[0]} needs the control node; run it there, without --server"
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--server", "nonsense"), "--server: 'nonsense' is no URL; write one such as https://"),
        (("--server", "http://127.0.0.1:1"), "--server: http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_a_server_that_is_none_is_told_in_a_line(service, monkeypatch, arguments, message):
    del service
    monkeypatch.setenv("MUSTER_TOKEN", "muster_x")
    answer = muster(*arguments, "ls")
    assert answer.code in {1, 2}
    assert len(answer.errors) == 1
    assert answer.errors[0].startswith(f"muster: {message}")


def test_a_token_that_is_missing_or_wrong_is_told_in_a_line(server, tmp_path, monkeypatch):
    monkeypatch.delenv("MUSTER_TOKEN", raising=False)
    monkeypatch.setenv("MUSTER_SERVER", server)
    assert muster("ls").errors == [
        "muster: --token-file: there is no token; name a file that holds one, or set MUSTER_TOKEN"
    ]
    nosuch = muster("--token-file", str(tmp_path / "nosuch"), "ls")
    assert nosuch.errors == [f"muster: --token-file: {tmp_path / 'nosuch'} cannot be read: No such file or directory"]
    monkeypatch.setenv("MUSTER_TOKEN", "muster_wrong")
    wrong = muster("ls")
    assert (wrong.code, len(wrong.errors)) == (1, 1)
    assert "not known here" in wrong.errors[0]


def test_tokens_are_made_listed_and_revoked(service):
    del service
    made = muster("token", "create", "laptop", "--user", "ada", "--scope", "read", "--expires", "30d")
    assert made.out.startswith("muster_")
    assert "keep it in a file of mode 0600" in made.err
    assert muster("token", "ls").out.splitlines()[1].split()[:4] == ["laptop", "ada", "read", "valid"]
    assert made.out.strip() not in muster("token", "ls", "--json").out
    assert muster("token", "create", "laptop", "--user", "ada").code == 2
    assert (
        muster("token", "create", "x", "--user", "ada", "--expires", "soon").errors[0].startswith("muster: --expires: ")
    )
    assert muster("token", "revoke", "laptop").out == "laptop is revoked\n"
    assert muster("token", "revoke", "laptop").code == 2
    assert muster("token", "ls", "--json").json == []
