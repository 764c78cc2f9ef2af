"""A kernel that fills its agent's disk for everybody: in its own layer, and in volumes that its image brings."""

import fcntl
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.contract.manifest import LaunchedSession
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.lifecycle.observation import observe
from muster.core.model.session import LaunchStep, Result, SessionState
from muster.core.model.snapshot import Snapshot
from muster.service.service import Service
from muster.settings import load_settings
from muster.web.app import make_app
from tests.command_line import muster, write_settings
from tests.modules.agent_code import agent_names, disk_use
from tests.reports import reports_of
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW, fake_key_pair

MIB = 1 << 20
SESSIONS = "/api/v1/sessions"
SMALL = {"cpu": 1, "mem": "64M", "command": "true"}


@pytest.fixture
def paths(tmp_path):
    paths = agent_names.ClusterPaths("disks")
    paths.disk_counts = tmp_path / "counts"
    return paths


@pytest.fixture
def layer(tmp_path):
    layer = tmp_path / "layer"
    layer.mkdir()
    yield layer
    # Folders in folders may be too deep for Python's own removal.
    subprocess.run(["rm", "-rf", str(layer)], check=True)


def container(layer: Path | None, volumes: tuple[Path, ...] = (), **host_config: Any) -> dict[str, Any]:
    """Return the engine's description of a kernel that has a disk limit."""
    return {
        "Id": "c1",
        "Config": {"Labels": {agent_names.LABEL_DISK: "1"}},
        "HostConfig": host_config,
        "State": {"Pid": 0},
        "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": str(layer)} if layer else None},
        "Mounts": [
            {"Type": "bind", "Source": "/", "Destination": "/data"},
            *({"Type": "volume", "Name": path.name, "Source": str(path)} for path in volumes),
        ],
    }


