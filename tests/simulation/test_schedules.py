"""Every promise is kept in 2,000 schedules of users and faults, the same ones in every run."""

import pytest

from tests.properties import PROFILE
from tests.simulation.schedules import FAULTS, SUBMIT, USERS, schedule_of
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
    assert kinds == {SUBMIT, *USERS, *FAULTS}
