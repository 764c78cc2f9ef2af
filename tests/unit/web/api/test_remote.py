"""`muster --server`: the same commands by the API, from a machine that is no control node."""

import gzip
import json
import re
import time
from dataclasses import replace
from importlib.metadata import version

import httpx
import pytest
import yaml

from muster.core.agents.agent import AgentState
from muster.core.model.session import KernelLog, SessionState
from muster.core.model.token import Scope
from muster.core.values.errors import ImageError, MusterError
from muster.engine.commit import Made
from muster.remote import client as client_module
from muster.service.images import commits, removal
from muster.service.view import View
from muster.web.api.models import VersionView
from tests.command_line import muster
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

TOO_MANY = {"type": "urn:muster:too-many", "detail": "10 failed sign-ins", "errors": []}
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
    """Check that both ways print the same, and return it."""
    here, there = muster(*arguments), remote(*arguments)
    assert (there.code, without_times(there.out), there.err) == (here.code, without_times(here.out), here.err)
    return there


def test_every_command_prints_what_it_prints_on_the_control_node(remote, service):
    service.store.agents.save([make_agent("a1")])
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
    service.store.keep_logs([KernelLog(session.id, "main1", gzip.compress(b"one\ntwo\n"))])
    assert same(ada, "logs", "train", "--tail", "1").out == "two\n"
    waited = ada("submit", *SMALL, "--name", "late", "--wait", "--wait-timeout", "0", "--quiet")
    assert (waited.code, waited.errors) == (
        1,
        ["muster: still waiting for late (PENDING); `muster why SESSION` says why"],
    )


def test_folders_secrets_images_and_reports_are_shown_as_on_the_control_node(remote, service, tmp_path):
    service.store.agents.save([replace(make_agent("far"), state=AgentState.LOST, problem="no route")])
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": [{"name": "base", "reference": "lab/base:1"}]}))
    ran = replace(
        placed_on(make_session(1, name="ran", time_limit="1h"), "far"), owner="ada", submitted_at=time.time() - 60
    )
    ended = replace(placed_on(make_session(2, name="ended"), "far", state=SessionState.TERMINATED), owner="bob")
    began = time.time() - 7200
    ended = replace(ended, submitted_at=began - 60, started_at=began, ended_at=began + 3600)
    service.store.add([replace(ran, started_at=time.time() - 50), ended])
    ada = remote("ada", Scope.ADMIN)
    assert ada("folder", "create", "data", "--quota", "1.5G").out == "Created data\n"
    assert ada("folder", "share", "data", "bob", "--rw").out == "bob may mount ada/data read-write\n"
    assert ada("folder", "quota", "data", "none").errors == ["agent far: no route"]
    secret = tmp_path / "secret"
    secret.write_text("hush")
    assert ada("secret", "set", "token", "--from-file", str(secret)).out == "token is set\n"
    for arguments in (
        *(
            ("folder", "ls"),
            ("folder", "ls", "--json"),
            ("folder", "ls", "--all", "--no-size"),
            ("folder", "show", "data"),
        ),
        *(
            ("folder", "show", "nosuch"),
            ("folder", "create", "data"),
            ("folder", "create", "a/b"),
        ),
        *(("secret", "ls"), ("secret", "ls", "--json"), ("secret", "rm", "nosuch")),
        *(("images",), ("images", "--json"), ("images", "show", "base"), ("images", "show", "nosuch")),
        *(
            ("report", "-u", "bob"),
            ("report", "--by", "project,user", "--since", "1d", "-u", "bob"),
            ("report", "-u", "bob", "--csv"),
            ("report", "-u", "bob", "--since", "10000d"),
            ("report", "--by", "x"),
        ),
        *(("top", "nosuch"), ("top", "--once"), ("rename", "nosuch", "x"), ("restart", "nosuch")),
        *(("extend", "nosuch", "1h"), ("extend", "ran", "soon")),
        *(("update", "nosuch", "--cpu", "2"), ("update", "ran", "--cpu", "2"), ("update", "ran", "--unset", "x")),
        ("commit", "ran", "NoTag"),
    ):
        same(ada, *arguments)
    assert "ended" in ada("report", "--by", "session", "--csv").out
    report_view = ada("report", "--json", "--since", "2026-01-01T00:00+00:00").json
    assert (report_view["since"], report_view["by"]) == ("2026-01-01T00:00:00.000+00:00", ["user"])
    assert ada("folder", "unshare", "data", "bob").out == "data is no longer shared with bob\n"
    removed = ada("folder", "rm", "data", "--yes", "--json").json
    assert removed == {
        "name": "data",
        "removed": False,
        "removed_from": [],
        "left_on": ["far"],
        "problems": {"far": "no route"},
    }
    assert ada("secret", "rm", "token").out == "token is removed\n"
    assert ada("rename", "ran", "renamed").out == f"{ran.id} is called renamed\n"
    assert ada("extend", "renamed", "30m").out.startswith("renamed may run for 1h30m, until 20")
    assert ada("restart", "renamed", "--json").json[0]["step"] == "RESTARTING"


