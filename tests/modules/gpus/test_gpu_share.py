"""What a kernel with a part of a GPU finds in its container; no GPU is needed to see it."""

import io
import stat
import subprocess
import tarfile
import uuid

import pytest

from tests.modules.agent_code import agent_names, host_mounts
from tests.modules.cluster_on_host import IMAGE, desired, session

LIMITS = "version 1\n"


@pytest.fixture
def gpu():
    """Return the UUID of a GPU that only this test shares."""
    name = f"GPU-{uuid.uuid4()}"
    yield name
    host_mounts.remove_mount_points(agent_names.gpu_lease(name).parent)


@pytest.fixture
def access(tmp_path, gpu):
    """Return a manifest's access to a part of that GPU, with libraries that are no more than a text."""
    library = tmp_path / "libcuda.so.1"
    library.write_text("ours\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/VERSION").write_text("7\n")
    (tmp_path / "libcuda.so.550").write_text("the driver's\n")
    driver = tmp_path / "driver.so"
    driver.symlink_to("libcuda.so.550")
    return {
        "devices": None,
        "libraries": {"libcuda.so.1": str(library)},
        "mounts": [
            {"source": str(tmp_path / "tree"), "target": "/opt/muster/fgpu", "read_only": True},
            {"source": str(driver), "target": "/opt/muster/driver/real-libcuda.so.1", "read_only": True},
        ],
        "env": {"FROM_ACCESS": "yes"},
        "usage": True,
        "leases": [gpu],
    }


def _shared(gpu, access, kernels=("main1",), **changes):
    share = {"uuid": gpu, "amount": 500, "capacity": 2000, "mem_bytes": 2 << 30, "compute": 250}
    entry = session(kernels, gpu_access=access, gpus=[share], **changes)
    for kernel in entry["kernels"]:
        kernel["files"] = {**kernel["files"], "fgpu": {"content": LIMITS, "mode": "0444"}}
    return entry


def _usages(cluster):
    return sorted(str(path.relative_to(cluster.paths.fgpu)) for path in cluster.paths.fgpu.glob("*/*/*"))


def test_a_kernel_with_a_part_of_a_gpu_finds_what_caps_it(cluster, gpu, access):
    gang = _shared(gpu, access)
    first = cluster.converge(gang)
    assert [entry["error"] for entry in first["sessions"]] == [None]
    assert list(first["diff"]["after"]["containers"].values()) == [f"running, generation 1, with 0.25 of {gpu}"]
    script = """
        cat /usr/lib64/libcuda.so.1 /usr/lib/libcuda.so.1 /opt/muster/fgpu/VERSION
        cat /opt/muster/driver/real-libcuda.so.1 /run/muster/fgpu
        echo $FROM_ACCESS
        echo x 2>/dev/null >/usr/lib/libcuda.so.1 || echo read-only
        stat -c %a /run/fgpu/usage /run/fgpu/lease/* /run/muster/fgpu
        echo new 2>/dev/null >/run/fgpu/lease/other || echo closed
    """
    found = cluster.run_in(gang, "main1", "sh", "-c", script).splitlines()
    assert found == [
        "ours",
        "ours",
        "7",
        "the driver's",
        "version 1",
        "yes",
        "read-only",
        "666",
        "666",
        "444",
        "closed",
    ]
    assert not cluster.converge(gang)["changed"]


def test_use_is_shared_within_a_kernel_and_a_lease_by_all_on_the_gpu(cluster, gpu, access):
    one, other = _shared(gpu, access, ["main1", "sub1"]), _shared(gpu, access)
    cluster.converge(one, other)
    cluster.run_in(one, "main1", "sh", "-c", f"echo used >/run/fgpu/usage; echo turn >/run/fgpu/lease/{gpu}")
    assert cluster.run_in(one, "main1", "cat", "/run/fgpu/usage") == "used"
    assert cluster.run_in(one, "sub1", "cat", "/run/fgpu/usage") == ""
    assert cluster.run_in(one, "sub1", "sh", "-c", "cat /run/fgpu/lease/*") == "turn"
    assert cluster.run_in(other, "main1", "sh", "-c", "cat /run/fgpu/lease/*") == "turn"


def test_the_files_lie_in_memory_where_tenants_cannot_fill_anything_else(cluster, gpu, access):
    cluster.converge(_shared(gpu, access))
    assert agent_names.FGPU_ROOT.is_mount()
    assert stat.S_IMODE(agent_names.FGPU_ROOT.stat().st_mode) == 0o755
    kinds = subprocess.run(
        ["stat", "-f", "-c", "%T", agent_names.FGPU_ROOT], check=True, capture_output=True, text=True
    )
    assert kinds.stdout == "tmpfs\n"


def test_a_kernels_use_goes_with_it_and_the_lease_stays(cluster, gpu, access):
    stopped, dropped = _shared(gpu, access, ["main1", "sub1"]), _shared(gpu, access)
    cluster.converge(stopped, dropped)
    assert _usages(cluster) == sorted(
        [f"{stopped['id']}/main1/usage", f"{stopped['id']}/sub1/usage", f"{dropped['id']}/main1/usage"]
    )
    cluster.converge(desired(stopped, "stop"))
    assert _usages(cluster) == []
    assert agent_names.gpu_lease(gpu).exists()
    cluster.converge()
    assert cluster.leaves_nothing()


