"""Plots: axes with even steps, gaps, everything inside the picture, and no text that a browser would run."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.web.drawing.plots import (
    BYTES,
    CORES,
    COUNT,
    Bar,
    Series,
    bar_plot,
    line_plot,
    numbers,
    time_ticks,
    value_ticks,
)
from tests.properties import cheap

NOW = 1_763_724_000.0
NASTY = '"><script>alert("x")</script>&'
values = st.none() | st.floats(0, 1e15)


def picture(figure):
    """Return the SVG, which must be well-formed."""
    return ET.fromstring(re.search(r"<svg.*?</svg>", figure, re.DOTALL)[0])


def numbers_of(path):
    return [float(number) for number in re.findall(r"-?[\d.]+", path)]


@cheap
@given(st.lists(values, max_size=50), st.sampled_from([COUNT, CORES, BYTES]))
def test_lines_lie_within_the_picture_whatever_the_values(amounts, unit):
    points = [(NOW + 60 * number, amount) for number, amount in enumerate(amounts)]
    root = picture(line_plot([Series("used", points, is_area=True)], NOW, NOW + 3600, unit, "use"))
    for path in root.iter("path"):
        found = numbers_of(path.get("d"))
        assert all(-1 <= x <= 481 for x in found[::2])
        assert all(9 <= y <= 177 for y in found[1::2])


def test_a_gap_is_no_line():
    points = [(NOW, 1.0), (NOW + 60, 2.0), (NOW + 120, None), (NOW + 180, 1.0), (NOW + 240, 2.0)]
    root = picture(line_plot([Series("used", points)], NOW, NOW + 300, COUNT, "use"))
    assert [path.get("d").count("M") for path in root.iter("path")] == [1, 1]


def test_a_point_between_two_gaps_is_seen():
    points = [(NOW, None), (NOW + 60, 2.0), (NOW + 120, None)]
    (path,) = picture(line_plot([Series("used", points)], NOW, NOW + 300, COUNT, "use")).iter("path")
    begin, _, end, _ = numbers_of(path.get("d"))
    assert end - begin > 5


def test_nothing_known_is_an_empty_picture():
    root = picture(line_plot([Series("used", [(NOW, None)])], NOW, NOW + 60, COUNT, "use"))
    assert list(root.iter("path")) == []


@pytest.mark.parametrize(
    "figure",
    [
        lambda: line_plot([Series(NASTY, [(NOW, 1.0)])], NOW, NOW + 60, COUNT, NASTY),
        lambda: bar_plot([NASTY], [Bar(NASTY, [1.0])], COUNT, NASTY),
    ],
)
def test_texts_are_shown_and_not_run(figure):
    made = str(figure())
    assert "<script" not in made
    assert picture(made).get("aria-label") == NASTY
    assert " style=" not in made


@cheap
@given(st.floats(0, 1e18), st.sampled_from([COUNT, BYTES]))
def test_value_ticks_are_few_even_and_reach_the_most(most, unit):
    ticks = value_ticks(most, unit)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6
    assert all(after > before for before, after in pairwise(ticks))


def test_value_ticks_of_people():
    assert value_ticks(7.3, COUNT) == [0, 2, 4, 6, 8]
    assert value_ticks(100, COUNT) == [0, 20, 40, 60, 80, 100]
    assert [BYTES.text(tick) for tick in value_ticks(251 << 30, BYTES)] == [
        "0 B",
        "64 GiB",
        "128 GiB",
        "192 GiB",
        "256 GiB",
    ]


def test_times_are_even_and_in_utc():
    noon = datetime(2026, 11, 22, 12, 0, tzinfo=UTC).timestamp()
    assert [label for _, label in time_ticks(noon - 3600, noon)] == [
        *("11:00", "11:10", "11:20", "11:30", "11:40", "11:50", "12:00")
    ]
    day = [label for _, label in time_ticks(noon - 86400, noon)]
    assert day == ["12:00", "16:00", "20:00", "00:00", "04:00", "08:00", "12:00"]
    assert next(label for _, label in time_ticks(noon - 7 * 86400, noon)) == "Mon 16"


@cheap
@given(st.floats(1e9, 2e9), st.floats(60, 4e8))
def test_time_ticks_lie_within_the_time_and_are_few(since, length):
    ticks = time_ticks(since, since + length)
    assert len(ticks) <= 8
    assert all(since <= time <= since + length for time, _ in ticks)


def test_bars_are_to_scale_and_say_their_values():
    root = picture(bar_plot(["given", "used"], [Bar("ada", [100.0, 25.0]), Bar("eve", [50.0, 0.0])], COUNT, "hours"))
    widths = [float(bar.get("width")) for bar in root.iter("rect")]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 0.25, 0.5, 0])
    texts = [text.text for text in root.iter("text")]
    assert texts == ["ada", "100", "25", "eve", "50", "0"]


def test_numbers_of_what_is_known():
    figures = numbers([(1, 4.0), (2, None), (3, 2.0), (4, None)])
    assert (figures.now, figures.mean, figures.most) == (2, 3, 4)
    assert numbers([(1, None)]).now is None
