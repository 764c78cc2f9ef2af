"""What the GPU driver says of this host, through its management library: agents need no Python package for it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from ..report import numa
from . import nvml_use, xids
from .nvml_health import driver_health, unknown_health, xid_entries
from .nvml_library import NO_FUNCTION, NOT_FOUND, NOT_SUPPORTED, Nvml, NvmlError
from .nvml_processes import processes_on

if TYPE_CHECKING:
    from pathlib import Path

_MIG_ENABLED = 1
# A profile's name tells its memory in eighths of the GPU's, in whole GB.
_EIGHTHS = 8
_GIB = 1 << 30


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("multiprocessorCount", ctypes.c_uint),
        ("sharedCopyEngineCount", ctypes.c_uint),
        ("sharedDecoderCount", ctypes.c_uint),
        ("sharedEncoderCount", ctypes.c_uint),
        ("sharedJpegCount", ctypes.c_uint),
        ("sharedOfaCount", ctypes.c_uint),
        ("gpuInstanceSliceCount", ctypes.c_uint),
        ("computeInstanceSliceCount", ctypes.c_uint),
        ("memorySizeMB", ctypes.c_ulonglong),
    )


class Answers(NamedTuple):
    """The driver's answers about this host. For each UUID, `processes` has (pid, bytes) and `utilisation` (pid, percent
    of the GPU), or None if the driver cannot say. `health` has an entry for each physical GPU. `memory_limits`: it can
    limit the memory of control groups by itself.
    """

    gpus: list[dict[str, Any]]
    processes: dict[str, list[tuple[int, int | None]] | None]
    troubles: list[str]
    utilisation: dict[str, list[tuple[int, float]] | None] = {}  # noqa: RUF012 - read only
    health: list[dict[str, Any]] = []  # noqa: RUF012 - read only
    memory_limits: bool = False


def read(sysfs: Path = numa.SYSFS, log: Path = xids.LOG) -> Answers:
    """Return the GPUs in the driver's order, of one in MIG mode its instances; none where there is no driver.

    Raises NvmlError if the driver does not answer; a GPU that does not answer is named in `troubles` and in `health`.
    """
    answers = Answers([], {}, [], {}, [])
    try:
        nvml = Nvml()
    except OSError:
        return answers
    answers = answers._replace(memory_limits=hasattr(nvml.library, "nvmlDeviceSetMemoryLimits_v1"))
    try:
        logged = _logged(log, answers.troubles)
        for index in range(nvml.count()):
            health = unknown_health(index, None)
            try:
                _read_gpu(nvml, index, sysfs, answers, health)
            except NvmlError as error:
                answers.troubles.append(f"GPU {index} is left out: {error}")
                health["problem"] = str(error)
            health["xids"] = xid_entries(logged.pop(health["address"], {}))
            answers.health.append(health)
    finally:
        nvml.close()
    for address, of_gpu in sorted(logged.items()):
        unlisted = {"problem": "the driver does not list it", "xids": xid_entries(of_gpu)}
        answers.health.append({**unknown_health(None, address), **unlisted})
    return answers


def _logged(log: Path, troubles: list[str]) -> dict[str, dict[int, int]]:
    """Return the Xids by PCI address; none where the log cannot be read."""
    try:
        return xids.read_xids(log)
    except FileNotFoundError:  # in a container that plays a host
        return {}
    except OSError as error:
        troubles.append(f"whether GPUs had errors is not known: {error}")
        return {}


def _read_gpu(nvml: Nvml, index: int, sysfs: Path, answers: Answers, health: dict[str, Any]) -> None:
    """Add a GPU to the answers, and what is known of it to its health, be it that it then fails."""
    gpu = nvml.gpu(index)
    pci = _PciInfo()
    nvml.call("nvmlDeviceGetPciInfo_v3", gpu, ctypes.byref(pci))
    address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    health["address"] = address
    health["uuid"] = nvml.text("nvmlDeviceGetUUID", gpu)
    health.update(driver_health(nvml, gpu))
    whole = {
        "index": index,
        **_device(nvml, gpu),
        "numa_node": numa.node_of_pci_device(address, sysfs),
        "address": address,
    }
    devices = [(gpu, {**whole, "parent_uuid": None, "mig_profile": None, "fraction": None})]
    if _is_in_mig_mode(nvml, gpu):
        instances = _instances(nvml, gpu)
        devices = [(instance, {**whole, **_instance(nvml, instance, gpu, whole)}) for instance in instances]
    for device, entry in devices:
        answers.gpus.append(entry)
        answers.utilisation[entry["uuid"]] = nvml_use.process_percents(nvml.library, device)
        try:
            answers.processes[entry["uuid"]] = processes_on(nvml, device)
        except NvmlError as error:
            answers.troubles.append(f"what runs on GPU {index} is not known: {error}")


def _device(nvml: Nvml, device: ctypes.c_void_p) -> dict[str, Any]:
    memory = _Memory()
    nvml.call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    return {
        "uuid": nvml.text("nvmlDeviceGetUUID", device),
        "model": nvml.text("nvmlDeviceGetName", device),
        "mem_bytes": memory.total,
        "mem_used_bytes": memory.used,
    }


def _is_in_mig_mode(nvml: Nvml, gpu: ctypes.c_void_p) -> bool:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml.call("nvmlDeviceGetMigMode", gpu, ctypes.byref(current), ctypes.byref(pending))
    except NvmlError as error:
        if error.status not in {NOT_SUPPORTED, NO_FUNCTION}:
            raise
        return False
    return current.value == _MIG_ENABLED


def _slots(nvml: Nvml, gpu: ctypes.c_void_p) -> int:
    """Return how many instances a GPU may be cut into: as many as it has compute slices."""
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetMaxMigDeviceCount", gpu, ctypes.byref(count))
    return count.value


def _instances(nvml: Nvml, gpu: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    found = []
    for slot in range(_slots(nvml, gpu)):
        try:
            found.append(nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(slot)))
        except NvmlError as error:
            if error.status != NOT_FOUND:
                raise
    return found


def _instance(nvml: Nvml, instance: ctypes.c_void_p, gpu: ctypes.c_void_p, whole: dict[str, Any]) -> dict[str, Any]:
    device = _device(nvml, instance)
    attributes = _Attributes()
    nvml.call("nvmlDeviceGetAttributes_v2", instance, ctypes.byref(attributes))
    return {
        **device,
        "model": whole["model"],
        "parent_uuid": whole["uuid"],
        "mig_profile": _profile(attributes, whole["mem_bytes"]),
        "fraction": min(
            device["mem_bytes"] * 1000 // whole["mem_bytes"],
            attributes.computeInstanceSliceCount * 1000 // _slots(nvml, gpu),
        ),
    }


def _profile(attributes: _Attributes, gpu_mem_bytes: int) -> str:
    """Return the name that NVIDIA's tools give an instance, such as 1g.18gb or 1c.2g.35gb."""
    eighths = -(-(attributes.memorySizeMB << 20) * _EIGHTHS // gpu_mem_bytes)
    gpu_gb = -(-gpu_mem_bytes // _GIB)
    name = f"{attributes.gpuInstanceSliceCount}g.{(2 * eighths * gpu_gb + _EIGHTHS) // (2 * _EIGHTHS)}gb"
    if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
        name = f"{attributes.computeInstanceSliceCount}c.{name}"
    return name
