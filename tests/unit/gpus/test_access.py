"""What a site's means of cutting GPUs makes of a host's report, and what a kernel's container gets."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.manifest import DevicesEntry
from muster.contract.values import ContractModel
from muster.core.agents.agent import Agent
from muster.core.agents.agent_attributes import FgpuChoice
from muster.core.agents.gpu_providers import quantise
from muster.core.gpus.access import GpuAccess, gpu_access, kernel_gpus
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.free_capacity import FreeCapacity
from muster.core.model.policy import PACK
from muster.core.model.session import Allocation, GpuShare, Kernel, SessionState
from muster.core.scheduling.placement import Gang, PlacementState
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots
from tests.modules.agent_code import agent_manifest
from tests.properties import cheap
from tests.simulated.hosts import host_of
from tests.strategies.agents import make_agent, observed
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair

GIB = 1 << 30
TREES = [
    {"source": path, "target": path, "read_only": True}
    for path in (
        "/opt/muster/fgpu",
        "/opt/muster/driver/real-libcuda.so.1",
        "/opt/muster/driver/real-libnvidia-ml.so.1",
    )
]
LIBRARIES = {name: f"/opt/muster/fgpu/lib/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
NO_ACCESS = {"libraries": {}, "mounts": [], "env": {}, "usage": False, "leases": []}


def an_agent(
    *,
    mig: bool = False,
    fgpu: str | None = "1",
    gpus: int = 2,
    mem_bytes: int = 8 * GIB,
    gpu_cdi: list[str] | None = None,
    **more: Any,
) -> Agent:
    """Return an agent with GPUs of so much memory. With `mig`, the first is cut into an eighth and a quarter."""
    report, inventory = host_of("a1", gpus=gpus, **{"units_per_gpu": 2, **more})
    report["fgpu"], report["gpu_cdi"] = fgpu, gpu_cdi
    for gpu in report["gpus"]:
        gpu["mem_bytes"] = mem_bytes
    if mig:
        first, *rest = report["gpus"]
        parts = (("MIG-1", "1g.18gb", 125), ("MIG-2", "2g.35gb", 250))
        report["gpus"] = [
            *({**first, "uuid": u, "parent_uuid": first["uuid"], "mig_profile": p, "fraction": f} for u, p, f in parts),
            *rest,
        ]
    return observed("a1", report, inventory)


def holding(*shares: GpuShare) -> Kernel:
    kernel = make_session(1).main
    return replace(kernel, allocation=Allocation("a1", shares))


def accesses(agent: Agent, *shares: GpuShare, **terms: Any) -> GpuAccess:
    """Return what a kernel gets that holds these shares; `terms` are fields of its session's spec."""
    kernel = holding(*shares)
    fgpu = sum(share.amount for share in shares)
    spec = SessionSpec.model_validate({"fgpu": f"{fgpu}m", **terms})
    return gpu_access(agent, replace(kernel, slots=replace(kernel.slots, fgpu=fgpu)), spec)


def wire(value: ContractModel) -> dict[str, Any]:
    """Return the value as an agent reads it."""
    return json.loads(value.model_dump_json())


QUARTER = GpuShare("GPU-a1-0", 500, whole=False, capacity=2000)
WHOLE = GpuShare("GPU-a1-1", 2000, whole=True)


def test_a_part_of_a_gpu_is_capped_by_the_libraries_and_takes_turns():
    got = accesses(an_agent(), QUARTER)
    assert [(gpu.uuid, gpu.mem_bytes, gpu.compute) for gpu in got.gpus] == [("GPU-a1-0", 2 * GIB, 250)]
    assert wire(got.access) == {
        "devices": {"driver": "nvidia", "ids": ["GPU-a1-0"]},
        "libraries": LIBRARIES,
        "mounts": TREES,
        "env": {},
        "usage": True,
        "leases": ["GPU-a1-0"],
    }
    kernel_id = make_session(1).id
    limits = f"version 1\nkernel {kernel_id}\ncompute fair\ncontext_bytes 314572800\ngpu GPU-a1-0 {2 * GIB} 250\n"
    assert got.files == {"fgpu": limits}


def test_a_context_costs_what_was_measured_on_the_gpu():
    """Where nothing was measured, the inventory says it."""
    agent = an_agent(fgpu_context_bytes="1M")
    first, second = agent.gpus
    other = GpuShare("GPU-a1-1", 500, whole=False)
    measured = replace(agent, gpus=(replace(first, context_bytes=528 << 20), replace(second, context_bytes=400 << 20)))
    assert f"\ncontext_bytes {528 << 20}\n" in accesses(measured, QUARTER, other).files["fgpu"]
    assert f"\ncontext_bytes {400 << 20}\n" in accesses(measured, other).files["fgpu"]
    assert "\ncontext_bytes 1048576\n" in accesses(agent, QUARTER, other).files["fgpu"]


