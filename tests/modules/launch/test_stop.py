"""Keeping, stopping, last words, and what is not in the manifest any more."""

import stat

import pytest

from tests.modules.agent_code import engine_api, last_words
from tests.modules.cluster_on_host import desired, log_of, log_with, session
from tests.waiting import eventually


def test_stopped_kernels_leave_nothing_but_their_last_words(cluster):
    gang = session(["main1", "sub1"], main1={"command": ["sh", "-c", "echo out; echo err >&2; exit 3"]})
    cluster.converge(gang)
    _wait_for_end(cluster, "main1")
    stopping = desired(gang, "stop")
    first = cluster.converge(stopping)
    second = cluster.converge(stopping)
    assert first["sessions"] == [{"id": gang["id"], "outcome": "stopped", "error": None, "permanent": False}]
    main, sub = first["last_words"]
    assert (main["name"], main["session_id"], main["kernel_id"]) == ("main1", gang["id"], gang["kernels"][0]["id"])
    assert (main["exit_code"], main["oom_killed"], main["log_truncated"]) == (3, False, False)
    assert sorted(log_of(main).splitlines()) == ["err", "out"]
    assert main["started_at"] < main["finished_at"]
    assert sub["exit_code"] == 143
    assert first["changed"]
    assert (cluster.containers(), cluster.networks(), cluster.key_directories()) == ({}, [], [])
    assert second["last_words"] == first["last_words"]
    assert not second["changed"]
    spool = list(cluster.paths.session_spool(gang["id"]).iterdir())
    assert [stat.S_IMODE(path.stat().st_mode) for path in spool] == [0o600, 0o600]
    third = cluster.converge()
    assert third["changed"]
    assert third["diff"]["before"] == {"last words": {gang["id"]: "present"}}
    assert cluster.leaves_nothing()
    assert not cluster.converge()["changed"]


def test_the_end_of_a_long_log_is_kept(cluster):
    gang = session(command=["seq", "100000"])
    cluster.converge(gang)
    _wait_for_end(cluster, "main1")
    (words,) = cluster.converge(desired(gang, "stop"), log_max_bytes=5000)["last_words"]
    assert words["log_truncated"]
    log = log_of(words)
    assert len(log) == 5000
    assert log.endswith("\n99999\n100000\n")


PACKS_BADLY = ["sh", "-c", "head -c 60000 /dev/urandom | base64"]
MOST_BYTES = 120_000  # one such log, packed and in base64, and no second


def test_logs_that_are_too_much_for_one_answer_come_with_the_next(cluster, monkeypatch):
    """Otherwise it is refused each time, and none of these sessions ever ends."""
    monkeypatch.setattr(last_words, "MOST_BYTES_OF_AN_ANSWER", MOST_BYTES)
    gangs = [session(command=PACKS_BADLY), session(command=PACKS_BADLY), session()]
    cluster.converge(*gangs)
    eventually(lambda: sorted(cluster.states().values()), lambda states: states == ["exited", "exited", "running"])
    stopping = [desired(gang, "stop") for gang in gangs]
    first = cluster.converge(*stopping, log_max_bytes=100_000)
    assert [entry["outcome"] for entry in first["sessions"]] == ["stopped", "failed", "stopped"]
    assert first["sessions"][1]["error"] == "on this agent: last words of try come with a later answer"
    assert [leftover["name"] for leftover in first["report"]["leftovers"]] == [f"session {gangs[1]['id']}"]
    assert cluster.containers() == {}
    # What the control node has got is in its manifest no more.
    second = cluster.converge(stopping[1], log_max_bytes=100_000)
    assert [entry["outcome"] for entry in second["sessions"]] == ["stopped"]
    answers = [(words["session_id"], words["log_truncated"]) for words in first["last_words"] + second["last_words"]]
    assert answers == [(gangs[0]["id"], False), (gangs[2]["id"], False), (gangs[1]["id"], False)]


def test_a_session_ends_with_as_many_logs_as_one_answer_takes(cluster, monkeypatch):
    monkeypatch.setattr(last_words, "MOST_BYTES_OF_AN_ANSWER", MOST_BYTES)
    gang = session(["main1", "sub1"], command=PACKS_BADLY)
    cluster.converge(gang)
    eventually(lambda: set(cluster.states().values()), lambda states: states == {"exited"})
    result = cluster.converge(desired(gang, "stop"), log_max_bytes=100_000)
    assert [entry["outcome"] for entry in result["sessions"]] == ["stopped"]
    found = [(words["name"], words["exit_code"], words["log_truncated"]) for words in result["last_words"]]
    assert found == [("main1", 0, False), ("sub1", 0, True)]


