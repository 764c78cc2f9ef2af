"""Old manifests are refused, new launches replace old ones, and one run goes at a time."""

import threading
import time

import pytest

from tests.modules.agent_code import host_state
from tests.modules.cluster_on_host import ModuleFailedError, desired, session

OURS, ANOTHERS = "0123456789abcdef", "76543210fedcba98"


def test_an_older_manifest_is_refused_and_does_nothing(cluster):
    gang = session()
    cluster.generation = 5
    cluster.converge(gang)
    cluster.generation = 4
    for check in (False, True):
        with pytest.raises(ModuleFailedError, match="generation 5") as failed:
            cluster.converge(check=check)
        assert failed.value.result["stale_generation"] is True
        assert failed.value.result["agent_generation"] == 5
    assert len(cluster.containers()) == 1


def test_a_manifest_of_another_database_is_refused_while_anything_runs(cluster):
    gang = session()
    cluster.converge(gang, databases=[OURS])
    cluster.generation = 2
    for check in (False, True):
        with pytest.raises(ModuleFailedError, match="another control node or database runs sessions") as failed:
            cluster.converge(databases=[ANOTHERS], check=check)
        assert failed.value.result["nothing_begun"] is True
    report = cluster.report()
    assert (report["database"], report["generation"], len(report["kernels"])) == (OURS, 1, 1)
    cluster.converge(databases=[OURS])
    assert cluster.leaves_nothing()
    assert cluster.converge(session(), databases=[ANOTHERS])["report"]["database"] == ANOTHERS


def test_a_manifest_of_a_database_that_continues_the_former_one_is_carried_out(cluster):
    gang = session()
    cluster.converge(gang, databases=[OURS])
    assert cluster.converge(desired(gang, "keep"), databases=[ANOTHERS, OURS])["report"]["database"] == ANOTHERS
    with pytest.raises(ModuleFailedError, match="another control node or database"):
        cluster.converge(databases=[OURS])
    assert len(cluster.containers()) == 1


def test_a_report_says_which_generation_the_host_had_accepted_before(cluster):
    told = []
    for cluster.generation in (5, 7, 7):
        report = cluster.converge()["report"]
        told.append((report["generation_before"], report["generation"]))
    assert told == [(0, 5), (5, 7), (7, 7)]
    assert cluster.report()["generation_before"] is None


def test_a_new_generation_of_a_session_replaces_the_old_one(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    before = {entry["Id"] for entry in cluster.containers().values()}
    renewed = {**session(["main1", "sub1"]), "id": gang["id"], "network": gang["network"], "generation": 2}
    for old, new in zip(gang["kernels"], renewed["kernels"], strict=True):
        new["id"] = old["id"]
    cluster.generation = 2
    result = cluster.converge(renewed)
    assert result["sessions"][0]["outcome"] == "released"
    assert not before & {entry["Id"] for entry in cluster.containers().values()}
    assert {kernel["generation"] for kernel in result["report"]["kernels"]} == {2}
    change = result["diff"]["before"]["containers"], result["diff"]["after"]["containers"]
    assert change[0][f"{gang['network']['name']}-main1"] == "running, generation 1"
    assert change[1][f"{gang['network']['name']}-main1"] == "running, generation 2"
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "echo new keys") == "new keys"
    assert not cluster.converge(renewed)["changed"]


def test_a_newer_manifest_that_changes_nothing_is_not_a_change(cluster):
    gang = session()
    cluster.converge(gang)
    cluster.generation = 9
    result = cluster.converge(desired(gang, "keep"))
    assert not result["changed"]
    assert result["report"]["generation"] == 9


def test_one_run_waits_for_another(cluster):
    ended = []

    def hold():
        with host_state.one_run_at_a_time(cluster.name, 1):
            held.set()
            time.sleep(0.5)
            ended.append("the first")

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    cluster.converge()
    ended.append("the second")
    holder.join()
    assert ended == ["the first", "the second"]


def test_a_run_does_not_wait_for_ever(cluster):
    with (
        host_state.one_run_at_a_time(cluster.name, 1),
        pytest.raises(host_state.BusyError, match="another run holds"),
        host_state.one_run_at_a_time(cluster.name, 0.1),
    ):
        pass