def test_whole_gpus_are_given_as_they_are():
    got = accesses(an_agent(), WHOLE)
    assert [(gpu.uuid, gpu.mem_bytes, gpu.compute) for gpu in got.gpus] == [("GPU-a1-1", None, None)]
    assert wire(got.access) == {**NO_ACCESS, "devices": {"driver": "nvidia", "ids": ["GPU-a1-1"]}}
    assert got.files == {}
    assert accesses(an_agent()) == GpuAccess((), None, {})


def test_beside_whole_gpus_only_the_part_is_limited():
    got = accesses(an_agent(), WHOLE, QUARTER)
    assert got.access.devices.ids == ("GPU-a1-1", "GPU-a1-0")
    assert got.access.leases == ("GPU-a1-0",)
    assert "GPU-a1-1" not in got.files["fgpu"]


def test_the_site_decides_how_compute_is_shared_and_by_which_driver_devices_come():
    got = accesses(an_agent(fgpu_compute="none", fgpu_devices="cdi", fgpu_context_bytes="1M"), QUARTER)
    assert got.access.devices == DevicesEntry(driver="cdi", ids=("muster/gpu=GPU-a1-0",))
    assert (got.access.leases, got.access.usage) == ((), True)
    assert "\ncompute none\ncontext_bytes 1048576\n" in got.files["fgpu"]
    assert "\ncompute hard\n" in accesses(an_agent(fgpu_compute="hard"), QUARTER).files["fgpu"]


@pytest.mark.parametrize(
    ("offered", "driver"),
    [(None, "nvidia"), ([], "nvidia"), (["GPU-a1-0"], "nvidia"), (["GPU-a1-0", "GPU-a1-1", "GPU-b"], "cdi")],
)
def test_cdi_gives_the_gpus_by_itself_where_it_has_all_of_a_kernel(offered, driver):
    agent = an_agent(gpu_cdi=offered)
    assert accesses(agent, WHOLE, QUARTER).access.devices.driver == driver
    assert accesses(an_agent(gpu_cdi=offered, fgpu_devices="nvidia"), WHOLE).access.devices.driver == "nvidia"


def test_mps_shares_the_compute_and_the_libraries_cap_the_memory():
    agent = an_agent(fgpu_provider="mps")
    got = accesses(agent, QUARTER)
    assert got.access.env == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/muster-mps/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-a1-0=2048M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert {mount.target: mount.source for mount in got.access.mounts} == {
        **{tree["target"]: tree["source"] for tree in TREES},
        "/run/muster-mps/pipe": "/run/muster-mps/pipe",
        "/dev/shm": "/run/muster-mps/shm",
    }
    assert (got.access.libraries, got.access.usage, got.access.leases) == (LIBRARIES, True, ())
    assert "\ncompute none\n" in got.files["fgpu"]
    # The percentage holds for every device of a process: a whole GPU beside the part would be slowed down.
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in accesses(agent, WHOLE, QUARTER).access.env
    assert accesses(agent, WHOLE).access.env == {}


@pytest.mark.parametrize(
    ("limit", "written"),
    [(None, ""), ("0.5", " 250"), ("1.2", " 600"), ("1.999", " 999"), (2, ""), (64, "")],
)
def test_a_limit_is_written_in_thousandths_of_the_gpu_unless_it_is_the_whole(limit, written):
    got = accesses(an_agent(), QUARTER, fgpu_limit=limit)
    assert f"\ngpu GPU-a1-0 {2 * GIB} 250{written}\n" in got.files["fgpu"]
    assert got.gpus[0].mem_bytes == 2 * GIB, "memory follows the request"


def test_a_limit_is_for_the_part_beside_whole_gpus():
    """2.5 fGPU of GPUs of 2 units are a whole one and a quarter. A limit of 3 is half of the second."""
    got = accesses(an_agent(), WHOLE, QUARTER, fgpu_limit=3)
    assert f"\ngpu GPU-a1-0 {2 * GIB} 250 500\n" in got.files["fgpu"]


