"""A researcher logs in to the control node and types `muster`: every command, with no token and no rights of root's."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, ControlNode
from tests.done import Done
from tests.readme_tours import go_through, user_tour
from tests.running.forked_on_path import muster_on_path
from tests.servers.opened_app import get, opened_by
from tests.servers.web_server import web_server
from tests.unix_users import become, muster_as

RUNTIME = "/opt/muster/runtime"
IMAGE_TAG = "from-login:1"
Muster = Callable[..., Done]


@pytest.fixture(scope="module")
def login() -> Iterator[str]:
    """Yield a new user of this machine, who has a home directory and an ssh key."""
    name = f"muster-{secrets.token_hex(3)}"
    with TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o755)
        home = directory / "home"
        subprocess.run(["useradd", "--create-home", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
        try:
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / ".ssh" / "id_ed25519"]
            subprocess.run(["install", "-d", "-m", "0700", "-o", name, home / ".ssh"], check=True)
            subprocess.run(key, user=name, check=True)
            yield name
        finally:
            subprocess.run(["userdel", name], check=True)


@pytest.fixture(scope="module")
def socket_path(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        path = Path(made) / "api.sock"
        with web_server(node, tmp_path_factory.mktemp("web"), "--socket", str(path)):
            yield path


@pytest.fixture
def muster(login: str, socket_path: Path) -> Muster:
    """Run a command as the user who has logged in."""

    def run(*arguments: str, stdin: str = "", code: int = 0) -> Done:
        done = muster_as(
            become(login), *arguments, server=f"unix:{socket_path}", stdin=stdin, home=pwd.getpwnam(login).pw_dir
        )
        assert done.code == code, f"muster {' '.join(arguments)}: {done.code}\n{done.out}{done.err}"
        return done

    return run


def test_a_day_of_work_without_a_token(muster, login, node, socket_path, monkeypatch):
    image = f"{login}/{IMAGE_TAG}"
    muster("folder", "create", "results")
    muster("secret", "set", "api-key", stdin="hush")
    serve = f"echo begun; exec {RUNTIME}/bin/busybox httpd -f -p 127.0.0.1:8000 -h {HOME}"
    requested = ("--cluster-size", "2", "-v", "results", "--secret", "api-key", "--publish", "web=8000", "-c", serve)
    submitted = muster("submit", *SMALL, "--name", "desk", *requested, "--json").json()[0]
    assert submitted["owner"] == login
    node.reaches(submitted["id"], "RUNNING")
    assert [one["name"] for one in muster("ls", "--json").json()] == ["desk"]
    assert muster("show", "desk", "--json").json()["id"] == submitted["id"]
    assert muster("why", "desk").out
    assert muster("logs", "desk").out == "begun\n"
    _programs(muster)
    _files(muster, login)
    _logins(muster, login, socket_path, monkeypatch)
    _app(muster, login, socket_path)
    (main, _) = muster("top", "desk", "--json").json()
    assert (main["kernel"], main["problem"]) == ("main1", None)
    try:
        muster("commit", "desk", image)
        assert muster("images", "show", image, "--json").json()[0]["committed"]["parent"]
        muster("rename", "desk", "bench")
        muster("restart", "bench", "--wait")
        muster("terminate", "bench", "--wait")
    finally:
        assert muster("images", "rm", image).out == f"{image} is removed, from 1 agents\n"
    (line,) = muster("report", "--json").json()["lines"]
    assert (line["user"], line["sessions"]) == (login, 1)
    muster("folder", "rm", "results", "--yes")
    muster("secret", "rm", "api-key")


def test_the_readmes_tour_for_a_user_goes_as_written(login, socket_path):
    home = pwd.getpwnam(login).pw_dir
    directory = socket_path.parent / "tour"
    directory.mkdir(mode=0o755)
    answers = (
        "main1\nsub1\n",
        "ssh -N -L 127.0.0.1:8000:127.0.0.1:8000 ",
        "desk may run for 3h, until ",
        "loss 0.5\n",
    )
    with muster_on_path(directory, "/usr/bin/python3", become(login)) as programs:
        go_through(
            user_tour(),
            answers,
            directory=Path(home),
            programs=str(programs),
            environment={"HOME": home, "MUSTER_SERVER": f"unix:{socket_path}"},
            prepare=become(login),
        )


def _programs(muster: Muster) -> None:
    script = "cat; echo to standard error >&2; exit 7"
    done = muster("exec", "desk:sub1", "--", "sh", "-c", script, stdin="from standard input\n" * 1000, code=7)
    assert (done.out, done.err) == ("from standard input\n" * 1000, "to standard error\n")
    assert muster("exec", "desk", "--", "cat", "/run/muster/secrets/api-key").out == "hush"
    # More than any buffer on the way holds, both ways.
    many = muster("exec", "desk", "--", "sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' x").out
    assert many == "x" * 9_000_000
    assert "no container 'sub7'" in muster("exec", "desk:sub7", "--", "true", code=2).err
    assert "there is no session 'nosuch'" in muster("exec", "nosuch", "--", "true", code=2).err


def _files(muster: Muster, login: str) -> None:
    home = Path(pwd.getpwnam(login).pw_dir)
    (home / "notes").mkdir()
    (home / "notes" / "one").write_text("1")
    shutil.chown(home, login)
    muster("cp", str(home / "notes"), "desk:")
    muster("exec", "desk", "--", "sh", "-c", "cp notes/one results/two; ls -l notes")
    muster("cp", "desk:sub1:results", str(home / "back"))
    assert (home / "back" / "two").read_text() == "1"
    assert (home / "back").owner() == login
    assert "does not exist there" in muster("cp", "desk:nosuch", str(home), code=2).err


def _logins(muster: Muster, login: str, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests' own Python is root's alone.
    with muster_on_path(socket_path.parent, "/usr/bin/python3", become(login)) as directory:
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        _log_in(muster)
        _log_in_without_a_key(muster, login)
        _log_in_as_an_editor_does(muster, login)


def _log_in(muster: Muster) -> None:
    assert muster("ssh", "desk", "hostname; id -un").out == "main1\nwork\n"
    assert muster("ssh", "desk:sub1", "hostname").out == "sub1\n"
    assert muster("ssh", "desk", "--print").out.startswith("ssh -p ")


def _log_in_without_a_key(muster: Muster, login: str) -> None:
    directory = Path(pwd.getpwnam(login).pw_dir) / ".ssh"
    away = directory.rename(directory.with_name("away"))
    try:
        said = muster("ssh", "desk", "hostname", code=255).err
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        away.rename(directory)
    assert "make one by `ssh-keygen`" in said
    assert "Permission denied" in said


def _log_in_as_an_editor_does(muster: Muster, login: str) -> None:
    assert muster("ssh-config").out == "desk.muster is desk\n"
    home = Path(pwd.getpwnam(login).pw_dir)
    for host, name in (("desk.muster", "main1"), ("sub1.desk.muster", "sub1")):
        words = ["ssh", "-F", home / ".ssh" / "config", "-o", "BatchMode=yes", host, "hostname"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        done = subprocess.run(
            words, env=environment, preexec_fn=become(login), capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == (f"{name}\n", 0), done.stderr


def _app(muster: Muster, login: str, socket_path: Path) -> None:
    muster("exec", "desk", "--", "sh", "-c", "seq 100000 > index.html")
    command, url = muster("open", "desk", "--port", "1234", "--print").out.splitlines()
    assert command.startswith("ssh -N -L 127.0.0.1:1234:127.0.0.1:8000 ")
    assert url == "http://127.0.0.1:1234/"
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MUSTER_SERVER": f"unix:{socket_path}"}
    with opened_by(become(login), environment, "desk", "--port", str(port)) as here:
        assert here == f"http://127.0.0.1:{port}/"
        for _ in range(2):
            status, content = get(here)
            assert (status, content.splitlines()[-1]) == (200, "100000")


def test_what_a_kernel_writes_is_its_owners_on_the_hosts(new_node, login):
    node = new_node(owner_uid="unix", owner_uid_range="200000-200999")
    node.start_daemon()
    account = pwd.getpwnam(login)
    node.run("folder", "create", "results", "--owner", login)
    write = "id -u; id -g; echo mine > results/file"
    for owner in (login, "somebody-elsewhere"):
        mounts = ("-v", "results") if owner == login else ()
        name = node.submit(*SMALL, "--owner", owner, *mounts, "-c", write if mounts else "id -u; id -g")
        node.reaches(name, "TERMINATED")
        uid, gid = map(int, node.run("logs", name).out.split())
        expected = (account.pw_uid, account.pw_gid) if owner == login else (200000, 200000)
        assert (uid, gid) == expected
    (file,) = node.folders.rglob("file")
    assert file.owner() == login
    assert file.read_text() == "mine\n"
