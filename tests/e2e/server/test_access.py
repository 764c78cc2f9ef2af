"""Agents and kernels reached from the control node by ssh: engines, images, deaths, logins."""

import io
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.engine.agent_engine import engine_of, watch_deaths
from muster.engine.images import image_id, pull
from muster.settings import load_settings
from muster.store.store import Store
from tests.control_node import SMALL, ControlNode
from tests.e2e.distant_agent import DistantHost, distant_host, second_engine
from tests.e2e.images.registry import Registry, registry
from tests.strategies.agents import listed, make_agent, reporting
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantHost]:
    """Yield a host that is reached by ssh and has an engine of its own, without any image."""
    directory = tmp_path_factory.mktemp("elsewhere")
    with second_engine(directory / "engine") as engine, distant_host(directory / "host", engine) as host:
        yield host


@pytest.fixture(scope="module")
def this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantHost]:
    """Yield this machine as a host that is reached by ssh only."""
    with distant_host(tmp_path_factory.mktemp("here") / "host", Path("/var/run/docker.sock")) as host:
        yield host


@pytest.fixture(scope="module")
def registry_here() -> Iterator[Registry]:
    with registry(docker.from_env().version()["Arch"]) as running:
        yield running


@pytest.fixture(scope="module")
def small_image() -> Iterator[str]:
    """Yield an image that only this machine's own engine holds."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        content = secrets.token_bytes(1 << 20)
        entry = tarfile.TarInfo("noise")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    name = f"muster-e2e/small:{secrets.token_hex(4)}"
    repository, tag = name.split(":")
    client = docker.from_env()
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)
    yield name
    client.images.remove(name, force=True)


@pytest.fixture(scope="module")
def quiet_node(new_node) -> ControlNode:
    """Return a control node whose queue is worked by hand."""
    return new_node()


@pytest.fixture(scope="module")
def train(quiet_node, this_machine, tmp_path_factory) -> str:
    """Return a session of two kernels whose agent, from now on, is reached by ssh. A user's own key may log in."""
    keys = tmp_path_factory.mktemp("keys")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "mine"], check=True)
    command = ("--command", "echo ready; exec sleep 1000")
    name = quiet_node.submit(*SMALL, "--cluster-size", "2", "--ssh-key", str(keys / "mine.pub"), *command)
    quiet_node.run("pass", "--wait")
    quiet_node.reaches(name, "RUNNING")
    register(quiet_node, lambda agent: listed(agent, **this_machine.attributes()))
    shutil.copy(keys / "mine", this_machine.directory / "mine")
    return name


def register(node: ControlNode, change) -> None:
    """Change the agent in the node's store, until it is observed again."""
    store = Store(load_settings(node.config).database_url)
    try:
        store.agents.save([change(agent) for agent in store.snapshot(time.time()).agents])
    finally:
        store.close()


@pytest.mark.parametrize("user", ["root", "ada"])
def test_users_of_the_engine_reach_it_by_ssh(elsewhere, user):
    with engine_of(elsewhere.agent(user=user)) as engine:
        assert engine.info()["Driver"] == "vfs"


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ("bob", r"agent far: user bob may not use its Docker engine \(.*sudo.*\); let it become root by sudo without"),
        ("eve", r"agent far: its Docker engine does not answer: .* \(ssh: channel .* open failed"),
        ("nobody-here", r"agent far: it cannot be logged in to \(ssh: .*Permission denied"),
    ],
)
def test_a_user_without_access_gets_one_line(elsewhere, user, problem):
    with pytest.raises(AgentUnreachableError, match=problem) as raised, engine_of(elsewhere.agent(user=user)):
        pass
    assert "\n" not in str(raised.value)


def test_a_host_key_that_changed_is_not_believed(elsewhere, this_machine):
    agent = listed(elsewhere.agent(), ssh_args=this_machine.attributes()["ssh_args"])
    with pytest.raises(AgentUnreachableError, match="Host key verification failed"), engine_of(agent):
        pass


def test_a_pull_tells_how_far_it_is(this_machine, registry_here):
    seen: list[tuple[int, int]] = []
    pull(this_machine.agent(), registry_here.image, lambda done, total: seen.append((done, total)))
    assert image_id(this_machine.agent(), registry_here.image) == registry_here.image_id
    docker.from_env().images.remove(registry_here.image)
    assert seen == sorted(seen)
    assert seen[-1] == (registry_here.layer_bytes, registry_here.layer_bytes)


@pytest.mark.parametrize(
    ("reference", "permanent"),
    [("{0.unknown}", True), ("{0.secret}", True), ("No Reference", True), ("127.0.0.1:1/there:1", False)],
)
def test_a_pull_that_fails_says_whether_to_try_again(this_machine, registry_here, reference, permanent):
    with pytest.raises(ImageError) as raised:
        pull(this_machine.agent(), reference.format(registry_here), lambda _done, _total: None)
    assert (raised.value.permanent, "\n" in str(raised.value)) == (permanent, False), raised.value


