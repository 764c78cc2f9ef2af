"""A tenant grows the files of a shared GPU that they must be able to write: they fill what those files alone have."""

import os
import uuid

import pytest

from tests.modules.agent_code import agent_names, host_mounts
from tests.modules.cluster_on_host import session

MIB = 1 << 20
GROW = "while echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; do :; done"


@pytest.fixture
def gpu():
    name = f"GPU-{uuid.uuid4()}"
    yield name
    host_mounts.remove_mount_points(agent_names.gpu_lease(name).parent)


def shared(gpu):
    access = {"devices": None, "libraries": {}, "mounts": [], "env": {}, "usage": True, "leases": [gpu]}
    return session(
        gpu_access=access, gpus=[{"uuid": gpu, "amount": 500, "capacity": 2000, "mem_bytes": 2 << 30, "compute": 250}]
    )


def room(path):
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def test_a_tenant_who_grows_them_fills_nobody_elses_memory(cluster, gpu):
    attacker, other = shared(gpu), shared(gpu)
    assert cluster.converge(attacker)["sessions"][0]["error"] is None
    before = room(agent_names.FGPU_ROOT)
    for name in ("usage", f"lease/{gpu}"):
        cluster.run_in(attacker, "main1", "sh", "-c", f"({GROW}) 2>/dev/null >>/run/fgpu/{name}; true")
    usage = cluster.paths.kernel_usage(attacker["id"], "main1")
    assert (usage.stat().st_size, agent_names.gpu_lease(gpu).stat().st_size) == (MIB, 64 << 10)
    assert room(agent_names.FGPU_ROOT) == before
    assert cluster.converge(attacker, other)["sessions"][1]["error"] is None
    assert room(cluster.paths.kernel_usage(other["id"], "main1")) == MIB


def test_the_mounts_of_a_kernel_are_removed_with_it(cluster, gpu):
    gang = shared(gpu)
    cluster.converge(gang)
    usage = cluster.paths.kernel_usage(gang["id"], "main1")
    assert usage.parent.is_mount()
    cluster.converge()
    assert not usage.parent.exists()
    assert cluster.leaves_nothing()
