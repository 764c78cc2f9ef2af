"""What may start without delaying the head, against what is free in both states worked out anew each time."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from muster.core.scheduling.placement import Gang, Mix, PlacementState, gang_of
from muster.core.scheduling.repack import placed_each
from muster.core.scheduling.room import Room
from tests.strategies.agents import agents
from tests.unit.scheduling.test_placement_state import fill, policies, sessions

gangs = sessions.map(lambda waiting: [gang_of(session, overlay=True) for session in waiting])
TIMES = st.lists(st.booleans(), min_size=12, max_size=12)
NOBODY: frozenset[str] = frozenset()


def two_states(known, taken, policy) -> tuple[PlacementState, PlacementState]:
    """Return what is free now, and beside the head: there some of what runs has ended, and the head has its place."""
    now = PlacementState.of(known, {}, policy, Mix())
    then = now.copy()
    fill(now, taken[::2])
    fill(then, taken[1::2])
    return now, then


def placed_anew(now: PlacementState, then: PlacementState, wanted: Sequence[Gang], in_time: Sequence[bool]):
    """Yield what each gang is given, with `now` and `then` as they are after it."""
    for gang, is_over in zip(wanted, in_time, strict=False):
        given = now if is_over else now.least(then)
        allocations = given.place(gang, NOBODY)
        if allocations is not None and not is_over:
            now.take_as(given, gang)
            then.take_as(given, gang)
        yield allocations


@given(agents(min_size=1, max_size=3), sessions, gangs, TIMES, policies)
def test_each_gets_what_both_have_or_what_is_free_now(known, taken, wanted, in_time, policy):
    now, then = two_states(known, taken, policy)
    expected = list(placed_anew(now.copy(), then.copy(), wanted, in_time))
    room = Room(now, then)
    for gang, is_over, allocations in zip(wanted, in_time, expected, strict=False):
        assert room.place(gang, NOBODY, in_time=is_over) == allocations
        assert room.given(in_time=False).free == now.least(then).free


@given(agents(min_size=1, max_size=3), sessions, gangs, TIMES, policies)
def test_together_they_get_what_they_get_one_after_the_other(known, taken, wanted, in_time, policy):
    now, then = two_states(known, taken, policy)
    one_by_one = Room(now.copy(), then.copy())
    given_each = Room(now, then).place_each(wanted, in_time[: len(wanted)])
    for gang, is_over, allocations in zip(wanted, in_time, given_each, strict=False):
        assert one_by_one.place(gang, NOBODY, in_time=is_over) == allocations
    assert one_by_one.given(in_time=True).free == now.free
    assert one_by_one.given(in_time=False).free == now.least(then).free


@given(agents(min_size=1, max_size=3), sessions, gangs, TIMES, policies)
def test_what_is_given_back_and_taken_again_leaves_all_as_it_was(known, taken, wanted, in_time, policy):
    now, then = two_states(known, taken, policy)
    room = Room(now, then)
    for gang, is_over in zip(wanted, in_time, strict=False):
        allocations = room.place(gang, NOBODY, in_time=is_over)
        if allocations is not None:
            before = now.free, then.free
            (lying,) = placed_each([gang], [NOBODY], [allocations])
            room.release(tuple(lying.kernels), in_time=is_over)
            assert room.given(in_time=False).free == now.least(then).free
            room.take(tuple(lying.kernels), in_time=is_over)
            assert (now.free, then.free) == before
            assert room.given(in_time=False).free == now.least(then).free
