"""A failing schedule is shrunk to what it needs."""

from tests.simulation.checks.promises import BrokenPromiseError
from tests.simulation.schedules import Deed, Schedule
from tests.simulation.shrinking import only, shrink
from tests.simulation.world import Verdict

DEEDS = tuple(Deed(float(place), kind) for place, kind in enumerate("abcdefghij"))
SCHEDULE = Schedule(1, (), DEEDS)


def breaks_with(*kinds: str, otherwise: str = ""):
    """Return a run that breaks a promise if all of these happen, and another one `otherwise`."""

    def run(schedule: Schedule) -> Verdict:
        happens = {deed.kind for deed in schedule.deeds}
        kind = "twice" if set(kinds) <= happens else otherwise
        return Verdict(schedule, BrokenPromiseError(kind, "…") if kind else None)

    return run


def kept(run) -> str:
    return "".join(deed.kind for deed in only(SCHEDULE, shrink(SCHEDULE, run)).deeds)


def test_shrinking_leaves_out_what_the_failure_does_not_need():
    assert kept(breaks_with("c", "d", "j")) == "cdj"


def test_one_deed_is_enough_where_one_is_enough():
    assert kept(breaks_with("h")) == "h"


def test_a_failure_that_needs_nothing_keeps_nothing():
    assert kept(breaks_with()) == ""


def test_another_broken_promise_is_not_the_one_that_is_sought():
    assert kept(breaks_with("b", "i", otherwise="liveness")) == "bi"


def test_a_schedule_that_breaks_nothing_stays_whole():
    assert kept(breaks_with("z")) == "abcdefghij"
