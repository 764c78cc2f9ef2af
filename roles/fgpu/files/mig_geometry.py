#!/usr/bin/env python3
"""Divide this host's GPUs into MIG instances, through NVIDIA's management library.

`plan-apply DIRECTORY` and `apply DIRECTORY` read JSON from stdin: `profiles` (names, or such a list by GPU model with
`default`) and `busy` (UUIDs of devices that containers have). `apply` writes to DIRECTORY the GPUs' former geometries
(found.json) and their new ones (wanted.json). `boot DIRECTORY` applies the new ones again, since the driver loses mode
and geometry when it is unloaded; a GPU that fails keeps no other from it. `plan-restore DIRECTORY` and `restore
DIRECTORY` restore the former ones; they read `busy` too. All print JSON: `changed`, and each GPU's geometry before and
after; null stands for MIG mode off.
Written for Python 3.9.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

from muster_agent.gpus.nvml_library import INSUFFICIENT_SIZE, NAME, NO_FUNCTION, NOT_SUPPORTED, SUCCESS, Nvml, NvmlError

# All numbers that a profile may have. The driver refuses those that a GPU lacks or that it does not know itself.
PROFILE_NUMBERS = range(0x20)
PROFILE_INFO_VERSION = 2


class GeometryError(Exception):
    """A GPU cannot be divided so, or not now."""


class ProfileInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("id", ctypes.c_uint),
        ("isP2pSupported", ctypes.c_uint),
        ("sliceCount", ctypes.c_uint),
        ("instanceCount", ctypes.c_uint),
        *((name, ctypes.c_uint) for name in ("multiprocessors", "copy", "decoder", "encoder", "jpeg", "ofa")),
        ("memorySizeMB", ctypes.c_ulonglong),
        ("name", ctypes.c_char * 96),
    )


class ComputeProfileInfo(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("sliceCount", ctypes.c_uint),
        ("instanceCount", ctypes.c_uint),
        *((name, ctypes.c_uint) for name in ("multiprocessors", "copy", "decoder", "encoder", "jpeg", "ofa")),
    )


class Placement(ctypes.Structure):
    """The memory slices of a GPU instance."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class Profile(NamedTuple):
    name: str
    id: int
    slices: int
    most: int


class Instance(NamedTuple):
    profile: Profile
    handle: ctypes.c_void_p
    is_whole: bool


class Driver(Nvml):
    """The management library. Its failures are raised as GeometryError."""

    def status(self, function: str, *arguments: object) -> int:
        status = super().status(function, *arguments)
        if status == NO_FUNCTION:
            raise GeometryError(f"this NVIDIA driver is too old for MIG: it has no {function}; install a newer one")
        return status

    def call(self, function: str, *arguments: object) -> None:
        try:
            super().call(function, *arguments)
        except NvmlError as error:
            raise GeometryError(f"{error.function}: {error.reason}") from error


def driver_of_host() -> Driver:
    try:
        return Driver()
    except OSError as error:
        raise GeometryError(f"no NVIDIA driver answers ({NAME})") from error


def gpus_of_host() -> list[Gpu]:
    driver = driver_of_host()
    return [Gpu(driver, index) for index in range(driver.count())]


