"""No way to the driver goes round the proxies, and they export nothing but what they hook."""

import json
import re
import subprocess
import sys

import pytest

from tests.native.gpu_container import CAP, MIB, NATIVE, OUT_OF_MEMORY, Container

ABOVE = CAP + 2 * MIB
CAPPED = {"init": 0, "total": CAP, "above": OUT_OF_MEMORY}
ENTRY = re.compile(r'^(HOOKED|HOOKED_AS_WELL)\((\w+), "(\w+)", (\d+), (\w+)\)$', re.MULTILINE)
NVML_HOOKS = {
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    *(
        f"nvmlDeviceGet{kind}RunningProcesses{version}"
        for kind in ("Compute", "Graphics", "MPSCompute")
        for version in ("", "_v2", "_v3")
    ),
    "nvmlDeviceGetRunningProcessDetailList",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetDynamicPstatesInfo",
    "nvmlDeviceGetAccountingPids",
    "nvmlDeviceGetAccountingStats",
    "nvmlDeviceGetEncoderSessions",
    "nvmlDeviceGetFBCSessions",
    "nvmlGpmSampleGet",
}


def hooks():
    """Return each symbol with its name for cuGetProcAddress, its CUDA version and its flag."""
    text = "\n".join((NATIVE / name).read_text() for name in ("memory.def", "launch.def"))
    entries = [match.groups()[1:] for match in ENTRY.finditer(text)]
    assert len(entries) == text.count("HOOKED")
    return [(symbol, name, int(version), 2 if flag != "0" else 0) for symbol, name, version, flag in entries]


@pytest.fixture(params=["", "address,undefined"], ids=["plain", "sanitized"])
def any_container(request, fake_driver, build_native):
    return Container(fake_driver, build_native, request.param).start()


def run(container, program, *arguments, **environment):
    words = [program, *map(str, arguments)]
    return subprocess.run(
        words, env=container.environment | environment, capture_output=True, text=True, check=True, timeout=30
    )


@pytest.mark.parametrize("way", ["local", "global", "libc", "v1", "v2", "nested v1", "nested v2"])
def test_every_lookup_finds_the_proxy(any_container, way):
    done = run(any_container, any_container.program("lookup_client"), way, ABOVE)
    assert json.loads(done.stdout) == CAPPED


@pytest.mark.parametrize("way", ["deepbind", "dlmopen"])
def test_lookups_in_scopes_of_their_own_find_the_proxy(container, way):
    """Which the sanitizers do not support."""
    done = run(container, container.program("lookup_client"), way, ABOVE)
    assert json.loads(done.stdout) == CAPPED


def test_a_program_that_is_linked_with_the_driver_has_the_proxy(any_container):
    done = run(any_container, any_container.program("linked_client"), ABOVE)
    assert json.loads(done.stdout) == CAPPED


def test_a_plugin_that_is_linked_with_the_driver_has_the_proxy_in_a_scope_of_its_own(container):
    plugin = container.program("linked_client", "-shared", "-fPIC")
    done = run(container, container.program("lookup_client"), "plugin", ABOVE, plugin)
    assert json.loads(done.stdout) == CAPPED


def test_a_wrapper_that_stands_before_the_driver_is_called_and_reaches_the_proxy(container):
    wrapper = container.program("next_wrapper", "-shared", "-fPIC")
    done = run(container, container.program("linked_client"), ABOVE, LD_PRELOAD=str(wrapper))
    assert json.loads(done.stdout) == CAPPED
    assert done.stderr == "wrapped\n" * 2


def test_get_proc_address_gives_the_hook_of_each_name_version_and_kind_of_stream(container):
    wanted = hooks()
    words = [word for _, name, version, flag in wanted for word in (name, version, flag)]
    done = run(container, container.program("lookup_client"), "whose", 0, *words)
    found = [line.split() for line in done.stdout.splitlines()]
    proxy = str(container.libraries / "libcuda.so.1")
    missing = {symbol for (symbol, *_), (library, _) in zip(wanted, found, strict=True) if library == "-"}
    assert missing <= {symbol for symbol, *_ in wanted if symbol not in exported(container.driver.directory)}
    assert {library for library, _ in found} <= {proxy, "-"}
    # Which function a name means from some version on is the driver's to say, where there are several.
    several = {name for _, name, *_ in wanted if sum(name == other for _, other, *_ in wanted) > 2}
    for (symbol, asked, *_), (_, name) in zip(wanted, found, strict=True):
        assert name == symbol or symbol in missing or asked in several


def test_get_proc_address_gives_the_requested_version(container):
    words = ["cuMemAlloc", 2000, 0, "cuMemAlloc", 3020, 0, "cuMemAlloc", 13000, 2, "cuStreamSynchronize", 13000, 1]
    words += ["cuStreamSynchronize", 13000, 2, "cuCtxGetDevice", 12000, 0]
    done = run(container, container.program("lookup_client"), "whose", 0, *words)
    names = [line.split()[1] for line in done.stdout.splitlines()]
    expected = ["cuMemAlloc", "cuMemAlloc_v2", "cuMemAlloc_v2", "cuStreamSynchronize", "cuStreamSynchronize_ptsz"]
    assert names == [*expected, "cuCtxGetDevice"]


def exported(directory, name="libcuda.so.1"):
    words = ["nm", "-D", "--defined-only", "--format=posix", directory / name]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


def test_the_proxies_export_the_hooks_and_nothing_else(container):
    assert exported(container.libraries) == {symbol for symbol, *_ in hooks()}
    assert exported(container.libraries, "libnvidia-ml.so.1") == NVML_HOOKS


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_proxies_load_with_a_c_library_of_2012(container, name):
    words = ["readelf", "--version-info", "--wide", container.libraries / name]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", done.stdout)}
    assert versions
    assert max(versions) <= (2, 17)
    assert "GLIBC_ABI" not in done.stdout


def test_without_the_driver_behind_them_the_proxies_do_not_load(container):
    missing = container.directory / "missing"
    libraries = container.build(container.limits, container.usage.parent, driver_dir=missing) / "lib"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        script = f"import ctypes; ctypes.CDLL('{libraries / name}')"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 1
        assert str(missing / f"real-{name}") in done.stderr


def test_a_proxy_that_stands_behind_itself_refuses_instead_of_calling_itself_for_ever(container):
    behind = container.directory / "behind"
    behind.mkdir(parents=True, exist_ok=True)
    libraries = container.build(container.limits, container.usage.parent, driver_dir=behind) / "lib"
    (behind / "real-libcuda.so.1").unlink(missing_ok=True)
    (behind / "real-libcuda.so.1").symlink_to(libraries / "libcuda.so.1")
    script = f"import ctypes; print(ctypes.CDLL('{libraries / 'libcuda.so.1'}').cuInit(0))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout != "0\n"
    assert "leads to this library itself" in done.stderr
