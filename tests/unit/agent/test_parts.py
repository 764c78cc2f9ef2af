"""Small parts of the agents' code: log framing, tails, mount tables, folders."""

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.spec.mounts import HOME
from tests.modules.agent_code import ROOT, engine_api, kernel_cgroup, last_words, mount_folders, mount_table, tmpfs


class _Trickle(io.BytesIO):
    """A stream that gives one byte at a time, as a socket may."""

    def read(self, size=-1):
        return super().read(min(size, 1))


def _frame(stream, payload):
    return struct.pack(">BxxxI", stream, len(payload)) + payload


def test_log_frames_are_unwrapped_however_the_bytes_arrive():
    frames = _frame(1, b"out\n") + _frame(2, b"") + _frame(2, b"err\n")
    assert b"".join(engine_api.unframed(_Trickle(frames))) == b"out\nerr\n"


def test_a_log_that_breaks_off_gives_what_there_is():
    assert b"".join(engine_api.unframed(io.BytesIO(_frame(1, b"whole") + _frame(1, b"broken")[:-3]))) == b"wholebro"


@pytest.mark.parametrize(
    ("pieces", "tail", "truncated"),
    [([], b"", False), ([b"abcd"], b"abcd", False), ([b"ab", b"cde"], b"bcde", True), ([b"0123456789"], b"6789", True)],
)
def test_the_tail_of_a_log_is_kept(pieces, tail, truncated):
    assert last_words.tail_of(pieces, 4) == (tail, truncated)


def test_a_path_lies_on_the_deepest_and_latest_mount_over_it():
    table = """\
1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
2 1 0:20 / /run rw,nosuid - tmpfs tmpfs rw
3 2 0:21 / /run/must rw - ext4 /dev/sdb rw
4 2 0:22 / /run rw - xfs /dev/sdc rw
"""
    assert tmpfs.file_system_of("/run/muster", table) == "xfs"
    assert tmpfs.file_system_of("/var", table) == "ext4"
    assert tmpfs.file_system_of("/run/must/x", table) == "ext4"


@pytest.mark.parametrize("name", ["a\u3000b", "a\xa0b", "a\x0cb", "a\rb", "a\x85b", "a\u2028b c", "a\udcffb"])
def test_a_name_that_linux_does_not_escape_is_one_word_of_a_mount_table(tmp_path, name):
    escaped = name.replace(" ", r"\040")
    table, mounts = tmp_path / "mountinfo", tmp_path / "mounts"
    table.write_bytes(
        os.fsencode(
            f"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n2 1 0:20 /{escaped} /{escaped} rw - nfs4 nas:/{escaped} rw\n"
        )
    )
    mounts.write_bytes(os.fsencode(f"nas:/{escaped} /{escaped} nfs4 rw 0 0\ncgroup2 /groups cgroup2 rw 0 0\n"))
    found = mount_table.mounts(mount_table.listing(table))
    assert [(mount.point, mount.kind) for mount in found] == [("/", "ext4"), (f"/{name}", "nfs4")]
    assert tmpfs.file_system_of(f"/{name}/x", mount_table.listing(table)) == "nfs4"
    assert kernel_cgroup.hierarchies(mounts).every == (Path("/groups"),)


def test_a_folder_may_be_reached_by_links_that_stay_inside(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert mount_folders.resolve_folder(str(tmp_path), "link") == str(tmp_path / "real")
    assert mount_folders.resolve_folder(str(tmp_path), "real/../link/.") == str(tmp_path / "real")


def test_a_neighbour_with_the_same_beginning_is_outside(tmp_path):
    (tmp_path / "folders").mkdir()
    (tmp_path / "folders-secret").mkdir()
    with pytest.raises(mount_folders.FolderError, match="leads outside"):
        mount_folders.resolve_folder(str(tmp_path / "folders"), "../folders-secret")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(mount_folders.FolderError, match="does not exist"):
        mount_folders.resolve_folder(str(tmp_path), "file")


@pytest.mark.parametrize("target", ["/data", f"{HOME}/data", "/mnt/etc", "/optional", "/runner"])
def test_other_targets_are_free(target):
    mount_folders.check_target(target, "/opt/muster/runtime")


def test_each_module_can_be_loaded_by_itself():
    """As on an agent: nothing else has imported its parts before, in an order that hides a circle."""
    code = f"""
import importlib, os
import ansible.module_utils.basic, ansible.modules
ansible.modules.__path__.append({str(ROOT / "library")!r})
ansible.module_utils.__path__.append({str(ROOT / "plugins/module_utils")!r})
for module in "agent_converge", "agent_folders", "agent_report":
    if os.fork() == 0:
        # Ansible's own parts are there; of ours, each child loads its own.
        importlib.import_module(f"ansible.modules.{{module}}")
        print(module, flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["agent_converge", "agent_folders", "agent_report"], "")
