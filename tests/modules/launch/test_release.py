"""A gang over several agents: here it starts, and its commands begin when the control node says so."""

import time
from pathlib import Path

import pytest

from muster.core.spec.mounts import HOME
from tests.modules.cluster_on_host import desired, session
from tests.waiting import eventually

SAYS = ["sh", "-c", "echo begun >$HOME/said; exec sleep 1000"]
FAILS = ["sh", "-c", "exit 3"]


def _started(cluster, **changes):
    gang = {**session(["main1", "sub1"], **changes), "release": False}
    return gang, cluster.converge(gang)


def _outcome(result):
    (entry,) = result["sessions"]
    return entry["outcome"]


def _begun(cluster, gang):
    script = f"[ -e {HOME}/said ] && echo yes || echo no"
    return [cluster.run_in(gang, name, "sh", "-c", script) for name in ("main1", "sub1")]


def _released(result):
    return [kernel["released"] for kernel in result["report"]["kernels"]]


def test_a_command_begins_when_it_is_released_and_not_before(cluster):
    gang, started = _started(cluster, command=SAYS)
    assert (_outcome(started), _released(started)) == ("started", [False, False])
    time.sleep(0.5)
    assert _begun(cluster, gang) == ["no", "no"]
    again = cluster.converge(gang)
    assert (_outcome(again), again["changed"]) == ("started", False)
    release = desired(gang, "release")
    foreseen, done = cluster.converge(release, check=True), cluster.converge(release)
    assert foreseen["sessions"] == done["sessions"]
    assert foreseen["diff"] == done["diff"]
    assert done["diff"]["after"] == {
        "go": {f"{gang['network']['name']}-{name}": "generation 1" for name in ("main1", "sub1")}
    }
    assert (_outcome(done), _released(done)) == ("released", [True, True])
    eventually(lambda: _begun(cluster, gang), lambda begun: begun == ["yes", "yes"])
    repeated = cluster.converge(release)
    assert (_outcome(repeated), repeated["changed"]) == ("released", False)


def test_a_launch_that_is_repeated_after_the_release_takes_nothing_back(cluster):
    gang, _ = _started(cluster)
    cluster.converge(desired(gang, "release"))
    result = cluster.converge(gang)
    assert (_outcome(result), result["changed"], _released(result)) == ("started", False, [True, True])


def test_a_release_that_is_repeated_after_the_commands_ended_is_still_one(cluster):
    gang, _ = _started(cluster, command=FAILS)
    release = desired(gang, "release")
    cluster.converge(release)
    eventually(cluster.states, lambda states: set(states.values()) == {"exited"})
    result = cluster.converge(release)
    assert (_outcome(result), result["changed"]) == ("released", False)


@pytest.mark.parametrize("removed", [True, False])
def test_none_is_released_when_one_kernel_is_missing_or_has_ended(cluster, removed):
    gang, _ = _started(cluster)
    victim = cluster.containers()[f"{gang['network']['name']}-sub1"]["Id"]
    if removed:
        cluster.engine.remove_container(victim)
        error = "sub1: its container has vanished from this agent"
    else:
        cluster.engine.stop_container(victim, 5)
        error = "sub1: the container ended at once with exit code 143"
    release = desired(gang, "release")
    foreseen, done = cluster.converge(release, check=True), cluster.converge(release)
    (entry,) = done["sessions"]
    assert (entry["outcome"], entry["permanent"]) == ("failed", False)
    assert entry["error"].startswith(error)
    assert foreseen["sessions"] == done["sessions"]
    assert not foreseen["changed"]
    assert not done["changed"]
    assert not any(_released(done))
    assert cluster.states()[f"{gang['network']['name']}-main1"] == "running"


def test_a_release_of_another_launch_is_none(cluster):
    gang, _ = _started(cluster)
    (entry,) = cluster.converge({**desired(gang, "release"), "generation": 2})["sessions"]
    assert entry["error"] == "main1: its container has vanished from this agent"


def test_a_new_launch_of_a_released_gang_waits_for_its_own_release(cluster):
    gang, _ = _started(cluster)
    cluster.converge(desired(gang, "release"))
    cluster.generation = 2
    result = cluster.converge({**gang, "generation": 2})
    assert (_outcome(result), _released(result)) == ("started", [False, False])
    assert set(result["diff"]["before"]["go"].values()) == {"generation 1"}
    assert set(result["diff"]["after"]["go"].values()) == {"absent"}


def test_kernels_that_started_are_stopped_like_any_other(cluster):
    gang, _ = _started(cluster, command=SAYS)
    result = cluster.converge(desired(gang, "stop"))
    assert _outcome(result) == "stopped"
    assert [words["name"] for words in result["last_words"]] == ["main1", "sub1"]
    cluster.converge()
    assert cluster.leaves_nothing()


def test_a_kernel_that_waits_for_its_release_starts_no_programs(cluster):
    """With a small part of a core, programs that look for the release again and again delay it."""
    _started(cluster, command=SAYS)
    shells = [_first_child(cluster.engine.container(name)["State"]["Pid"]) for name in cluster.containers()]
    eventually(lambda: all(Path(f"/proc/{pid}/fd/9").is_fifo() for pid in shells))
    before = [_faults_of_children(pid) for pid in shells]
    time.sleep(0.5)
    assert [_faults_of_children(pid) for pid in shells] == before


def _first_child(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0]


def _faults_of_children(pid):
    """Return the page faults of all programs that a process has started and that have ended: proc(5), cminflt."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[8])


def test_a_container_that_others_removed_once_its_command_could_begin_is_told_of(cluster):
    gang, started = _started(cluster, command=SAYS)
    assert started["report"]["vanished"] == []
    released = cluster.converge(desired(gang, "release"))["report"]
    assert released["vanished"] == []
    kernel = released["kernels"][1]
    cluster.engine.remove_container(kernel["container_id"])
    told = {name: kernel[name] for name in ("session_id", "name", "generation")}
    assert cluster.report()["vanished"] == [told]
    assert cluster.converge(desired(gang, "stop"))["report"]["vanished"] == []


def test_a_container_that_others_removed_before_its_release_is_not_told_of(cluster):
    gang, started = _started(cluster, command=SAYS)
    cluster.engine.remove_container(started["report"]["kernels"][1]["container_id"])
    assert cluster.report()["vanished"] == []
    cluster.converge(desired(gang, "stop"))
