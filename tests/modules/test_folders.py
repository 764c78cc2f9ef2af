"""Folders with an owner on an agent: who can put something in their place, what they hold, how they go."""

import errno
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.modules.agent_code import (
    agent_folders,
    folder_quota,
    folder_usage,
    made_folders,
    mount_folders,
    mounted_where,
)
from tests.modules.cluster_on_host import session

NUMBER = (1 << 30) + 5
ENTRY: dict[str, Any] = {
    "path": ".muster/folders/ada/data-00000014",
    "uid": 4711,
    "number": NUMBER,
    "quota_bytes": None,
}


@pytest.fixture
def module(tmp_path, capsys):
    """Runs `agent_folders` on a root of its own."""

    def run(state, *entries, check=False, **given):
        arguments = {"root": str(tmp_path), "folders": list(entries or [ENTRY]), "state": state, **given}
        capsys.readouterr()
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            agent_folders.main()
        return json.loads(capsys.readouterr().out)

    return run


def test_a_folder_is_made_once_belongs_to_its_owner_and_goes_with_all_that_is_in_it(module, tmp_path):
    place = tmp_path / ENTRY["path"]
    assert (module("present", check=True)["changed"], place.exists()) == (True, False)
    assert [module("present")["changed"], module("present")["changed"]] == [True, False]
    state = place.stat()
    assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (4711, NUMBER, 0o2770)
    for above in [place.parents[0], place.parents[1], place.parents[2]]:
        assert (above.stat().st_uid, stat.S_IMODE(above.stat().st_mode)) == (0, 0o711)
    deep = place / "/".join(["d"] * 1500)
    subprocess.run(["mkdir", "-p", "--", str(deep)], check=True)
    assert (module("absent", check=True)["changed"], place.exists()) == (True, True)
    assert [module("absent")["changed"], module("absent")["changed"]] == [True, False]
    assert list((tmp_path / ".muster" / "trash").iterdir()) == []


def test_a_killed_runs_trash_is_removed_by_the_next_run(module, tmp_path):
    module("present")
    trash = tmp_path / ".muster" / "trash"
    trash.mkdir(0o700)
    (tmp_path / ENTRY["path"]).rename(trash / "data-00000014")
    (trash / "data-00000014" / "rest").touch()
    assert [module("absent", check=True)["changed"], module("absent")["changed"]] == [True, True]
    assert not module("absent")["changed"]
    assert list(trash.iterdir()) == []


@pytest.mark.parametrize("part", [".muster", ".muster/folders", ".muster/folders/ada", ENTRY["path"]])
@pytest.mark.parametrize("state", ["present", "absent", "measured"])
def test_a_link_in_a_folders_place_is_not_followed(module, tmp_path, tmp_path_factory, part, state):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (tmp_path / part).parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    (tmp_path / part).symlink_to(elsewhere)
    assert module(state)["failed"]
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o711, 4711)])
def test_a_directory_that_others_can_change_leads_to_no_folder(module, tmp_path, mode, owner):
    module("present")
    above = tmp_path / ".muster" / "folders" / "ada"
    above.chmod(mode)
    os.chown(above, owner, owner)
    answer = module("present")
    assert "is not root's alone on this agent" in answer["msg"]


def test_a_path_that_is_no_folders_is_refused(module):
    for path in ("data", ".muster/folders/../../etc-00000000", ".muster/folders/ada/..-00000000", "/etc"):
        assert "is not the path of a folder" in module("absent", {**ENTRY, "path": path})["msg"]


def test_a_root_that_is_not_there_is_named(module, tmp_path):
    answer = module("absent", root=str(tmp_path / "away"))
    assert "is no directory on this agent (roles/folders makes it)" in answer["msg"]


def test_users_of_a_shared_folder_can_write_with_any_umask(module, tmp_path):
    module("present")
    script = "umask 077; mkdir sub && echo one > sub/file"
    as_owner, as_other = [{"user": uid, "group": uid, "extra_groups": [NUMBER]} for uid in (4711, 4712)]
    place = tmp_path / ENTRY["path"]
    for parent in (tmp_path, *list(tmp_path.parents)[:-1]):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    subprocess.run(["sh", "-c", script], cwd=place, check=True, **as_owner)
    subprocess.run(["sh", "-c", "echo two >> sub/file && touch sub/new"], cwd=place, check=True, **as_other)
    assert (place / "sub" / "file").read_text() == "one\ntwo\n"


def test_the_content_of_a_folder_is_counted_or_reported_as_unknown(module, tmp_path):
    module("present")
    (tmp_path / ENTRY["path"] / "big").write_bytes(b"x" * (1 << 20))
    (tmp_path / ENTRY["path"] / "out").symlink_to("/usr")
    (found,) = module("measured")["folders"]
    assert (found["exists"], found["files"], found["quota"], found["shared_from"]) == (True, 2, None, None)
    assert 1 << 20 <= found["used_bytes"] < 2 << 20
    (late,) = folder_usage.usage(str(tmp_path), [made_folders.parse_entry(ENTRY)], patience_s=-1)
    assert (late["exists"], late["used_bytes"], late["files"]) == (True, None, None)
    (none,) = module("measured", {**ENTRY, "path": ENTRY["path"][:-1] + "5"})["folders"]
    assert (none["exists"], none["used_bytes"]) == (False, 0)


def test_a_quota_holds_or_is_said_not_to(module, tmp_path):
    """Whichever this machine's file system can."""
    (found,) = module("present", {**ENTRY, "quota_bytes": 1 << 20})["folders"]
    big = tmp_path / ENTRY["path"] / "big"
    if found["quota"] == "enforced":
        with pytest.raises(OSError, match=r"quota|space"):
            big.write_bytes(b"x" * (2 << 20))
    else:
        assert found["quota"].startswith("not enforced here: ")
        big.write_bytes(b"x" * (2 << 20))


