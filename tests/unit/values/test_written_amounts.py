"""Spans of time, bytes and cores as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_milli
from tests.properties import cheap

GI = 1 << 30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("2d", 172800),
        (10, 600),
        ("10", 600),
        ("10:30", 630),
        ("1:00:00", 3600),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:00:00", 129600),
        (" 5M ", 300),
    ],
)
def test_times_are_written_as_for_slurm_or_with_units(text, seconds):
    assert parse_duration(text) == seconds
    assert SessionSpec.model_validate({"time_limit": text}).time_limit == seconds


@pytest.mark.parametrize("text", ["", "-5", "1.5h", "1:2:3:4", "h", "1w", "0", "0s", "infinite", "1-", None, True])
def test_an_invalid_time_is_refused(text):
    with pytest.raises(ValueError, match="span of time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [(1024, 1024), ("1k", 1024), ("1K", 1024), ("512M", 512 << 20), ("1G", GI), ("1GiB", GI), ("1.5g", 3 * GI // 2),
     ("2TB", 2 << 40), ("0", 0), ("10B", 10)],
)  # fmt: skip
def test_bytes_are_powers_of_1024(text, amount):
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "G", "1X", "-1", "1GG", "nan", "inf", "0x10", None, "1 2", "1e99999999"])
def test_an_invalid_amount_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "amount"), [(2, 2000), (0.5, 500), ("1.25", 1250), ("500m", 500), ("0", 0)])
def test_cores_are_counted_in_thousandths(text, amount):
    assert parse_milli(text) == amount


@pytest.mark.parametrize("text", ["", "m", "-1", "0.0001", "0.5m", "nan", "inf", "snan", "1e99999999", None, "two"])
def test_an_invalid_number_of_cores_is_refused(text):
    with pytest.raises(ValueError, match=r"number|thousandth"):
        parse_milli(text)


@cheap
@given(st.integers(0, 10**9))
def test_thousandths_survive_being_written(amount):
    assert parse_milli(f"{amount}m") == amount


@cheap
@given(st.integers(0, 1 << 50))
def test_bytes_for_people_are_near_the_truth(amount):
    assert abs(parse_bytes(format_bytes(amount)) - amount) <= amount * 0.06


@cheap
@given(st.integers(1, 10**8))
def test_a_time_for_people_reads_back_as_its_two_largest_units(seconds):
    back = parse_duration(format_duration(seconds))
    assert back <= seconds < back + (3600 if seconds >= 86400 else 60)
