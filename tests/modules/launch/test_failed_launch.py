"""A launch that cannot succeed: one clear line, and nothing left of the gang."""

import io
import stat
import subprocess
import tarfile

import pytest

from tests.modules.agent_code import agent_names, container_spec
from tests.modules.cluster_on_host import IMAGE, ModuleFailedError, desired, session


def _failed(cluster, gang, **settings):
    (result,) = cluster.converge(gang, **settings)["sessions"]
    assert result["outcome"] == "failed"
    assert "\n" not in result["error"]
    assert cluster.leaves_nothing()
    return result["error"], result["permanent"]


def test_a_missing_image(cluster):
    error, permanent = _failed(cluster, session(image="modtest-none:1"))
    assert error == "image modtest-none:1 is not on this agent"
    assert not permanent


def test_a_gang_of_which_one_kernel_fails_is_undone_and_the_others_are_not_touched(cluster):
    healthy, broken = session(["main1", "sub1"]), session(["main1", "sub1", "sub2"], sub2={"files": {}})
    result = cluster.converge(healthy, broken)
    assert [entry["outcome"] for entry in result["sessions"]] == ["released", "failed"]
    assert result["sessions"][1]["error"].startswith("sub2: the container ended at once with exit code 125")
    assert cluster.networks() == [healthy["network"]["name"]]
    assert cluster.key_directories() == [f"{healthy['id']}/main1", f"{healthy['id']}/sub1"]
    assert set(cluster.states().values()) == {"running"}
    assert len(cluster.states()) == 2
    assert healthy["network"]["name"] in result["diff"]["after"]["networks"]
    assert broken["network"]["name"] not in result["diff"]["after"]["networks"]


def test_a_gang_that_fails_again_changes_nothing(cluster):
    gang = session(image="modtest-none:1")
    assert not cluster.converge(gang)["changed"]


def test_a_folder_that_is_missing(cluster):
    error, permanent = _failed(cluster, session(mounts=[{"folder": "none", "target": "/data", "read_only": True}]))
    assert error == f"main1: folder none does not exist under {cluster.folders_root} on this agent"
    assert permanent


@pytest.mark.parametrize("folder", ["../outside", "/etc", "link", "link/deeper", "a/../../outside"])
def test_a_folder_that_leads_outside(cluster, folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "deeper").mkdir()
    (cluster.folders_root / "link").symlink_to(outside)
    error, permanent = _failed(cluster, session(mounts=[{"folder": folder, "target": "/data", "read_only": False}]))
    assert error == f"main1: folder {folder} leads outside {cluster.folders_root}"
    assert permanent


@pytest.mark.parametrize(
    "target", ["/", "/etc", "/etc/passwd", "/run", "/run/muster/x", "/opt", "data", "//etc", "/a/../etc"]
)
def test_a_mount_that_would_cover_what_is_the_kernels_own(cluster, target):
    (cluster.folders_root / "data").mkdir()
    error, permanent = _failed(cluster, session(mounts=[{"folder": "data", "target": target, "read_only": False}]))
    assert error.startswith("main1: mount target ")
    assert permanent


@pytest.mark.parametrize("file", ["home", "etc/ssh", "etc/profile.d"])
def test_an_image_with_a_file_where_a_directory_has_to_be(cluster, file):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(file))
    image = f"{IMAGE}-file-{file.replace('/', '-')}"
    subprocess.run(["docker", "import", "-", image], input=buffer.getvalue(), check=True, capture_output=True)
    try:
        error, permanent = _failed(cluster, session(image=image))
    finally:
        subprocess.run(["docker", "rmi", "--force", image], check=True, capture_output=True)
    assert error == f"main1: image {image} has a file /{file}, and that has to be a directory"
    assert permanent


def test_a_container_that_ends_at_once(cluster):
    gang = session()
    for kernel in gang["kernels"]:
        del kernel["files"]["sshd_config"]
    error, _ = _failed(cluster, gang)
    assert error.startswith("main1: the container ended at once with exit code 1")
    assert "sshd_config" in error