def test_a_commit_is_waited_for_and_its_failure_reported(remote, service, monkeypatch):
    service.store.agents.save([make_agent("a1")])
    service.store.add([replace(placed_on(make_session(1, name="ran"), "a1"), owner="ada")])
    outcomes = [ImageError("it is too large", permanent=True), Made("sha256:" + "1" * 64, 1 << 20)]

    def commit(*_arguments):
        outcome = outcomes.pop(0)
        if isinstance(outcome, ImageError):
            raise outcome
        return outcome

    monkeypatch.setattr(commits, "commit", commit)
    monkeypatch.setattr(commits, "parent_id", lambda _agent, _kernel: "sha256:" + "0" * 64)
    ada = remote("ada")
    failed = ada("commit", "ran", "ada/train:1")
    assert (failed.code, failed.errors) == (1, ["muster: it is too large"])
    made = ada("commit", "ran:main1", "ada/train:1", "-m", "with results", "--json").json
    assert (made["reference"], made["message"], made["author"]) == ("ada/train:1", "with results", "ada")
    assert "ada/train" in ada("images").out
    eve = remote("eve")
    assert "ada/train" not in eve("images").out
    assert ada("commit", "ran", "ada/train:2", "--sync").errors == [
        "muster: --sync: it needs the control node; leave it out, and agents get the image when needed"
    ]
    monkeypatch.setattr(removal, "remove", lambda _agent, _reference: None)
    assert eve("images", "rm", "ada/train:1").errors == [
        "muster: NAME:TAG: no image ada/train:1 was made by `muster commit`; what its file lists is removed there"
    ]
    assert ada("images", "rm", "ada/train:1").out == "ada/train:1 is removed, from 1 agents\n"
    assert "ada/train" not in ada("images").out


def test_a_wait_is_for_several_sessions_and_of_an_array_for_all_of_it(remote):
    ada, eve = remote("ada"), remote("eve")
    ada("submit", *SMALL, "--name", "many", "--array", "0-149", "-c", "true")
    ada("submit", *SMALL, "--name", "one", "-c", "true")
    ada("cancel", "many", "one")
    waited = ada("wait", *(f"many-{index}" for index in range(150)), "one", "many", "--json")
    assert (waited.code, len(waited.json)) == (1, 151)
    assert waited.json[0]["name"] == "many-0"
    assert eve("wait", "one").errors == ["muster: there is no session 'one'; see `muster ls --all`"]


def test_a_remote_command_is_limited_to_the_tokens_user(remote):
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
    refused = ada("folder", "ls", "--all", "--no-size")
    assert (refused.code, refused.errors) == (
        1,
        ["muster: token ada-user is not an administrator's; use one of scope admin"],
    )


