"""Checks of a share's memory, which need nothing but the driver. The real NVML is the judge where it can be."""

import importlib.util
import shutil
import subprocess
from typing import Any

from bench.gpu_checks.machine import (
    CONTEXT_BYTES,
    MIB,
    Machine,
    Outcome,
    SkippedError,
    line_of,
    used_by,
)

OVER_CAP = 64 * MIB  # as the agent's check tolerates


def check_context(machine: Machine) -> Outcome:
    """Measure what a context costs, and charge that in all containers that are made from now on."""
    client = machine.start(None, "context")
    line_of(client)
    judged = used_by(machine, client.pid)
    client.communicate()
    if judged is None:
        raise SkippedError("this driver's NVML does not count by process")
    machine.context_bytes = judged
    return judged > 0, {"context_mib": round(judged / MIB, 1), "default_mib": CONTEXT_BYTES // MIB}


def check_driver(machine: Machine) -> Outcome:
    kept, figures = kept_to_the_cap(machine, "driver")
    judged = figures["nvml_mib"]
    return kept, figures | {"context_mib": None if judged is None else judged - figures["allocated_mib"]}


def check_fork(machine: Machine) -> Outcome:
    cap = machine.cap(machine.share)
    result = machine.run(machine.container(machine.share), "fork", "64")
    figures = {"cap_mib": cap // MIB, "allocated_mib": result["allocated"] // MIB}
    least = cap - 2 * machine.context_bytes - 128 * MIB
    return result["refused"] and least <= result["allocated"] <= cap, figures


def kept_to_the_cap(machine: Machine, workload: str) -> Outcome:
    """Run a workload that takes blocks until it is refused; the real NVML, where it counts by process, is a judge."""
    cap = machine.cap(machine.share)
    client = machine.start(machine.container(machine.share), workload, "64")
    result = line_of(client)
    judged = used_by(machine, client.pid)
    client.communicate()
    figures = {
        "cap_mib": cap // MIB,
        "allocated_mib": result["allocated"] // MIB,
        "nvml_mib": None if judged is None else judged // MIB,
    }
    kept = judged is None or judged <= cap + OVER_CAP
    return result["refused"] and result["total"] == cap and result["allocated"] <= cap and kept, figures


def check_exports(machine: Machine) -> Outcome:
    return kept_to_the_cap(machine, "exports")


def check_pools(machine: Machine) -> Outcome:
    return kept_to_the_cap(machine, "pool")


def check_contexts(machine: Machine) -> Outcome:
    cap = machine.cap(machine.share)
    client = machine.start(machine.container(machine.share), "contexts")
    count = line_of(client)["contexts"]
    judged = used_by(machine, client.pid)
    client.communicate()
    figures = {"contexts": count, "nvml_mib": None if judged is None else judged // MIB, "cap_mib": cap // MIB}
    return count <= cap // machine.context_bytes and (judged is None or judged <= cap + OVER_CAP), figures


def check_folder(machine: Machine) -> Outcome:
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    path = f"{libraries.parent / 'driver'}:{libraries}"
    result = machine.run(libraries, "total", LD_LIBRARY_PATH=path)
    return result["total"] == cap, {"total_mib": result["total"] // MIB, "cap_mib": cap // MIB}


def check_view(machine: Machine) -> Outcome:
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    figures: dict[str, Any] = {"cap_mib": cap // MIB}
    good = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "-i", machine.uuid, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        environment = machine.environment(libraries)
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        figures["nvidia_smi_mib"] = int(done.stdout)
        good.append(int(done.stdout) == cap // MIB)
    if importlib.util.find_spec("pynvml"):
        result = machine.run(libraries, "nvml", machine.uuid)
        figures |= result
        good += [result["v1"] == cap, result["v2"] == cap]
    if not good:
        raise SkippedError("neither nvidia-smi nor nvidia-ml-py is here")
    return all(good), figures
