"""How the role describes a host's GPUs to an engine that gives them to containers itself (CDI).

The lab's engine is too old to read that; what is in it is tested in tests/unit/agent/gpus/test_gpu_cdi.py.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.control_node import ROOT
from tests.gpu.gpu_host import INVENTORY, GpuHost
from tests.lab.bring_up import SCRIPTS

pytestmark = pytest.mark.timeout(600)
FILE = "/etc/cdi/muster.json"
UNIT = "muster-gpu-cdi"
EDITS = {"mounts": [{"hostPath": path, "containerPath": path} for path in ("/x/libcuda.so.9", "/x/libnvcuvid.so.9")]}
ANSWER = {
    "cdiVersion": "0.5.0",
    "kind": "muster/gpu",
    "devices": [{"name": "GPU-a", "containerEdits": {}}],
    "containerEdits": EDITS,
}


@pytest.fixture
def toolkit(gpu_host: GpuHost) -> Iterator[None]:
    """Install a program that answers as NVIDIA's does."""
    script = f"printf '#!/bin/sh\\nprintf %%s \\047%s\\047\\n' '{json.dumps(ANSWER)}' >/usr/bin/nvidia-ctk"
    gpu_host.run("sh", "-ec", f"{script}; chmod 755 /usr/bin/nvidia-ctk")
    yield
    gpu_host.run("rm", "/usr/bin/nvidia-ctk")


def run_tasks(folder: Path, tasks_from: str) -> str:
    """Run tasks of the role on the host, and return the recap."""
    role = {"name": "fgpu", "tasks_from": tasks_from}
    task = {"ansible.builtin.include_role": role, "vars": {"fgpu_found": {"systemd": True}}}
    playbook = folder / f"{tasks_from}.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "agents", "gather_facts": False, "become": True, "tasks": [task]}]))
    done = subprocess.run(
        [SCRIPTS / "ansible-playbook", "--inventory", INVENTORY, playbook],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-2]


@pytest.mark.usefixtures("toolkit")
def test_the_gpus_are_described_now_and_at_each_boot_until_the_role_is_undone(
    gpu_host: GpuHost, tmp_path: Path
) -> None:
    run_tasks(tmp_path, "cdi")
    described = gpu_host.run("cat", FILE).out
    written = json.loads(described)
    assert [mount["hostPath"] for mount in written["containerEdits"]["mounts"]] == ["/x/libcuda.so.9"]
    assert "changed=0 " in run_tasks(tmp_path, "cdi")
    assert gpu_host.run("systemctl", "is-enabled", UNIT).out == "enabled\n"
    gpu_host.run("rm", FILE)
    gpu_host.run("systemctl", "restart", UNIT)
    assert gpu_host.run("cat", FILE).out == described
    run_tasks(tmp_path, "cdi_teardown")
    left = gpu_host.run(
        "sh", "-c", f"ls {FILE} /usr/local/sbin/{UNIT} /etc/systemd/system/*/{UNIT}.service", check=False
    )
    assert left.out == ""
