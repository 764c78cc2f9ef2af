"""Every promise is kept in 2,000 schedules of users and faults, the same ones in every run."""

import pytest

from tests.properties import PROFILE
from tests.simulation.schedules import FAULTS, RARE, SUBMIT, USERS, schedule_of
from tests.simulation.test_checker import carried_out, fault, submission
from tests.simulation.world import carry_out

_SCHEDULES = 100_000 if PROFILE == "thorough" else 2_000
_AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, _SCHEDULES, _AT_ONCE))
def test_every_promise_is_kept_whatever_happens(first):
    verdicts = [carry_out(schedule_of(seed)) for seed in range(first, first + _AT_ONCE)]
    broken = [
        f"{verdict.broken} (python -m bench.faults --seed {verdict.schedule.seed})"
        for verdict in verdicts
        if verdict.broken is not None
    ]
    assert not broken, "\n".join(broken)


def test_a_seed_gives_the_same_schedule_and_the_same_course_each_time():
    first, again = (carry_out(schedule_of(7), traced=True) for _ in range(2))
    assert first.schedule == again.schedule
    assert first.trace == again.trace
    assert first.trace != carry_out(schedule_of(8), traced=True).trace


def test_the_schedules_of_ci_have_all_that_users_do_and_every_kind_of_fault():
    kinds = {deed.kind for seed in range(2_000) for deed in schedule_of(seed).deeds}
    assert kinds == {SUBMIT, *RARE, *USERS, *FAULTS}


def test_the_schedules_of_ci_are_of_sites_of_all_sorts():
    sites = [schedule_of(seed).site for seed in range(2_000)]
    assert {site.order for site in sites} == {"fifo", "lifo", "drf", "fair_share"}
    for name in ("backfill", "preemption", "defragment"):
        assert {getattr(site, name) for site in sites} == {False, True}
    assert {kind for site in sites for kind, *_ in site.limits} == {"users", "projects", "resource_groups"}
    assert any(site.shares for site in sites)


def test_a_worker_may_die_right_before_a_commit_and_right_after_it():
    def is_placed_when_it_dies(number: int, *, after: bool) -> bool:
        kill = fault(1.0, "kill", commits=number, after=after, visits_go_on=True, for_s=5.0)
        verdict = carried_out(kill, submission())
        assert verdict.broken is None
        before = "\n".join(verdict.trace).partition("the daemon is killed")[0]
        return "PENDING → SCHEDULED" in before

    differ = [n for n in range(1, 20) if is_placed_when_it_dies(n, after=True) > is_placed_when_it_dies(n, after=False)]
    assert len(differ) == 1