def test_a_command_that_needs_the_control_node_is_refused_in_a_line(remote):
    for command in (("pass",), ("agent", "ls"), ("doctor",), ("web",)):
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
def test_an_address_without_a_muster_server_is_reported_in_a_line(service, monkeypatch, arguments, message):
    del service
    monkeypatch.setenv("MUSTER_TOKEN", "muster_x")
    answer = muster(*arguments, "ls")
    assert answer.code in {1, 2}
    assert len(answer.errors) == 1
    assert answer.errors[0].startswith(f"muster: {message}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda view: view.pop("owner"), "items.0.owner: Field required"),
        (lambda view: view.update(state="ASLEEP"), "items.0.state: Input should be "),
    ],
    ids=["older", "newer"],
)
def test_a_server_of_another_version_is_named_with_both_versions(remote, monkeypatch, change, problem):
    ada = remote("ada")
    assert ada("submit", *SMALL, "--name", "train").code == 0

    json_text = View.json_text

    def changed(view):
        content = json.loads(json_text(view))
        change(content["items"][0])
        return json.dumps(content)

    monkeypatch.setattr(View, "json_text", changed)
    answer = ada("ls")
    assert (answer.code, len(answer.errors)) == (1, 1)
    assert answer.errors[0].startswith(f"muster: --server: its answer is not understood ({problem}")
    ours = version("muster")
    assert answer.errors[0].endswith(
        f"; the server runs Muster {ours}, this is {ours}; use the server's version of Muster"
    )


def test_fields_that_a_newer_server_adds_are_ignored(remote, monkeypatch):
    ada = remote("ada")
    ada("submit", *SMALL, "--name", "train")
    before = ada("ls").out
    json_text = View.json_text
    monkeypatch.setattr(View, "json_text", lambda view: json.dumps({**json.loads(json_text(view)), "mood": "good"}))
    assert without_times(ada("ls").out) == without_times(before)


def test_a_missing_or_wrong_token_is_reported_in_a_line(server, tmp_path, monkeypatch):
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


def test_the_client_waits_for_a_short_retry_after_and_not_for_a_minute(monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    after = iter(["2", "3", None])

    def answer(_request):
        seconds = next(after)
        if seconds is None:
            return httpx.Response(200, json={"muster": "1", "api": "v1"})
        return httpx.Response(429, headers={"Retry-After": seconds}, json=TOO_MANY)

    client = client_module.Client("http://muster.example", "muster_x", httpx.MockTransport(answer))
    assert client.get(VersionView, "version").muster == "1"
    assert waited == [2, 3]
    after = iter(["60"])
    with pytest.raises(MusterError, match="10 failed sign-ins"):
        client.get(VersionView, "version")
    after = iter(["20"] * 3)
    with pytest.raises(MusterError, match="10 failed sign-ins"):
        client.get(VersionView, "version")
    assert waited == [2, 3, 20]


def test_users_make_and_revoke_their_own_tokens_from_elsewhere(remote, service):
    service.service.tokens.create("eves", "eve", Scope.USER, None)
    ada = remote("ada")
    made = ada("token", "create", "laptop", "--scope", "read", "--expires", "30d")

    assert (made.code, made.err.startswith("laptop is ada's, with scope read, until")) == (0, True)
    assert service.service.tokens.of_secret(made.out.strip()).user == "ada"
    assert [line.split()[0] for line in ada("token", "ls").out.splitlines()] == ["NAME", "ada-user", "laptop"]
    assert ada("token", "revoke", "laptop").out == "laptop is revoked\n"
    refused = ada("token", "revoke", "eves")
    assert (refused.code, refused.err) == (2, "muster: there is no token 'eves'; see `muster token ls`\n")
    assert ada("token", "create", "mine", "--user", "eve").code != 0


def test_presets_are_saved_shown_as_session_files_and_removed_both_ways(remote, tmp_path):
    ada = remote("ada")
    file = tmp_path / "session.yml"
    file.write_text("cpu: 0.5\nmem: 64M\n")
    assert ada("preset", "set", "small", "-f", str(file)).out == "small is saved\n"
    same(ada, "preset", "ls", "--json")
    assert "small me" in " ".join(same(ada, "preset", "ls").out.split())
    shown = same(ada, "preset", "show", "small")
    assert yaml.safe_load(shown.out) == {"cpu": 0.5, "mem": "64M"}
    file.write_text(shown.out)
    assert "0.5 CPU, 64 MiB memory" in muster("submit", "-f", str(file), "--dry-run").out
    assert same(ada, "preset", "show", "nosuch").code == 2
    file.write_text("cpu: -1\n")
    refused = same(ada, "preset", "set", "small", "-f", str(file))
    assert (refused.code, "cpu" in refused.err) == (2, True)
    assert ada("preset", "rm", "small").out == "small is removed\n"
    assert muster("preset", "rm", "small").code == 2
