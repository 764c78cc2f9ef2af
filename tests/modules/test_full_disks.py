"""Where a host has no room left: that is the trouble of the session that needs it, and of no other."""

import json
import os
import subprocess
from contextlib import suppress

import pytest

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.contract.manifest import Manifest
from tests.modules.agent_code import engine_api, key_directory
from tests.modules.cluster_on_host import ModuleFailedError, desired, log_of, log_with, session

ONE, OTHER = "0123456789abcdef", "76543210fedcba98"
# Of the manifest before the disk is full, of the one after it, and what the host notes in the end.
DATABASES = {
    "the same database": ([ONE], [ONE], ONE),
    "another that continues it": ([ONE], [OTHER, ONE], OTHER),
    "the first that is noted": ([], [ONE], None),
}


@pytest.fixture
def small_disk():
    """Return a function that mounts a file system of some KiB in memory at a directory."""
    mounted = []

    def mount(directory, kib, files=0):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = f"size={kib}k,nr_inodes={files}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", directory], check=True)
        mounted.append(directory)
        return directory

    yield mount
    for directory in mounted:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory):
    """Write to a file system until it takes nothing more."""
    with suppress(OSError), (directory / "filling").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            continue


def outcomes(result):
    return {entry["id"]: (entry["outcome"], entry["error"]) for entry in result["sessions"]}


def test_no_room_for_one_sessions_keys_fails_that_session_alone(cluster, small_disk):
    cluster.converge()
    before, without_room, after = (session(["main1", "sub1"]) for _ in range(3))
    keys = small_disk(cluster.paths.keys / without_room["id"], 4)
    result = cluster.converge(before, without_room, after)
    found = outcomes(result)
    assert (found[before["id"]], found[after["id"]]) == (("released", None), ("released", None))
    outcome, error = found[without_room["id"]]
    assert outcome == "failed"
    assert error.startswith(f"on this agent: {keys}/")
    assert error.endswith(": No space left on device")
    assert set(cluster.states().values()) == {"running"}
    assert len(cluster.states()) == 4
    assert len(cluster.networks()) == 2


def test_no_room_for_a_release_releases_no_kernel_of_that_gang(cluster, small_disk):
    gang, other = session(["main1", "sub1"]), session(["main1", "sub1"])
    gang["release"] = other["release"] = False
    keys = small_disk(cluster.paths.keys / gang["id"], 64)
    assert {outcome for outcome, _ in outcomes(cluster.converge(gang, other)).values()} == {"started"}
    fill(keys)
    # Room for one kernel's, and none for the other's.
    os.truncate(keys / "filling", (keys / "filling").stat().st_size - 4096)
    result = cluster.converge(desired(gang, "release"), desired(other, "release"))
    outcome, error = outcomes(result)[gang["id"]]
    assert outcome == "failed"
    assert error.startswith(f"on this agent: {keys}/")
    assert error.endswith("/go.new: No space left on device")
    assert outcomes(result)[other["id"]] == ("released", None)
    released = {(kernel["session_id"], kernel["name"]): kernel["released"] for kernel in result["report"]["kernels"]}
    assert released == {(entry["id"], name): entry is other for entry in (gang, other) for name in ("main1", "sub1")}
    (keys / "filling").unlink()
    assert outcomes(cluster.converge(desired(gang, "release")))[gang["id"]] == ("released", None)


def test_a_folder_that_finds_no_room_fails_its_session_alone(cluster, small_disk):
    root = small_disk(cluster.folders_root / "shared", 64, files=3)
    data = {"path": ".muster/folders/ada/data-6f1c0000", "uid": 1000, "number": 1539571712, "quota_bytes": None}
    with_folder, without = session(), session()
    with_folder["folders"] = [data]
    result = cluster.converge(with_folder, without, folders_root=str(root))
    assert outcomes(result)[without["id"]] == ("released", None)
    assert outcomes(result)[with_folder["id"]][0] == "failed"
    assert outcomes(result)[with_folder["id"]][1].endswith("No space left on device")


@pytest.mark.parametrize("databases", DATABASES.values(), ids=DATABASES)
def test_on_a_full_disk_sessions_end_and_their_last_words_are_kept(cluster, small_disk, databases):
    state = small_disk(cluster.paths.state, 64)
    gang = session(["main1", "sub1"], command=["sh", "-c", "echo said; exec sleep 1000"])
    cluster.converge(gang, databases=databases[0])
    for entry in cluster.containers().values():
        log_with(cluster, entry["Id"], b"said")
    fill(state)
    cluster.generation = 2
    stopping = desired(gang, "stop")
    first = cluster.converge(stopping, databases=databases[1])
    again = cluster.converge(stopping, databases=databases[1])
    assert outcomes(first)[gang["id"]] == ("stopped", None)
    assert [(words["name"], words["exit_code"], log_of(words)) for words in first["last_words"]] == [
        ("main1", 143, "said\n"),
        ("sub1", 143, "said\n"),
    ]
    assert again["last_words"] == first["last_words"]
    assert (first["report"]["generation"], first["report"]["database"]) == (2, databases[2])
    cluster.converge()
    assert cluster.leaves_nothing()