def test_a_launch_anew_begins_with_nothing_used(cluster, gpu, access):
    gang = _shared(gpu, access)
    cluster.converge(gang)
    cluster.run_in(gang, "main1", "sh", "-c", "echo used >/run/fgpu/usage")
    again = {**gang, "generation": 2}
    assert cluster.converge(again)["sessions"][0]["error"] is None
    assert cluster.run_in(again, "main1", "cat", "/run/fgpu/usage") == ""


def test_the_report_tells_what_a_kernel_has_from_the_host_alone(cluster, gpu, access):
    cluster.converge(_shared(gpu, access), session())
    given = sorted((kernel["gpus"] for kernel in cluster.report()["kernels"]), key=len)
    assert given == [
        [],
        [
            {
                "uuid": gpu,
                "amount": 500,
                "capacity": 2000,
                "mem_bytes": 2 << 30,
                "compute": 250,
                "used_bytes": None,
                "processes": None,
                "enforced_bytes": None,
            }
        ],
    ]


@pytest.fixture
def cuda_image():
    """Make an image that brings drivers of its own, as links and in NVIDIA's compat directory."""
    buffer = io.BytesIO()
    links = {
        "usr/lib/libcuda.so.1": "libcuda.so.470",
        "usr/lib64": "lib",
        "usr/local/cuda": "cuda-12",
        "usr/local/cuda-12/compat/libcuda.so.1": "libcuda.so.550",
    }
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name in ("usr/lib/libcuda.so.470", "usr/local/cuda-12/compat/libcuda.so.550"):
            entry = tarfile.TarInfo(name)
            entry.size = len(b"theirs\n")
            archive.addfile(entry, io.BytesIO(b"theirs\n"))
    tag = IMAGE.replace("busybox", "cuda")
    dockerfile = tarfile.TarInfo("Dockerfile")
    text = f"FROM {IMAGE}\nADD drivers.tar /\n".encode()
    dockerfile.size = len(text)
    drivers = tarfile.TarInfo("drivers.tar")
    drivers.size = len(buffer.getvalue())
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.addfile(dockerfile, io.BytesIO(text))
        archive.addfile(drivers, io.BytesIO(buffer.getvalue()))
    build = ["docker", "build", "--quiet", "--tag", tag, "-"]
    subprocess.run(build, input=context.getvalue(), check=True, capture_output=True)
    yield tag
    subprocess.run(["docker", "rmi", "--force", tag], check=True, capture_output=True)


def test_drivers_that_an_image_brings_do_not_get_round_the_libraries(cuda_image, cluster, gpu, access):
    # Its facts are cached by a kernel without GPUs first: what a share needs to know is read when it is needed.
    cluster.converge(session(image=cuda_image))
    gang = _shared(gpu, access, image=cuda_image)
    assert cluster.converge(gang)["sessions"][-1]["error"] is None
    script = """
        for library in /usr/lib/libcuda.so.1 /usr/lib64/libcuda.so.1 /usr/local/cuda/compat/libcuda.so.1; do
            cat $library
            stat -c %F $library
        done
        cat /usr/lib/libcuda.so.470 /usr/local/cuda/compat/libcuda.so.550
    """
    lines = cluster.run_in(gang, "main1", "sh", "-c", script).splitlines()
    assert lines == ["ours", "regular file"] * 3 + ["theirs", "theirs"]


def _failure(cluster, gang, *, check=False):
    (result,) = cluster.converge(gang, check=check)["sessions"]
    assert result["outcome"] == "failed"
    assert cluster.leaves_nothing()
    return result["error"], result["permanent"]


@pytest.mark.parametrize("check", [True, False])
def test_libraries_that_the_host_lacks(cluster, gpu, access, check):
    lacking = {**access, "libraries": {"libcuda.so.1": "/nowhere/libcuda.so.1"}}
    assert _failure(cluster, _shared(gpu, lacking), check=check) == (
        "main1: /nowhere/libcuda.so.1, which its GPUs need, is not on this agent (roles/fgpu puts it there)",
        False,
    )


def test_an_engine_that_cannot_give_gpus(cluster, gpu, access):
    asking = {**access, "devices": {"driver": "nvidia", "ids": [gpu]}}
    error, permanent = _failure(cluster, _shared(gpu, asking))
    assert error.startswith("main1: the engine of this agent cannot give GPUs to containers (roles/fgpu says why): ")
    assert not permanent


def test_a_mount_that_would_cover_the_libraries(cluster, gpu, access):
    (cluster.folders_root / "mine").mkdir()
    mounts = [{"folder": "mine", "target": "/usr/lib", "read_only": False}]
    error, permanent = _failure(cluster, _shared(gpu, access, mounts=mounts))
    assert error.startswith("main1: mount target /usr/lib is reserved: /usr/lib/")
    assert permanent
