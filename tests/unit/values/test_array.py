"""Indexes of arrays: as they are written, and as they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.values.array import MAX_INDEXES, array_indexes, array_most, format_indexes
from tests.properties import cheap


@pytest.mark.parametrize(
    ("text", "indexes", "most"),
    [
        ("5", (5,), None),
        ("0-3", (0, 1, 2, 3), None),
        ("1,3,5-9:2", (1, 3, 5, 7, 9), None),
        ("0-10:4%2", (0, 4, 8), 2),
        ("3,1-2,2", (1, 2, 3), None),
        ("0, 2-3%100", (0, 2, 3), 100),
        (f"0-{MAX_INDEXES - 1}", tuple(range(MAX_INDEXES)), None),
    ],
)
def test_an_array_is_indexes_and_how_many_may_run_at_once(text, indexes, most):
    assert (array_indexes(text), array_most(text)) == (indexes, most)


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "-1", "1-", "a", "1-b", "3-1", "0-9:0", "1:2", "0-9%", "0-9%0", "0-9%-1", "0-9%1%2", "1 2", "٣",
     f"0-{MAX_INDEXES}", "0-999999999", "0-9999999999"],
)  # fmt: skip
def test_an_invalid_array_is_refused(text):
    with pytest.raises(ValueError, match=r"index|range|number"):
        array_indexes(text)


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([2, 1, 0, 5], "0-2,5"), ([0, 2, 4, 6, 8], "0,2,4,6,…")],
)
def test_indexes_are_shown_as_ranges_and_no_more_than_four(indexes, text):
    assert format_indexes(indexes) == text


@cheap
@given(st.sets(st.integers(0, 9999), min_size=1, max_size=8))
def test_indexes_shown_without_ellipsis_read_back(indexes):
    text = format_indexes(indexes)
    assert text.endswith("…") or array_indexes(text) == tuple(sorted(indexes))
