"""Folders that are mounted read-only: nobody writes to what is mounted below them either.

Everything is in a namespace of mounts that ends with its program.
"""

import subprocess
import sys
from pathlib import Path

AGENT = Path(__file__).parents[3] / "plugins/module_utils"
PROGRAM = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from muster_agent import host_mounts, names
from muster_agent.folders import staging

root, staged = Path("/tmp/folders"), Path("/tmp/staged/kernel")

def mount(place, *options):
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], check=True)

mount(Path("/tmp"))
# The place is in memory already.
staging.MOUNT_ROOT, staging.ensure_own_tmpfs = staged.parent, lambda place, _: place.mkdir()
for folder in ("data", "own"):
    (root / folder).mkdir(parents=True)
    mount(root / folder / "below it", "-o", "nodev,noexec")
places = {folder: str(root / folder) for folder in ("data", "own")}
found = staging.stage(staged, str(root), places, {"data"}, host_mounts.bind)
for folder in ("data", "own"):
    for part in ("", "below it"):
        place = Path(found[folder].path) / part
        try:
            (place / "file").touch()
            said = "written"
        except OSError as error:
            said = error.strerror
        flags = os.statvfs(place).f_flag
        print(folder, bool(part), said, bool(flags & os.ST_NODEV), bool(flags & os.ST_NOEXEC), sep=",")
(root / "data/below it/file").touch()
print("the folder itself is as it was")
"""


def test_what_is_mounted_below_a_read_only_folder_is_read_only_and_keeps_its_options() -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", PROGRAM, str(AGENT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "data,False,Read-only file system,False,False",
        "data,True,Read-only file system,True,True",
        "own,False,written,False,False",
        "own,True,written,True,True",
        "the folder itself is as it was",
    ]
