"""The times of a usage report, as people write them."""

from datetime import UTC, datetime

import pytest

from muster.core.values.units import FIRST_MOMENT, timestamp
from muster.service.usage.reports import point_or_ago


@pytest.mark.usefixtures("summer_time_in_summer")
@pytest.mark.parametrize("now", [datetime(2026, 1, 20, tzinfo=UTC), datetime(2026, 7, 20, tzinfo=UTC)])
def test_a_time_is_the_one_that_clocks_showed_on_that_day(now):
    for text, at in (
        ("2025-12-01T08:00", datetime(2025, 12, 1, 7, tzinfo=UTC)),
        ("2025-08-01T08:00", datetime(2025, 8, 1, 6, tzinfo=UTC)),
    ):
        assert point_or_ago(text, now.timestamp(), "--since") == at.timestamp()


def test_a_time_ago_that_no_calendar_holds_means_since_the_first_moment():
    now = datetime(2026, 7, 20, tzinfo=UTC).timestamp()
    assert point_or_ago("7d", now, "--since") == now - 7 * 86400
    for long_ago in ("999999999d", "99999d", "10000d"):
        first = point_or_ago(long_ago, now, "--since")
        # The client sends the point in time to a server.
        assert point_or_ago(str(timestamp(first)), now, "since") == first == FIRST_MOMENT