def test_where_memory_has_no_room_for_the_log_either_the_exit_code_is_kept(cluster, small_disk):
    state = small_disk(cluster.paths.state, 64)
    gang = session(command=["sh", "-c", "id; seq 100000; exit 3"])
    cluster.converge(gang)
    (entry,) = cluster.containers().values()
    log_with(cluster, entry["Id"], b"\n100000\n")
    fill(state)
    small_disk(cluster.paths.spool_in_memory, 4)
    result = cluster.converge(desired(gang, "stop"), log_max_bytes=1 << 20)
    (words,) = result["last_words"]
    assert outcomes(result)[gang["id"]] == ("stopped", None)
    assert (words["exit_code"], words["log_truncated"], log_of(words)) == (3, True, "")


def test_last_words_that_can_be_kept_nowhere_leave_the_container_and_stop_the_others(cluster, small_disk):
    state = small_disk(cluster.paths.state, 64)
    gang, other = session(), session()
    cluster.converge(gang, other)
    fill(state)
    fill(small_disk(cluster.paths.spool_in_memory / gang["id"], 4))
    result = cluster.converge(desired(gang, "stop"), desired(other, "stop"))
    outcome, error = outcomes(result)[gang["id"]]
    assert outcome == "failed"
    assert error.endswith("No space left on device")
    assert outcomes(result)[other["id"]] == ("stopped", None)
    assert cluster.states() == {f"{gang['network']['name']}-main1": "exited"}
    (state / "filling").unlink()
    (words,) = cluster.converge(desired(gang, "stop"))["last_words"]
    assert words["exit_code"] == 143


def test_an_engine_that_dies_before_the_report_takes_no_outcome_back(cluster, monkeypatch):
    gang = session()

    def dies(_engine):
        raise engine_api.EngineError(0, "the Docker engine does not answer at /var/run/docker.sock: it is gone")

    monkeypatch.setattr(engine_api.EngineApi, "images", dies)
    with pytest.raises(ModuleFailedError, match="systemctl start docker") as failed:
        cluster.converge(gang)
    assert outcomes(failed.value.result) == {gang["id"]: ("released", None)}
    assert "nothing_begun" not in failed.value.result


def test_a_half_released_gang_is_reported_as_nothing_else(cluster, monkeypatch):
    gang, other = session(["main1", "sub1"]), session()

    def by_half(paths, session_id, kernel_names, generation):
        release(paths, session_id, kernel_names[:1], generation)
        if kernel_names[1:]:
            raise key_directory.HalfReleasedError("only 1 of 2 kernels could be released: no memory")

    release = key_directory.release
    monkeypatch.setattr(key_directory, "release", by_half)
    with pytest.raises(ModuleFailedError, match="only 1 of 2") as failed:
        cluster.converge(gang, other)
    monkeypatch.undo()
    assert outcomes(failed.value.result) == {other["id"]: ("released", None)}
    assert len(cluster.states()) == 3
    assert set(outcomes(cluster.converge(gang, other)).values()) == {("released", None)}


PYTHON_WITHOUT_DISK = """#!/bin/sh
exec unshare --mount sh -c '
  for directory in /tmp /var/tmp /mnt; do
    mount -t tmpfs -o size=8k test "$directory"
    dd if=/dev/zero of="$directory/filling" bs=4k 2>/dev/null
  done
  cd /mnt
  exec /usr/bin/python3 "$@"
' sh "$@"
"""


def test_an_agent_whose_disk_takes_nothing_more_still_answers(cluster, tmp_path):
    """Ansible unpacks each module on the agent before it runs it."""
    python = tmp_path / "python"
    python.write_text(PYTHON_WITHOUT_DISK, encoding="utf-8")
    python.chmod(0o755)
    hosts = {"far": {"ansible_connection": "local", "ansible_python_interpreter": str(python)}}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"agents": {"hosts": hosts}}), encoding="utf-8")
    gateway, answers = AnsibleGateway(Inventory(inventory), cluster.name), []
    gateway.observe((), answers.append)
    gateway.converge({"far": Manifest.model_validate(cluster.manifest())}, answers.append)
    assert [answer.problem for answer in answers] == ["", ""]
    assert answers[1].report.generation == 1
