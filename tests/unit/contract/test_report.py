"""Reports as they come in: what the contract allows is taken, and of anything else there is one line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.report import Report, report_from_agent, stored_report
from muster.contract.values import ContractError
from tests.hostile.malformed import ODD, changed, paths, problem_of
from tests.reports import kernel_entry, use_of
from tests.simulated.hosts import report_of
from tests.strategies.sessions import make_session, placed_on


def full_report() -> dict[str, Any]:
    """Return a report in which no list is empty and no optional value is missing."""
    report = report_of("a1", gpus=2, numa_nodes=2, swarm="manager")
    session = placed_on(make_session(1), "a1")
    held = {
        "uuid": "GPU-a1-0",
        "amount": 500,
        "capacity": 2000,
        "mem_bytes": 1 << 30,
        "compute": 250,
        "used_bytes": 5,
        "processes": 1,
    }
    held["enforced_bytes"] = None
    app = {"healthy": False, "exit_code": 127, "problem": "no such program"}
    entry = kernel_entry(
        session, "main1", gpus=[held], uncapped=[57], apps={"jupyterlab": app}, use=use_of(at=1.5, cpu_seconds=2.0)
    )
    network = {"name": session.network, "session_id": session.id, "driver": "bridge", "generation": 7}
    return {**report, "kernels": [entry], "networks": [network], "spools": [session.id], "files": [session.id]}


PATHS = sorted(paths(full_report()), key=str)
# Names in mappings that an agent chooses.
FREE = {("kernels", 0, "apps")}


@given(st.sampled_from(PATHS), st.sampled_from(("removed", "added", "retyped", "nested", "many")), ODD)
def test_a_report_with_something_else_in_it_is_taken_or_refused_in_one_line(path, change, odd):
    report = changed(full_report(), path, change, odd)
    if problem := problem_of(lambda: report_from_agent(report)):
        assert problem.startswith("report")
        assert problem.isprintable()
        assert len(problem) < 1000
    else:
        taken = report_from_agent(report)
        assert report_from_agent(json.loads(taken.model_dump_json())) == taken


@pytest.mark.parametrize("path", [path for path in PATHS if isinstance(path[-1], str)], ids=str)
def test_every_field_must_be_there_and_no_other(path):
    if path[:-1] in FREE:
        return
    with pytest.raises(ContractError):
        report_from_agent(changed(full_report(), path, "removed", None))
    with pytest.raises(ContractError):
        report_from_agent(changed(full_report(), path, "added", None))


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_no_field_takes_a_list_of_mappings_of_itself(path):
    with pytest.raises(ContractError):
        report_from_agent(changed(full_report(), path, "nested", None))


@given(ODD)
def test_anything_else_is_no_report(odd):
    with pytest.raises(ContractError):
        report_from_agent(odd)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"version": 2}, "report.version: Input should be 1"),
        ({"cpu_count": "8"}, "report.cpu_count: Input should be a valid integer"),
        ({"mem_bytes": -1}, "report.mem_bytes: Input should be greater than or equal to 0"),
        ({"hostname": "x" * 2000}, "report.hostname: String should have at most 1024 characters"),
        ({"attributes": {"connection": "local"}}, "report.attributes: Extra inputs are not permitted"),
        ({"numa": [{"node": 0, "cpus": "0-99999999999", "mem_bytes": 1}]}, "report.numa[0].cpus: String should match"),
        (
            {"images": [{"id": "i", "tags": "t", "size_bytes": 1}]},
            "report.images[0].tags: Input should be",
        ),
        ({"swarm": {"state": "active"}}, "report.swarm: node_id is missing"),
    ],
)
def test_the_line_names_the_field_and_what_is_wrong_with_it(change, line):
    with pytest.raises(ContractError) as refused:
        report_from_agent({**full_report(), **change})
    assert str(refused.value).startswith(line)


def test_a_gpu_is_named_once():
    report = full_report()
    report["gpus"].append(report["gpus"][0])
    with pytest.raises(ContractError, match="it names a GPU twice"):
        report_from_agent(report)


def test_text_of_a_tenant_never_invalidates_a_report():
    """The last line of an app's log is the tenant's text."""
    report = full_report()
    report["kernels"][0]["apps"]["jupyterlab"]["problem"] = "\x1b[31mred\x00\tand more"
    problem = report_from_agent(report).kernels[0].apps["jupyterlab"].problem
    assert problem == "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}\tand more"


def test_reports_of_an_older_version_are_read_and_unreadable_ones_are_none():
    older = {name: value for name, value in full_report().items() if name not in {"numa", "swarm", "networks"}}
    for entry in older["kernels"]:
        del entry["use"], entry["notice"]
    assert stored_report(older).cpu_count == 8
    assert stored_report({"version": 1}) == Report()
    assert stored_report({"cpu_count": "many"}) is None