class Gpu:
    def __init__(self, nvml: Driver, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.find()
        self.uuid = nvml.text("nvmlDeviceGetUUID", self.device)
        self.model = nvml.text("nvmlDeviceGetName", self.device)
        self.name = f"GPU {index} ({self.model})"

    def find(self) -> None:
        self.device = self.nvml.gpu(self.index)

    def modes(self) -> tuple[int, int] | None:
        """Return the present and the pending MIG mode; None for a GPU without MIG."""
        present, pending = ctypes.c_uint(), ctypes.c_uint()
        status = self.nvml.status("nvmlDeviceGetMigMode", self.device, ctypes.byref(present), ctypes.byref(pending))
        if status == NOT_SUPPORTED:
            return None
        if status != SUCCESS:
            raise GeometryError(f"{self.name}: its MIG mode cannot be read: {self.nvml.reason(status)}")
        return present.value, pending.value

    def geometry(self) -> list[str] | None:
        """Return the names of its instances' profiles, sorted; None where MIG mode is off."""
        if (self.modes() or (0, 0))[0] == 0:
            return None
        # A killed run may have left an instance without its compute instance. Programs cannot use that one.
        return sorted(one.profile.name + ("" if one.is_whole else " (incomplete)") for one in self.instances())

    def set_mode(self, mode: int) -> None:
        activation = ctypes.c_int()
        status = (
            self.nvml.status("nvmlDeviceSetMigMode", self.device, ctypes.c_uint(mode), ctypes.byref(activation))
            or activation.value
        )
        self.find()
        modes = self.modes()
        if modes is not None and modes[0] == mode:
            return
        if modes is not None and modes[1] == mode:
            raise GeometryError(
                f"{self.name}: its MIG mode changes with a reset: stop what uses it, "
                f"run `nvidia-smi --gpu-reset -i {self.index}` or reboot, then run this again"
            )
        raise GeometryError(f"{self.name}: its MIG mode cannot be changed: {self.nvml.reason(status)}")

    def profiles(self) -> dict[str, Profile]:
        found = {}
        for number in PROFILE_NUMBERS:
            info = ProfileInfo(version=ctypes.sizeof(ProfileInfo) | PROFILE_INFO_VERSION << 24)
            arguments = (self.device, ctypes.c_uint(number), ctypes.byref(info))
            if self.nvml.status("nvmlDeviceGetGpuInstanceProfileInfoV", *arguments) == SUCCESS:
                name = re.sub("^MIG ", "", info.name.decode())
                found[name] = Profile(name, info.id, info.sliceCount, info.instanceCount)
        return found

    def instances(self) -> list[Instance]:
        return [one for profile in self.profiles().values() for one in self.instances_of(profile)]

    def instances_of(self, profile: Profile) -> list[Instance]:
        handles, count = (ctypes.c_void_p * max(profile.most, 1))(), ctypes.c_uint()
        self.nvml.call(
            "nvmlDeviceGetGpuInstances", self.device, ctypes.c_uint(profile.id), handles, ctypes.byref(count)
        )
        found = []
        for handle in map(ctypes.c_void_p, handles[: count.value]):
            whole = self.compute_profiles(handle)[-1]
            is_whole = len(self.compute_instances(handle, whole)) == 1
            found.append(Instance(profile, handle, is_whole))
        return found

    def compute_profiles(self, instance: ctypes.c_void_p) -> list[ComputeProfileInfo]:
        """Return the compute profiles of a GPU instance; the one with all its slices is the last."""
        found = []
        for number in PROFILE_NUMBERS:
            info = ComputeProfileInfo()
            arguments = (instance, ctypes.c_uint(number), ctypes.c_uint(0), ctypes.byref(info))
            if self.nvml.status("nvmlGpuInstanceGetComputeInstanceProfileInfo", *arguments) == SUCCESS:
                found.append(info)
        return sorted(found, key=lambda info: info.sliceCount)

    def compute_instances(self, instance: ctypes.c_void_p, profile: ComputeProfileInfo) -> list[ctypes.c_void_p]:
        handles, count = (ctypes.c_void_p * max(profile.instanceCount, 1))(), ctypes.c_uint()
        self.nvml.call(
            "nvmlGpuInstanceGetComputeInstances", instance, ctypes.c_uint(profile.id), handles, ctypes.byref(count)
        )
        return [ctypes.c_void_p(handle) for handle in handles[: count.value]]

    def devices(self) -> list[ctypes.c_void_p]:
        """Return the GPU itself, and its MIG devices."""
        count, found = ctypes.c_uint(), [self.device]
        if self.nvml.status("nvmlDeviceGetMaxMigDeviceCount", self.device, ctypes.byref(count)) == SUCCESS:
            for index in range(count.value):
                device = ctypes.c_void_p()
                arguments = (self.device, ctypes.c_uint(index), ctypes.byref(device))
                if self.nvml.status("nvmlDeviceGetMigDeviceHandleByIndex", *arguments) == SUCCESS:
                    found.append(device)
        return found

    def refuse_if_used(self, busy: set[str]) -> None:
        for device in self.devices():
            if self.nvml.text("nvmlDeviceGetUUID", device) in busy:
                raise GeometryError(f"{self.name}: a session has it; drain this agent and wait for its sessions' end")
            count = ctypes.c_uint()
            status = self.nvml.status("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None)
            if status == INSUFFICIENT_SIZE or count.value:
                raise GeometryError(f"{self.name}: processes use it; end them (`nvidia-smi` lists them)")

    def arrange(self, desired: list[str] | None) -> None:
        if desired is not None and self.modes() == (0, 0):
            self.set_mode(1)
        # Before anything is destroyed.
        places = None if desired is None else self.places(desired)
        if (self.modes() or (0, 0))[0] == 1:
            for one in self.instances():
                self.destroy(one)
        if places is None:
            self.set_mode(0)
        for profile, placement in places or []:
            self.create(profile, placement)

    def destroy(self, instance: Instance) -> None:
        for profile in self.compute_profiles(instance.handle):
            for part in self.compute_instances(instance.handle, profile):
                self.call("nvmlComputeInstanceDestroy", part)
        self.call("nvmlGpuInstanceDestroy", instance.handle)

    def create(self, profile: Profile, placement: Placement) -> None:
        instance, part = ctypes.c_void_p(), ctypes.c_void_p()
        self.call(
            "nvmlDeviceCreateGpuInstanceWithPlacement", self.device, ctypes.c_uint(profile.id), ctypes.byref(placement),
            ctypes.byref(instance),
        )  # fmt: skip
        whole = self.compute_profiles(instance)[-1]
        self.call("nvmlGpuInstanceCreateComputeInstance", instance, ctypes.c_uint(whole.id), ctypes.byref(part))

    def call(self, function: str, *arguments: object) -> None:
        try:
            self.nvml.call(function, *arguments)
        except GeometryError as error:
            raise GeometryError(f"{self.name}: {error}") from None

    def places(self, desired: list[str]) -> list[tuple[Profile, Placement]]:
        """Return each instance's profile and place. Raises GeometryError if the GPU cannot have them."""
        offered = self.profiles()
        offer = ", ".join(f"{one.most} of {one.name}" for one in sorted(offered.values(), key=lambda one: one.slices))
        for name in desired:
            if name not in offered:
                raise GeometryError(f"{self.name}: fgpu_mig_profiles: {name} is no profile of it; it offers {offer}")
        # The largest come first, since they have the fewest places.
        ordered = sorted((offered[name] for name in desired), key=lambda one: -one.slices)
        packed = pack([(one, self.placements(one)) for one in ordered])
        if packed is None:
            together = ", ".join(desired)
            raise GeometryError(f"{self.name}: fgpu_mig_profiles: it cannot hold {together} at once; it offers {offer}")
        return packed

    def placements(self, profile: Profile) -> list[Placement]:
        function, count = "nvmlDeviceGetGpuInstancePossiblePlacements_v2", ctypes.c_uint()
        self.call(function, self.device, ctypes.c_uint(profile.id), None, ctypes.byref(count))
        found = (Placement * count.value)()
        self.call(function, self.device, ctypes.c_uint(profile.id), found, ctypes.byref(count))
        return list(found)


def pack(desired: list[tuple[Profile, list[Placement]]]) -> list[tuple[Profile, Placement]] | None:
    """Return a place for each profile so that none overlap; None if there is no such arrangement."""
    if not desired:
        return []
    (profile, places), others = desired[0], desired[1:]
    for place in places:
        free = [(one, [other for other in its_places if is_apart(other, place)]) for one, its_places in others]
        packed = pack(free)
        if packed is not None:
            return [(profile, place), *packed]
    return None


def is_apart(one: Placement, other: Placement) -> bool:
    return one.start + one.size <= other.start or other.start + other.size <= one.start


def words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def profiles_for(model: str, given: list[str] | dict[str, list[str]]) -> list[str]:
    """Return a model's profiles: of the longest name whose words the model contains in a row, else of `default`."""
    if isinstance(given, list):
        return given
    whole = f" {' '.join(words(model))} "
    named = [name for name in given if name != "default" and f" {' '.join(words(name))} " in whole]
    return given.get(max(named, key=len, default="default"), [])


def is_list_of_names(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(name, str) for name in given)


def desired_geometries(
    gpus: list[Gpu], given: list[str] | dict[str, list[str]], found: dict[str, list[str] | None]
) -> dict[str, list[str] | None]:
    """Return geometries by UUID. A GPU without profiles stays as it is, or gets its original geometry back."""
    if not all(is_list_of_names(one) for one in (given.values() if isinstance(given, dict) else [given])):
        raise GeometryError(
            f"fgpu_mig_profiles: {given!r} is no list of profiles; write one as in [3g.71gb, 2g.35gb], or such a list"
            " for each model"
        )
    desired: dict[str, list[str] | None] = {}
    for gpu in gpus:
        profiles = profiles_for(gpu.model, given)
        if profiles and gpu.modes() is None:
            raise GeometryError(
                f"{gpu.name} has no MIG; leave its model out of fgpu_mig_profiles, or choose another fgpu_provider"
            )
        if profiles:
            desired[gpu.uuid] = sorted(profiles)
        elif gpu.uuid in found:
            desired[gpu.uuid] = found[gpu.uuid]
    if not any(desired.get(gpu.uuid, gpu.geometry()) for gpu in gpus):
        raise GeometryError(
            "fgpu_provider is mig, but no GPU is divided, and fgpu_mig_profiles names no profiles for "
            + ", ".join(sorted({gpu.model for gpu in gpus}))
        )
    return desired


def change(gpu: Gpu, desired: list[str] | None) -> None:
    """Give a GPU the geometry `desired`. On a failure, restore the former one and raise GeometryError."""
    before = gpu.geometry()
    try:
        gpu.arrange(desired)
    except GeometryError:
        if gpu.geometry() != before and (gpu.modes() or (0, 0))[0] == (gpu.modes() or (0, 0))[1]:
            gpu.arrange(before and [name for name in before if "(" not in name])
        raise


def read(file: Path) -> dict[str, list[str] | None]:
    return json.loads(file.read_text()) if file.exists() else {}


def write(file: Path, geometries: dict[str, list[str] | None]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(geometries))
    unfinished.replace(file)


def boot(directory: Path) -> dict[str, object]:
    """Divide each GPU as it was. Raises GeometryError, with the troubles of all, once that was tried with each."""
    desired, driver = read(directory / "wanted.json"), driver_of_host()
    changed: list[dict[str, object]] = []
    troubles = [trouble for index in range(driver.count()) if (trouble := divide(driver, index, desired, changed))]
    if troubles:
        raise GeometryError("; ".join(troubles))
    return {"changed": bool(changed), "gpus": changed}


def divide(driver: Driver, index: int, desired: dict[str, list[str] | None], changed: list[dict[str, object]]) -> str:
    """Give a GPU its desired geometry, and note it in `changed` if it had another; return why that failed, or ""."""
    try:
        gpu = Gpu(driver, index)
        before = gpu.geometry()
        if gpu.uuid in desired and before != desired[gpu.uuid]:
            gpu.refuse_if_used(set())
            change(gpu, desired[gpu.uuid])
            changed.append({"gpu": gpu.name, "was": before, "is": desired[gpu.uuid]})
    except GeometryError as error:
        return str(error) if str(error).startswith("GPU ") else f"GPU {index}: {error}"
    return ""


def run(command: str, directory: Path) -> dict[str, object]:
    if command == "boot":
        return boot(directory)
    found_file, desired_file = directory / "found.json", directory / "wanted.json"
    given = json.load(sys.stdin)
    gpus, found = gpus_of_host(), read(found_file)
    restores = command in {"restore", "plan-restore"}
    desired = found if restores else desired_geometries(gpus, given["profiles"], found)
    before = {gpu.uuid: gpu.geometry() for gpu in gpus}
    changing = [gpu for gpu in gpus if gpu.uuid in desired and before[gpu.uuid] != desired[gpu.uuid]]
    for gpu in changing:
        gpu.refuse_if_used(set(given.get("busy", [])))
    if not command.startswith("plan"):
        if command == "apply":
            write(found_file, {**{gpu.uuid: before[gpu.uuid] for gpu in changing}, **found})
        for gpu in changing:
            change(gpu, desired[gpu.uuid])
        if command == "apply":
            write(desired_file, desired)
    return {
        "changed": bool(changing),
        "gpus": [{"gpu": gpu.name, "was": before[gpu.uuid], "is": desired[gpu.uuid]} for gpu in changing],
    }


def main() -> None:
    try:
        answer = run(sys.argv[1], Path(sys.argv[2]))
    except GeometryError as error:
        sys.exit(f"{error}")
    sys.stdout.write(json.dumps(answer))


main()
