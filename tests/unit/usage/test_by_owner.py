"""Owners' recent usage, which decays with time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.usage.by_owner import SessionRun, decay, decayed_usage
from muster.core.values.slots import Slots
from tests.properties import cheap
from tests.strategies.values import NOW

DAY = 86400.0
CAPACITY = {"default": Slots(cpu=8000, mem=8 << 30)}


def run(begin: float, end: float, owner: str = "ada", cpu: int = 4000, group: str = "default") -> SessionRun:
    return SessionRun(owner, group, Slots(cpu=cpu, mem=1 << 30), NOW + begin, NOW + end)


def test_an_owner_that_always_held_half_of_the_group_has_used_a_half():
    assert decayed_usage([run(-1000 * DAY, 0)], NOW, DAY, CAPACITY)["ada"] == pytest.approx(0.5)


def test_time_counts_half_for_each_half_life_that_passed():
    usage = decayed_usage([run(-2 * DAY, -DAY, "ada"), run(-DAY, 0, "bob")], NOW, DAY, CAPACITY)
    assert usage["bob"] == pytest.approx(0.25)
    assert usage["ada"] == pytest.approx(usage["bob"] / 2)


def test_the_largest_share_of_any_slot_counts_and_a_group_without_agents_does_not():
    runs = [
        SessionRun("ada", "default", Slots(cpu=1000, mem=8 << 30), NOW - 1000 * DAY, NOW),
        run(-DAY, 0, "bob", group="gone"),
    ]
    assert decayed_usage(runs, NOW, DAY, CAPACITY) == {"ada": pytest.approx(1.0)}


@cheap
@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20), st.integers(0, 8)), max_size=6),
    st.floats(0, 10),
)
def test_earlier_usage_decays_and_later_usage_is_added(days, later):
    runs = [run(-max(a, b) * DAY, -min(a, b) * DAY, cpu=cpu * 1000) for a, b, cpu in days]
    now = NOW + later * DAY
    whole = decayed_usage(runs, now, DAY, CAPACITY).get("ada", 0.0)
    before = decayed_usage(runs, NOW, DAY, CAPACITY).get("ada", 0.0)
    assert whole == pytest.approx(before * decay(later * DAY, DAY))
    assert 0 <= before <= len(runs)