def test_an_sshd_that_cannot_start_in_a_kernel_that_was_to_idle(cluster):
    gang = session()
    for kernel in gang["kernels"]:
        kernel["files"]["sshd_config"] = {"content": "Port 2200\nHostKey /none\n", "mode": "0644"}
    error, permanent = _failed(cluster, gang)
    assert error.startswith("main1: the container ended at once with exit code 1: ")
    assert not permanent


def test_an_sshd_that_does_not_answer(cluster):
    gang = session()
    for kernel in gang["kernels"]:
        config = kernel["files"]["sshd_config"]
        kernel["files"]["sshd_config"] = {**config, "content": config["content"].replace("2200", "2201")}
    error, permanent = _failed(cluster, gang, start_timeout_s=1)
    assert error == "main1: its sshd does not answer 1 s after the start"
    assert not permanent


def test_a_name_that_another_clusters_container_has(cluster, make_cluster):
    gang = session()
    labels = container_spec.labels(make_cluster().name, gang["id"], "1")
    name = agent_names.container_name(gang["id"], "main1")
    cluster.engine.create_container({"Image": IMAGE, "Cmd": ["true"], "Labels": labels}, name)
    error, permanent = _failed(cluster, gang)
    assert error.endswith("-main1 on this agent")
    assert error.startswith("a container that is not this cluster's has the name muster-")
    assert not permanent


def test_limits_that_the_host_cannot_give(cluster):
    resources = {
        "cpu_milli": 10_000_000,
        "mem_bytes": 64 << 20,
        "shm_bytes": 8 << 20,
        "disk_bytes": None,
        "pids": 9,
        "cpuset": None,
    }
    error, permanent = _failed(cluster, session(resources=resources))
    assert "CPUs" in error
    assert permanent


def test_cpus_that_the_host_has_no_longer(cluster):
    count = cluster.engine.info()["NCPU"]
    resources = {
        "cpu_milli": 500,
        "mem_bytes": 64 << 20,
        "shm_bytes": 8 << 20,
        "disk_bytes": None,
        "pids": 9,
        "cpuset": f"0-{count}",
    }
    error, permanent = _failed(cluster, session(resources=resources))
    assert error.startswith(f"main1: CPUs 0-{count} are requested, and the engine of this agent has 0")
    assert not permanent


def test_a_manifest_that_is_no_manifest(cluster):
    bad = session()
    bad["kernels"][0]["name"] = "../main1"
    undecided = session()
    del undecided["release"]
    unbound = session()
    unbound["kernels"][0]["resources"]["cpuset"] = "all"
    loud = {**desired(session(), "keep"), "shout": "now"}
    kernel = "the manifest.sessions[0].kernels[0]"
    for manifest, reason in (
        ({}, "this agent understands manifests of version 1, not None"),
        ({"version": 1, "cluster": "x"}, "the manifest.generation is missing"),
        (
            cluster.manifest(cluster="../x"),
            "the manifest.cluster is '../x', which does not match ^[a-z0-9][a-z0-9_.-]{0,62}$",
        ),
        (cluster.manifest(bad), f"{kernel}.name is '../main1', which does not match ^[a-z0-9][a-z0-9-]{{0,62}}$"),
        (cluster.manifest(undecided), "the manifest.sessions[0].release is missing"),
        (
            cluster.manifest(unbound),
            rf"{kernel}.resources.cpuset is 'all', which does not match ^\d+(-\d+)?(,\d+(-\d+)?)*$",
        ),
        (
            cluster.manifest(session(desired="dance")),
            "the manifest.sessions[0].desired is 'dance', not keep or launch or release or stop",
        ),
        (cluster.manifest(loud), "the manifest.sessions[0] has 'shout', which is not known"),
        (cluster.manifest(log_max_bytes=True), "the manifest.log_max_bytes is True, not a whole number"),
    ):
        with pytest.raises(ModuleFailedError) as failed:
            cluster.converge_manifest(manifest)
        assert failed.value.result["msg"] == reason


def test_keys_lie_in_memory_where_only_root_comes(cluster):
    gang = session()
    cluster.converge(gang)
    directory = cluster.paths.kernel_keys(gang["id"], "main1")
    assert stat.S_IMODE(agent_names.KEY_ROOT.stat().st_mode) == 0o700
    assert (directory.stat().st_uid, stat.S_IMODE(directory.stat().st_mode)) == (1000, 0o700)
