"""Amounts, spans and points in time as users write and read them."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.values.units import (
    exact_bytes,
    exact_duration,
    exact_moment,
    format_age,
    format_bytes,
    format_duration,
    format_hours,
    format_minute,
    format_moment,
    format_seconds,
    parse_bytes,
    parse_duration,
    parse_moment,
    spell_bytes,
)
from tests.properties import cheap

CET = timezone(timedelta(hours=1))
NOW = datetime(2026, 11, 21, 18, 30, 15, tzinfo=CET)


def at(*parts: int, zone: timezone = CET) -> float:
    return datetime(*parts).replace(tzinfo=zone).timestamp()  # noqa: DTZ001 - the zone follows


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-22T08:00", at(2026, 11, 22, 8)),
        ("2026-11-22 08:00:30", at(2026, 11, 22, 8, 0, 30)),
        ("2026-11-22T08:00Z", at(2026, 11, 22, 8, zone=UTC)),
        ("2026-11-22T08:00+05:30", at(2026, 11, 22, 2, 30, zone=UTC)),
        ("2026-11-22", at(2026, 11, 22)),
        (date(2026, 11, 22), at(2026, 11, 22)),
        (datetime(2026, 11, 22, 8, tzinfo=UTC), at(2026, 11, 22, 8, zone=UTC)),
        ("2020-01-01", at(2020, 1, 1)),
        ("19:00", at(2026, 11, 21, 19)),
        ("18:30", at(2026, 11, 22, 18, 30)),
        ("18:30:16", at(2026, 11, 21, 18, 30, 16)),
        ("8:05", at(2026, 11, 22, 8, 5)),
        ("now", NOW.timestamp()),
        ("now+1h", NOW.timestamp() + 3600),
        ("+90m", NOW.timestamp() + 5400),
        (" Now + 2d ", NOW.timestamp() + 2 * 86400),
        (1_795_334_400, 1_795_334_400.0),
    ],
)
def test_a_point_in_time_is_read_in_the_zone_of_now(text, seconds):
    assert parse_moment(text, NOW) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "soon", "24:00", "12:60", "8", "now-1h", "now+", "+0s", "2026-13-01", "2026-11-22T", "0001-01-01",
     "9999-12-31", "now+9999999d",
     "now+999999999d", 750, 0, -1, float("nan"), float("inf"), True, None, "08:00 tomorrow"],
)  # fmt: skip
def test_an_invalid_point_in_time_is_refused(text):
    with pytest.raises(ValueError, match=r"point in time|too far"):
        parse_moment(text, NOW)


def test_a_time_of_day_is_right_across_a_change_of_the_clocks():
    """In the night to 25 October 2026 an hour happens twice in Berlin: between 18:00 and 08:00 there are 15 hours."""
    evening = datetime(2026, 10, 24, 18, tzinfo=ZoneInfo("Europe/Berlin"))
    assert parse_moment("08:00", evening) == evening.timestamp() + 15 * 3600


@pytest.mark.parametrize(
    ("now", "text", "hours_utc"),
    [
        # Clocks show 2:00 to 3:00 twice, from 0:00 UTC on and from 1:00 UTC on.
        ((2, 10, 1), "2:30", 1.5),
        ((2, 40, 0), "2:30", 1.5),
        ((2, 10, 0), "2:30", 0.5),
        ((2, 40, 1), "2:30", 25.5),
        ((1, 0, 0), "2:30", 0.5),
        ((4, 0, 0), "2:30", 25.5),
    ],
)
def test_a_time_that_clocks_show_twice_is_the_next_one_of_them(now, text, hours_utc):
    hour, minute, fold = now
    night = datetime(2026, 10, 25, hour, minute, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    assert parse_moment(text, night) == at(2026, 10, 25, zone=UTC) + hours_utc * 3600


def test_a_time_that_clocks_leave_out_is_an_hour_later():
    night = datetime(2026, 3, 29, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert parse_moment("2:30", night) == at(2026, 3, 29, 1, 30, zone=UTC)


@cheap
@given(st.integers(1_100_000_000, 4_000_000_000), st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_is_the_next_such_time(seconds, hour, minute):
    now = datetime.fromtimestamp(seconds, CET)
    found = datetime.fromtimestamp(parse_moment(f"{hour:02}:{minute:02}", now), CET)
    assert (found.hour, found.minute, found.second) == (hour, minute, 0)
    assert timedelta(0) < found - now <= timedelta(days=1)


@given(st.integers(0, 1 << 50))
@cheap
def test_exact_bytes_are_read_as_the_same_amount(amount):
    assert parse_bytes(exact_bytes(amount)) == amount


@given(st.integers(1, 10**8))
@cheap
def test_an_exact_span_is_read_as_the_same_span(seconds):
    assert parse_duration(exact_duration(seconds)) == seconds


@given(st.floats(NOW.timestamp(), NOW.timestamp() + 10**8))
@cheap
def test_an_exact_moment_is_read_as_the_same_moment(seconds):
    assert abs(parse_moment(exact_moment(seconds), NOW) - seconds) < 1e-5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(1536 << 20), "1.5G"),
        (exact_bytes(1536 << 20), "1536M"),
        (exact_bytes((1 << 30) + (1 << 20)), "1025M"),
        (exact_bytes(0), "0"),
        (spell_bytes(1536 << 20), "1.5 GiB"),
        (spell_bytes(2112 << 20), "2.062 GiB"),
        (spell_bytes(512), "512 B"),
        (format_duration(7384), "2h3m"),
        (format_duration(7 * 3600 + 55), "7h"),
        (format_duration(86400 + 3540), "1d"),
        (exact_duration(7384), "2h3m4s"),
        (format_duration(0), "0s"),
        (format_age(NOW.timestamp(), NOW.timestamp() + 90), "1m30s"),
        (format_age(NOW.timestamp() + 5, NOW.timestamp()), "0s"),
        (format_seconds(12.34), "12.3 s"),
        (format_moment(NOW.timestamp()), "2026-11-21 17:30:15 UTC"),
        (format_minute(NOW.timestamp()), "2026-11-21 17:30 UTC"),
    ],
)
def test_each_form_is_written_in_one_way(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0, "0.00"), (1234.5, "1,234.50"), (0.5, "0.50"), (0.01, "0.01"), (0.0042, "0.004"), (1e-5, "0.00001")],
)
def test_short_hours_keep_their_first_digit(hours, text):
    assert format_hours(hours) == text
