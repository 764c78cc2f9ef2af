"""What reports show of GPUs' health, and what keeps a GPU from new sessions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.contract.report import report_from_agent
from muster.core.agents.agent import Agent, Gpu, reported_again
from tests.simulated.hosts import healthy_gpu, host_of
from tests.strategies.values import NOW


def reports(*health: Mapping[str, Any] | None, boot_id: str = "boot-1", **site: Any) -> tuple[dict, dict]:
    """Return report and inventory of a host of two GPUs; `health` changes that of each, None leaves the GPU out."""
    report, inventory = host_of("a1", gpus=2, **site)
    report["boot_id"] = boot_id
    known = list(zip(report["gpus"], report["gpu_health"], health, strict=True))
    report["gpus"] = [gpu for gpu, _, changes in known if changes is not None]
    report["gpu_health"] = [entry | changes for _, entry, changes in known if changes is not None]
    return report, inventory


def after(before: Agent | None, *health: Mapping[str, Any] | None, now: float = NOW, **facts: Any) -> Agent:
    report, inventory = reports(*health, **facts)
    return reported_again(before, "a1", report_from_agent(report), inventory, now)


def gpu(agent: Agent, index: int = 0) -> Gpu:
    return next(gpu for gpu in agent.gpus if gpu.index == index)


def xid(number: int, sequence: int = 7) -> dict[str, Any]:
    return {"xids": [{"number": number, "sequence": sequence}]}


def accepting(agent: Agent) -> Agent:
    """Return the agent after an operator has put its first GPU back into service."""
    uuid = gpu(agent).uuid
    return replace(agent, gpu_accepted={uuid: tuple(symptom.mark for symptom in agent.gpu_record.symptoms[uuid])})


@pytest.mark.parametrize(
    ("health", "cause", "codes"),
    [
        (xid(79), "Xid 79: the GPU has fallen off the bus", ("xid-79",)),
        (xid(48), "Xid 48: memory error that cannot be corrected", ("xid-48",)),
        ({"remap_failed": True}, "a faulty row of its memory cannot be replaced", ("remap-failed",)),
        ({"recovery": "reset"}, "the driver asks for: reset", ("recovery",)),
        (
            {"recovery": "reboot", **xid(95)},
            "the driver asks for: reboot; Xid 95: uncontained memory error",
            ("recovery", "xid-95"),
        ),
    ],
)
def test_a_gpu_in_bad_health_is_in_quarantine_and_its_neighbour_is_not(health, cause, codes):
    agent = after(None, health, {})
    assert (gpu(agent).quarantine, gpu(agent).quarantined_by) == (cause, codes)
    assert gpu(agent, 1) == replace(gpu(agent, 1), quarantine="", warning="")


@pytest.mark.parametrize(
    ("health", "warning"),
    [
        ({"ecc_errors": 3}, "3 memory errors that could not be corrected"),
        ({"remap_pending": True}, "a faulty row of its memory is replaced at its next reset"),
        ({"throttled": ["heat", "power brake"]}, "its clocks are slowed: heat, power brake"),
        ({"strangers": [4711, 4712]}, "processes of no session use it: 4711, 4712"),
        (xid(94), "Xid 94: contained memory error"),
        (xid(4321), "Xid 4321"),
    ],
)
def test_lesser_symptoms_are_shown_and_keep_nobody_away(health, warning):
    found = gpu(after(None, health, {}))
    assert (found.warning, found.quarantine) == (warning, "")


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_what_a_users_program_causes_is_no_gpus_fault(number):
    found = gpu(after(None, xid(number), {}, gpu_health={"xid": "quarantine", "xid-999": "ignore"}))
    assert (found.warning, found.quarantine) == ("", "")


def test_a_sites_table_overrides_the_verdicts():
    site = {"xid-79": "warn", "ecc": "quarantine", "throttled": "ignore", "xid": "quarantine"}
    health = {"ecc_errors": 1, "throttled": ["heat"], "xids": [{"number": 79, "sequence": 1}]}
    found = gpu(after(None, health, {}, gpu_health=site))
    assert (found.quarantined_by, found.warning) == (("ecc",), "Xid 79: the GPU has fallen off the bus")
    # What no table lists is judged as `xid`; what the built-in table lists keeps its verdict.
    assert gpu(after(None, xid(4321), {}, gpu_health=site)).quarantined_by == ("xid-4321",)
    assert gpu(after(None, xid(48), {}, gpu_health={"xid": "ignore"})).quarantined_by == ("xid-48",)


def test_a_gpu_comes_back_when_its_cause_goes():
    agent = after(None, {"recovery": "reset"}, {})
    assert gpu(after(agent, {}, {})).quarantine == ""


def test_an_xid_counts_until_the_reboot_though_the_log_forgets_it():
    agent = after(after(None, xid(79), {}), {}, {}, now=NOW + 60)
    assert gpu(agent).quarantined_by == ("xid-79",)
    assert gpu(after(agent, {}, {}, boot_id="boot-2")).quarantine == ""


def test_a_gpu_that_the_driver_no_longer_lists_is_missing_until_it_is_back():
    agent = after(after(None, {}, {}), None, {})
    assert gpu(agent).quarantine == "missing: the driver does not list it any more"
    assert [gpu.index for gpu in agent.gpus] == [0, 1]
    again = after(agent, None, {}, boot_id="boot-2")
    assert gpu(again).quarantined_by == ("missing",)
    assert gpu(after(again, {}, {}, boot_id="boot-2")).quarantine == ""


@pytest.mark.parametrize("known", [{"uuid": "GPU-a1-0"}, {"address": "0000:01:00.0"}, {"index": 0}])
def test_a_gpu_that_does_not_answer_is_missing_with_what_the_driver_says(known):
    before = after(None, {}, {})
    report, inventory = reports(None, {})
    silent = {**healthy_gpu("a1", 0), "index": None, "uuid": None, "address": None, **known}
    report["gpu_health"].append({**silent, "problem": "GPU is lost", **xid(79)})
    agent = reported_again(before, "a1", report_from_agent(report), inventory, NOW)
    assert gpu(agent).quarantine.startswith("missing: GPU is lost")
    assert gpu(agent, 1).quarantine == ""


def test_instances_are_as_well_as_their_gpu_and_none_is_missing_because_the_gpu_is_cut_anew():
    whole = after(None, {}, {})
    report, inventory = reports({"recovery": "reset"}, {})
    parts = [
        {**report["gpus"][0], "uuid": f"MIG-{n}", "parent_uuid": "GPU-a1-0", "mig_profile": "1g.1gb", "fraction": 142}
        for n in range(2)
    ]
    cut = report | {"gpus": [*parts, report["gpus"][1]]}
    agent = reported_again(whole, "a1", report_from_agent(cut), inventory, NOW)
    assert [(gpu.uuid, gpu.quarantined_by) for gpu in agent.gpus] == [
        ("MIG-0", ("recovery",)),
        ("MIG-1", ("recovery",)),
        ("GPU-a1-1", ()),
    ]
    empty = report | {"gpus": [report["gpus"][1]]}
    assert [gpu.uuid for gpu in reported_again(agent, "a1", report_from_agent(empty), inventory, NOW).gpus] == [
        "GPU-a1-1"
    ]


def test_an_operator_puts_a_gpu_back_until_it_has_a_new_or_a_worse_symptom():
    site = {"ecc": "quarantine"}
    sick = {"ecc_errors": 2, **xid(79)}
    agent = accepting(after(None, sick, {}, gpu_health=site))
    agent = after(agent, sick, {}, now=NOW + 60, gpu_health=site)
    assert gpu(agent).quarantine == ""
    assert gpu(after(agent, {**sick, "ecc_errors": 3}, {}, gpu_health=site)).quarantined_by == ("ecc",)
    assert gpu(after(agent, {**sick, **xid(79, 8)}, {}, gpu_health=site)).quarantined_by == ("xid-79",)
    assert gpu(after(agent, {**sick, "recovery": "reset"}, {}, gpu_health=site)).quarantined_by == ("recovery",)


def test_a_symptom_that_comes_again_is_a_new_one():
    agent = accepting(after(None, {"recovery": "reset"}, {}))
    gone = after(agent, {}, {}, now=NOW + 60)
    assert gpu(after(gone, {"recovery": "reset"}, {}, now=NOW + 120)).quarantined_by == ("recovery",)


def test_a_missing_gpu_that_an_operator_accepts_is_no_longer_listed():
    agent = accepting(after(after(None, {}, {}), None, {}))
    agent = after(agent, None, {}, now=NOW + 60)
    assert [gpu.index for gpu in agent.gpus] == [1]
    assert [gpu.index for gpu in after(agent, {}, {}).gpus] == [0, 1]


def test_a_hostile_agent_cannot_make_its_record_grow_without_end():
    agent = after(None, {}, {})
    for number in range(80):
        report, inventory = reports({}, {})
        report["gpus"] = [entry | {"uuid": f"GPU-{number}-{entry['index']}"} for entry in report["gpus"]]
        report["gpu_health"] = []
        agent = reported_again(agent, "a1", report_from_agent(report), inventory, NOW)
    assert len(agent.gpu_record.missing) == 64
