"""A tenant swaps a folder that they mount for a link to what is not theirs: no kernel and no copy ever gets that."""

import ctypes
import io
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from tests.modules.agent_code import agent_names, engine_api
from tests.modules.cluster_on_host import session

EXCHANGE = 2  # of renameat2()
HERE = -100  # AT_FDCWD
LAUNCHES = 6
# The last one: what was a link when it was looked at is none when it is read.
REFUSALS = ("replaced while it was being mounted", "leads outside", "cannot be looked up")


@pytest.fixture
def secret(tmp_path_factory):
    """Return a directory of the host that no tenant may see."""
    directory = tmp_path_factory.mktemp("secret")
    (directory / "file").write_text("secret", encoding="utf-8")
    return directory


@pytest.fixture
def folder(cluster, secret):
    """Return a tenant's folder; beside it stands a link to the secret directory."""
    place = Path(cluster.folders_root) / "plain/data"
    place.mkdir(parents=True)
    (place / "file").write_text("mine", encoding="utf-8")
    place.with_name("link").symlink_to(secret)
    return place


def swap(folder):
    """Put the link in the folder's place and the folder in the link's, or back, in one step."""
    names = (os.fsencode(folder), os.fsencode(folder.with_name("link")))
    assert ctypes.CDLL(None).renameat2(HERE, names[0], HERE, names[1], EXCHANGE) == 0


def mounts(target="/data"):
    return [{"folder": "plain/data", "target": target, "read_only": False}]


def copied(gang, path):
    """Return a file of a kernel by the engine's own copy, for which it looks at all sources of mounts again."""
    name = agent_names.container_name(gang["id"], "main1")
    done = subprocess.run(["docker", "cp", f"{name}:{path}", "-"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return archive.extractfile(archive.next()).read().decode()


def test_a_tenant_who_swaps_in_a_loop_gets_nothing(cluster, folder):
    over = threading.Event()

    def attack():
        while not over.is_set():
            swap(folder)

    attacker = threading.Thread(target=attack)
    attacker.start()
    gangs = [session(mounts=mounts() + mounts("/again")) for _ in range(LAUNCHES)]
    try:
        outcomes = {entry["id"]: entry for entry in cluster.converge(*gangs)["sessions"]}
    finally:
        over.set()
        attacker.join()
    for gang in gangs:
        outcome = outcomes[gang["id"]]
        if outcome["outcome"] == "released":
            assert cluster.run_in(gang, "main1", "cat", "/data/file", "/again/file") == "minemine"
        else:
            assert any(refusal in outcome["error"] for refusal in REFUSALS), outcome["error"]
    cluster.converge()
    assert cluster.leaves_nothing()


def test_a_swap_in_the_last_moment_does_not_matter(cluster, folder, monkeypatch):
    start = engine_api.EngineApi.start_container

    def swapped(engine, container_id):
        swap(folder)
        start(engine, container_id)

    monkeypatch.setattr(engine_api.EngineApi, "start_container", swapped)
    gang = session(mounts=mounts())
    assert cluster.converge(gang)["sessions"][0]["outcome"] == "released"
    assert cluster.run_in(gang, "main1", "cat", "/data/file") == "mine"


def test_a_copy_out_of_a_kernel_is_of_what_it_mounts(cluster, folder):
    gang = session(mounts=mounts())
    cluster.converge(gang)
    swap(folder)
    assert copied(gang, "/data/file") == "mine"


def test_what_lies_in_the_folder_stays_when_the_session_ends(cluster, folder):
    inner = folder / "mounted"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "inner", str(inner)], check=True)
    try:
        (inner / "file").write_text("inner", encoding="utf-8")
        gang = session(mounts=mounts())
        cluster.converge(gang)
        assert cluster.run_in(gang, "main1", "cat", "/data/mounted/file") == "inner"
        assert cluster.paths.mounts.parent.stat().st_mode & 0o777 == 0o700
        cluster.converge()
        assert cluster.leaves_nothing()
        assert inner.is_mount()
        assert ((folder / "file").read_text("utf-8"), (inner / "file").read_text("utf-8")) == ("mine", "inner")
    finally:
        subprocess.run(["umount", str(inner)], check=True)


@pytest.mark.usefixtures("folder")
def test_a_launch_after_one_that_was_killed_mounts_the_folder_anew(cluster):
    gang = session(mounts=mounts())
    cluster.converge(gang)
    again = {**gang, "generation": 2}
    assert cluster.converge(again)["sessions"][0]["error"] is None
    assert cluster.run_in(again, "main1", "cat", "/data/file") == "mine"
    places = Path("/proc/self/mountinfo").read_text("utf-8").count(str(cluster.paths.mounts))
    assert places == 1
