"""Scripts that roles run on hosts bring the modules that they share, and need nothing of Muster's there."""

import base64
import json
import subprocess
import sys

import pytest
from ansible.errors import AnsibleFilterError

from tests.shipped_program import as_shipped

FIREWALL = {"backend": "auto", "agents": {}, "control": {}, "closed": [], "open": [], "peers": [], "swarm": False}
FIREWALL |= {"manager_port": 2377, "data_port": 4789}


def start(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_the_detection_runs_where_nothing_of_musters_is(tmp_path):
    done = start(as_shipped("roles/fgpu/files/detect.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["built"] is None
    assert (found["problem"] is None) == bool(found["driver"])


def test_the_runtimes_builder_says_what_is_there_where_nothing_of_musters_is(tmp_path):
    (tmp_path / "VERSION").write_text("made elsewhere")
    program = as_shipped("roles/session_runtime/files/build_runtime.py")
    done = start(program, "versions", str(tmp_path), base64.b64encode(b"{}").decode(), "builder")
    assert json.loads(done.stdout)["present"] == "made elsewhere"
    # If apt offers nothing, the program then fails in one line.
    assert "Traceback" not in done.stderr


def test_the_firewalls_program_brings_modules_that_its_modules_need():
    done = start(as_shipped("roles/session_firewall/files/muster_firewall.py"), "no such command")
    assert done.returncode == 2
    assert done.stderr.startswith("muster-firewall apply | check")


def test_the_firewall_is_set_whatever_a_comment_in_resolv_conf_says(tmp_path):
    """It is applied at each boot before the engine starts, which starts without it too."""
    (tmp_path / "resolv.conf").write_bytes(b"# f\xfcr das Netz\nnameserver 192.0.2.53\n")
    program = as_shipped("roles/session_firewall/files/muster_firewall.py")
    for path in ("/etc/resolv.conf", "/run/muster-firewall.lock"):
        program = program.replace(path, f"{tmp_path}/{path.rpartition('/')[2]}")
    command = [sys.executable, "-IS", "-c", program, "check", "-"]
    done = subprocess.run(command, input=json.dumps(FIREWALL), capture_output=True, text=True, check=False)
    assert "decode" not in done.stderr, done.stderr


def test_a_script_that_would_read_its_own_file_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print(open(__file__).read())\n")
    with pytest.raises(AnsibleFilterError, match="names __file__"):
        as_shipped(str(script))


def test_a_module_that_is_not_there_is_one_clear_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from muster_agent.no_such_module import anything\n")
    with pytest.raises(AnsibleFilterError, match=r"muster_program: .*no_such_module\.py"):
        as_shipped(str(script))