def test_a_pull_on_an_agent_that_does_not_answer_may_be_tried_again():
    with pytest.raises(ImageError, match="agent gone: ") as raised:
        pull(make_agent("gone", connection="ssh", address="127.0.0.1", port=1), "busybox", lambda _done, _total: None)
    assert not raised.value.permanent


def test_an_image_is_copied_to_the_agents_that_lack_it(new_node, elsewhere, small_image):
    node = new_node()
    node.run("ls")
    held = docker.from_env().images.get(small_image).id
    near = make_agent("near")
    images = [{"id": held, "tags": [small_image], "size_bytes": 1 << 20}]
    gone = make_agent("gone", connection="ssh", address="127.0.0.1", port=1)
    store = Store(load_settings(node.config).database_url)
    store.agents.save([reporting(near, images=images), elsewhere.agent(), gone])
    store.close()

    first = node.run("images", "sync", small_image, "--json", check=False)
    assert first.code == 1
    answer = first.json()
    assert (answer["from"], answer["image_id"], answer["changed"]) == ("near", held, True)
    far, lost = answer["targets"]
    assert far == {"agent": "far", "changed": True, "error": None}
    assert (lost["agent"], "agent gone: it cannot be logged in to" in lost["error"]) == ("gone", True)
    assert image_id(elsewhere.agent(), small_image) == held

    again = node.run("images", "sync", small_image, "--to", "far,near")
    assert again.out.splitlines()[-1] == f"nothing to do: {small_image} is on near and 1 other already"
    alone = node.run("images", "sync", small_image, "--from", "near", "--to", "near")
    assert alone.out == f"nothing to do: {small_image} is on near already\n"
    assert node.run("images", "sync", small_image, "--to", "far", "--json").json()["changed"] is False


def test_a_death_is_noticed_through_ssh_and_so_is_a_host_that_vanishes(this_machine):
    cluster, session_id = f"e2e-{secrets.token_hex(4)}", str(uuid.uuid4())
    received: list[str] = []
    ended: list[AgentUnreachableError] = []

    def watch() -> None:
        try:
            watch_deaths(this_machine.agent(), cluster, received.append)
        except AgentUnreachableError as error:
            ended.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    client = docker.from_env()
    deadline = time.monotonic() + PATIENCE_S
    while not received:
        # Again, until the watcher has begun to listen.
        labels = {"muster.cluster": cluster, "muster.session": session_id}
        client.containers.run("muster/default:latest", entrypoint="true", labels=labels, remove=True)
        assert time.monotonic() < deadline
    assert set(received) == {session_id}
    # A frozen sshd answers no more than one whose host lost its power.
    with this_machine.frozen():
        watcher.join(PATIENCE_S)
    assert len(ended) == 1


def test_logs_exec_and_ssh_reach_an_agent_by_ssh(quiet_node, train):
    assert quiet_node.run("logs", train).out == "ready\n"
    assert quiet_node.exec(f"{train}:sub1", "hostname").out == "sub1\n"
    assert quiet_node.run("ssh", train, "hostname").out == "main1\n"
    assert quiet_node.run("ssh", f"{train}:sub1", "hostname").out == "sub1\n"


@pytest.mark.parametrize("kernel", ["main1", "sub1"])
def test_the_printed_command_needs_nothing_but_ssh_and_the_users_key(quiet_node, train, this_machine, tmp_path, kernel):
    printed = quiet_node.run("ssh", "--print", f"{train}:{kernel}", "hostname").out.strip()
    assert printed.startswith("ssh ")
    assert f"-J root@127.0.0.1:{this_machine.port} -p " in printed
    # A laptop's ~/.ssh, which ssh finds by the user and not by $HOME.
    laptop = tmp_path / "config"
    laptop.write_text(
        f"Host *\n  IdentityFile {this_machine.key}\n  IdentityFile {this_machine.directory / 'mine'}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {tmp_path / 'known_hosts'}\n  StrictHostKeyChecking accept-new\n"
    )
    words = [word.replace("ProxyCommand=ssh ", f"ProxyCommand=ssh -F {laptop} ") for word in shlex.split(printed)]
    words[1:1] = ["-F", str(laptop)]
    for _again in range(2):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, f"{kernel}\n"), done.stderr


def test_a_command_that_is_killed_leaves_no_tunnel(quiet_node, train, this_machine):
    arguments = ["-c", "from muster.cli.main import main; main()", "logs", "-f", train]
    # A killed process leaves its temporary directory, which is removed with the test's.
    environment = {**quiet_node.environment, "TMPDIR": str(quiet_node.directory)}
    following = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE)
    assert following.stdout.readline() == b"ready\n"
    assert tunnels_to(this_machine)
    following.kill()
    following.wait()
    following.stdout.close()
    eventually(lambda: not tunnels_to(this_machine))


def tunnels_to(host: DistantHost) -> list[str]:
    listed = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith("ssh ") and f"-p {host.port} " in line]