def test_best_effort_is_a_class_of_the_limits_file_and_a_low_priority_of_mps():
    got = accesses(an_agent(), QUARTER, best_effort=True)
    assert f"\nclass best-effort\ngpu GPU-a1-0 {2 * GIB} 250\n" in got.files["fgpu"]
    assert (
        accesses(an_agent(fgpu_provider="mps"), QUARTER, best_effort=True).access.env["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    )


def test_only_best_effort_is_overcommitted_and_only_if_the_site_wants_it():
    wants, default = an_agent(fgpu_overcommit=1.5), an_agent()
    assert "\nclass best-effort\novercommit 1500\ngpu" in accesses(wants, QUARTER, best_effort=True).files["fgpu"]
    assert "overcommit" not in accesses(wants, QUARTER).files["fgpu"]
    assert "overcommit" not in accesses(default, QUARTER, best_effort=True).files["fgpu"]
    assert accesses(wants, QUARTER, best_effort=True).gpus[0].mem_bytes == 2 * GIB


def test_a_limit_is_the_part_of_the_processors_by_mps():
    env = accesses(an_agent(fgpu_provider="mps"), QUARTER, fgpu_limit="1.5").access.env
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "75"
    assert "CUDA_MPS_CLIENT_PRIORITY" not in env


@pytest.mark.parametrize("whole", [True, False])
def test_a_mig_instance_is_a_device_that_needs_nothing_else(whole):
    got = accesses(an_agent(mig=True, fgpu_provider="mig"), GpuShare("MIG-2", 500, whole=whole))
    assert wire(got.access) == {**NO_ACCESS, "devices": {"driver": "nvidia", "ids": ["MIG-2"]}}
    assert (got.gpus[0].mem_bytes, got.files) == (None, {})


@pytest.mark.parametrize("provider", ["whole", "mig"])
def test_a_promised_share_never_becomes_a_whole_gpu_after_a_change_of_the_site(provider):
    got = accesses(an_agent(fgpu_provider=provider, fgpu=None), QUARTER)
    assert got.access.libraries == LIBRARIES
    assert got.gpus[0].mem_bytes is not None
    gone = accesses(an_agent(gpus=0), QUARTER)
    assert (gone.gpus[0].mem_bytes, gone.access.libraries) == (0, LIBRARIES)


@pytest.mark.parametrize("units", [1, 2, 3, 8])
def test_a_share_stays_the_same_part_of_its_gpu_however_the_site_cuts_it_since(units):
    agent = an_agent(units_per_gpu=units)
    (got,) = accesses(agent, QUARTER).gpus
    assert (got.amount, got.capacity, got.mem_bytes, got.compute) == (500, 2000, 2 * GIB, 250)
    free = FreeCapacity.of(agent).without([holding(QUARTER)]).gpu_free
    assert free == (units * 750, units * 1000)


def test_a_share_from_an_earlier_version_is_part_of_its_gpu_as_it_is_cut_now():
    noted_nothing = GpuShare("GPU-a1-0", 1500, whole=False)
    (half,) = accesses(an_agent(units_per_gpu=3), noted_nothing).gpus
    assert (half.mem_bytes, half.compute) == (4 * GIB, 500)
    (whole,) = accesses(an_agent(units_per_gpu=1), noted_nothing).gpus
    assert (whole.mem_bytes, whole.compute) == (8 * GIB, 1000)


@pytest.mark.parametrize("site", [{}, {"fgpu_provider": "mps"}, {"fgpu_devices": "cdi"}])
def test_a_manifest_carries_what_a_kernel_gets(site):
    agent = an_agent(**site)
    session = placed_on(make_session(1, fgpu="0.5"), "a1", state=SessionState.PREPARING)
    session = replace(session, kernels=(replace(session.main, allocation=Allocation("a1", (QUARTER,))),))
    written = manifest(agent, [session], {session.id: fake_key_pair("s1")}, 7, LaunchPolicy(), lambda name, _: name)
    (parsed,) = agent_manifest.parse_manifest(wire(written)).sessions[0].kernels
    kernel = parsed.spec
    assert kernel["gpus"] == [
        {"uuid": "GPU-a1-0", "amount": 500, "capacity": 2000, "mem_bytes": 2 * GIB, "compute": 250}
    ]
    assert kernel["gpu_access"] == wire(gpu_access(agent, session.main, session.spec).access)
    assert kernel["files"]["fgpu"]["mode"] == "0444"
    assert kernel["files"]["fgpu"]["content"].startswith("version 1\n")
    assert "gpu_uuids" not in kernel["resources"]


_UNITS = st.integers(1, 1000)


def _requests(units: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(units, st.integers(1, 3000)), min_size=1, max_size=40)


@cheap
@given(
    mem_bytes=st.integers(0, 1 << 40),
    requests=_UNITS.flatmap(lambda units: _requests(st.just(units))) | _requests(_UNITS),
)
def test_shares_of_a_gpu_never_have_more_memory_than_it_has(mem_bytes, requests):
    """Each request comes with the units into which the GPU is cut by then."""
    held: list[Kernel] = []
    for units, amount in requests:
        agent = an_agent(gpus=1, units_per_gpu=units, mem_bytes=mem_bytes)
        free = FreeCapacity.of(agent).without(held).free.fgpu
        placed = PlacementState.of([agent], {agent.id: held}, PACK).place(Gang((Slots(fgpu=amount),)))
        assert bool(placed) == (amount <= free)
        if placed and not placed[0].gpus[0].whole:
            held.append(replace(holding(), slots=Slots(fgpu=amount), allocation=placed[0]))
    caps = [kernel_gpus(agent, kernel)[0] for kernel in held]
    assert sum(cap.mem_bytes for cap in caps) <= mem_bytes
    assert all(cap.mem_bytes % (2 << 20) == 0 and cap.compute >= 1 for cap in caps)
    large = [cap.compute for cap in caps if 1000 * cap.amount >= cap.capacity]
    assert sum(large) <= 1000


def test_rounding_loses_less_than_a_page():
    assert quantise(143_771 << 20, 1000, 4000) == (35_942 << 20, 250)
    assert quantise(8 * GIB, 1, 3) == (2730 << 20, 333)


@pytest.mark.parametrize(
    ("host", "obstacle"),
    [
        ({}, ""),
        ({"fgpu": None}, "the libraries that cap GPUs are not there; run playbooks/site.yml with the tag fgpu"),
        ({"fgpu": None, "units_per_gpu": 0}, ""),
        ({"fgpu_provider": "mps", "fgpu": None}, "the libraries that cap GPUs are not there; run"),
        ({"fgpu_provider": "whole"}, "fgpu_provider is whole, which cuts none; set units_per_gpu: 0, or"),
        ({"fgpu_provider": "whole", "units_per_gpu": 0}, ""),
        ({"fgpu_provider": "mig"}, "no GPU has MIG instances; name them by fgpu_mig_profiles and run"),
        ({"fgpu_provider": "mig", "fgpu": None, "mig": True}, ""),
        ({"mig": True}, "GPU-a1-0 in MIG mode has instances only; set fgpu_provider: mig, or end its MIG mode"),
    ],
)
def test_an_agent_says_why_its_gpus_are_not_cut_although_the_site_wants_it(host, obstacle):
    agent = an_agent(**host)
    assert agent.fgpu_obstacle.startswith(obstacle)
    assert bool(agent.fgpu_obstacle) is bool(obstacle)
    assert agent.takes_sessions


@pytest.mark.parametrize(
    ("host", "units", "gpu", "fgpu"),
    [
        ({}, [2, 2], 2, 4000),
        ({"fgpu": None}, [0, 0], 2, 0),
        ({"fgpu_provider": "whole"}, [0, 0], 2, 0),
        ({"fgpu_provider": "mig", "mig": True}, [2, 2, 0], 1, 750),
        ({"mig": True}, [0, 0, 2], 1, 2000),
    ],
)
def test_only_gpus_that_can_be_cut_count_as_units_and_only_physical_ones_as_devices(host, units, gpu, fgpu):
    agent = an_agent(**host)
    assert [gpu.units for gpu in agent.gpus] == units
    assert (agent.capacity.gpu, agent.capacity.fgpu) == (gpu, fgpu)


def test_a_mig_instance_counts_as_its_fraction_and_goes_whole():
    agent = an_agent(mig=True, fgpu_provider="mig", fgpu_choice="fill")
    first, second, physical = agent.gpus
    assert (first.exclusive, first.parent_uuid, first.mig_profile) == (True, "GPU-a1-0", "1g.18gb")
    assert [first.capacity, second.capacity] == [250, 500]
    assert (physical.exclusive, physical.parent_uuid) == (False, None)
    assert agent.fgpu_choice is FgpuChoice.FILL
    remaining = FreeCapacity.of(agent)
    assert remaining.free == Slots(cpu=8000, mem=16 * GIB, gpu=1, fgpu=750)
    taken = remaining.without([holding(GpuShare("MIG-2", 300, whole=False))])
    assert (taken.free.gpu, taken.free.fgpu) == (1, 250)


def test_an_agent_of_no_units_has_nothing_to_complain_of():
    assert make_agent(gpus=2).fgpu_obstacle == ""
    assert make_agent(gpus=2).fgpu_choice is FgpuChoice.POLICY
