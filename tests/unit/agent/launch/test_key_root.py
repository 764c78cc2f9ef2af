"""The place of kernels' files on a host: in memory, and such that their scripts start in containers."""

import os
import subprocess
import sys

import pytest

# As most distributions mount /run. What is in the namespace of mounts goes with it.
RUN = """
mount -t tmpfs -o {options} run "$1" && shift && exec "$@"
"""
# As an engine that remaps ids binds it: Linux lets nobody in another namespace of users take flags away.
IN_A_CONTAINER = """
import subprocess, sys
from pathlib import Path
from tests.modules.agent_code import tmpfs

root, state, used = Path(sys.argv[1], "muster"), Path(sys.argv[2]), sys.argv[3:]
tmpfs.STATE_ROOT = state
if "mounted" in used:
    used.remove("mounted")
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev,noexec", "muster", str(root)], check=True)
for name in used:
    (root / name).mkdir(parents=True)
tmpfs.ensure_in_memory(root, 0o700)
tmpfs.ensure_in_memory(root, 0o700)
print(len([line for line in Path("/proc/self/mounts").read_text().splitlines() if str(root) in line]))
script = root / "job"
script.write_text("#!/bin/sh\\necho started\\n")
script.chmod(0o755)
command = ["unshare", "--user", "--map-root-user", "--mount", str(script)]
print(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip())
print(oct(root.stat().st_mode & 0o777))
"""


def _ran(tmp_path, options: str, *used: str) -> list[str]:
    (tmp_path / "run").mkdir()
    # Only root may mount: others are root in a namespace of their own.
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    host = ["unshare", *as_root, "--mount", "sh", "-c", RUN.format(options=options), "sh", str(tmp_path / "run")]
    program = [sys.executable, "-c", IN_A_CONTAINER, str(tmp_path / "run"), str(tmp_path), *used]
    done = subprocess.run([*host, *program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:3]


@pytest.mark.parametrize("used", [(), (".disk",)])
def test_scripts_start_where_a_hosts_run_forbids_programs(tmp_path, used):
    assert _ran(tmp_path, "nosuid,nodev,noexec", *used) == ["1", "started", "0o700"]


def test_scripts_start_where_an_earlier_version_forbade_programs(tmp_path):
    """Also beside the files of kernels that run."""
    assert _ran(tmp_path, "nosuid,nodev", "mounted", "cluster") == ["1", "started", "0o700"]


def test_a_hosts_run_that_allows_programs_is_used_as_it_is(tmp_path):
    assert _ran(tmp_path, "nosuid,nodev") == ["0", "started", "0o700"]


@pytest.mark.parametrize("used", ["cluster", ".last-words"])
def test_files_of_kernels_that_run_are_not_hidden(tmp_path, used):
    assert _ran(tmp_path, "nosuid,nodev,noexec", used)[0] == "0"