def until_counted(paths: agent_names.ClusterPaths) -> None:
    """Wait until the count that is under way holds its lock no more."""
    with (paths.disk_counts / "c1.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def counted(paths: agent_names.ClusterPaths, seen: dict[str, Any]) -> int | None:
    """Return what the report after a count says."""
    disk_use.disk_use(paths, seen)
    until_counted(paths)
    return disk_use.disk_use(paths, seen)


def write(path: Path, size: int) -> None:
    path.write_bytes(os.urandom(size))


def test_files_in_the_layer_and_in_an_images_volumes_are_counted(paths, layer, tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    write(layer / "one", 2 * MIB)
    write(volume / "two", 3 * MIB)
    assert 5 * MIB <= counted(paths, container(layer, (volume,))) < 6 * MIB


def test_a_link_to_the_hosts_files_counts_none_of_them(paths, layer, tmp_path):
    write(tmp_path / "of-the-host", 4 * MIB)
    for target in ("/", "/proc", str(tmp_path), str(tmp_path / "of-the-host")):
        (layer / f"link-{len(target)}").symlink_to(target)
    assert counted(paths, container(layer)) < MIB


def test_files_below_the_longest_possible_path_are_counted(paths, layer):
    descriptor = os.open(layer, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("d" * 200, dir_fd=descriptor)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    hidden = os.open("hidden", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor)
    os.posix_fallocate(hidden, 0, 8 * MIB)
    os.close(hidden)
    os.close(descriptor)
    assert counted(paths, container(layer)) >= 8 * MIB


def test_a_file_of_holes_takes_no_room_and_is_not_counted(paths, layer):
    with (layer / "holes").open("wb") as file:
        file.truncate(1 << 40)
    assert counted(paths, container(layer)) < MIB


def test_a_kernel_whose_files_take_ever_so_long_to_count_delays_no_report(paths, layer):
    """The count that is under way holds the lock: a report waits for none, and begins no second one."""
    write(layer / "one", MIB)
    before = counted(paths, container(layer))
    os.utime(paths.disk_counts / "c1", (0, 0))
    with (paths.disk_counts / "c1.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert disk_use.disk_use(paths, container(layer)) == before
        assert (paths.disk_counts / "c1").stat().st_mtime == 0


@pytest.mark.parametrize(
    ("took_s", "ended_s_ago", "again"),
    [(1, 5, False), (1, 30, True), (100, 30, False), (100, 1800, False), (100, 2000, True), (1, -5, True)],
)
def test_counting_takes_a_twentieth_of_the_time_at_the_most(took_s, ended_s_ago, again):
    assert disk_use.is_due(NOW - took_s, NOW, NOW + ended_s_ago) == again


def test_a_kernel_is_counted_again_when_that_is_due(paths, layer):
    before = counted(paths, container(layer))
    write(layer / "one", MIB)
    for name in ("c1", "c1.lock"):
        os.utime(paths.disk_counts / name, (0, 0))
    assert counted(paths, container(layer)) >= before + MIB


def test_a_layer_that_the_engine_limits_is_not_counted_but_volumes_are(paths, layer, tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    write(layer / "one", 5 * MIB)
    write(volume / "two", MIB)
    limited = {"StorageOpt": {"size": "1"}}
    assert disk_use.disk_use(paths, container(layer, **limited)) == 0
    assert MIB <= counted(paths, container(layer, (volume,), **limited)) < 2 * MIB


def test_without_a_limit_nothing_is_counted(paths, layer):
    unlimited = container(layer)
    unlimited["Config"]["Labels"] = {}
    assert disk_use.disk_use(paths, unlimited) is None
    assert not paths.disk_counts.exists()


def test_a_layer_without_an_origin_is_unknown(paths):
    assert disk_use.disk_use(paths, container(None)) is None


MOUNTS = """\
812 700 0:55 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/var/lib/a\\040b/fs,workdir=/w
813 812 0:56 / /proc rw - proc proc rw
814 812 8:1 /etc /data rw - overlay overlay rw,lowerdir=/l,upperdir=/other,workdir=/w
"""


@pytest.mark.parametrize(
    ("mounts", "directory"),
    [
        (MOUNTS, "/var/lib/a b/fs"),
        # An overlay with very many layers is mounted by names that mean nothing elsewhere.
        (MOUNTS.replace("upperdir=/var/lib/a", "upperdir=a"), ""),
        ("812 700 8:1 / / rw - ext4 /dev/sda rw\n", ""),
    ],
)
def test_where_the_engine_does_not_name_the_layer_the_containers_own_mounts_do(mounts, directory):
    assert disk_use.upper_directory(mounts) == directory


def test_counts_go_with_their_containers(paths, layer):
    counted(paths, container(layer))
    disk_use.forget_others(paths, {"c1"})
    assert (paths.disk_counts / "c1").exists()
    disk_use.forget_others(paths, {"c2"})
    assert not paths.disk_counts.exists()


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (None, ""),
        (10 * MIB, ""),
        (12 * MIB, "sub1 has written 12 MiB on its agent's disk, its disk limit is 10 MiB"),
    ],
)
def test_a_session_whose_kernel_has_written_more_than_its_limit_ends(used, said):
    session = placed_on(make_session(cluster_size=2, disk="10M"), "a1")
    events = observe(Snapshot((), (session,), NOW + 1), reports_of(session, sub1={"disk_bytes": used}))
    ended = [event for event in events if event.to_state is SessionState.TERMINATING]
    assert [event.reason for event in ended] == ([said] if said else [])
    assert [event.session["result"] for event in ended] == ([Result.FAILURE] if said else [])


def test_a_session_without_a_limit_may_write_what_it_likes():
    session = placed_on(make_session(), "a1")
    events = observe(Snapshot((), (session,), NOW + 1), reports_of(session, main1={"disk_bytes": 1 << 50}))
    assert [event.to_state for event in events] == [SessionState.RUNNING]


def test_an_agents_word_ends_no_session_of_other_agents():
    session = placed_on(make_session(cluster_size=2, disk="10M"), "a1", "a2")
    other = placed_on(make_session(2, disk="10M"), "a3")
    lies = reports_of(other, main1={"disk_bytes": 1 << 50})
    events = observe(Snapshot((), (session, other), NOW + 1), {**reports_of(session), **lies})
    assert {event.session_id for event in events if event.to_state is SessionState.TERMINATING} == {other.id}


def test_the_limit_reaches_the_agent_that_launches_the_kernel():
    session = replace(placed_on(make_session(disk="10M"), "a1", state=SessionState.PREPARING), step=LaunchStep.STARTING)
    written = manifest(
        make_agent("a1"), [session], {session.id: fake_key_pair("s")}, 7, LaunchPolicy(), lambda name, _: name
    )
    (entry,) = written.sessions
    assert isinstance(entry, LaunchedSession)
    assert [kernel.resources.disk_bytes for kernel in entry.kernels] == [10 * MIB]


@pytest.fixture
def service(service, tmp_path):
    """Return the control node of a site with a disk limit."""
    settings = load_settings(write_settings(tmp_path, {"disk_limit": "10G"}))
    return type(service)(service.store, settings, Service(service.store, settings))


@pytest.fixture
def app(service):
    return make_app(service.service)


def test_nobody_asks_for_more_than_the_sites_limit(caller, service):
    ada = caller("ada")
    for path in (SESSIONS, f"{SESSIONS}/dry-run"):
        answer = ada.post(path, json={**SMALL, "disk": "11G"})
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"] == "disk: 11G is more than this site gives a container, 10G; ask for 10G or less"
    assert service.store.search() == []


@pytest.mark.parametrize(
    ("requested", "given"), [({}, 10 << 30), ({"disk": "10G"}, 10 << 30), ({"disk": "1M"}, 1 << 20)]
)
def test_every_session_has_a_limit_where_the_site_has_one(caller, service, requested, given):
    assert caller("ada").post(SESSIONS, json={**SMALL, **requested}).status_code == 201
    assert [session.spec.disk for session in service.store.search()] == [given]


def test_muster_show_names_the_limit(control_node, tmp_path, monkeypatch):
    store = control_node().store
    limited, unlimited = make_session(1, disk="10M"), make_session(2)
    store.add([limited, unlimited])
    monkeypatch.setenv("MUSTER_CONFIG", str(write_settings(tmp_path, {"state_dir": str(tmp_path)})))
    assert "Disk limit: 10M in each kernel\n" in muster("show", limited.name).out
    assert "Disk limit" not in muster("show", unlimited.name).out
