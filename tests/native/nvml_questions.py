"""Questions to NVML about the processes of one device, by its plain name: every way to ask, and what each answers.

nvml_questions.py DEVICE [wrong]. With `wrong` it asks as no program should, too. Writes a status for each question,
with the entries of those that were answered.
"""

import ctypes
import json
import sys
from ctypes import Structure, byref, c_uint, c_ulonglong, c_void_p

nvml = ctypes.CDLL("libnvidia-ml.so.1")
WRONG = sys.argv[2:] == ["wrong"]
LISTS = [f"{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")]


class Old(Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong)]


class Process(Structure):
    _fields_ = [*Old._fields_, ("gpu_instance", c_uint), ("compute_instance", c_uint)]


class Detail(Structure):
    _fields_ = [*Process._fields_, ("protected", c_ulonglong)]


class Sample(Structure):
    _fields_ = [
        ("pid", c_uint),
        ("at", c_ulonglong),
        *((name, c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    ]


class Info(Structure):
    _fields_ = [
        ("at", c_ulonglong),
        *((name, c_uint) for name in ("pid", "sm", "memory", "encoder", "decoder", "jpg", "ofa")),
    ]


class Details(Structure):
    _fields_ = [("version", c_uint), ("mode", c_uint), ("count", c_uint), ("entries", c_void_p)]


class Infos(Structure):
    _fields_ = [("version", c_uint), ("count", c_uint), ("since", c_ulonglong), ("entries", c_void_p)]


def blank(kind, count):
    """Return an array of bytes that no answer has."""
    array = (kind * count)()
    ctypes.memset(array, 0xFF, ctypes.sizeof(array))
    return array


def fields(entries, count):
    """Return the entries of an answer, behind which nothing may be written."""
    rest = bytes(entries)[count * ctypes.sizeof(entries._type_) :]
    assert rest == b"\xff" * len(rest)
    return [[getattr(entry, name) for name, _ in entry._fields_] for entry in entries[:count]]


def listed(function, kind, *more):
    """Return the answers to a list without room, without an array, and with room for all."""
    answers = []
    for room, array in ((0, None), (1, blank(kind, 1)), (9, None), (9, blank(kind, 9))):
        count = c_uint(room)
        status = function(device, array, byref(count), *more) if more else function(device, byref(count), array)
        answers.append([status, count.value, fields(array, count.value) if array and status == 0 else None])
    return [*answers, *([function(device, None, None, *more)] if WRONG else [])]


def structured(function, kind, entry, **values):
    """Return the answers to a structure that points to an array."""
    answers = []
    for room, array in ((0, None), (1, blank(entry, 1)), (9, None), (9, blank(entry, 9))):
        asked = kind(version=0x01000018, count=room, entries=ctypes.cast(array, c_void_p) if array else None, **values)
        status = function(device, byref(asked))
        answers.append([status, asked.count, fields(array, asked.count) if array and status == 0 else None])
    wrong = (None, byref(kind(version=0x02000018, **values))) if WRONG else ()
    return [*answers, *(function(device, argument) for argument in wrong)]


def rates():
    found = (c_uint * 2)()
    return [nvml.nvmlDeviceGetUtilizationRates(device, found), *found]


def samples(kind):
    value, count = c_uint(), c_uint(4)
    return nvml.nvmlDeviceGetSamples(device, kind, c_ulonglong(0), byref(value), byref(count), (c_ulonglong * 4)())


nvml.nvmlInit_v2()
device = c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(int(sys.argv[1]), byref(device))
lost = c_void_p(0xDEAD)
asked = {
    **{
        f"{name}{version}": listed(getattr(nvml, f"nvmlDeviceGet{name}{version}"), kind)
        for name in LISTS
        for version, kind in (("", Old), ("_v2", Process), ("_v3", Process))
    },
    "busy": listed(nvml.nvmlDeviceGetProcessUtilization, Sample, c_ulonglong(0)),
    **{
        f"details {mode}": structured(nvml.nvmlDeviceGetRunningProcessDetailList, Details, Detail, mode=mode)
        for mode in (0, 1, 3)
    },
    "infos": structured(nvml.nvmlDeviceGetProcessesUtilizationInfo, Infos, Info),
    "rates": rates(),
    "no rates": nvml.nvmlDeviceGetUtilizationRates(device, None) if WRONG else 0,
    "samples": [samples(kind) for kind in range(4)],
    "memory": [
        getattr(nvml, f"nvmlDeviceGetMemoryInfo{version}")(lost, (c_ulonglong * 8)(0x02000028))
        for version in ("", "_v2")
    ],
    "of no device": [
        *(getattr(nvml, f"nvmlDeviceGet{name}_v3")(lost, byref(c_uint()), None) for name in LISTS),
        nvml.nvmlDeviceGetProcessUtilization(lost, None, byref(c_uint()), c_ulonglong(0)),
        nvml.nvmlDeviceGetRunningProcessDetailList(lost, byref(Details(version=0x01000018))),
        nvml.nvmlDeviceGetProcessesUtilizationInfo(lost, byref(Infos(version=0x01000018))),
        nvml.nvmlDeviceGetUtilizationRates(lost, (c_uint * 2)()),
        nvml.nvmlDeviceGetSamples(lost, 1, c_ulonglong(0), byref(c_uint()), byref(c_uint()), None),
    ],
}
json.dump(asked, sys.stdout)
