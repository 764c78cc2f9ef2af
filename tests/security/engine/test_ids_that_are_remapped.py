"""An engine that remaps ids (`userns-remap`): kernels have what is theirs, as ids that are nobody's on the host."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_host import EngineHost
from tests.modules.agent_code import agent_names, made_folders, mapped_mounts
from tests.modules.cluster_on_host import USER, Cluster, session
from tests.modules.conftest import import_busybox
from tests.security.engine.remapped_host import COUNT, FIRST, remapped_host

OWNED = ".muster/folders/ada/data-11111111"
GROUP = (1 << 30) + 7
GPU = "GPU-11111111-2222-3333-4444-555555555555"
MOUNT = {"folder": "plain", "target": "/data", "read_only": False}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    with remapped_host(tmp_path_factory.mktemp("remapped")) as made:
        made.do(import_busybox)
        yield made


@pytest.fixture
def there(host, tmp_path, capsys):
    """Return what runs a function on that host, with a cluster of its own of which nothing may be left."""

    def run(action):
        def with_cluster():
            cluster = Cluster(tmp_path, capsys)
            action(cluster)
            cluster.converge()
            assert cluster.leaves_nothing()

        host.do(with_cluster)

    return run


def launched(cluster, gang):
    outcome = cluster.converge(gang)["sessions"][0]
    assert outcome["outcome"] == "released", outcome


def folder_of(cluster, name="plain"):
    """Return a folder that its user alone may enter."""
    place = Path(cluster.folders_root) / name
    place.mkdir(mode=0o700)
    (place / "file").write_text("mine", encoding="utf-8")
    for path in (place, place / "file"):
        os.chown(path, USER["uid"], USER["gid"])
    return place


def ids_of(path):
    state = path.stat()
    return state.st_uid, state.st_gid


def test_kernels_have_their_keys_and_run_as_ids_that_are_nobodys_on_the_host(there):
    def action(cluster):
        gang = session(("main1", "sub1"))
        launched(cluster, gang)
        pid = cluster.engine.container(agent_names.container_name(gang["id"], "main1"))["State"]["Pid"]
        status = Path(f"/proc/{pid}/status").read_text("ascii").split()
        assert status[status.index("Uid:") + 1] == str(FIRST + USER["uid"])
        assert "PRIVATE KEY" in cluster.run_in(gang, "sub1", "cat", "/run/muster/id_ed25519")
        assert cluster.run_in(gang, "main1", "stat", "-c", "%u %a", "/run/muster/id_ed25519") == f"{USER['uid']} 600"
        key = cluster.paths.kernel_keys(gang["id"], "main1") / "id_ed25519"
        assert ids_of(key) == (FIRST + USER["uid"], FIRST + USER["gid"])

    there(action)


def test_a_folder_shows_its_users_ids_and_keeps_them_on_the_disk(there):
    def action(cluster):
        folder = folder_of(cluster)
        gang = session(mounts=[MOUNT, {**MOUNT, "target": "/again", "read_only": True}])
        launched(cluster, gang)
        assert cluster.run_in(gang, "main1", "cat", "/data/file", "/again/file") == "minemine"
        cluster.run_in(gang, "main1", "sh", "-c", "echo new >/data/new")
        assert ids_of(folder / "new") == (USER["uid"], USER["gid"])
        name = agent_names.container_name(gang["id"], "main1")
        refused = subprocess.run(
            ["docker", "exec", name, "sh", "-c", "echo new >/again/new"], capture_output=True, check=False
        )
        assert refused.returncode != 0

    there(action)


def test_a_folder_with_an_owner_is_shared_by_its_group(there):
    def action(cluster):
        entry = {"path": OWNED, "uid": USER["uid"] + 1, "number": GROUP, "quota_bytes": None}
        mount = {"folder": OWNED, "target": "/data", "read_only": False, "owned": True}
        gang = session(mounts=[mount], groups=[GROUP])
        launched(cluster, {**gang, "folders": [entry]})
        cluster.run_in(gang, "main1", "sh", "-c", "echo new >/data/new")
        place = Path(made_folders.place(str(cluster.folders_root), OWNED))
        assert ids_of(place) == (USER["uid"] + 1, GROUP)
        assert ids_of(place / "new") == (USER["uid"], GROUP)

    there(action)


def test_a_mount_below_a_folder_shows_the_same_ids_and_stays(there):
    def action(cluster):
        inner = folder_of(cluster) / "inner"
        inner.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0777", "inner", str(inner)], check=True)
        gang = session(mounts=[MOUNT])
        launched(cluster, gang)
        cluster.run_in(gang, "main1", "sh", "-c", "echo new >/data/inner/new")
        cluster.converge()
        assert ids_of(inner / "new") == (USER["uid"], USER["gid"])
        subprocess.run(["umount", str(inner)], check=True)

    there(action)


def test_a_folder_whose_file_system_has_no_such_mounts_costs_its_session_alone(there):
    def action(cluster):
        inner = folder_of(cluster) / "inner"
        inner.mkdir()
        subprocess.run(["mount", "-t", "ramfs", "inner", str(inner)], check=True)
        refused, other = session(mounts=[MOUNT]), session()
        outcomes = {entry["id"]: entry for entry in cluster.converge(refused, other)["sessions"]}
        assert outcomes[other["id"]]["outcome"] == "released"
        assert outcomes[refused["id"]]["outcome"] == "failed"
        assert "userns-remap" in outcomes[refused["id"]]["error"]
        subprocess.run(["umount", str(inner)], check=True)

    there(action)


def test_an_id_beyond_the_engines_costs_its_session_alone(there):
    def action(cluster):
        refused, other = session(user={**USER, "uid": COUNT}), session()
        outcomes = {entry["id"]: entry for entry in cluster.converge(refused, other)["sessions"]}
        assert outcomes[other["id"]]["outcome"] == "released"
        assert f"none for uid {COUNT}" in outcomes[refused["id"]]["error"]

    there(action)


def test_a_shared_gpus_files_and_the_apps_logs_are_the_users_to_write(there):
    def action(cluster):
        access = {"devices": None, "libraries": {}, "mounts": [], "env": {}, "usage": True, "leases": [GPU]}
        app = {"name": "app", "port": 8888, "health": None, "starts": True}
        gang = session(gpu_access=access, apps=[app])
        launched(cluster, gang)
        writes = f"echo x >/run/fgpu/usage && echo x >/run/fgpu/lease/{GPU} && echo x >/run/muster-apps/log"
        cluster.run_in(gang, "main1", "sh", "-c", writes)

    there(action)


def test_the_end_of_an_app_is_read_as_its_user(there):
    def action(cluster):
        gang = session(apps=[{"name": "app", "port": 8888, "health": None, "starts": True}])
        launched(cluster, gang)
        cluster.run_in(gang, "main1", "sh", "-c", "cd /run/muster-apps; echo I am broken >app.log; echo 3 >app.exit")
        (kernel,) = cluster.report()["kernels"]
        assert kernel["apps"] == {"app": {"healthy": False, "exit_code": 3, "problem": "I am broken"}}

    there(action)


def test_the_report_has_the_engines_ids(there):
    def action(cluster):
        assert cluster.report()["docker"]["remapped_ids"] == {"uids": COUNT, "gids": COUNT, "mounts": True}

    there(action)


def test_this_linux_kernel_is_known_to_have_mounts_with_other_ids():
    assert mapped_mounts.are_supported()