def test_a_kernel_that_ignores_sigterm_is_killed_after_the_grace(cluster, monkeypatch):
    gang = session(["main1", "sub1"], command=["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"])
    cluster.converge(gang)
    for entry in cluster.containers().values():
        log_with(cluster, entry["Id"], b"deaf")
    stop, graces = engine_api.EngineApi.stop_container, []

    def noted(engine, container_id, grace_s):
        graces.append(grace_s)
        stop(engine, container_id, grace_s)

    monkeypatch.setattr(engine_api.EngineApi, "stop_container", noted)
    result = cluster.converge(desired(gang, "stop"), stop_grace_s=1)
    assert set(graces) == {1}
    assert [words["exit_code"] for words in result["last_words"]] == [137, 137]


def test_keep_changes_nothing_and_makes_nothing(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    victim = cluster.containers()[f"{gang['network']['name']}-sub1"]
    cluster.engine.remove_container(victim["Id"])
    result = cluster.converge(desired(gang, "keep"))
    assert not result["changed"]
    assert result["sessions"][0]["outcome"] == "kept"
    assert [kernel["name"] for kernel in result["report"]["kernels"]] == ["main1"]


def test_launch_makes_what_is_missing_of_a_gang(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    before = cluster.containers()
    cluster.engine.remove_container(before[f"{gang['network']['name']}-sub1"]["Id"])
    result = cluster.converge(gang)
    after = cluster.containers()
    assert list(result["diff"]["after"]) == ["containers"]
    main = f"{gang['network']['name']}-main1"
    assert after[main]["Id"] == before[main]["Id"]
    assert len(after) == 2


def test_containers_that_are_not_in_the_manifest_are_removed(cluster):
    gone, kept = session(["main1", "sub1"]), session()
    cluster.converge(gone, kept)
    result = cluster.converge(kept)
    assert result["changed"]
    assert set(result["diff"]["after"]["containers"].values()) == {"absent"}
    assert list(cluster.states()) == [f"{kept['network']['name']}-main1"]
    assert (cluster.networks(), len(cluster.lent_networks())) == ([], 1)
    assert cluster.key_directories() == [f"{kept['id']}/main1"]


def test_a_container_that_vanished_does_not_hold_up_a_stop(cluster):
    gang = session()
    cluster.converge(gang)
    (entry,) = cluster.containers().values()
    cluster.engine.remove_container(entry["Id"])
    result = cluster.converge(desired(gang, "stop"))
    assert result["sessions"][0]["outcome"] == "stopped"
    assert result["last_words"] == []
    assert cluster.leaves_nothing()


def test_what_an_earlier_launch_left_goes_without_last_words(cluster):
    """The control node refused an answer with them, and the session could never end."""
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    stopping = desired({**gang, "kernels": gang["kernels"][:1]}, "stop")
    for _ in range(2):
        result = cluster.converge(stopping)
        assert [entry["outcome"] for entry in result["sessions"]] == ["stopped"]
        assert [words["name"] for words in result["last_words"]] == ["main1"]
    assert not result["changed"]
    assert (cluster.containers(), cluster.key_directories()) == ({}, [])


@pytest.mark.parametrize("request_before", ["stop_container", "logs"])
def test_a_kernel_that_somebody_removes_while_it_is_stopped_has_last_words(cluster, monkeypatch, request_before):
    gang = session()
    cluster.converge(gang)
    before = getattr(engine_api.EngineApi, request_before)

    def removed_by_hand(engine, container_id, *arguments):
        answer = before(engine, container_id, *arguments)
        engine.remove_container(container_id)
        return answer

    monkeypatch.setattr(engine_api.EngineApi, request_before, removed_by_hand)
    result = cluster.converge(desired(gang, "stop"))
    assert [entry["outcome"] for entry in result["sessions"]] == ["stopped"]
    (words,) = result["last_words"]
    assert words["kernel_id"] == gang["id"]
    assert words["started_at"]
    assert words["use"]["cpu_seconds"] > 0
    assert words["use"]["net_rx_bytes"] is not None
    assert (words["log_truncated"], log_of(words)) == (True, "")


def test_a_kernel_that_is_being_removed_has_last_words(cluster, monkeypatch):
    """The engine gives no log of it any more, and has not forgotten how it ended."""
    gang = session(command=["sh", "-c", "echo out; exit 3"])
    cluster.converge(gang)
    _wait_for_end(cluster, "main1")

    def refused(_engine, _container_id):
        raise engine_api.EngineError(409, "can not get logs from container which is dead or marked for removal")

    monkeypatch.setattr(engine_api.EngineApi, "logs", refused)
    (words,) = cluster.converge(desired(gang, "stop"))["last_words"]
    assert (words["exit_code"], words["log_truncated"], log_of(words)) == (3, True, "")
    assert words["finished_at"] > words["started_at"]


def _wait_for_end(cluster, kernel_name):
    def state():
        return {kernel["name"]: kernel["state"] for kernel in cluster.report()["kernels"]}[kernel_name]

    eventually(state, lambda seen: seen == "exited")
