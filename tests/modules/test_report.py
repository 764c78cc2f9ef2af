"""What a host says of itself."""

import json
import os
import subprocess
import sys

import pytest

from tests.modules.agent_code import ROOT, agent_report, engine_api
from tests.modules.cluster_on_host import ModuleFailedError

FAKE_NVML = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
  char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32];
} pci_t;
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "?"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(0x7f0000000000 + index);
  return 0;
}
static unsigned long index_of(void *device) { return (unsigned long)device & 0xff; }
int nvmlDeviceGetName(void *d, char *text, unsigned size) { strncpy(text, "NVIDIA H200", size); return 0; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned size) {
  strncpy(text, index_of(d) ? "GPU-b" : "GPU-a", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { m->total = 150754820096ull; m->free = m->used = 0; return 0; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) { memset(p, 0, sizeof *p); p->domain = 0xfffe; return 0; }
"""


def test_a_host_reports_what_it_has(cluster):
    report = cluster.report(attributes={"resource_group": "here"})
    info = cluster.engine.info()
    assert report["version"] == 1
    assert report["cpu_count"] == info["NCPU"]
    assert 0 < report["mem_available_bytes"] < report["mem_bytes"] == info["MemTotal"]
    assert report["disk"]["path"] == info["DockerRootDir"]
    assert 0 < report["disk"]["free_bytes"] < report["disk"]["total_bytes"]
    assert report["docker"]["version"] == info["ServerVersion"]
    assert report["docker"]["cgroup_version"] in {"1", "2"}
    assert report["attributes"] == {"resource_group": "here"}
    assert "modtest-busybox:latest" in [tag for image in report["images"] for tag in image["tags"]]
    assert report["generation"] is None
    assert (report["kernels"], report["networks"]) == ([], [])
    assert report["runtime"].startswith("openssh-")
    assert cluster.report(runtime_path="/nowhere")["runtime"] is None


def test_an_engine_that_does_not_answer_is_told_with_its_remedy(cluster, monkeypatch, tmp_path):
    absent = str(tmp_path / "docker.sock")
    monkeypatch.setattr(agent_report, "EngineApi", lambda: engine_api.EngineApi(absent))
    with pytest.raises(ModuleFailedError) as failed:
        cluster.report()
    assert failed.value.result["msg"] == (
        f"the Docker engine does not answer at {absent}: [Errno 2] No such file or directory. "
        "Start it (systemctl start docker), or install it with playbooks/site.yml."
    )


def test_gpus_are_read_from_the_driver(tmp_path):
    assert _read_gpus(tmp_path, init=0) == [
        {"index": 0, "uuid": "GPU-a", "model": "NVIDIA H200", "mem_bytes": 150754820096, "numa_node": None},
        {"index": 1, "uuid": "GPU-b", "model": "NVIDIA H200", "mem_bytes": 150754820096, "numa_node": None},
    ]


def test_a_driver_that_does_not_answer_is_told(tmp_path):
    assert _read_gpus(tmp_path, init=9) == "the GPU driver does not answer: nvmlInit_v2: Driver Not Loaded"


def _read_gpus(folder, init):
    library = folder / "libnvidia-ml.so.1"
    build = ["gcc", "-shared", "-fPIC", f"-DINIT={init}", "-x", "c", "-", "-o", library]
    subprocess.run(build, input=FAKE_NVML, text=True, check=True)
    script = """
import json
from tests.modules.agent_code import nvml
try:
    print(json.dumps(nvml.gpus()))
except nvml.NvmlError as error:
    print(json.dumps(str(error)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
    )
    return json.loads(done.stdout)
