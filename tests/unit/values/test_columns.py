"""Values from columns are those that their class makes one by one."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.session import Allocation, GpuShare
from muster.core.values.columns import values_of
from tests.properties import cheap

_SHARES = st.builds(
    GpuShare, st.text(max_size=3), st.integers(0, 4000), st.booleans(), st.none() | st.integers(1, 4000)
)


@cheap
@given(st.lists(_SHARES, max_size=5))
def test_values_from_columns_are_those_that_are_made_one_by_one(shares: list[GpuShare]):
    uuids, amounts = [share.uuid for share in shares], [share.amount for share in shares]
    made = values_of(GpuShare, uuids, amounts, [share.whole for share in shares], [share.capacity for share in shares])
    assert made == shares
    assert list(map(hash, made)) == list(map(hash, shares))
    assert list(map(repr, made)) == list(map(repr, shares))


def test_values_from_columns_are_frozen():
    (made,) = values_of(GpuShare, ["GPU-1"], [1000], [True], [1000])
    with pytest.raises(FrozenInstanceError):
        made.amount = 500  # type: ignore[misc]


def test_a_column_for_each_field_is_required():
    # The fields that follow have defaults, which only the class itself would fill in.
    with pytest.raises(ValueError, match="shorter"):
        values_of(Allocation, ["a1"])


def test_columns_are_of_the_same_length():
    with pytest.raises(ValueError, match="shorter"):
        values_of(GpuShare, ["GPU-1", "GPU-2"], [1000], [True, True])
