"""Three kernels on one agent, looked at from inside: environment, names, ssh, resources."""

import json
import os
import shlex
from typing import Any

import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, ControlNode

IMAGES = ["default", "busybox"]
MEGA = 1 << 20


@pytest.fixture(scope="module", params=IMAGES)
def trio(request, node: ControlNode, busybox_image: str) -> str:
    """Return a running session main1, sub1, sub2; in the default image, and in one without libc."""
    image = ("--image", busybox_image) if request.param == "busybox" else ()
    name = f"trio-{request.param}"
    node.start(
        "--name",
        name,
        "--cluster-size",
        "3",
        "--env",
        "GREETING=hello world",
        "--env",
        "BACKENDAI_CLUSTER_IDX=mine",
        "-e",
        "MASTER_PORT=2222",
        *image,
    )
    return name


def environment_of(node: ControlNode, reference: str) -> dict[str, str]:
    out = node.exec(reference, "env").out
    return dict(line.split("=", 1) for line in out.splitlines())


def expected(session: dict, rank: int) -> dict[str, str]:
    names = ["main1", "sub1", "sub2"]
    kernel = session["kernels"][rank]
    return {
        "GREETING": "hello world",
        "BACKENDAI_SESSION_ID": session["id"],
        "BACKENDAI_KERNEL_ID": kernel["id"],
        "BACKENDAI_SESSION_NAME": session["name"],
        "BACKENDAI_CLUSTER_SIZE": "3",
        "BACKENDAI_CLUSTER_MODE": "single-node",
        "BACKENDAI_CLUSTER_HOST": names[rank],
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
        "BACKENDAI_CLUSTER_ROLE": "main" if rank == 0 else "sub",
        "BACKENDAI_CLUSTER_IDX": "1" if rank == 0 else str(rank),
        "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:2",
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(rank),
        "WORLD_SIZE": "3",
        "WORLD_RANK": str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "main1",
        "MASTER_PORT": "2222",
        "TF_CONFIG": {
            "cluster": {"worker": [f"{name}:12345" for name in names]},
            "task": {"type": "worker", "index": rank},
        },
    }


def ours(variables: dict[str, str]) -> dict[str, Any]:
    prefixes = ("BACKENDAI_", "WORLD_", "MASTER_", "RANK", "LOCAL_RANK", "TF_CONFIG", "GREETING")
    chosen = {name: value for name, value in variables.items() if name.startswith(prefixes)}
    return {name: json.loads(value) if name == "TF_CONFIG" else value for name, value in chosen.items()}


@pytest.mark.parametrize("rank", range(3))
def test_the_environment_of_each_kernel_is_the_documented_one(node, trio, rank):
    session = node.show(trio)
    reference = f"{trio}:{session['kernels'][rank]['name']}"
    assert ours(environment_of(node, reference)) == expected(session, rank)


def test_the_main_kernels_id_is_the_sessions(node, trio):
    session = node.show(trio)
    assert session["kernels"][0]["id"] == session["id"]


@pytest.mark.parametrize("source", ["main1", "sub1", "sub2"])
def test_every_kernel_reaches_every_other_by_ssh_without_a_prompt(node, trio, source):
    for target in ("main1", "sub1", "sub2"):
        assert node.exec(f"{trio}:{source}", "ssh", target, "hostname").out.strip() == target


def test_a_client_without_our_configuration_finds_port_key_and_host_keys(node, trio):
    """So do clients that read neither ssh's system-wide configuration nor what it includes."""
    strict = ("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes")
    for target in ("main1", "sub1", "sub2"):
        assert node.exec(f"{trio}:sub1", *strict, target, "hostname").out.strip() == target
    node.exec(trio, "sh", "-c", "echo 'Host other' >> ~/.ssh/config && echo 'other ssh-rsa AAAA' >> ~/.ssh/known_hosts")


def test_a_published_port_22_and_a_mounted_ssh_folder_are_the_users(node):
    folder = node.folders / "keys"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    name = node.start("--cluster-size", "2", "--publish", "own=22", "-v", f"keys:{HOME}/.ssh")
    connect = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 22)) == 0)"
    assert node.exec(name, "python3", "-c", connect).out == "False\n"
    assert node.exec(f"{name}:sub1", "python3", "-c", connect).out == "True\n"
    assert node.exec(name, "python3", "-c", "import socket; socket.create_server(('', 22))").code == 0
    assert node.exec(name, "ssh", "sub1", "hostname").out == "sub1\n"
    assert list(folder.iterdir()) == []


def test_a_login_by_ssh_has_the_kernels_environment(node, trio):
    over_ssh = node.exec(trio, "ssh", "sub2", "env").out
    variables = dict(line.split("=", 1) for line in over_ssh.splitlines() if "=" in line)
    assert ours(variables) == expected(node.show(trio), 2)


def test_names_resolve_to_the_kernels_addresses(node, trio):
    addresses = {kernel["name"]: kernel["address"] for kernel in node.show(trio)["kernels"]}
    for name, address in addresses.items():
        out = node.exec(trio, "ssh", name, "cat", "/etc/hosts").out
        assert f"{address}\t{name}" in out
        answer = node.exec(f"{trio}:sub1", "/opt/muster/runtime/bin/nslookup", name, check=False).out
        assert address in answer


def test_the_hostfile_lists_the_kernels_for_mpi(node, trio):
    hosts = [line.split()[0] for line in node.exec(trio, "cat", "/run/muster/hostfile").out.splitlines()]
    assert hosts == ["main1", "sub1", "sub2"]
    assert node.exec(trio, "cat", "/run/muster/hosts").out.split() == hosts
    assert node.exec(trio, "cat", "/run/muster/hydra_hosts").out.split() == [f"{host}:1" for host in hosts]
    assert "Own values: MASTER_PORT\n" in node.run("show", trio).out