def test_a_folder_whose_making_was_cut_short_gets_its_quota_with_the_next_launch(tmp_path, monkeypatch):
    """Whether or not this machine's file system has quotas: what would set one fails at first."""
    limits, entry = [], made_folders.parse_entry({**ENTRY, "quota_bytes": 1 << 20})

    def limit(_folder, number, quota_bytes):
        limits.append((number, quota_bytes))
        if len(limits) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_quota, "limit", limit)
    with pytest.raises(mount_folders.FolderError, match="No space left on device"):
        made_folders.make(str(tmp_path), entry)
    # Later launches may know an older quota than the folder's.
    assert [made_folders.make(str(tmp_path), entry) for _ in range(2)] == [False, False]
    assert limits == [(NUMBER, 1 << 20)] * 2
    assert (tmp_path / ENTRY["path"]).stat().st_uid == ENTRY["uid"]


@pytest.fixture
def counting(monkeypatch):
    """Lets the file system have project quotas, which this machine's may lack, by the calls of the Linux kernel."""
    numbers, limits = {}, {}

    def ioctl(folder, request, data):
        if request == folder_quota._FSSETXATTR:
            numbers[os.fstat(folder).st_ino] = data
        return numbers.get(os.fstat(folder).st_ino, bytes(len(data)))

    def quotactl(command, _source, number, data):
        if command == folder_quota._SET_QUOTA:
            limits[number] = data
        return limits.get(number, bytes(len(data)))

    monkeypatch.setattr(folder_quota.fcntl, "ioctl", ioctl)
    monkeypatch.setattr(folder_quota, "_quotactl", quotactl)
    monkeypatch.setattr(folder_quota, "_state", lambda _system: folder_quota._COUNTED | folder_quota._ENFORCED)


@pytest.mark.usefixtures("counting")
def test_another_quota_is_a_change_that_check_mode_foretells(module):
    module("present")
    assert not module("present")["changed"]
    larger, path = {**ENTRY, "quota_bytes": 1 << 20}, ENTRY["path"]
    foreseen, done = module("present", larger, check=True), module("present", larger)
    assert (
        foreseen["diff"]
        == done["diff"]
        == {"before": {path: {"quota": "none"}}, "after": {path: {"quota": "1048576 bytes"}}}
    )
    assert (foreseen["changed"], done["changed"], module("present", larger)["changed"]) == (True, True, False)
    assert [module("present")["changed"] for _ in range(2)] == [True, False]


def test_a_folder_of_another_owner_is_a_change_that_check_mode_foretells(module, tmp_path):
    module("present")
    path = ENTRY["path"]
    os.chown(tmp_path / path, 4712, NUMBER)
    foreseen, done = module("present", check=True), module("present")
    assert foreseen["diff"] == done["diff"] == {"before": {path: {"uid": "4712"}}, "after": {path: {"uid": "4711"}}}
    assert (foreseen["changed"], done["changed"], module("present")["changed"]) == (True, True, False)


def test_why_a_quota_is_not_enforced():
    listed = (
        "36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/vda rw\n40 36 0:50 / /nas rw - nfs4 nas:/export rw\n"
    )
    ext4, nfs = (folder_quota._listed(listed, device) for device in ("98:0", "0:50"))
    assert (ext4, nfs) == (("ext4", "/dev/vda"), ("nfs4", "nas:/export"))
    assert folder_quota.obstacle(ext4, 1 << 4) == "not enforced here: its ext4 is mounted without prjquota"
    assert folder_quota.obstacle(ext4, 1 << 4 | 1 << 5) == ""
    assert folder_quota.obstacle(nfs, 0) == "not enforced here: nfs4 has no project quotas"


def test_a_plain_directory_leads_into_no_folder_with_an_owner(tmp_path):
    (tmp_path / "plain").mkdir()
    made_folders.make(str(tmp_path), made_folders.parse_entry(ENTRY))
    for link, target in (("in", tmp_path / ENTRY["path"]), ("up", ".."), ("area", "../.muster")):
        (tmp_path / "plain" / link).symlink_to(target)
        with pytest.raises(mount_folders.FolderError, match="leads to where folders with an owner are kept"):
            mount_folders.resolve_folder(str(tmp_path), f"plain/{link}")


def test_a_launch_makes_the_folders_that_it_mounts(cluster):
    mount = {"folder": ENTRY["path"], "target": "/data", "read_only": False, "owned": True}
    entry = session(("main1", "sub1"), mounts=[mount])
    entry["folders"] = [{**ENTRY, "uid": 1000}]
    place = Path(cluster.folders_root) / ENTRY["path"]
    assert cluster.converge(entry, check=True)["sessions"][0]["outcome"] == "released"
    assert not place.exists()
    assert cluster.converge(entry)["sessions"][0]["outcome"] == "released"
    cluster.run_in(entry, "sub1", "sh", "-c", "echo hello > /data/note")
    assert cluster.run_in(entry, "main1", "cat", "/data/note") == "hello"
    assert cluster.converge(entry)["changed"] is False


def test_mounted_folders_are_counted(tmp_path):
    assert not mounted_where.are_mounted([_identity(tmp_path)], os.getpid())
    assert mounted_where.are_mounted([_identity("/proc")], os.getpid())
    assert not mounted_where.are_mounted([_identity("/proc")] * 99, os.getpid())


def _identity(path):
    state = Path(path).stat()
    return mounted_where.Identity(state.st_dev, state.st_ino)
