"""What a kernel's container gets so that it reaches its GPUs, and of a shared one no more than its part."""

import platform
from typing import Any

import pytest

from tests.modules.agent_code import agent_manifest, gpu_access, mount_folders

SESSION_ID = "6f1c0000-0000-4000-8000-000000000000"
MULTIARCH = f"/usr/lib/{platform.machine()}-linux-gnu"
DIRECTORY, FILE = {"linkTarget": ""}, {"linkTarget": ""}
ACCESS: dict[str, Any] = {
    "devices": {"driver": "nvidia", "ids": ["GPU-a"]},
    "libraries": {"libcuda.so.1": "/opt/fgpu/libcuda.so.1"},
    "mounts": [{"source": "/opt/muster/fgpu", "target": "/opt/muster/fgpu", "read_only": True}],
    "env": {},
    "usage": True,
    "leases": ["GPU-a"],
}


def _kernel(access=ACCESS, mounts=()):
    targets = [{"folder": "x", "target": target} for target in mounts]
    return agent_manifest.Kernel(SESSION_ID, "main1", {"gpu_access": access, "mounts": targets})


def _paths(**found):
    return {**dict.fromkeys(gpu_access.image_paths(ACCESS)), **found}


def _binds(found=(), **kernel):
    binds = gpu_access.binds("muster", SESSION_ID, _kernel(**kernel), _paths(**dict(found)))
    return {bind.target: (bind.source, bind.read_only) for bind in binds}


def _libraries(found=(), **kernel):
    return [target for target in _binds(found, **kernel) if target.endswith("/libcuda.so.1")]


def test_a_part_of_a_gpu_brings_its_mounts_its_use_and_its_lease():
    binds = _binds()
    assert binds["/opt/muster/fgpu"] == ("/opt/muster/fgpu", True)
    assert binds["/run/fgpu/usage"] == (f"/run/muster-fgpu/muster/{SESSION_ID}/main1/usage", False)
    assert binds["/run/fgpu/lease/GPU-a"] == ("/run/muster-fgpu/.leases-2/GPU-a/lease", False)
    assert binds["/usr/lib64/libcuda.so.1"] == ("/opt/fgpu/libcuda.so.1", True)


def test_a_kernel_without_gpus_gets_nothing():
    assert gpu_access.binds("muster", SESSION_ID, _kernel(access=None), {}) == []
    assert gpu_access.image_paths(None) == set()
    assert gpu_access.links_in_the_way(None, {}) == []
    assert gpu_access.missing_source(None) is None
    assert gpu_access.driver_places(None) == []


def test_whole_gpus_need_nothing_of_an_image():
    access = {**ACCESS, "libraries": {}, "mounts": [], "usage": False, "leases": []}
    assert gpu_access.image_paths(access) == set()
    assert gpu_access.binds("muster", SESSION_ID, _kernel(access=access), {}) == []


def test_libraries_lie_wherever_a_driver_may_be_put_whatever_the_image_has():
    assert _libraries() == [f"{MULTIARCH}/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1"]


def test_directories_that_are_one_by_a_link_get_a_library_once():
    one = {"/usr/lib64": {"linkTarget": "/usr/lib"}}
    assert _libraries(one) == [f"{MULTIARCH}/libcuda.so.1", "/usr/lib/libcuda.so.1"]


def test_an_images_own_newer_driver_is_covered_too_unless_the_user_covers_it():
    compat = {"/usr/local/cuda/compat/libcuda.so.1": FILE}
    assert "/usr/local/cuda/compat/libcuda.so.1" in _libraries(compat)
    assert "/usr/local/cuda/compat/libcuda.so.1" not in _libraries(compat, mounts=["/usr/local/cuda/"])
    assert "/usr/local/cuda/compat/libcuda.so.1" in _libraries(compat, mounts=["/usr/local/cud"])


def test_links_that_bear_a_librarys_name_are_in_the_way():
    paths = _paths(
        **{
            "/usr/lib64": {"linkTarget": "/usr/lib"},
            "/usr/lib64/libcuda.so.1": {"linkTarget": "/usr/lib/libcuda.so.470.1"},
            "/usr/lib/libcuda.so.1": FILE,
        }
    )
    assert gpu_access.links_in_the_way(ACCESS, paths) == ["/usr/lib64/libcuda.so.1"]


def test_a_source_that_the_host_lacks_is_found(tmp_path):
    library = tmp_path / "libcuda.so.1"
    access = {**ACCESS, "libraries": {"libcuda.so.1": str(library)}, "mounts": []}
    assert gpu_access.missing_source(access) == str(library)
    library.symlink_to(tmp_path / "libcuda.so.550")
    assert gpu_access.missing_source(access) == str(library)
    (tmp_path / "libcuda.so.550").touch()
    assert gpu_access.missing_source(access) is None


@pytest.mark.parametrize("target", ["/usr", "/usr/lib", "/usr/lib64/", "/usr/lib/libcuda.so.1"])
def test_a_mount_must_not_cover_the_libraries(target):
    with pytest.raises(mount_folders.FolderError, match="is reserved"):
        mount_folders.check_target(target, "/rt", gpu_access.driver_places(ACCESS))


@pytest.mark.parametrize("target", ["/usr/lib/jvm", "/usr/local/cuda", "/usr/lib6"])
def test_a_mount_beside_the_libraries_is_free(target):
    mount_folders.check_target(target, "/rt", gpu_access.driver_places(ACCESS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": {"driver": "amd", "ids": []}}, ".devices.driver is 'amd', not nvidia or cdi"),
        ({"libraries": {"../x": "/x"}}, ".libraries has '../x', which is not known"),
        (
            {"mounts": [{"source": "x", "target": "/x", "read_only": True}]},
            ".mounts[0].source is 'x', which does not match",
        ),
        ({"leases": ["../../etc"]}, ".leases[0] is '../../etc', which does not match"),
    ],
)
def test_a_manifest_with_what_cannot_be_is_refused(change, message):
    kernel: dict[str, Any] = {
        "id": SESSION_ID,
        "name": "main1",
        "image": "busybox",
        "env": {},
        "files": {},
        "user": {"name": "work", "uid": 1000, "gid": 1000, "home": "/home/work"},
        "resources": {"cpu_milli": 1, "mem_bytes": 1, "shm_bytes": 1, "disk_bytes": None, "pids": 1, "cpuset": None},
        **{name: [] for name in ("command", "apps", "mounts", "groups", "publish")},
        "gpus": [{"uuid": "GPU-a", "amount": 500, "capacity": 2000, "mem_bytes": 1, "compute": 1}],
        "gpu_access": {**ACCESS, **change},
    }
    session = {
        "id": SESSION_ID,
        "name": "s",
        "generation": 1,
        "desired": "launch",
        "release": True,
        "public_key": "ssh-ed25519 AAAA muster-s",
        "network": {"name": "n", "driver": "bridge"},
        "folders": [],
        "files": {},
        "kernels": [kernel],
    }
    settings = dict.fromkeys(("sshd_port", "start_timeout_s", "stop_grace_s", "log_max_bytes", "generation"), 1)
    paths = dict.fromkeys(("runtime_path", "folders_root"), "/x")
    rest = {"overlays": None, "begin_by_s": None, "kept_spools": [], "databases": []}
    manifest = {"version": 1, "cluster": "c", "sessions": [session], **rest, **settings, **paths}
    with pytest.raises(agent_manifest.ManifestError) as refused:
        agent_manifest.parse_manifest(manifest)
    access = "the manifest.sessions[0].kernels[0].gpu_access"
    assert str(refused.value).startswith(f"{access}{message}")
