"""What a session can't reach, and which folders it can mount."""

import os

import docker
import pytest

from tests.control_node import SMALL, ControlNode

REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 2200), timeout=3)
    print("reached")
except OSError:
    print("refused")
"""


def test_no_session_reaches_anothers_kernels_by_any_network(node):
    one = node.start("--cluster-size", "2")
    other = node.start("--cluster-size", "2")
    addresses = [address for kernel in node.show(other)["kernels"] for address in every_address(kernel["container_id"])]
    own = [kernel["address"] for kernel in node.show(one)["kernels"]]
    for address in own:
        assert node.exec(one, "python3", "-c", REACH, address).out == "reached\n"
    for address in addresses:
        assert node.exec(one, "python3", "-c", REACH, address).out == "refused\n"
        ping = node.exec(one, "/opt/muster/runtime/bin/ping", "-c", "1", "-W", "2", address, check=False)
        assert ping.code != 0
    names = node.exec(one, "python3", "-c", "import socket; print(socket.gethostbyname('sub1'))").out.strip()
    assert names in own


def every_address(container_id: str) -> list[str]:
    networks = docker.from_env().containers.get(container_id).attrs["NetworkSettings"]["Networks"]
    assert "bridge" not in networks
    return [network["IPAddress"] for network in networks.values()]


def test_a_folder_is_mounted_at_the_same_path_in_every_kernel(node):
    folder = node.folders / "shared"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    name = node.start("--cluster-size", "3", "--mount", "shared:/data", "--mount", "shared:/fixed:ro")
    node.exec(f"{name}:sub2", "sh", "-c", "echo from sub2 > /data/note")
    for kernel in ("main1", "sub1"):
        assert node.exec(f"{name}:{kernel}", "cat", "/data/note", "/fixed/note").out == "from sub2\nfrom sub2\n"
    done = node.exec(name, "sh", "-c", "echo no > /fixed/note", check=False)
    assert done.code != 0
    assert "Read-only" in done.err
    node.run("terminate", name, "--wait")
    assert (folder / "note").read_text() == "from sub2\n"


@pytest.mark.parametrize("folder", ["../outside", "/etc", "a/../../etc", ""])
def test_a_folder_outside_the_root_is_refused_at_once(node, folder):
    done = node.run("submit", *SMALL, "--mount", folder, check=False)
    assert done.code == 2
    assert done.err.startswith("muster: mounts[0].folder: ")


def test_a_link_that_leads_out_of_the_root_is_refused_by_the_agent(node):
    (node.folders / "escape").symlink_to("/etc")
    name = node.submit(*SMALL, "--mount", "escape:/data")
    session = node.reaches(name, "ERROR")
    assert "escape" in session["reason"]


def test_a_folder_that_is_not_there_is_named(node):
    refused = node.run("submit", *SMALL, "--mount", "nowhere:/data", check=False)
    assert (refused.code, "mounts[0].folder: there is no folder 'nowhere'" in refused.err) == (2, True)
    (node.folders / "there").mkdir()
    name = node.submit(*SMALL, "--mount", "there/nowhere:/data")
    assert "there/nowhere" in node.reaches(name, "ERROR")["reason"]


def test_a_committed_image_carries_no_key(node: ControlNode):
    name = node.start()
    container = docker.from_env().containers.get(node.show(name)["kernels"][0]["container_id"])
    image = container.commit("muster-e2e/committed", node.cluster)
    try:
        layers = b"".join(image.save())
        assert b"OPENSSH PRIVATE KEY" not in layers
        assert b"OPENSSH PRIVATE KEY" in node.exec(name, "cat", "/run/muster/id_ed25519").out.encode()
    finally:
        docker.from_env().images.remove(image.id, force=True)


def test_an_owner_may_have_a_uid_of_their_own(new_node):
    node = new_node(owner_uids={"ada": 4711})
    node.submit(*SMALL, "--name", "hers", "--owner", "ada")
    node.run("pass")
    assert node.exec("hers", "sh", "-c", "id -u; whoami; touch ~/mine; stat -c %u ~/mine").out.split() == [
        "4711",
        "work",
        "4711",
    ]
