"""Agents: as they were observed and drained, and what became of launches there."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from muster.contract.report import report_from_agent
from muster.core.agents.agent import AgentState, reported_again
from muster.core.agents.gpu_health import SymptomMark
from muster.core.agents.launch_record import FailedLaunch, LaunchRecord
from muster.core.values.errors import NotFoundError
from muster.store.database import tables
from muster.store.database.connection import new_engine
from tests.simulated.hosts import host_of
from tests.strategies.agents import make_agent, observed
from tests.strategies.values import NOW


def test_agents_are_read_as_they_were_saved(url, store, open_store):
    one = make_agent("a1", gpus=2, units_per_gpu=4, reserved_cpu=1)
    silent = {"state": AgentState.UNREACHABLE, "problem": "it does not answer", "unreachable_since": NOW - 5.5}
    two = replace(make_agent("a2", resource_group="gpu"), **silent)
    store.agents.save([two, one])
    # One store remembers what it wrote, the other reads it.
    for reader in (store, open_store(url)):
        found = reader.snapshot(NOW).agents
        assert found == (one, two)
        assert [agent.report for agent in found] == [one.report, two.report]


def test_a_report_that_another_store_writes_replaces_the_one_that_was_written_here(url, store, open_store):
    other = open_store(url)
    for number, writer in enumerate((store, other, store, other)):
        agent = make_agent("a1", cpus=number + 1)
        writer.agents.save([agent])
        assert [read.report for read in store.snapshot(NOW).agents] == [agent.report]
        assert [read.report for read in other.snapshot(NOW).agents] == [agent.report]


def test_an_agent_seen_again_is_one_agent(store):
    store.agents.save([make_agent(cpus=4)])
    store.agents.save([make_agent(cpus=8)])
    (agent,) = store.snapshot(NOW).agents
    assert agent.capacity.cpu == 8000


def test_an_agent_can_be_forgotten(store):
    store.agents.save([make_agent("a1"), make_agent("a2")])
    store.agents.forget("a1")
    store.agents.forget("nosuch")
    assert [agent.id for agent in store.snapshot(NOW).agents] == ["a2"]


def drain_of(store, agent_id="a1"):
    return {agent.id: agent.drain_reason for agent in store.snapshot(NOW).agents}[agent_id]


def test_an_agent_is_drained_until_it_is_resumed(store):
    store.agents.save([make_agent("a1"), make_agent("a2")])
    assert drain_of(store) is None
    assert store.agents.drain("a1", "new disks")
    assert (drain_of(store), drain_of(store, "a2")) == ("new disks", None)
    assert store.agents.resume("a1")
    assert drain_of(store) is None


def test_what_people_said_of_an_agent_is_so_again_when_it_is_back_in_the_inventory(store):
    accepted = {"GPU-a2-1": (SymptomMark("missing", 0, NOW),)}
    agents = [make_agent("a1"), make_agent("a2"), make_agent("a3")]
    store.agents.save(agents)
    store.agents.drain("a1", "new disks")
    store.agents.accept_symptoms("a2", accepted)
    for agent in agents:
        store.agents.forget(agent.id)
    assert not store.snapshot(NOW).agents
    store.agents.save(agents)
    drained, accepting, plain = store.snapshot(NOW).agents
    assert (drained.drain_reason, drained.gpu_accepted) == ("new disks", {})
    assert (accepting.drain_reason, accepting.gpu_accepted) == (None, accepted)
    assert (plain.drain_reason, plain.gpu_accepted) == (None, {})
    assert store.agents.resume("a1")
    store.agents.save(agents)
    assert drain_of(store) is None, "what was said before it left is said once"


def test_a_drain_at_the_moment_at_which_an_agent_is_forgotten_is_kept(server, postgresql_url, open_store):
    store = open_store(postgresql_url)
    store.agents.save([make_agent("a1")])
    drain = new_engine(postgresql_url)
    with ThreadPoolExecutor(1) as pool:
        with drain.begin() as connection:
            connection.execute(sa.update(tables.agents).values(drain_reason="new disks"))
            forgetting = pool.submit(store.agents.forget, "a1")
            while not server.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                assert not forgetting.done()
        forgetting.result()
    drain.dispose()
    assert store.agents.all() == ()
    store.agents.save([make_agent("a1")])
    assert drain_of(store) == "new disks"


def test_draining_says_whether_it_changed_anything(store):
    store.agents.save([make_agent()])
    assert not store.agents.resume("a1")
    assert [store.agents.drain("a1", reason) for reason in ("disks", "disks", "memory")] == [True, False, True]
    assert not store.agents.drain("a1", "again", keeps_reason=True)
    assert [agent.drain_reason for agent in store.agents.all()] == ["memory"]
    assert drain_of(store) == "memory"


def test_an_agent_that_is_not_known_cannot_be_drained(store):
    for change in (lambda: store.agents.drain("nosuch", "x"), lambda: store.agents.resume("nosuch")):
        with pytest.raises(NotFoundError, match="'nosuch'; see `muster agents`"):
            change()


def test_observing_an_agent_leaves_its_drain_alone(store):
    """Also when the observer read the agent before it was drained."""
    store.agents.save([make_agent()])
    (before,) = store.snapshot(NOW).agents
    store.agents.drain("a1", "new disks")
    store.agents.save([replace(before, state=AgentState.LOST, problem="it does not answer")])
    (after,) = store.snapshot(NOW).agents
    assert (after.state, after.drain_reason) == (AgentState.LOST, "new disks")


def test_a_drain_survives_observations_at_the_same_time(url, open_store):
    user, daemon = open_store(url), open_store(url)
    agents = [make_agent(f"a{number}") for number in range(1, 6)]
    daemon.agents.save(agents)
    barrier = threading.Barrier(2)

    def observe() -> None:
        barrier.wait()
        for _ in range(20):
            daemon.agents.save(agents[::-1])

    with ThreadPoolExecutor(1) as pool:
        observing = pool.submit(observe)
        barrier.wait()
        for agent in agents:
            assert user.agents.drain(agent.id, "new disks")
        observing.result()
    assert {agent.drain_reason for agent in user.snapshot(NOW).agents} == {"new disks"}


def test_the_record_of_launches_on_an_agent_outlives_observations_and_ends_with_a_resume(store):
    agent = make_agent("a1")
    store.agents.save([agent])
    record = LaunchRecord((FailedLaunch("s1", "ada"),), NOW + 600, "launches fail there")
    store.agents.save_launch_records({"a1": record, "nosuch": record})
    store.agents.save([agent])
    (known,) = store.agents.all()
    assert (known.launch_record, known.is_suspect, known.takes_sessions) == (record, True, False)
    assert store.agents.resume("a1")
    assert not store.agents.resume("a1")
    (known,) = store.agents.all()
    assert (known.launch_record, known.takes_sessions) == (LaunchRecord(), True)


def test_what_reports_showed_of_gpus_is_kept_and_an_observation_does_not_undo_a_resume(store):
    report, inventory = host_of("a1", gpus=2)
    report["gpu_health"][0]["xids"] = [{"number": 79, "sequence": 3}]
    agent = observed("a1", report, inventory)
    report, _ = host_of("a1", gpus=1)
    later = reported_again(agent, "a1", report_from_agent(report), inventory, NOW + 60)
    store.agents.save([later])
    (known,) = store.agents.all()
    assert known == later
    assert [gpu.quarantined_by for gpu in known.gpus] == [("xid-79",), ("missing",)]
    accepted = {"GPU-a1-0": tuple(symptom.mark for symptom in known.gpu_record.symptoms["GPU-a1-0"])}
    store.agents.accept_symptoms("a1", accepted)
    store.agents.accept_symptoms("nosuch", accepted)
    store.agents.save([later])
    (known,) = store.agents.all()
    assert known.gpu_accepted == accepted
    assert [gpu.quarantined_by for gpu in known.gpus] == [(), ("missing",)]
    store.agents.accept_symptoms("a1", {"GPU-a1-1": (SymptomMark("missing", 0, NOW + 60),)})
    (known,) = store.agents.all()
    assert [gpu.uuid for gpu in known.gpus] == ["GPU-a1-0"]
