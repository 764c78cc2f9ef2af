"""What CDI gives containers of GPUs: what they need for computing, and no more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from muster.core.gpus.access import CDI_KIND
from tests.modules.agent_code import ROOT, cdi

PROGRAM = ROOT / "roles/fgpu/files/gpu_cdi.py"
LIB = "/usr/lib/x86_64-linux-gnu"
COMPUTE = ["libcuda.so.570.1", "libnvidia-ml.so.570.1", "libnvidia-ptxjitcompiler.so.570.1", "libcudadebugger.so.570.1"]
OTHERS = ["libnvidia-encode.so.570.1", "libnvcuvid.so.570.1", "libGLX_nvidia.so.570.1", "libnvidia-new.so.570.1"]
LINKS = ["libcuda.so.1::{}/libcuda.so", "../libnvidia-allocator.so.1::{}/gbm/nvidia-drm_gbm.so"]


def hook(*words: str) -> dict:
    return {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", *words]}


def mount(path: str) -> dict:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "bind"]}


def linked(*links: str) -> dict:
    return hook("create-symlinks", *(word for link in links for word in ("--link", link.format(LIB))))


SPECIFICATION = {
    "cdiVersion": "0.5.0",
    "kind": "muster/gpu",
    "devices": [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/dri/card1"}, {"path": "/dev/dri/renderD128"}],
                "hooks": [hook("chmod", "--path", "/dev/dri")],
            },
        }
        for name in ("GPU-a", "all")
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": f"/dev/{name}"} for name in ("nvidia-modeset", "nvidia-uvm", "nvidiactl")],
        "hooks": [
            linked(*LINKS),
            linked(LINKS[1]),
            hook("enable-cuda-compat", "--host-driver-version=570.1"),
            hook("update-ldcache", "--folder", LIB),
        ],
        "mounts": [
            *(mount(f"{LIB}/{name}") for name in (*COMPUTE, *OTHERS)),
            mount("/usr/bin/nvidia-smi"),
            mount("/lib/firmware/nvidia/570.1/gsp_ga10x.bin"),
            mount("/usr/share/vulkan/icd.d/nvidia_icd.json"),
        ],
    },
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that runs the program with a toolkit that gives this specification."""
    toolkit = tmp_path / "bin/nvidia-ctk"
    toolkit.parent.mkdir()
    copy = tmp_path / "gpu_cdi.py"
    copy.write_text(PROGRAM.read_text().replace('SYSTEM_PATH = "', f'SYSTEM_PATH = "{toolkit.parent}:'))

    def run(answer: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "answer").write_text(answer)
        toolkit.write_text(
            f'#!/bin/sh\necho "$@" >{tmp_path}/words\ncat {tmp_path}/answer\ntest -s {tmp_path}/answer\n'
        )
        toolkit.chmod(0o755)
        words = [sys.executable, "-I", copy, tmp_path / "etc/cdi/muster.json", CDI_KIND]
        monkeypatch.setenv("PATH", str(toolkit.parent), prepend=":")
        return subprocess.run(words, capture_output=True, text=True, check=False)

    return run


def test_the_specification_has_what_is_for_computing_and_no_graphics_or_video(write, tmp_path):
    done = write(json.dumps(SPECIFICATION))
    file = tmp_path / "etc/cdi/muster.json"
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    words = (tmp_path / "words").read_text().split()
    assert words == [
        "cdi",
        "generate",
        "--format=json",
        "--vendor=muster",
        "--class=gpu",
        "--device-name-strategy=uuid",
    ]
    written = json.loads(file.read_text())
    (device,) = written["devices"]
    assert device == {"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    common = written["containerEdits"]
    assert [Path(entry["containerPath"]).name for entry in common["mounts"]] == [
        *COMPUTE,
        "nvidia-smi",
        "gsp_ga10x.bin",
    ]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    assert common["hooks"] == [linked(LINKS[0]), hook("update-ldcache", "--folder", LIB)]
    assert (written["kind"], common["env"]) == ("muster/gpu", ["NVIDIA_VISIBLE_DEVICES=void"])
    again = write(json.dumps(SPECIFICATION))
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.parametrize("answer", ["", "no JSON", json.dumps({**SPECIFICATION, "devices": []})])
def test_what_the_toolkit_cannot_say_leaves_the_specification_as_it_is(write, tmp_path, answer):
    write(json.dumps(SPECIFICATION))
    before = (tmp_path / "etc/cdi/muster.json").read_text()
    done = write(answer)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("CDI: nvidia-ctk ")
    assert (tmp_path / "etc/cdi/muster.json").read_text() == before


def test_an_agent_offers_the_gpus_that_the_engine_can_give(tmp_path):
    file, library = tmp_path / "muster.json", tmp_path / "libcuda.so.570.1"
    info = {"CDISpecDirs": ["/var/run/cdi", str(tmp_path)]}
    assert cdi.offered_gpus(info, file) is None
    edits = {"mounts": [mount(str(library))]}
    file.write_text(json.dumps({"devices": [{"name": "GPU-a", "containerEdits": {}}], "containerEdits": edits}))
    assert cdi.offered_gpus(info, file) == []
    library.touch()
    assert cdi.offered_gpus(info, file) == ["GPU-a"]
    assert cdi.offered_gpus({"CDISpecDirs": []}, file) is None
    assert cdi.offered_gpus({}, file) is None
    for broken in ("", "[]", '{"devices": 1, "containerEdits": {}}', '{"devices": [], "containerEdits": []}'):
        file.write_text(broken)
        assert cdi.offered_gpus(info, file) == []


def test_the_role_the_agent_and_the_control_node_mean_the_same_specification():
    role = yaml.safe_load((ROOT / "roles/fgpu/vars/main.yml").read_text())
    assert role["fgpu_cdi_file"] == str(cdi.SPECIFICATION)
    assert role["fgpu_cdi_kind"] == CDI_KIND == SPECIFICATION["kind"]
