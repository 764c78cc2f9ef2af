"""What agents had and used over time: added up step by step, read as means, removed when no plot shows it."""

from dataclasses import replace

import pytest

from muster.core.model.agent_sample import AgentSample, Amount
from muster.core.model.snapshot import Snapshot
from muster.core.usage.over_time import SPANS, added
from muster.service.queue.agent_sampling import AgentSampling
from muster.store.agent_samples import AgentSamples
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

HOUR, DAY, WEEK = SPANS["hour"], SPANS["day"], SPANS["week"]
NONE = Amount(0, 0, 0.0)
EVEN = NOW // 3600 * 3600


def sample(agent_id, at, cpu, group="default", mem=NONE):
    return AgentSample(agent_id, group, at, {"cpu": cpu, "mem": mem, "gpu": NONE, "gpu_mem": NONE})


def means(store, span, since):
    """Return the means of all agents, as a process reads them that has read nothing yet."""
    by_group = AgentSamples(store.samples._engine).by_group(span, since)
    times = sorted({at for of_group in by_group.values() for at in of_group})
    return {at: added([of_group[at] for of_group in by_group.values() if at in of_group]) for at in times}


def test_samples_of_one_step_become_their_mean(store):
    store.samples.add([sample("a1", EVEN + 10, Amount(8000, 2000, 1000.0))])
    store.samples.add([sample("a1", EVEN + 70, Amount(8000, 6000, 3000.0))])
    assert {at: amounts["cpu"] for at, amounts in means(store, HOUR, EVEN).items()} == {
        EVEN: Amount(8000, 2000, 1000),
        EVEN + 60: Amount(8000, 6000, 3000),
    }
    for span in (DAY, WEEK):
        assert means(store, span, EVEN) == {
            EVEN: {"cpu": Amount(8000, 4000, 2000), "mem": NONE, "gpu": NONE, "gpu_mem": NONE}
        }


def test_agents_are_added_up_however_often_each_was_observed(store):
    store.samples.add([sample("a1", EVEN + 10 + 60 * n, Amount(8000, 4000, 1000.0)) for n in range(3)])
    store.samples.add([sample("a2", EVEN, Amount(2000, 1000, 500.0)), sample("b1", EVEN, Amount(1, 1, 1.0), "gpu")])
    assert store.samples.by_group(DAY, EVEN)["default"][EVEN]["cpu"] == Amount(10000, 5000, 1500)
    assert store.samples.of_agent(DAY, EVEN, "a2")[EVEN]["cpu"] == Amount(2000, 1000, 500)
    assert means(store, DAY, EVEN)[EVEN]["cpu"] == Amount(10001, 5001, 1501)
    assert store.samples.by_group(DAY, EVEN)["gpu"][EVEN]["cpu"] == Amount(1, 1, 1)
    assert store.samples.of_agent(DAY, EVEN, "a9") == {}


def test_repeated_reads_give_the_same_as_a_first_read(store):
    for minute in range(12):
        now = EVEN + 60 * minute
        store.samples.add(
            [sample("a1", now, Amount(8000, 10 * minute, 1.0)), sample("b1", now, Amount(1, 0, None), "gpu")]
        )
        if minute % 5 == 4:
            # One that comes late.
            store.samples.add([sample("a2", now - 65, Amount(500, 0, 0.0))])
        for since in (now - 300, now - 240):
            found = store.samples.by_group(HOUR, since)
            assert found == AgentSamples(store.samples._engine).by_group(HOUR, since)
            assert min(found["default"]) >= since


def test_samples_are_read_although_the_clock_was_ahead_before(store):
    store.samples.add([sample("a1", EVEN + 1800, Amount(1, 1, 1.0))])
    for minute in range(5):
        now = EVEN + 60 * minute
        store.samples.add([sample("a1", now, Amount(8000, minute, 1.0))])
        found = store.samples.by_group(HOUR, now - HOUR.length_s - HOUR.step_s)
        assert found["default"][now]["cpu"].allocated == minute


def test_unknown_values_are_left_out_of_the_mean_and_are_not_zero(store):
    store.samples.add([sample("a1", EVEN, Amount(8000, 0, None), mem=Amount(1, 1, None))])
    assert means(store, DAY, EVEN)[EVEN]["cpu"].used is None
    store.samples.add([sample("a1", EVEN + 60, Amount(8000, 0, 4000.0), mem=Amount(1, 1, None))])
    found = means(store, DAY, EVEN)[EVEN]
    assert (found["cpu"].used, found["mem"].used) == (4000, None)


def test_samples_that_no_plot_shows_are_removed(store):
    store.samples.add([sample("a1", EVEN, Amount(1, 1, 1.0))])
    store.samples.remove_old(EVEN + HOUR.kept_s + 1)
    assert [bool(means(store, span, 0)) for span in (HOUR, DAY, WEEK)] == [False, True, True]
    store.samples.remove_old(EVEN + WEEK.kept_s - 1)
    assert [bool(means(store, span, 0)) for span in (HOUR, DAY, WEEK)] == [False, False, True]
    store.samples.remove_old(EVEN + WEEK.kept_s + 1)
    assert not means(store, WEEK, 0)


@pytest.fixture
def sampling(store):
    return AgentSampling(store)


def test_an_agent_that_answers_often_is_sampled_once_a_minute(store, sampling):
    session = placed_on(make_session(1, cluster_size=2), "a1")
    for second in (0, 5, 30, 59, 61, 65):
        agent = replace(make_agent("a1"), observed_at=EVEN + second)
        sampling.observe(Snapshot((agent,), (session,), EVEN + second), [agent])
    found = means(store, HOUR, EVEN)
    assert sorted(found) == [EVEN, EVEN + 60]
    assert [amounts["cpu"] for amounts in found.values()] == [Amount(8000, 2000, 0), Amount(8000, 2000, 0)]


def test_another_worker_goes_on_in_the_same_minute(store, sampling):
    agent = replace(make_agent("a1"), observed_at=EVEN)
    for worker in (sampling, AgentSampling(store)):
        worker.observe(Snapshot((agent,), (), EVEN), [agent])
    assert means(store, HOUR, EVEN)[EVEN]["cpu"] == Amount(8000, 0, 0)


def test_sampling_removes_in_passing_what_is_old(store, sampling):
    store.samples.add([sample("gone", EVEN - WEEK.kept_s - 1, Amount(1, 1, 1.0))])
    agent = replace(make_agent("a1"), observed_at=EVEN)
    sampling.observe(Snapshot((agent,), (), EVEN), [agent])
    assert store.samples.of_agent(WEEK, 0, "gone") == {}
