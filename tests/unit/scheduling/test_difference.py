"""What came and went between two sequences."""

from hypothesis import given
from hypothesis import strategies as st

from muster.core.scheduling.memory.difference import Changes, are_the_same, difference
from tests.properties import cheap


class _Value:
    """A value that equals all others: only its identity counts."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


_VALUES = [_Value() for _ in range(60)]
_some = st.lists(st.integers(0, 59), unique=True, max_size=60).map(lambda numbers: [_VALUES[n] for n in numbers])


def _ids(values: list[_Value]) -> list[int]:
    return [id(value) for value in values]


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[_Value], list[_Value]]:
    """Draw values, and the same with some taken out, put in, put in another place, or in place of others."""
    numbers = list(range(draw(st.integers(0, 40))))
    before = [_VALUES[n] for n in numbers]
    others = iter(range(40, 60))
    for _ in range(draw(st.integers(0, 20))):
        place = draw(st.integers(0, max(0, len(numbers) - 1)))
        match draw(st.sampled_from(("take out", "put in", "replace", "move"))):
            case "take out":
                del numbers[place : place + 1]
            case "put in":
                numbers.insert(place, next(others))
            case "replace":
                numbers[place : place + 1] = [next(others)]
            case "move":
                numbers[place:] = numbers[place + 1 :] + numbers[place : place + 1]
    return before, [_VALUES[n] for n in numbers]


@cheap
@given(edited() | st.tuples(_some, _some))
def test_the_difference_is_what_is_in_one_of_them_only(pair):
    before, now = pair
    gone, new = difference(tuple(before), tuple(now))
    assert sorted(_ids(gone)) == sorted(set(_ids(before)) - set(_ids(now)))
    assert sorted(_ids(new)) == sorted(set(_ids(now)) - set(_ids(before)))
    assert are_the_same(before, now) == (_ids(before) == _ids(now))


@cheap
@given(_some, st.lists(st.tuples(_some, st.booleans()), max_size=5))
def test_changes_lead_from_what_was_asked_for_to_what_is_there_now(first, later):
    changes: Changes[_Value] = Changes()
    changes.add([], first)
    known: dict[int, _Value] = {}
    before = first
    for now, is_asked in [*later, (first, True)]:
        changes.add(*difference(before, now))
        before = now
        if is_asked:
            gone, new = changes.taken()
            for value in gone:
                del known[id(value)]
            known.update((id(value), value) for value in new)
            assert known.keys() == set(_ids(now))
