"""A kernel that fills its agent's disk, on a real engine: in its own layer, and in a volume that its image declares."""

import fcntl
import shutil
import subprocess

import pytest

from tests.modules.agent_code import layer_limit
from tests.modules.cluster_on_host import IMAGE, desired, session

MIB = 1 << 20
LIMITED = {
    "cpu_milli": 1000,
    "mem_bytes": 64 * MIB,
    "shm_bytes": 8 * MIB,
    "disk_bytes": 10 * MIB,
    "pids": 128,
    "cpuset": None,
}
FILL = "seq 1 1000000 > $HOME/one; seq 1 1000000 > /tmp/two"
WRITTEN = 2 * 6_888_896


@pytest.fixture
def image_with_volume():
    """Yield the tests' own image, whose containers get a volume of the engine."""
    name = f"{IMAGE}-volume"
    made = subprocess.run(["docker", "create", IMAGE, "true"], check=True, capture_output=True, text=True)
    container_id = made.stdout.strip()
    subprocess.run(["docker", "commit", "--change", "VOLUME /tmp", container_id, name], check=True, capture_output=True)
    subprocess.run(["docker", "rm", container_id], check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "rmi", "--force", name], check=True, capture_output=True)


def counted(cluster):
    """Return what a report says of the one kernel once it was counted anew."""
    for lock in cluster.paths.disk_counts.glob("*.lock"):
        wait_for_count(lock)  # of the launch's own report
    shutil.rmtree(cluster.paths.disk_counts)
    cluster.report()
    (lock,) = cluster.paths.disk_counts.glob("*.lock")
    wait_for_count(lock)
    (disk_bytes,) = filter(None, [kernel["disk_bytes"] for kernel in cluster.report()["kernels"]])
    return disk_bytes


def wait_for_count(lock):
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)


def test_a_kernels_files_are_counted_in_its_layer_and_its_images_volumes(cluster, image_with_volume):
    filling = session(image=image_with_volume, resources=LIMITED)
    cluster.converge(filling)
    cluster.run_in(filling, "main1", "sh", "-c", FILL)
    assert WRITTEN <= counted(cluster) < WRITTEN + 2 * MIB


REMOVED = "exec 3>/tmp/gone 4>/tmp/gone; rm /tmp/gone; seq 1 1000000 >&3; echo >/tmp/ready; sleep 1000"


def test_a_file_that_a_kernel_has_removed_and_still_has_open_is_counted_once(cluster):
    filling = session(resources=LIMITED, command=["sh", "-c", REMOVED])
    cluster.converge(filling)
    cluster.run_in(filling, "main1", "sh", "-c", "until [ -e /tmp/ready ]; do sleep 0.1; done; rm /tmp/ready")
    # Those in memory, of other kernels and of the host's programs are none of its disk.
    cluster.converge(desired(filling, "keep"), session(command=["sh", "-c", REMOVED]))
    assert WRITTEN // 2 <= counted(cluster) < WRITTEN // 2 + 2 * MIB


def test_an_engine_that_refuses_to_limit_a_layer_launches_the_kernel_all_the_same(cluster, monkeypatch):
    """An overlay on XFS looks as if it could, and cannot without `pquota`: here one that is on no XFS refuses alike."""
    monkeypatch.setattr(layer_limit, "limiting_driver", lambda _: "overlay2")
    gang = session(("main1", "sub1"), resources=LIMITED)
    (outcome,) = cluster.converge(gang)["sessions"]
    assert outcome["outcome"] == "released"
    assert [kernel["disk_bytes"] for kernel in cluster.report()["kernels"]] != [0, 0]


def test_a_kernel_without_a_limit_is_not_counted(cluster):
    cluster.converge(session())
    assert cluster.report()["kernels"][0]["disk_bytes"] is None
    assert not cluster.paths.disk_counts.exists()
