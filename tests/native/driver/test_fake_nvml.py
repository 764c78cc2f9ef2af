"""The fake NVML, its MIG, and the stand-in for the runtime hook: what an agent and a container see of the devices."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.native.fake_driver import FakeDriver

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 256 * MIB


def test_a_container_sees_only_what_its_list_names_whatever_its_environment(fake_driver: FakeDriver):
    second = fake_driver.uuids()[1]
    fake_driver.visible.write_text(f"{second}\n")
    library = {"LD_LIBRARY_PATH": str(fake_driver.directory)}
    for environment in (library, library | {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,1"}):
        done = subprocess.run(
            [fake_driver.directory / "smi"], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"0 {second} total {8 * GIB} used 0\n"
    fake_driver.visible.write_text("\n")
    assert fake_driver.run("tell(cuda.cuInit(0))") == 100


def pynvml(fake_driver: FakeDriver, script: str, *before: str) -> Any:
    environment = {"LD_LIBRARY_PATH": str(fake_driver.directory), "PATH": os.environ["PATH"]}
    code = f"import json\nfrom pynvml import *\nnvmlInit()\ndevice = nvmlDeviceGetHandleByIndex(0)\n{script}"
    command = [*before, sys.executable, "-c", code]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_nvidias_own_python_client_reads_it(fake_driver: FakeDriver):
    holder = fake_driver.start("context(); allocate(MIB); tell(0); wait()")
    holder.stdout.readline()
    script = """
first, second = nvmlDeviceGetMemoryInfo(device), nvmlDeviceGetMemoryInfo(device, version=nvmlMemory_v2)
processes = [[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(device)]
print(json.dumps([nvmlDeviceGetCount(), nvmlDeviceGetUUID(device), first.total, second.total, second.used, processes]))
"""
    told = pynvml(fake_driver, script)
    used = CONTEXT + MIB
    assert told == [2, fake_driver.uuids()[0], 8 * GIB, 8 * GIB, used, [[holder.pid, used]]]
    holder.communicate()


def test_a_process_in_a_pid_namespace_has_its_pid_on_the_host(fake_driver: FakeDriver):
    environment = {"LD_LIBRARY_PATH": str(fake_driver.directory), "PATH": os.environ["PATH"]}
    inner = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        fake_driver.directory / "smi",
        "hold",
        "4096",
    ]
    holder = subprocess.Popen(inner, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    pids = pynvml(fake_driver, "print(json.dumps([p.pid for p in nvmlDeviceGetComputeRunningProcesses(device)]))")
    assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids] == ["smi"]
    assert fake_driver.status()["processes"][0]["pid"] == 1
    holder.communicate()


def test_a_gpu_is_cut_into_instances_and_each_is_a_device(fake_driver: FakeDriver):
    fake_driver.init(1, 143_771 * MIB, "--mig")
    told = pynvml(
        fake_driver,
        """
nvmlDeviceSetMigMode(device, 1)
infos = [nvmlDeviceGetGpuInstanceProfileInfo(device, number) for number in (0, 1, 2, 4)]
names = [[i.name, i.id, i.instanceCount] for i in infos]
for info, number in ((infos[2], 2), (infos[0], 0)):
    instance = nvmlDeviceCreateGpuInstance(device, info.id)
    nvmlGpuInstanceCreateComputeInstance(instance, number)
left = [nvmlDeviceGetGpuInstanceRemainingCapacity(device, info.id) for info in infos]
parts = [nvmlDeviceGetMigDeviceHandleByIndex(device, index) for index in range(2)]
memory = [nvmlDeviceGetMemoryInfo(part).total for part in parts]
parents = {nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)) for part in parts}
try:
    nvmlDeviceCreateGpuInstance(device, infos[3].id)
    refusal = ""
except NVMLError_InsufficientResources as error:
    refusal = str(error)
print(json.dumps([names, left, memory, list(parents), refusal, [nvmlDeviceGetUUID(part) for part in parts]]))
""",
    )
    names, left, memory, parents, refusal, uuids = told
    assert names == [["MIG 1g.18gb", 19, 7], ["MIG 2g.35gb", 14, 3], ["MIG 3g.71gb", 9, 2], ["MIG 7g.141gb", 0, 1]]
    assert left == [2, 0, 0, 0]
    assert memory == [71_885 * MIB, 17_971 * MIB]
    assert parents == fake_driver.uuids()[:1]
    assert refusal == "Insufficient Resources"
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    total = fake_driver.run("context(); tell([cuda.cuDeviceGet(byref(c_int()), 1), free_and_total()[1]])")
    assert total == [101, memory[0]]


def test_a_gpu_that_cannot_be_cut_says_so(fake_driver: FakeDriver):
    library = ctypes.CDLL(str(fake_driver.directory / "libnvidia-ml.so.1"))
    device = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    mode = ctypes.c_uint()
    assert library.nvmlDeviceGetMigMode(device, ctypes.byref(mode), ctypes.byref(mode)) == 3


def test_the_hook_gives_a_container_the_libraries_and_its_devices(fake_driver: FakeDriver, tmp_path: Path):
    """A container's namespace and root, as runc has them when it calls a prestart hook."""
    root = tmp_path / "rootfs"
    libraries = root / f"usr/lib/{os.uname().machine}-linux-gnu"
    for directory in (libraries, root / "etc", root / "sbin"):
        directory.mkdir(parents=True)
    second = fake_driver.uuids()[1]
    config = {"root": {"path": "rootfs"}, "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={second}"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    container = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; read line"], stdin=-1, stdout=-1)
    container.stdout.readline()
    state = json.dumps({"ociVersion": "1.0.2", "pid": container.pid, "bundle": str(tmp_path)})
    subprocess.run([fake_driver.directory / "hook", "prestart"], input=state, text=True, check=True)
    seen = Path(f"/proc/{container.pid}/root{root}")
    names = sorted(path.name for path in (seen / libraries.relative_to(root)).iterdir())
    visible = (seen / str(fake_driver.visible).lstrip("/")).read_text()
    has_state = (seen / str(fake_driver.state).lstrip("/")).stat().st_ino == fake_driver.state.stat().st_ino
    container.communicate(b"\n")
    assert names == ["libcuda.so.1", "libcuda.so.999.1", "libnvidia-ml.so.1", "libnvidia-ml.so.999.1"]
    assert (visible, has_state) == (f"{second}\n", True)