def test_resources_are_limited_and_equal_in_all_kernels(node, trio):
    script = (
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null;"
        "cd /sys/fs/cgroup; cat cpu.max 2>/dev/null || cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us;"
        "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null;"
        "grep -E 'CapEff|CapBnd|NoNewPrivs|^Uid' /proc/self/status; grep ' /dev/shm ' /proc/mounts; true"
    )
    command = ("/opt/muster/runtime/bin/sh", "-c", f"PATH=$PATH:/opt/muster/runtime/bin; {script}")
    seen = {kernel: node.exec(f"{trio}:{kernel}", *command).out for kernel in ("main1", "sub1", "sub2")}
    assert len(set(seen.values())) == 1, seen
    lines = seen["main1"].splitlines()
    words = [word for line in lines for word in line.split()]
    assert str(64 * MEGA) in words
    quota, period = (int(word) for word in words[words.index(str(64 * MEGA)) + 1 :][:2])
    assert quota / period == pytest.approx(0.05)
    assert "4096" in words
    assert lines.count("CapEff:\t0000000000000000") == 1
    assert lines.count("CapBnd:\t0000000000000000") == 1
    assert "NoNewPrivs:\t1" in lines
    assert "Uid:\t1000\t1000\t1000\t1000" in lines
    assert f"size={16 * 1024}k" in seen["main1"]


def test_shared_memory_and_what_programs_read_follow_what_a_kernel_has(node):
    resources = ("--cpu", "0.05", "--mem", "128M", "--cluster-size", "2", "--local-rank", "kernel")
    name = node.submit(*resources)
    node.reaches(name, "RUNNING")
    variables = environment_of(node, f"{name}:sub1")
    expected = {
        "LOCAL_RANK": "0",
        "RANK": "1",
        "OMP_NUM_THREADS": "1",
        "PDSH_RCMD_TYPE": "ssh",
        "JAX_COORDINATOR_ADDRESS": "main1:12345",
    }
    assert {variable: variables.get(variable) for variable in expected} == expected
    mounts = node.exec(f"{name}:sub1", "cat", "/proc/mounts").out.splitlines()
    (shared,) = [mount for mount in mounts if mount.split()[1] == "/dev/shm"]
    assert f"size={64 * 1024}k" in shared


def test_the_private_key_is_on_a_tmpfs_and_for_its_user_alone(node, trio):
    listing = node.exec(trio, "ls", "-ln", "/run/muster/id_ed25519").out.split()
    assert listing[0].startswith("-rw-------")
    assert listing[2] == "1000"
    mounts = node.exec(trio, "cat", "/proc/mounts").out.splitlines()
    (mount,) = [line.split() for line in mounts if line.split()[1] == "/run/muster"]
    assert mount[2] == "tmpfs"
    assert "ro" in mount[3].split(",")


def test_a_lone_kernel_does_not_look_like_a_distributed_job(node):
    name = node.start()
    variables = environment_of(node, name)
    assert variables["BACKENDAI_CLUSTER_HOSTS"] == "main1"
    assert (
        not {"WORLD_SIZE", "WORLD_RANK", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"}
        & variables.keys()
    )


def test_roles_have_their_own_resources_and_names(node):
    name = node.start("--role", "ps:2,mem=96M", "--cluster-size", "4")
    session = node.show(name)
    assert [kernel["name"] for kernel in session["kernels"]] == ["main1", "ps1", "ps2", "sub1"]
    variables = environment_of(node, f"{name}:ps2")
    assert variables["BACKENDAI_CLUSTER_REPLICAS"] == "main:1,ps:2,sub:1"
    assert variables["BACKENDAI_CLUSTER_ROLE"] == "ps"
    assert variables["BACKENDAI_CLUSTER_IDX"] == "2"
    assert variables["BACKENDAI_CLUSTER_LOCAL_RANK"] == "2"
    limit = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert node.exec(f"{name}:ps1", "sh", "-c", limit).out.strip() == str(96 * MEGA)
    assert node.exec(f"{name}:sub1", "sh", "-c", limit).out.strip() == str(64 * MEGA)


def test_muster_ssh_reaches_main1_at_its_address_and_the_others_through_it(node, trio):
    session = node.show(trio)
    assert [kernel["ssh_port"] for kernel in session["kernels"]] == [None] * 3
    assert node.run("ssh", trio, "hostname").out.strip() == "main1"
    assert node.run("ssh", f"{trio}:sub2", "hostname").out.strip() == "sub2"
    printed = shlex.split(node.run("ssh", "--print", trio).out)
    assert (printed[0], printed[-1]) == ("ssh", f"work@{session['kernels'][0]['address']}")
    assert printed[printed.index("-p") + 1] == "2200"


def test_terminate_removes_everything(node):
    name = node.start("--cluster-size", "2")
    session = node.show(name)
    node.run("terminate", name, "--wait")
    ended = node.show(name)
    assert (ended["state"], ended["result"]) == ("TERMINATED", "SUCCESS")
    left = node.left_on_host()
    assert not [thing for things in left.values() for thing in things if session["id"].replace("-", "")[:12] in thing]
    assert session["id"] not in left["key directories"]


def test_a_second_session_of_the_same_name_is_refused_while_the_first_lives(node, trio):
    done = node.run("submit", "--name", trio, *SMALL, check=False)
    assert done.code == 2
    assert done.err.startswith("muster: name: a session that has not ended is already called")
